"""Every change that the admin API knows, each once, and what a gateway stands at.

Kept whole by `tests/integration/test_admin_changes.py`: an operation that changes something and is
not here fails it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from router.service.orders import encode_orders
from tests.fakes.systems import System

READS: Final = frozenset({"decisions:explain", "decisions:replay", "plan:solve"})
"""POSTs that change nothing, so that viewers may make them."""

REPORTS: Final = frozenset({"links/{name}/telemetry"})
"""Measurements: no orders, and for agents."""


NOTHING_UNDER_WAY: Final = frozenset({("DELETE", "conversion")})
"""Changes that are 404 where the long loop converts nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """A sound order: its method, the path in the document, the path that is called, its body."""

    method: str
    path: str
    call: str
    body: dict[str, Any] | None = None


CHANGES: Final = (
    Change("PUT", "threshold", "threshold", {"mode": "manual", "tokens": 777}),
    Change("PUT", "policy", "policy", {"policy": "expected"}),
    Change("PUT", "links/{name}", "links/west-east", {"health": "down", "capacity_gbps": 2.0}),
    Change("PUT", "bandwidth", "bandwidth?link=west-east", {"mode": "abundant"}),
    Change(
        "PUT",
        "override",
        "override",
        {"route": "local", "model": "tiny", "tenant": "acme", "ttl_seconds": 600.0},
    ),
    Change("DELETE", "override", "override?tenant=acme&model=tiny"),
    Change(
        "POST",
        "instances",
        "instances",
        {"name": "d9", "cluster": "east", "url": "http://127.0.0.1:9", "role": "decode"},
    ),
    Change("PATCH", "instances/{name}", "instances/p0", {"state": "draining", "role": "decode"}),
    Change("DELETE", "instances/{name}", "instances/d9"),
)
"""In an order in which each of them changes something."""


def standing(system: System) -> tuple[object, ...]:
    """Return all that an order or a measurement could have changed, in the process itself.

    Overrides are among the orders; those in force end by themselves.
    """
    core = system.gateway.core
    return (
        encode_orders(system.gateway.orders.orders),
        repr(system.gateway.orders),
        [(member.instance, member.state) for member in core.fleet.members],
        [
            (state.health, state.mode, state.capacity, state.telemetry, state.booked)
            for state in core.links.states
        ],
        core.operator.rules,
        len(core.log),
    )
