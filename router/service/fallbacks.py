"""What comes after a leg that failed before the client got anything: a pure table (DESIGN 7).

| what failed | first time | again |
|---|---|---|
| remote prefill | a local prefill; without one the decode instance computes | give up |
| local prefill | another local one; without one as above, if the first cannot have run | give up |
| no hand-off | the decode instance computes | |
| hand-off too old | prefill again | the decode instance computes |
| decode that cannot have run | another decode instance, after a fresh prefill | until `attempts` |
| decode that may have run | give up | |

Prefills only fill caches, so one may run twice. What may break engines (a failure that may have
been processed, with no other prefill left) is kept from the decode instance.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from router.domain.decision import Decision, Reason, Route
from router.domain.errors import NobodyAlive, Overloaded, RouterError, UpstreamError
from router.domain.units import Tokens
from router.service.relay_ports import Fallback, Leg


class Progress(Struct, frozen=True, gc=False):
    """How far a request has come. `excluded` are the instances that failed it."""

    decision: Decision
    excluded: frozenset[str] = frozenset()
    prefill_replaced: bool = False
    renewed: bool = False
    decodes: int = 0

    def follow(self, decision: Decision) -> Progress:
        """Return the progress with another decision in force."""
        return replace(self, decision=decision)


@dataclass(frozen=True, slots=True)
class FailedLeg:
    """A leg failed before anything reached the client; `overloaded` where it was a 503."""

    leg: Leg
    error: UpstreamError
    overloaded: bool = False


@dataclass(frozen=True, slots=True)
class NoHandoff:
    """A prefill answered without one."""


@dataclass(frozen=True, slots=True)
class ExpiredHandoff:
    """A hand-off grew older than its lease allows."""


Setback = FailedLeg | NoHandoff | ExpiredHandoff


@dataclass(frozen=True, slots=True)
class GoOn:
    """Carry on with `progress.decision`."""

    progress: Progress
    fallback: Fallback


@dataclass(frozen=True, slots=True)
class ReplanPrefill:
    """Ask for a local prefill; `exhausted` is the error if none is left.

    None where the decode instance may compute the prompt then.
    """

    progress: Progress
    fallback: Fallback
    reason: Reason
    exhausted: RouterError | None


@dataclass(frozen=True, slots=True)
class ReplanDecode:
    """Ask for another decode instance; `exhausted` is the error if there is none."""

    progress: Progress
    fallback: Fallback
    exhausted: RouterError


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The client is told."""

    error: RouterError


Step = GoOn | ReplanPrefill | ReplanDecode | GiveUp


def after_setback(progress: Progress, setback: Setback, *, attempts: int) -> Step:
    """Return what to do next; `attempts` bounds the decode legs of one request."""
    match setback:
        case NoHandoff():
            return GoOn(progress.follow(decode_only(progress.decision)), Fallback.NO_HANDOFF)
        case ExpiredHandoff():
            decision = progress.decision
            again = decode_only(decision) if progress.renewed else decision
            renewed = replace(progress, decision=again, renewed=True)
            return GoOn(renewed, Fallback.HANDOFF_EXPIRED)
        case FailedLeg(leg=Leg.PREFILL, error=error):
            return _after_prefill(progress, error)
        case FailedLeg(error=error, overloaded=overloaded):
            return _after_decode(progress, error, attempts, overloaded=overloaded)


def _after_prefill(progress: Progress, error: UpstreamError) -> Step:
    if progress.prefill_replaced:
        return GiveUp(error)
    decision = progress.decision
    remote = decision.route is Route.PRFAAS
    return ReplanPrefill(
        replace(progress, prefill_replaced=True, excluded=progress.excluded | {error.instance}),
        fallback=Fallback.REMOTE_PREFILL_FAILED if remote else Fallback.LOCAL_PREFILL_FAILED,
        reason=Reason.REMOTE_PREFILL_FAILED if remote else decision.reason,
        exhausted=error if error.processed and not remote else None,
    )


def _after_decode(
    progress: Progress, error: UpstreamError, attempts: int, *, overloaded: bool
) -> Step:
    if error.processed or progress.decodes + 1 >= attempts:
        return GiveUp(error)
    exhausted: RouterError = NobodyAlive("no instance can take the request now")
    if overloaded:
        exhausted = Overloaded("every instance is at its limit")
    return ReplanDecode(
        replace(
            progress,
            excluded=progress.excluded | {error.instance},
            decodes=progress.decodes + 1,
        ),
        fallback=Fallback.DECODE_FAILED,
        exhausted=exhausted,
    )


def decode_only(decision: Decision) -> Decision:
    """Return the decision with the prompt computed where it is decoded.

    What is cached is then what that instance has.
    """
    remote = decision.route is Route.PRFAAS
    return replace(
        decision,
        route=Route.LOCAL,
        reason=Reason.REMOTE_PREFILL_FAILED if remote else decision.reason,
        prefill=None,
        compute_uncached_tokens=_uncached_at_decode(decision),
        kv_bytes=None,
        prefix_transfer=None,
    )


def _uncached_at_decode(decision: Decision) -> Tokens:
    """Return what the decode instance has to compute of a prompt that was to come from elsewhere.

    The prompt's length is what the prefill had to compute and what it had or was sent.
    """
    transfer, prefill = decision.prefix_transfer, decision.prefill
    had = transfer.tokens if transfer else (prefill and prefill.cached_tokens) or 0
    total = decision.compute_uncached_tokens + had
    return max(1, total - (decision.decode.cached_tokens or 0))
