"""The instance that a conversion names, as the fleet knows it."""

from __future__ import annotations

from collections.abc import Callable

from router.domain.errors import ActuationFailed, NotFound
from router.domain.topology import Instance

Find = Callable[[str], Instance]
"""Returns an instance by its name. Raises NotFound."""


def find_instance(find: Find, name: str) -> Instance:
    """Return the instance. Raises ActuationFailed for one that was removed meanwhile."""
    try:
        return find(name)
    except NotFound as error:
        raise ActuationFailed(f"{name} is no instance any more") from error
