"""One request's plan and its counts: implements the relay's `Planner` and `Ledger`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from router.domain.decision import Decision, NoRoute, Placement, Reason, Route
from router.domain.errors import NotFound
from router.domain.units import Bytes, Tokens
from router.service.fleet import Fleet
from router.service.foresight import Foresight
from router.service.holding import Together
from router.service.links import LinkBoard
from router.service.relay_ports import Booking, FailureKind, Leg, Target
from router.service.routing import Routed, Routing


class RequestPlanner:
    """Knows where instances are and can decide this request again."""

    def __init__(self, routing: Routing, fleet: Fleet, routed: Routed) -> None:
        self._routing = routing
        self._fleet = fleet
        self._routed = routed

    def resolve(self, instance: str, model: str) -> Target | None:  # noqa: ARG002 - one planner serves one request's model
        """Return where an instance is and what it calls the request's model."""
        try:
            found = self._fleet.member(instance).instance
        except NotFound:
            return None
        # An adapter's name is the same everywhere; a model's may be an instance's own.
        named = self._routed.ask.named
        return Target(found, named.lora or found.served_name or named.model.served_name)

    async def replan_local(
        self,
        decision: Decision,  # noqa: ARG002 - part of the port: the first decision is in `routed`
        reason: Reason,
        excluded: frozenset[str],
    ) -> Decision | NoRoute:
        """Decide again for a local prefill."""
        return await self._routing.replan_local(self._routed, reason, excluded)

    async def replan_decode(
        self,
        decision: Decision,  # noqa: ARG002 - as above
        excluded: frozenset[str],
    ) -> Decision | NoRoute:
        """Decide again for another decode instance."""
        return await self._routing.replan_decode(self._routed, excluded)


class RequestLedger:
    """Counts this request's legs and bytes in the fleet and on the links.

    What its legs compute is foreseen in the caches where they compute it.
    """

    def __init__(
        self, fleet: Fleet, links: LinkBoard, routed: Routed, foresight: Foresight
    ) -> None:
        self._fleet = fleet
        self._links = links
        self._routed = routed
        self._foresight = foresight
        self._computing: Placement | None = None

    def leg(
        self, leg: Leg, placement: Placement, compute_tokens: Tokens
    ) -> AbstractContextManager[None]:
        """Count one call while the block runs: what was bound for it counts from here as a leg."""
        self._routed.visit.unbind()
        match leg:
            case Leg.PREFILL:
                return self._prefill(placement, compute_tokens)
            case Leg.DECODE:
                return self._decode(placement, compute_tokens)

    def _prefill(
        self, placement: Placement, compute_tokens: Tokens
    ) -> AbstractContextManager[None]:
        kind = self._fleet.kind_of(placement.cluster)
        expected = self._routed.ask.named.model.prefill_seconds(kind, compute_tokens)
        return Together(
            self._fleet.prefill_leg(placement.instance, expected),
            self._fleet.decode_due(self._routed.record.decision.decode.instance),
            self._foresee(placement),
        )

    def _decode(self, placement: Placement, compute_tokens: Tokens) -> AbstractContextManager[None]:
        counted = self._fleet.decode_leg(placement.instance)
        return Together(counted, self._foresee(placement)) if compute_tokens else counted

    def _foresee(self, placement: Placement) -> AbstractContextManager[None]:
        """Let the prompt count where it is being computed, if its blocks are known."""
        self._computing = placement
        prompt = self._routed.sight.prompt
        if prompt is None:
            return nullcontext()
        layout = self._routed.ask.named.model.layout
        return self._foresight.computing(placement, layout, prompt)

    def book(self, link: str, size: Bytes) -> Booking:
        """Reserve bytes on a link until the booking is released."""
        return self._links.book(link, size, reserved=self._routed.visit.claim(link, size))

    def hand_over(self, decision: Decision, *, streams: bool) -> Booking:
        """Reserve a hand-off's bytes on the link that it crosses, if any, and follow it."""
        link, prefill, size = decision.link, decision.prefill, decision.kv_bytes
        if decision.route is Route.LOCAL or link is None or prefill is None or size is None:
            timed = streams and decision.route is Route.LOCAL
            return self._links.hand_over_at_home(decision.decode.cluster, timed=timed)
        ahead = self._fleet.seconds_ahead(prefill.instance)
        return self._links.book(
            link.name,
            size,
            begins_in=ahead,
            timed=streams,
            reserved=self._routed.visit.claim(link.name, size),
        )

    def succeeded(self, instance: str) -> None:
        """Note a finished call."""
        self._fleet.record_success(instance)
        placement, prompt = self._computing, self._routed.sight.prompt
        if placement is not None and placement.instance == instance:
            self._computing = None
            if prompt is not None:
                self._foresight.computed(placement, self._routed.ask.named.model.layout, prompt)

    def failed(self, instance: str, kind: FailureKind) -> None:
        """Note a failed call; what the engine did counts against its breaker.

        A lost call follows from a verdict that stands already: were it counted, the breaker would
        keep work away from an engine that is alive again.
        """
        if kind is not FailureKind.LOST:
            self._fleet.record_failure(instance)
        if kind is FailureKind.CONNECT:
            self._foresight.lost(instance)
