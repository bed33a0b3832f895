"""The decision as a use case: count, look up, decide, and remember."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from kvmeta.errors import KvMetaError
from kvmeta.hashing import prompt_blocks
from kvmeta.index import MetadataIndex
from kvmeta.types import PromptBlocks, SourceId
from router.control.admission import Lane
from router.domain.decision import (
    Decision,
    NoRoute,
    Reason,
    RequestView,
    Route,
    Snapshot,
    TokenSource,
)
from router.domain.errors import NobodyAlive
from router.domain.units import Seconds, Tokens
from router.policy.berths import Berths, find_berths
from router.policy.route import decide, decide_bound, decide_local, fill_links, without
from router.ports import Clock
from router.service.bodies import BodyKind, ClientBody
from router.service.budgets import within
from router.service.counting import Counted, PromptCounter, bound_tokens, estimate_tokens
from router.service.decisions import DecisionLog, DecisionRecord
from router.service.late_binding import LateBinding
from router.service.lengths import OperatingLengths
from router.service.models import NamedModel
from router.service.places import Place
from router.service.pools import PoolBook, raise_beliefs
from router.service.snapshots import Beliefs, SnapshotBuilder, WhatIf
from router.service.tenants import Tenant
from router.service.visits import Visit


class Ask(Struct, frozen=True):
    """One client's request, ready to be decided.

    `salt` is the cache salt that engines will get. The lower `priority` goes first in the queue.
    `only` names the one instance that can serve it, since it holds what the request speaks of.
    """

    request_id: str
    tenant: Tenant
    named: NamedModel
    body: ClientBody
    salt: str | None
    home: str | None = None
    only: str | None = None
    priority: int = 0

    @property
    def is_about_stored(self) -> bool:
        """Whether it reads or cancels a stored response: nothing is computed for it."""
        return self.only is not None and self.body.kind is BodyKind.PASSED


@dataclass(frozen=True, slots=True)
class Supposition:
    """A prompt that exists only for a dry run: its length, and what clusters hold of it."""

    named: NamedModel
    tenant: Tenant
    total: Tokens
    cached: Mapping[str, Tokens | None]


class Sight(Struct, frozen=True, gc=False):
    """What is known of a prompt's whereabouts: its blocks' names, and what was found of them.

    `pooled` is what shared pools said, `late` tells that the time was used up before all was found.
    """

    prompt: PromptBlocks | None
    beliefs: Beliefs
    pooled: Mapping[SourceId, Tokens]
    late: bool = False


_NOTHING_KNOWN = Sight(None, {}, {})
_LATE = Sight(None, {}, {}, late=True)

_SIGHT_AGES: Final[Seconds] = 0.1
"""A wait for an instance after which the index is asked anew: events are about as old."""


class Routed(Struct):
    """A request with its decision, and what is needed to decide it again.

    `record` is the latest word: planning again replaces it.
    """

    ask: Ask
    request: RequestView
    record: DecisionRecord
    visit: Visit
    sight: Sight

    @property
    def prompt(self) -> PromptBlocks | None:
        """Names of the whole prompt's blocks; None where its tokens are not all known."""
        return self.sight.prompt

    @property
    def decision(self) -> Decision:
        """Where the request runs now."""
        return self.record.decision


class _Count(Struct, frozen=True, gc=False):
    """A count, and what it left of the decision's budget: 0 unbounded, None nothing."""

    counted: Counted
    left: Seconds | None


class _Considered(Struct, frozen=True, gc=False):
    """A decision and what it was made from."""

    sight: Sight
    snapshot: Snapshot
    decision: Decision


class DecisionHook(Protocol):
    """Watches decisions; metrics hang here. Implementations never raise."""

    def decided(self, record: DecisionRecord) -> None:
        """Told of each decision that a request follows."""
        ...

    def looked_up(self, elapsed: Seconds, *, timed_out: bool) -> None:
        """Told of each look-up in the index."""
        ...


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """Time budgets, and how much a connector's prefill leg cuts off its prompt.

    `decision_timeout` bounds counting and look-up together; over it a request goes local.
    `skip_counting`: engines are not asked about prompts that stay local whatever they say.
    """

    decision_timeout: Seconds = 0.25
    lookup_timeout: Seconds = 0.02
    skip_counting: bool = False


class Routing:
    """Decides where requests run."""

    def __init__(
        self,
        *,
        counter: PromptCounter,
        index: MetadataIndex,
        builder: SnapshotBuilder,
        lengths: OperatingLengths,
        log: DecisionLog,
        hook: DecisionHook,
        clock: Clock,
        rules: RoutingRules,
        truncation: Mapping[str, int],
        pools: PoolBook,
        binding: LateBinding,
    ) -> None:
        """`truncation` is by model name: the tokens that the connector cuts off a prefill leg."""
        self._pools = pools
        self._binding = binding
        self._counter = counter
        self._index = index
        self._builder = builder
        self._lengths = lengths
        self._log = log
        self._hook = hook
        self._clock = clock
        self._rules = rules
        self._truncation = truncation

    async def route(self, ask: Ask, visit: Visit) -> Routed:
        """Decide one request: count it, wait for its decode slot, and decide on the fleet then.

        Raises RateLimited, Overloaded, NobodyAlive, and BadRequest for a conversation whose fields
        have wrong types.
        """
        count = await self._count(ask)
        await visit.charge(count.counted.total)
        considered = await self._consider_admitted(ask, count, visit)
        record = self._remember(ask.request_id, considered, visit.waited)
        return Routed(ask, considered.snapshot.request, record, visit, considered.sight)

    async def _consider_admitted(self, ask: Ask, count: _Count, visit: Visit) -> _Considered:
        """Look up and decide with a decode slot in hand.

        Its instance may go before the decision is made; then the request waits on for another. A
        call about a stored response decodes nothing: a cancel must not wait for what it cancels.
        """
        if ask.is_about_stored:
            return await self._consider(ask, count, None)
        while True:
            await visit.admit(self._lane(ask, frozenset()), ask.priority)
            considered = await self._look_and_decide(ask, count, visit)
            if considered is not None:
                return considered

    async def _look_and_decide(self, ask: Ask, count: _Count, visit: Visit) -> _Considered | None:
        """Look up and decide; what then crosses a link has room there when this returns.

        Whoever is refused the room is decided again: a prompt that waited for an instance waits on,
        any other goes by the rule as if these links were full. An override is obeyed all the same.
        """
        request = _view_request(ask, count.counted)
        sight = await self._believe_in_time(ask, count)
        full: frozenset[str] = frozenset()
        while True:
            before = visit.waited
            place = await self._wait_for_instance(ask, request, sight, visit)
            if visit.waited - before > _SIGHT_AGES:
                sight = await self._look_again(ask, sight)
            considered = self._decide_admitted(ask, request, sight, visit, place, full)
            if considered is None:
                visit.unbind()
                return None
            moved = considered.decision.link_bytes
            if moved.keys() <= full or await visit.reserve(moved):
                return considered
            visit.unbind()
            if place is None:
                full |= moved.keys()

    def _decide_admitted(
        self,
        ask: Ask,
        request: RequestView,
        sight: Sight,
        visit: Visit,
        place: Place | None,
        full: frozenset[str],
    ) -> _Considered | None:
        """Decide with a decode slot in hand, and move it; None where nobody is left to decode."""
        if place is not None:
            request = replace(request, home=place.home)
        snapshot = fill_links(self._build(ask, request, sight.beliefs), full)
        roomy = without(snapshot, visit.full(ask.named.model.name))
        if place is None:
            decision = _decide(roomy, late=sight.late)
        else:
            decision = decide_bound(roomy, place.instance)
        if isinstance(decision, NoRoute):
            return None
        if place is not None and not _is_at(decision, place):
            visit.unbind()
        visit.settle(decision.decode.instance)
        return _Considered(sight, roomy, decision)

    async def _wait_for_instance(
        self, ask: Ask, request: RequestView, sight: Sight, visit: Visit
    ) -> Place | None:
        """Wait for an instance under the rule `slack`; None leaves the request to the rule.

        Without profiles nobody can say how long a prefill takes, nor who can be in time.
        """
        model = ask.named.model
        if (
            sight.late
            or ask.only is not None
            or not request.disaggregable
            or not self._builder.binds_late(model)
        ):
            return None

        def look() -> Berths | None:
            snapshot = self._build(ask, request, sight.beliefs)
            return find_berths(
                snapshot, lambda kind: model.prefill_seconds(kind, request.total_tokens)
            )

        return await visit.bind(self._binding, look)

    async def _consider(self, ask: Ask, count: _Count, what_if: WhatIf | None) -> _Considered:
        """Look up and decide, without a slot. Raises NobodyAlive."""
        sight = await self._believe_in_time(ask, count)
        request = _view_request(ask, count.counted)
        snapshot = self._build(ask, request, sight.beliefs, what_if)
        decision = _decide(snapshot, late=sight.late)
        if isinstance(decision, NoRoute):
            raise NobodyAlive(f"no live instance can decode {ask.named.asked!r} now")
        return _Considered(sight, snapshot, decision)

    async def _count(self, ask: Ask, *, always: bool = False) -> _Count:
        """Count the prompt within the decision's budget; over it the length is estimated.

        Where counting may be skipped it is `always` done for a dry run, whose threshold may differ.
        """
        if self._rules.skip_counting and not always and self._is_surely_local(ask):
            guess = estimate_tokens(ask.body, ask.named.model.bytes_per_token)
            return _Count(Counted(guess, TokenSource.ESTIMATE), self._rules.decision_timeout)
        at_once = self._counter.count_at_once(ask.body, ask.named)
        if at_once is not None:
            return _Count(at_once, self._rules.decision_timeout)
        began = self._clock.monotonic()
        try:
            work = self._counter.count(ask.body, ask.named, ask.tenant.name)
            counted = await within(self._rules.decision_timeout, work)
        except TimeoutError:
            guess = estimate_tokens(ask.body, ask.named.model.bytes_per_token)
            return _Count(Counted(guess, TokenSource.ESTIMATE), None)
        if not self._rules.decision_timeout:
            return _Count(counted, 0.0)
        spent = self._clock.monotonic() - began
        left = self._rules.decision_timeout - spent
        return _Count(counted, left if left > 0 else None)

    def _is_surely_local(self, ask: Ask) -> bool:
        """Tell whether no number of tokens could take a prompt away; limits need the number."""
        if ask.tenant.limits.tokens is not None:
            return False
        most = bound_tokens(ask.body, ask.named)
        return most is not None and most <= self._builder.local_up_to(
            ask.named.model, ask.tenant.name
        )

    async def _believe_in_time(self, ask: Ask, count: _Count) -> Sight:
        """Look up within what is left of the budget."""
        if count.left is None:
            return _LATE
        prompt = self._name_blocks(ask, count.counted)
        if prompt is None:
            return _NOTHING_KNOWN
        bound = self._rules.lookup_timeout
        if self._pools.is_empty and bound and (not count.left or bound <= count.left):
            return await self._look_again(ask, Sight(prompt, {}, {}))  # which has its own bound
        try:
            return await within(count.left, self._believe(ask, count.counted, prompt))
        except TimeoutError:
            return replace(_LATE, prompt=prompt)

    async def replan_local(
        self, routed: Routed, reason: Reason, excluded: frozenset[str]
    ) -> Decision | NoRoute:
        """Decide a request again, locally, on the fleet as it is now without the `excluded`.

        As `replan_decode` for its slot, and for what is cached.
        """
        return await self._replan(routed, excluded, reason)

    async def replan_decode(self, routed: Routed, excluded: frozenset[str]) -> Decision | NoRoute:
        """Decide a request again without the `excluded`, by the rule.

        The index is asked anew: the leg that failed may have taken minutes, or filled a cache.
        Where only full instances are left it waits for a slot, what is left of the queue's
        time-out. Raises Overloaded.
        """
        return await self._replan(routed, excluded, None)

    async def _replan(
        self, routed: Routed, excluded: frozenset[str], reason: Reason | None
    ) -> Decision | NoRoute:
        visit, ask = routed.visit, routed.ask
        visit.unbind()
        full: frozenset[str] = frozenset()
        while True:
            routed.sight = await self._look_again(ask, routed.sight)
            now = fill_links(self._build(ask, routed.request, routed.sight.beliefs), full)
            alive = without(now, excluded)
            roomy = without(alive, visit.full(ask.named.model.name))
            decision = _redecide(roomy, reason)
            if isinstance(decision, Decision):
                visit.settle(decision.decode.instance)
                moved = decision.link_bytes
                if not (moved.keys() <= full or await visit.reserve(moved)):
                    full |= moved.keys()
                    continue
                routed.record = self._log.amend(routed.record, decision)
                return decision
            if isinstance(_redecide(alive, reason), NoRoute):
                return decision
            try:
                await visit.admit(self._lane(ask, excluded), ask.priority)
            except NobodyAlive:
                return decision

    def settle(self, routed: Routed, decision: Decision) -> None:
        """Remember what a request was answered by where the relay left the decided course."""
        if decision is not routed.record.decision and decision != routed.record.decision:
            routed.record = self._log.amend(routed.record, decision)

    async def explain(self, ask: Ask, what_if: WhatIf) -> DecisionRecord:
        """Decide a request on live state without following, counting or logging it.

        Raises NobodyAlive, BadRequest.
        """
        considered = await self._consider(ask, await self._count(ask, always=True), what_if)
        now = self._clock.now()
        return DecisionRecord(ask.request_id, now, considered.snapshot, considered.decision)

    def suppose(
        self, supposition: Supposition, what_if: WhatIf, *, request_id: str
    ) -> DecisionRecord:
        """Decide a supposed prompt on live state. Raises NobodyAlive."""
        model = supposition.named.model
        request = RequestView(
            model=model.name,
            tenant=supposition.tenant.name,
            total_tokens=supposition.total,
            token_source=TokenSource.CLIENT,
            home=supposition.tenant.home,
        )
        beliefs = self._builder.suppose_beliefs(supposition.cached)
        snapshot = self._builder.build(model, request, beliefs, what_if)
        decision = decide(snapshot)
        if isinstance(decision, NoRoute):
            raise NobodyAlive(f"no live instance can decode {supposition.named.asked!r} now")
        return DecisionRecord(request_id, self._clock.now(), snapshot, decision)

    def _name_blocks(self, ask: Ask, counted: Counted) -> PromptBlocks | None:
        """Name the prompt's blocks; None without ids."""
        if counted.ids is None:
            return None
        model = ask.named.model
        limit = counted.total - 1 - self._truncation.get(model.name, 0)
        try:
            return prompt_blocks(
                model.layout, counted.ids, lora=ask.named.lora, salt=ask.salt, limit=limit
            )
        except KvMetaError:
            # Ids that no vocabulary has: the engine will say so in its own words.
            return None

    async def _believe(self, ask: Ask, counted: Counted, prompt: PromptBlocks) -> Sight:
        """Ask the pools and the index.

        The index last: it changes with every decision, and is the fresher the later it is asked.
        """
        pooled = await self._pools.look_up(ask.named, counted.ids or (), ask.salt)
        return await self._look_again(ask, Sight(prompt, {}, pooled))

    async def _look_again(self, ask: Ask, sight: Sight) -> Sight:
        """Ask the index. What pools said stays: they want the token ids, which nobody keeps."""
        if sight.prompt is None:
            return sight
        beliefs = await self._look_up(ask.named, sight.prompt)
        if sight.pooled:
            layout = ask.named.model.layout
            beliefs = raise_beliefs(beliefs, sight.pooled, sight.prompt, layout)
        return Sight(sight.prompt, beliefs, sight.pooled, sight.late)

    async def _look_up(self, named: NamedModel, prompt: PromptBlocks) -> Beliefs:
        """Ask the index within its own budget; over it all is unknown."""
        sources = self._builder.sources(named.model)
        started = self._clock.monotonic()
        timed_out = False
        try:
            return await within(self._rules.lookup_timeout, self._index.look_up(prompt, sources))
        except TimeoutError:
            timed_out = True
            return {}
        finally:
            self._hook.looked_up(self._clock.monotonic() - started, timed_out=timed_out)

    def _build(
        self, ask: Ask, request: RequestView, beliefs: Beliefs, what_if: WhatIf | None = None
    ) -> Snapshot:
        """Take the snapshot for a request; where only one instance will do the others are away."""
        snapshot = self._builder.build(ask.named.model, request, beliefs, what_if)
        if ask.only is None:
            return snapshot
        return without(snapshot, self._builder.all_but(ask.only))

    def _lane(self, ask: Ask, excluded: frozenset[str]) -> Lane:
        """Return which decode slots will do."""
        if ask.only is not None:
            excluded |= self._builder.all_but(ask.only)
        return Lane(ask.named.model.name, ask.home, excluded)

    def _remember(
        self, request_id: str, considered: _Considered, waited: Seconds
    ) -> DecisionRecord:
        snapshot, decision = considered.snapshot, considered.decision
        self._lengths.of(snapshot.request.model).note(
            uncached=decision.uncached_tokens,
            computed=decision.compute_uncached_tokens,
            offloaded=decision.route is Route.PRFAAS,
        )
        record = DecisionRecord(request_id, self._clock.now(), snapshot, decision, waited)
        self._log.add(record)
        self._hook.decided(record)
        return record


def _decide(snapshot: Snapshot, *, late: bool) -> Decision | NoRoute:
    return decide_local(snapshot, Reason.DECISION_TIMEOUT) if late else decide(snapshot)


def _is_at(decision: Decision, place: Place) -> bool:
    return decision.prefill is not None and decision.prefill.instance == place.instance


def _redecide(snapshot: Snapshot, reason: Reason | None) -> Decision | NoRoute:
    return decide(snapshot) if reason is None else decide_local(snapshot, reason)


def _view_request(ask: Ask, counted: Counted) -> RequestView:
    return RequestView(
        model=ask.named.model.name,
        tenant=ask.tenant.name,
        total_tokens=counted.total,
        token_source=counted.source,
        disaggregable=ask.body.disaggregable,
        home=ask.home,
    )
