"""What routes work with, exchangeable: routes are made once, since frameworks never forget one.

FastAPI and pydantic keep every function and type that a route was ever made of in caches of their
own. An application that was built anew with each reload would stay in memory, and all that its
routes can reach with it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Self


class Room:
    """A dataclass whose contents may be exchanged as a whole, between two turns of the loop.

    A request looks at what it needs before it first waits, or at what outlives every exchange.
    """

    __slots__ = ()

    def become(self, other: Self) -> None:
        """Hold from now on what `other` holds."""
        for each in fields(other):  # type: ignore[arg-type]  # subclasses are dataclasses
            setattr(self, each.name, getattr(other, each.name))
