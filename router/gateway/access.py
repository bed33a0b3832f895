"""One canonical log line a request: who, where to, why, how long. Never prompts, keys or salts."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec
from msgspec import Struct

from router.domain.decision import Decision
from router.domain.units import Seconds, Tokens

_LOG = logging.getLogger("prfaas.access")


class Outcome(Struct):
    """What became of one request, filled in as it goes."""

    request_id: str
    path: str
    started: Seconds
    tenant: str | None = None
    model: str | None = None
    total_tokens: Tokens | None = None
    decision: Decision | None = None
    status: int = 0
    error: str | None = None


class RequestHook(Protocol):
    """Watches requests; metrics hang here. Implementations never raise."""

    def request_finished(self, decision: Decision | None, status: int, elapsed: Seconds) -> None:
        """Told once of every request, after its last byte."""
        ...


class AccessLog(Protocol):
    """Takes the requests' lines. Cheap, and never raises."""

    @property
    def is_on(self) -> bool:
        """Whether lines are wanted at all."""
        ...

    def write(self, line: bytes) -> None:
        """Take one line, without its end."""
        ...


class RecordedAccess:
    """Writes each line as a record of Python's logging."""

    @property
    def is_on(self) -> bool:
        """Whether the level lets records pass."""
        return _LOG.isEnabledFor(logging.INFO)

    def write(self, line: bytes) -> None:
        """Log one line."""
        _LOG.info("%s", line.decode())


_ENCODER = msgspec.json.Encoder()


def form_line(outcome: Outcome, elapsed: Seconds) -> bytes:
    """Return the request's line: one JSON object."""
    decision = outcome.decision
    line: dict[str, object] = {
        "request_id": outcome.request_id,
        "path": outcome.path,
        "status": outcome.status,
        "seconds": round(elapsed, 4),
        "tenant": outcome.tenant,
        "model": outcome.model,
    }
    if decision is not None:
        line |= {
            "route": decision.route,
            "reason": decision.reason,
            "prefill": decision.prefill.instance if decision.prefill else None,
            "decode": decision.decode.instance,
            "total_tokens": outcome.total_tokens,
            "uncached_tokens": decision.uncached_tokens,
            "threshold": decision.threshold,
        }
    if outcome.error is not None:
        line["error"] = outcome.error
    return _ENCODER.encode(line)
