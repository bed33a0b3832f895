"""`label`: engines that serve both roles as they run; only the router's view of them changes."""

from __future__ import annotations

from collections.abc import Sequence

from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed, NotFound
from router.domain.topology import Instance
from router.service.fleet import Fleet
from router.service.members import Member


class LabelActuator:
    """Implements `Actuator` for instances that are marked `convertible`: there is nothing to do."""

    in_place = True

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def choose(self, _model: str, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Any of them."""
        return instances

    async def act(self, conversion: Conversion) -> None:
        """Leave the engine alone. Raises ActuationFailed for one that is not marked."""
        if not self._member(conversion).instance.convertible:
            raise ActuationFailed(f"{conversion.instance} is not marked convertible")

    async def confirm(self, conversion: Conversion) -> bool:
        """Whether the engine lives: in either role it serves the other one as well."""
        return self._member(conversion).health.alive is True

    async def undo(self, conversion: Conversion) -> None:
        """Leave the engine alone."""

    def _member(self, conversion: Conversion) -> Member:
        try:
            return self._fleet.member(conversion.instance)
        except NotFound as error:
            raise ActuationFailed(str(error)) from error
