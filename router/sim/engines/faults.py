"""Faults on request, so that tests can break an engine the way real ones break."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.sim.engines.errors import RequestError
from router.sim.engines.requests import Body


class Dead(StrEnum):
    """How an engine can be gone."""

    REFUSE = "refuse"
    """Nothing listens: connections are refused, live ones break."""
    BLACK_HOLE = "black_hole"
    """Connections are taken and never answered."""


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on. `status` answers the next `times` completions.

    `/health` waits `health_seconds` and answers `health_status`, while all else goes well.
    `broken_stream_after` breaks responses after so many parts (server-sent events).
    """

    slow_seconds: float = 0.0
    status: int | None = None
    times: int = 0
    health_seconds: float = 0.0
    health_status: int = 200
    dead: Dead | None = None
    broken_stream_after: int | None = None

    def take_status(self) -> int | None:
        """Return the status to fail the next completion with, None to let it pass."""
        if self.status is None or self.times <= 0:
            return None
        self.times -= 1
        return self.status


@dataclass(frozen=True, slots=True)
class FaultOrder:
    """One `POST /standin/faults`: fields left out stay as they are."""

    slow_seconds: float | None = None
    status: int | None = None
    times: int = 1
    health_seconds: float | None = None
    health_status: int | None = None
    dead: Dead | None = None
    sets_dead: bool = False
    broken_stream_after: int | None = None
    sets_broken: bool = False
    drop_events: int | None = None
    drop_replay: bool | None = None
    restart: bool = False
    down_seconds: float = 0.2
    clear: bool = False


def read_order(body: Body) -> FaultOrder:
    """Read an order; raises RequestError for fields that are unknown or of a wrong type."""
    known = set(FaultOrder.__dataclass_fields__) - {"sets_dead", "sets_broken"}
    unknown = sorted(set(body) - known)
    if unknown:
        raise RequestError(f"unknown faults: {', '.join(unknown)}")
    try:
        dead = None if body.get("dead") in {None, False} else Dead(str(body["dead"]))
    except ValueError as error:
        raise RequestError(str(error)) from error
    status = _whole(body, "status")
    return FaultOrder(
        slow_seconds=_number(body, "slow_seconds"),
        status=status,
        times=_whole(body, "times") or 1,
        health_seconds=_number(body, "health_seconds"),
        health_status=_whole(body, "health_status"),
        dead=dead,
        sets_dead="dead" in body,
        broken_stream_after=_whole(body, "broken_stream_after"),
        sets_broken="broken_stream_after" in body,
        drop_events=_whole(body, "drop_events"),
        drop_replay=None if body.get("drop_replay") is None else body["drop_replay"] is True,
        restart=body.get("restart") is True,
        down_seconds=_number(body, "down_seconds") or 0.2,
        clear=body.get("clear") is True,
    )


def apply_order(faults: Faults, order: FaultOrder) -> None:
    """Change `faults` as ordered; restart, dead and events are the engine's host's to carry out."""
    if order.clear:
        faults.slow_seconds, faults.status, faults.times = 0.0, None, 0
        faults.health_seconds, faults.health_status = 0.0, 200
        faults.broken_stream_after = None
    if order.slow_seconds is not None:
        faults.slow_seconds = order.slow_seconds
    if order.status is not None:
        faults.status, faults.times = order.status, order.times
    if order.health_seconds is not None:
        faults.health_seconds = order.health_seconds
    if order.health_status is not None:
        faults.health_status = order.health_status
    if order.sets_broken:
        faults.broken_stream_after = order.broken_stream_after


def _whole(body: Body, name: str) -> int | None:
    value = _number(body, name)
    return None if value is None else int(value)


def _number(body: Body, name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {value!r}")
    return value
