"""What only a request's whole course can tell: the pace of its output, and drift of its count."""

from __future__ import annotations

from typing import Protocol

from router.domain.decision import Decision, Placement, TokenSource
from router.domain.units import Seconds, Tokens
from router.ports import Clock
from router.service.relay_ports import RelayHook, Usage
from router.service.routing import Routed


class CourseHook(RelayHook, Protocol):
    """Watches relays, and is told of whole courses. Implementations never raise."""

    def output_paced(self, decision: Decision, seconds_per_token: Seconds) -> None:
        """Told once of each complete stream of two tokens or more."""
        ...

    def drifted(self) -> None:
        """Told once of each request whose engine counted other prompt tokens than we."""
        ...


class ObservedCourse:
    """The relay's hook for one request: passes everything on and puts two and two together."""

    def __init__(
        self, hook: CourseHook, clock: Clock, routed: Routed, *, truncation: Tokens
    ) -> None:
        """`truncation` is by how much a prefill leg's own prompt may be shorter."""
        self._hook = hook
        self._clock = clock
        self._request = routed.request
        self._truncation = truncation
        self._began: Seconds | None = None
        self._drifted = False
        # Passed on as it is.
        self.fell_back = hook.fell_back
        self.upstream_failed = hook.upstream_failed
        self.kv_shipped = hook.kv_shipped

    def prefill_answered(self, placement: Placement, usage: Usage) -> None:
        """Pass on, and compare the prefill leg's count with ours."""
        self._hook.prefill_answered(placement, usage)
        self._compare(usage, short=self._truncation)

    def first_byte(self, decision: Decision, elapsed: Seconds) -> None:
        """Pass on, and start to measure the pace."""
        self._began = self._clock.monotonic()
        self._hook.first_byte(decision, elapsed)

    def answered(
        self, decision: Decision, usage: Usage | None, content_events: int, *, complete: bool
    ) -> None:
        """Pass on; tell the pace of a whole stream, by its usage or else its events."""
        self._hook.answered(decision, usage, content_events, complete=complete)
        if usage is not None:
            self._compare(usage, short=0)
        tokens = content_events if usage is None else usage.completion_tokens or content_events
        if complete and content_events and tokens > 1 and self._began is not None:
            elapsed = self._clock.monotonic() - self._began
            self._hook.output_paced(decision, elapsed / (tokens - 1))

    def _compare(self, usage: Usage, *, short: Tokens) -> None:
        """Note a drift once. What was only estimated cannot drift."""
        told, total = usage.prompt_tokens, self._request.total_tokens
        if self._drifted or told is None or self._request.token_source is TokenSource.ESTIMATE:
            return
        if not total - short <= told <= total:
            self._drifted = True
            self._hook.drifted()
