"""An instance that changes its role: the unit in which a PD cluster is rebalanced (DESIGN 8)."""

from __future__ import annotations

from dataclasses import dataclass

from router.domain.topology import Role


@dataclass(frozen=True, slots=True)
class Conversion:
    """One instance of a PD cluster leaves a role for another.

    `model` is the one whose stages are rebalanced by it. With `in_place` the instance takes the
    target role itself; else it ends and another one comes in that role, as pods do.
    """

    model: str
    cluster: str
    instance: str
    source: Role
    target: Role
    in_place: bool = True

    def __str__(self) -> str:
        return f"{self.instance} in {self.cluster}: {self.source} -> {self.target}"
