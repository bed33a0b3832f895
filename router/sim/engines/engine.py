"""One engine in simulated time: prefills in turn, decodes in slots, hands KV off and pulls it.

A prompt is computed here (`_prefill`) or pulled (`_load`), then answered (`_decode`). Cancelling
`run` at any point frees blocks, places and transfers at once, as an aborted request does in vLLM.

Where vLLM's scheduler mixes everything into one batch, this model keeps two resources: one prefill
at a time, and `max_concurrency` decode slots of constant speed. There is no preemption: a request
is admitted only if all that it may come to need is free (`Holding.peak`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from router.sim.engines.answers import Answer, AnswerLimits, Answers
from router.sim.engines.block_cache import BlockCache, Hit, Holding
from router.sim.engines.egress import Egress
from router.sim.engines.errors import LoadFailedError, PullError, RequestError, UnknownHandoffError
from router.sim.engines.generations import Delta, Emit, Generation, LookUp, Run
from router.sim.engines.handoffs import Handoff, Handoffs
from router.sim.engines.metrics import EngineMetrics
from router.sim.engines.publisher import EventPublisher
from router.sim.engines.specs import EngineSpec, LoadFailurePolicy
from router.sim.engines.timing import DecodePace, Places, SimClock, measure_prefill
from router.sim.engines.transfers import (
    JsonObject,
    PullAsk,
    Puller,
    PullReceipt,
    PullTicket,
    offer_params,
    wants_remote_decode,
    wants_remote_prefill,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOOKUPS_KEPT = 10_000
"""The bound of the look-up log; tests read it far more often than it wraps."""


class Engine:
    """One incarnation of an engine; a restart makes another with a fresh `engine_id`."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        engine_id: str,
        host: str,
        port: int,
        clock: SimClock,
        answers: Answers,
        publisher: EventPublisher,
        egress: Egress,
        puller: Puller,
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self.spec = spec
        self.engine_id = engine_id
        self.publisher = publisher
        self.answers = answers
        self.clock = clock
        self.cache = BlockCache(spec.cache)
        self.metrics = EngineMetrics(spec.model)
        lease = max(spec.lease_seconds / clock.scale, spec.lease_floor_seconds)
        self.handoffs = Handoffs(lease, self._drop)
        self.look_ups: deque[LookUp] = deque(maxlen=LOOKUPS_KEPT)
        self._address = (host, port)
        self._egress = egress
        self._puller = puller
        self._spawn = spawn
        self._prefill_turn = Places(1)
        self._slots = Places(spec.max_concurrency)
        self._admission = asyncio.Lock()
        self._freed = asyncio.Event()
        self._look_up_count = 0
        self._active = self._waiting = self._deferred = 0

    def __repr__(self) -> str:
        return f"<Engine {self.spec.name} {self._active} active, {self.cache!r}>"

    @property
    def running(self) -> int:
        """Requests that compute."""
        return self._active - self._waiting - self._deferred

    @property
    def waiting(self) -> int:
        """Requests that wait for a turn, a slot or blocks."""
        return self._waiting

    @property
    def deferred(self) -> int:
        """Requests that wait for remote KV."""
        return self._deferred

    async def run(self, run: Run, emit: Emit) -> None:
        """Generate, telling `emit` of every delta in order.

        Raises RequestError when the queue is full and LoadFailedError when KV could not be pulled
        under the policy `fail`.
        """
        request = run.generation
        if self.spec.max_queued is not None and self._waiting >= self.spec.max_queued:
            raise RequestError(
                f"The engine has {self._waiting} queued requests already.",
                status=503,
                kind="ServiceUnavailableError",
            )
        arrived = self.clock.now()
        pulls = wants_remote_prefill(request.transfer)
        answer = self._plan(request)
        outcome = "abort"
        self._active += 1
        try:
            if pulls:
                ready, pulled = await self._load(run, answer, arrived)
            else:
                ready, pulled = await self._prefill(run, answer, arrived), False
            await self._decode(run, answer, ready, pulled=pulled, arrived=arrived, emit=emit)
            outcome = answer.finish_reason
        except LoadFailedError:
            outcome = "error"
            raise
        finally:
            self._active -= 1
            self._close(run)
            self.metrics.finished[outcome].inc()

    async def serve_pull(self, ask: PullAsk) -> PullReceipt:
        """Answer a decode engine's pull once the bytes have crossed; the blocks are free then.

        Raises UnknownHandoffError or, without a link, PullError. Cancelling frees the blocks too.
        """
        if ask.engine_id != self.engine_id:
            raise UnknownHandoffError(f"engine id {ask.engine_id} is not of this incarnation")
        handoff = self.handoffs.take(ask.request_id)
        size = self.spec.profile.kv_bytes(max(1, handoff.tokens - ask.local_tokens))
        try:
            await self._egress.cross(ask.cluster, size, handoff.early)
        finally:
            self._release(handoff.holding)
        return PullReceipt(size)

    def discard_handoff(self, ask: PullAsk) -> None:
        """Free a hand-off that its decode engine will not pull."""
        if ask.engine_id == self.engine_id:
            self.handoffs.discard(ask.request_id)

    def give_up(self, params: JsonObject | None) -> None:
        """Tell the prefill engine of a decode leg that was rejected before it could pull."""
        ticket = PullTicket.from_params(params) if params and wants_remote_prefill(params) else None
        if ticket is not None:
            self._spawn(self._puller.discard(ticket))

    def render_metrics(self) -> bytes:
        """Return the exposition text with gauges as of now."""
        self.metrics.running.set(self.running)
        self.metrics.waiting.set(self._waiting + self._deferred)
        self.metrics.waiting_capacity.set(self._waiting)
        self.metrics.waiting_deferred.set(self._deferred)
        self.metrics.cache_usage.set(self.cache.usage)
        return self.metrics.render()

    def stop(self) -> None:
        """Free all hand-offs; running requests are their tasks' to cancel."""
        self.handoffs.discard_all()

    def _plan(self, request: Generation) -> Answer:
        limits, packed = request.limits, request.packed
        if self._truncates(request):
            # The prefill leg computes all but the last token, so its own token is another one.
            limits, packed = AnswerLimits(room=limits.room, max_tokens=1), packed[:-4]
        return self.answers.plan(packed, limits, choice=request.choice)

    def _truncates(self, request: Generation) -> bool:
        return (
            wants_remote_decode(request.transfer)
            and self.spec.cache.is_recurrent
            and len(request.prompt) > 1
        )

    async def _prefill(self, run: Run, answer: Answer, arrived: float) -> float:
        """Compute the prompt; return the simulated time at which it is done."""
        request = run.generation
        goal = len(request.prompt) - self._truncates(request)
        at = await self._wait(self._prefill_turn.take(arrived))
        self.metrics.queued.observe(max(0.0, at - arrived))
        done = False
        try:
            holding, waited = await self._admit(run, goal, len(answer.tokens), pulled=False)
            began = at = self.clock.now() if waited else at
            if wants_remote_decode(request.transfer):
                run.early = self._egress.open_early(self.spec.profile.kv_bytes(goal))
            hit = holding.computed
            while holding.computed < goal:
                end = self.cache.next_stop(holding, self.spec.batch_tokens)
                self.cache.allocate(holding, end)
                at += measure_prefill(self.spec.profile, holding.computed, end)
                await self.clock.sleep_until(at)
                self.cache.commit(holding, end)
                self._tell()
            done = True
        finally:
            self._prefill_turn.give_back(at if done else self.clock.now())
        self.metrics.prefill.observe(at - began)
        self.metrics.count_prompt(computed=goal - hit, hit=hit, external=0)
        return at

    async def _load(self, run: Run, answer: Answer, arrived: float) -> tuple[float, bool]:
        """Pull the prompt's KV; return when it is there, and whether it was pulled at all."""
        request, params = run.generation, run.generation.transfer or {}
        ticket = PullTicket.from_params(params)
        if ticket is None:
            logger.warning("invalid kv_transfer_params; request %s computes", request.request_id)
            return await self._prefill(run, answer, arrived), False
        total = len(request.prompt)
        external = total - self.spec.cache.is_recurrent
        asked = False
        try:
            holding, _ = await self._admit(run, total, len(answer.tokens), pulled=True)
            hit = holding.computed
            self.cache.allocate(holding, external, external=True)
            self._tell()
            asked = True
            await self._pull(ticket, hit)
        except PullError as error:
            self.metrics.failed_transfers.inc()
            logger.warning("KV load of request %s failed: %s", request.request_id, error)
            if self.spec.load_failure_policy is LoadFailurePolicy.FAIL:
                raise LoadFailedError(str(error)) from error
            self._close(run)
            return await self._prefill(run, answer, self.clock.now()), False
        except asyncio.CancelledError:
            if not asked:  # once asked, the broken connection tells
                self._spawn(self._puller.discard(ticket))
            raise
        self.cache.commit(holding, external)
        if external < total:
            self.cache.allocate(holding, total)
            self.cache.commit(holding, total)
        self._tell()
        self.metrics.external_queries.inc(total)
        self.metrics.external_hits.inc(external - hit)
        self.metrics.count_prompt(computed=total - external, hit=hit, external=external - hit)
        if ticket.prefill_cached_tokens is not None:
            run.cached_tokens = ticket.prefill_cached_tokens
        return self.clock.now(), True

    async def _pull(self, ticket: PullTicket, hit: int) -> None:
        began = self.clock.now()
        self._deferred += 1
        try:
            receipt = await self._puller.pull(
                ticket, cluster=self._egress.cluster, local_tokens=hit
            )
        finally:
            self._deferred -= 1
        self.metrics.transfer_seconds.observe(self.clock.now() - began)
        self.metrics.transfer_bytes.observe(receipt.size)

    async def _decode(
        self, run: Run, answer: Answer, ready: float, *, pulled: bool, arrived: float, emit: Emit
    ) -> None:
        """Let the answer out at its pace; a local prefill's last step yields the first token."""
        count = len(answer.tokens)
        if count == 1 and not pulled:
            self.metrics.first_token.observe(ready - arrived)
            await self._emit(run, answer, 0, count, emit)
            return
        start = await self._wait(self._slots.take(ready))
        rate = self.spec.decode_tokens_per_second
        pace = DecodePace(start + pulled / rate, rate, count)
        sent = 0
        try:
            while sent < count:
                await self.clock.sleep_until(self._next_wake(run, pace, sent))
                due = pace.count_due(self.clock.now(), self.clock.tick / 2)
                if due > sent:
                    if sent == 0:
                        self.metrics.first_token.observe(pace.due(0) - arrived)
                    first, sent = sent, due
                    await self._emit(run, answer, first, due, emit)
        finally:
            self._slots.give_back(pace.end if sent == count else self.clock.now())

    def _next_wake(self, run: Run, pace: DecodePace, sent: int) -> float:
        """Return when to look again: token by token in a stream, block by block otherwise.

        Never sooner than a tick, so that fast tokens come out several at a time.
        """
        ahead = 0 if run.generation.streams else self.spec.cache.hash_unit - 1
        due = pace.due(min(sent + ahead, pace.count - 1))
        now = self.clock.now()
        return (
            due
            if sent == 0 or due - now >= self.clock.tick
            else min(pace.end, now + self.clock.tick)
        )

    async def _emit(self, run: Run, answer: Answer, first: int, last: int, emit: Emit) -> None:
        """Count tokens [first, last) of the answer into the cache and hand them out."""
        holding = run.holding
        if holding is not None:
            holding.chain.extend(answer.tokens[first:last])
            # The newest token is sampled but not yet computed.
            self._fill(holding, len(holding.chain.tokens) - 1)
        self.metrics.generated.inc(last - first)
        ends = last == len(answer.tokens)
        if ends and wants_remote_decode(run.generation.transfer):
            self._offer(run)
        await emit(
            Delta(
                answer.tokens[first:last],
                answer.pieces[first:last],
                answer.finish_reason if ends else None,
                answer.stop_reason if ends else None,
            )
        )

    def _fill(self, holding: Holding, upto: int) -> None:
        """Compute output tokens up to `upto`; each block filled on the way is its own step."""
        size = self.spec.cache.alignment
        for full in range(holding.computed // size + 1, upto // size + 1):
            self.cache.allocate(holding, full * size)
            self.cache.commit(holding, full * size)
        self._tell()

    async def _admit(
        self, run: Run, prompt_tokens: int, answer_tokens: int, *, pulled: bool
    ) -> tuple[Holding, bool]:
        """Look the prompt up and hold its blocks; wait, in order of arrival, until it fits."""
        request = run.generation
        whole = prompt_tokens == len(request.prompt)
        chain = self.cache.chain(
            request.prompt if whole else request.prompt[:prompt_tokens],
            salt=request.salt,
            lora=request.lora,
            raw=request.packed if whole else request.packed[: 4 * prompt_tokens],
        )
        limit = prompt_tokens - 1 if request.reads_cache else 0
        total = prompt_tokens + answer_tokens
        waited = False
        await self._wait(self._admission.acquire())
        try:
            while True:
                if self.cache.has_events and not self.cache.awaits_step:
                    self._tell()
                hit = self.cache.look_up(chain, limit, attention_only=pulled)
                if self.cache.can_admit(hit, total):
                    break
                waited = True
                self._freed.clear()
                await self._wait(self._freed.wait())
            run.holding = self.cache.admit(
                chain, hit, prompt_tokens=prompt_tokens, total_tokens=total
            )
            self._log(run, hit, limit, pulled=pulled)
        finally:
            self._admission.release()
        return run.holding, waited

    def _log(self, run: Run, hit: Hit, limit: int, *, pulled: bool) -> None:
        request = run.generation
        self._look_up_count += 1
        run.cached_tokens = hit.tokens
        run.look_up = LookUp(
            number=self._look_up_count,
            request_id=request.request_id,
            kv_event_seq=self.publisher.sequence,
            cached_tokens=hit.tokens,
            prompt_tokens=len(request.prompt),
            limit=limit,
            salted=request.salt is not None,
            pulled=pulled,
        )
        self.look_ups.append(run.look_up)
        self.metrics.cache_queries.inc(len(request.prompt))
        self.metrics.cache_hits.inc(hit.tokens)

    def _offer(self, run: Run) -> None:
        """Turn a finished prefill into a hand-off: its blocks and its transfer outlive the run."""
        holding, run.holding = run.holding, None
        early, run.early = run.early, None
        if holding is None:
            return
        request_id = run.generation.request_id
        host, port = self._address
        run.transfer = offer_params(
            engine_id=self.engine_id,
            request_id=request_id,
            host=host,
            port=port,
            block_ids=self.cache.list_transferred(holding),
            tokens=holding.prompt_tokens,
            cached_tokens=run.cached_tokens,
        )
        self.handoffs.offer(Handoff(request_id, holding, holding.prompt_tokens, early))

    async def _wait(self, work: Awaitable[T]) -> T:
        self._waiting += 1
        try:
            return await work
        finally:
            self._waiting -= 1

    def _close(self, run: Run) -> None:
        if run.early is not None:
            run.early.link.close(run.early.flow_id)
            run.early = None
        if run.holding is not None:
            self._release(run.holding)
            run.holding = None

    def _drop(self, handoff: Handoff) -> None:
        if handoff.early is not None:
            handoff.early.link.close(handoff.early.flow_id)
        self._release(handoff.holding)

    def _release(self, holding: Holding) -> None:
        self.cache.release(holding)
        self._freed.set()

    def _tell(self) -> None:
        self.publisher.publish(self.cache.take_events())
