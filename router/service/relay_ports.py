"""What the relay needs from the rest of the service: who is where, what is counted, who watches.

The relay (`router.service.relay`) owns the course of one request; these collaborators own the
fleet, the counts and the metrics. All calls are synchronous and cheap unless marked `async`.

    relay = Relay(client=…, planner=…, ledger=…, hook=…, connector=…, clock=…, settings=…)
    async with await relay.run(request, decision) as response:
        # response.status, response.headers, response.decision (the final one)
        async for chunk in response.chunks(): …
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from router.domain.decision import Decision, NoRoute, Placement, Reason
from router.domain.topology import Instance
from router.domain.units import Bytes, Seconds, Tokens
from router.ports import Headers, Timeouts, Upload
from router.service.bodies import ClientBody


class Leg(StrEnum):
    """Which of the two calls of a request; a request of one call has only a decode leg."""

    PREFILL = "prefill"
    DECODE = "decode"


class FailureKind(StrEnum):
    """How an engine failed us (DESIGN 7)."""

    CONNECT = "connect"
    """No connection within the connect time-out, or refused."""
    TIMEOUT = "timeout"
    """Connected, then silent for too long."""
    BROKEN = "broken"
    """The connection was cut, or what came is not HTTP or not JSON."""
    STATUS = "status"
    """An answer of 5xx."""
    LOST = "lost"
    """Cut by us, since the engine was declared down and is silent."""


class Fallback(StrEnum):
    """Why a request left the course that was decided for it; a metric's label."""

    REMOTE_PREFILL_FAILED = "remote_prefill_failed"
    LOCAL_PREFILL_FAILED = "local_prefill_failed"
    NO_HANDOFF = "no_handoff"
    """The prefill answered without a hand-off: the decode instance computes the prompt."""
    HANDOFF_EXPIRED = "handoff_expired"
    DECODE_FAILED = "decode_failed"


class KvOutcome(StrEnum):
    """What became of a hand-off's bytes."""

    USEFUL = "useful"
    WASTED = "wasted"


class Target(Struct, frozen=True, gc=False):
    """An instance and the name under which it serves the request's model (or LoRA)."""

    instance: Instance
    served_name: str


class Usage(Struct, frozen=True, gc=False):
    """What an engine says it did for one request, in tokens; None where it did not say."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None


class Verbatim(Struct, frozen=True):
    """What goes to its one engine as the client sent it: a read or an order by id, or an upload."""

    method: str = "POST"
    content_type: bytes = b"application/json"
    upload: Upload | None = None


class RelayRequest(Struct, frozen=True):
    """One request that is to be answered.

    `path` is the engine's path, with the client's query if it has one. `headers` are the client's,
    names in lower case; only an allow-list of them goes on. `request_id` is the gateway's own and
    unique per call (CASES R30); engines see it with the leg appended. `model` is the name under
    which `Planner.resolve` knows what was asked for: the configured model behind an alias, or a
    LoRA; answers show `body.model`. `received_at` is on the clock's monotonic scale. With
    `verbatim` nothing of `body` is sent; such a request is never split.
    """

    path: str
    body: ClientBody
    headers: Headers
    request_id: str
    model: str
    received_at: Seconds
    verbatim: Verbatim | None = None

    def __repr__(self) -> str:
        return f"<RelayRequest {self.request_id} {self.path}>"


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Bounds of a relayed request, in seconds and bytes.

    A hand-off is good for `lease - lease_margin` after the prefill answered: vLLM's
    `kv_lease_duration` is 30 s and the decode engine renews it. When a client leaves, a running
    prefill gets `prefill_grace` to answer, and a hand-off `release_grace` to reach its decode
    engine before that leg is aborted, so that its blocks are freed and not pinned for the lease;
    both together stay under the two seconds in which everything must be gone (CASES R08, R10).
    A non-stream answer of at most `whole_body_limit` is held whole, so that a broken one is a 502.
    `decode_attempts` bounds the decode instances tried for one request.
    """

    timeouts: Timeouts = Timeouts()
    lease: Seconds = 30.0
    lease_margin: Seconds = 5.0
    prefill_grace: Seconds = 1.0
    release_grace: Seconds = 0.5
    whole_body_limit: int = 16 * 1024 * 1024
    decode_attempts: int = 3


class Planner(Protocol):
    """Knows the fleet as it is now and can decide again."""

    def resolve(self, instance: str, model: str) -> Target | None:
        """Return where `instance` is and what it calls `model`; None when it was removed."""
        ...

    async def replan_local(
        self, decision: Decision, reason: Reason, excluded: frozenset[str]
    ) -> Decision | NoRoute:
        """Decide again, for a prefill in the home PD cluster, without the `excluded` instances.

        The answer has `reason` and `Route.LOCAL`; its `prefill` is None where no live local
        prefill instance is left and the decode instance has to compute. Bounded well under a
        second: a client waits.
        """
        ...

    async def replan_decode(
        self, decision: Decision, excluded: frozenset[str]
    ) -> Decision | NoRoute:
        """Decide again with a decode instance outside `excluded`; keeps route and reason if it can.

        The prefill placement is chosen afresh as well: a hand-off is single-use. Waits, and raises,
        as `replan_local`.
        """
        ...


class Booking(Protocol):
    """A hand-off on its way: bytes reserved on a link, if it crosses one."""

    def depart(self) -> None:
        """The prefill has answered with a hand-off."""
        ...

    def arrive(self) -> None:
        """The first byte of the answer is here."""
        ...

    def release(self) -> None:
        """Give the bytes back. Idempotent."""
        ...


class Ledger(Protocol):
    """Counts what is in flight, and each engine's successes and failures.

    Every leg is entered and left exactly once, whatever happens: counts are true and never
    below zero.
    """

    def leg(
        self, leg: Leg, placement: Placement, compute_tokens: Tokens
    ) -> AbstractContextManager[None]:
        """Count one call as in flight on an instance while the block runs.

        `compute_tokens` are the prompt tokens that the call will compute there (0 for a decode
        leg with a hand-off).
        """
        ...

    def book(self, link: str, size: Bytes) -> Booking:
        """Reserve a prefix's bytes on a link, from its dispatch to the decode's first byte."""
        ...

    def hand_over(self, decision: Decision, *, streams: bool) -> Booking:
        """Reserve the bytes of the decision's hand-off, if it crosses a link, as `book` does.

        Called before its prefill is sent. With `streams` the answer's first byte comes as soon as
        the hand-off has arrived.
        """
        ...

    def succeeded(self, instance: str) -> None:
        """Note a call that an engine finished; closes its breaker."""
        ...

    def failed(self, instance: str, kind: FailureKind) -> None:
        """Note a call that an engine failed. Never called for 4xx nor for a client that left."""
        ...


class RelayHook(Protocol):
    """Watches; metrics and logs hang here. Implementations never raise."""

    def fell_back(self, decision: Decision, fallback: Fallback) -> None:
        """Told once for each change of course. `decision` is the one given up."""
        ...

    def upstream_failed(self, instance: str, leg: Leg, kind: FailureKind) -> None:
        """Told of each failed call, also those that a fallback hides from the client."""
        ...

    def prefill_answered(self, placement: Placement, usage: Usage) -> None:
        """Told what a prefill leg reports; `cached_tokens` tests what the index believed."""
        ...

    def kv_shipped(self, decision: Decision, size: Bytes, outcome: KvOutcome) -> None:
        """Told when a hand-off was pulled for an answer (useful) or only to free it (wasted)."""
        ...

    def first_byte(self, decision: Decision, elapsed: Seconds) -> None:
        """Told when the first body byte leaves for the client, `elapsed` after its request came."""
        ...

    def answered(
        self, decision: Decision, usage: Usage | None, content_events: int, *, complete: bool
    ) -> None:
        """Told once when an answer's body has ended.

        `usage` is the engine's own count, None where the client did not ask for it in a stream;
        `content_events` then is the nearest count of output tokens. `complete` is False where the
        engine broke off.
        """
        ...
