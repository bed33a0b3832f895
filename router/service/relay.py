"""One request's way through the engines: a prefill leg, a decode leg, and what if one fails.

The course (DESIGN 7): a prefill that is not the decode instance's own computes the prompt and
answers with a hand-off; the decode leg takes it and answers the client. Every departure is here:

- An engine's 4xx is the client's, once and as it is; 401 and 403 are ours, a 502.
- A remote prefill that fails is replaced once by a local one, a local one by another; where none
  is left the decode instance computes alone. So it does after a prefill without a hand-off.
- A decode that cannot have run is tried elsewhere, after a fresh prefill: a hand-off is single-use.
  One that may have run is an error; after the first byte it is an error event (`relayed`).
- A client that leaves takes everything with it, except that blocks held for a hand-off are freed
  by sending the decode leg and aborting it.

What is counted is `Held` by one attempt, so that whatever happens it is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from msgspec import Struct

from router.domain.decision import Decision, NoRoute, Placement
from router.domain.errors import (
    NobodyAlive,
    UpstreamBroken,
    UpstreamError,
    UpstreamLost,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from router.domain.units import Seconds, Tokens
from router.ports import Clock, EngineClient, EngineRequest, EngineResponse
from router.service.answers import Edits, Rewriter
from router.service.bodies import BodyKind
from router.service.budgets import Sheltered
from router.service.connectors import Connector, Handoff
from router.service.fallbacks import (
    ExpiredHandoff,
    FailedLeg,
    GiveUp,
    GoOn,
    NoHandoff,
    Progress,
    ReplanDecode,
    ReplanPrefill,
    Setback,
    after_setback,
)
from router.service.holding import Held
from router.service.legs import form_call
from router.service.relay_ports import (
    Booking,
    FailureKind,
    KvOutcome,
    Ledger,
    Leg,
    Planner,
    RelayHook,
    RelayRequest,
    RelaySettings,
    Target,
    Usage,
)
from router.service.relayed import AnswerReader, RelayedResponse, WholeAnswer, read_whole

_OUR_CREDENTIAL: Final = frozenset({401, 403})
_NAMED_ERRORS: Final = frozenset({BodyKind.MESSAGES, BodyKind.RESPONSES})


class _Prefilled(Struct, frozen=True, gc=False):
    """The prompt's KV is ready, or (no hand-off) the decode instance computes it itself."""

    handoff: Handoff | None = None
    cached_tokens: Tokens | None = None
    answered_at: Seconds = 0.0


class Relay:
    """Runs requests; holds no state of any of them."""

    def __init__(
        self,
        *,
        client: EngineClient,
        planner: Planner,
        ledger: Ledger,
        hook: RelayHook,
        connector: Connector,
        clock: Clock,
        settings: RelaySettings,
    ) -> None:
        self.client = client
        self.planner = planner
        self.ledger = ledger
        self.hook = hook
        self.connector = connector
        self.clock = clock
        self.settings = settings

    def run(
        self, request: RelayRequest, decision: Decision
    ) -> Coroutine[Any, Any, RelayedResponse]:
        """Answer `request` as decided, or as its fallbacks say.

        Returns once the answer's head (or a whole short body) is here. Raises UpstreamError when
        engines failed, NobodyAlive or Overloaded when none is left. Cancelling it cuts what runs,
        within `prefill_grace + release_grace`.
        """
        return _Course(self, request, decision).run()


class _Course:
    """The state of one request between its attempts."""

    def __init__(self, relay: Relay, request: RelayRequest, decision: Decision) -> None:
        self._relay = relay
        self._settings = relay.settings
        self._request = request
        self._progress = Progress(decision)
        self._decision = decision
        self._calls = {Leg.PREFILL: 0, Leg.DECODE: 0}
        self._bookings: Sequence[Booking] = ()
        self._bytes_due = False

    async def run(self) -> RelayedResponse:
        while True:
            held = Held()
            try:
                outcome = await self._attempt(held)
            finally:
                held.close()
            if isinstance(outcome, RelayedResponse):
                return outcome
            await self._step(outcome)

    async def _attempt(self, held: Held) -> RelayedResponse | Setback:
        """Run the legs once; what they hold is left with `held` unless an answer keeps it."""
        if self._decision.single_call or not self._relay.connector.splits:
            return await self._decode(_Prefilled(), held)
        prefilled = await self._prefill(held)
        if not isinstance(prefilled, _Prefilled):
            return prefilled
        if prefilled.handoff is None:
            self._release_bookings()
            await self._step(NoHandoff())
        return await self._decode(prefilled, held)

    # -- the prefill leg

    async def _prefill(self, held: Held) -> _Prefilled | FailedLeg | RelayedResponse:
        """Have the prompt computed; the hand-off's bytes are booked from here on."""
        decision = self._decision
        placement = decision.prefill
        if placement is None:
            return _Prefilled()
        target = self._relay.planner.resolve(placement.instance, self._request.model)
        if target is None:
            return _removed(Leg.PREFILL, placement.instance)
        self._book(held)
        body = self._relay.connector.form_prefill(self._request.body, target.served_name)
        call = self._form_call(Leg.PREFILL, target, placement, body)
        with self._relay.ledger.leg(Leg.PREFILL, placement, decision.compute_uncached_tokens):
            try:
                answer = await self._outlive(call)
            except UpstreamError as error:
                return self._failed(Leg.PREFILL, error)
        return self._judge_prefill(placement, answer)

    def _judge_prefill(
        self, placement: Placement, answer: WholeAnswer
    ) -> _Prefilled | FailedLeg | RelayedResponse:
        if 400 <= answer.status < 500:
            return self._refuse(Leg.PREFILL, placement, answer)
        if not 200 <= answer.status < 300:
            return self._failed_status(Leg.PREFILL, placement, answer.status)
        try:
            told = self._relay.connector.read_prefill(answer.body)
        except ValueError as error:
            broken = UpstreamBroken(str(error), instance=placement.instance, processed=True)
            return self._failed(Leg.PREFILL, broken)
        self._relay.ledger.succeeded(placement.instance)
        usage = Usage(prompt_tokens=told.prompt_tokens, cached_tokens=told.cached_tokens)
        self._relay.hook.prefill_answered(placement, usage)
        self._bytes_due = told.handoff is not None
        if told.handoff is not None:
            for booking in self._bookings:
                booking.depart()
        return _Prefilled(told.handoff, told.cached_tokens, self._relay.clock.monotonic())

    async def _outlive(self, call: EngineRequest) -> WholeAnswer:
        """Run the prefill leg; a client that leaves gives it a little time to answer.

        An answer that comes in that time holds blocks that only a decode leg frees (R10).
        """
        work = Sheltered(self._exchange(call))
        try:
            return await work.result()
        except asyncio.CancelledError:
            running = work.go_on()
            if await _settle(running, self._settings.prefill_grace):
                await self._free_blocks(running.result())
            raise

    async def _exchange(self, call: EngineRequest) -> WholeAnswer:
        return await read_whole(await self._relay.client.send(call), call.instance)

    async def _free_blocks(self, answer: WholeAnswer) -> None:
        """Send the decode leg of a hand-off that nobody needs, and abort it."""
        target = self._relay.planner.resolve(self._decision.decode.instance, self._request.model)
        if target is None or not 200 <= answer.status < 300:
            return
        try:
            handoff = self._relay.connector.read_prefill(answer.body).handoff
        except ValueError:
            return
        if handoff is not None:
            self._bytes_due = True
            sending = asyncio.create_task(
                self._relay.client.send(self._form_decode(target, handoff))
            )
            await self._abort(sending, self._settings.release_grace)

    async def _abort(self, sending: asyncio.Task[EngineResponse], grace: Seconds) -> None:
        """Give a decode leg time to reach its engine, then cut it: the hand-off is spent."""
        if await _settle(sending, grace):
            await sending.result().aclose()
        self._count_bytes(KvOutcome.WASTED)

    # -- the decode leg

    async def _decode(self, prefilled: _Prefilled, held: Held) -> RelayedResponse | Setback:
        """Have the answer made; returns when its head, or a whole short body, is here."""
        placement, handoff = self._decision.decode, prefilled.handoff
        age = self._relay.clock.monotonic() - prefilled.answered_at
        if handoff is not None and age > self._settings.lease - self._settings.lease_margin:
            return ExpiredHandoff()
        target = self._relay.planner.resolve(placement.instance, self._request.model)
        if target is None:
            return _removed(Leg.DECODE, placement.instance)
        computed = self._decision.compute_uncached_tokens if handoff is None else 0
        held.enter(self._relay.ledger.leg(Leg.DECODE, placement, computed))
        try:
            response = await self._send_decode(target, handoff)
            if 200 <= response.status < 300:
                return await self._answer(target, response, prefilled, held)
            refusal = await read_whole(response, placement.instance)
        except UpstreamError as error:
            if error.processed:
                self._count_bytes(KvOutcome.WASTED)
            return self._failed(Leg.DECODE, error)
        if 400 <= refusal.status < 500:
            return self._refuse(Leg.DECODE, placement, refusal)
        return self._failed_status(Leg.DECODE, placement, refusal.status)

    async def _send_decode(self, target: Target, handoff: Handoff | None) -> EngineResponse:
        call = self._form_decode(target, handoff)
        if handoff is None:
            return await self._relay.client.send(call)
        began = self._relay.clock.monotonic()
        work = Sheltered(self._relay.client.send(call))
        try:
            return await work.result()
        except asyncio.CancelledError:
            sending = work.go_on()
            # A leg that has only just left may not have reached the engine, which then frees
            # nothing; one that is older has, and is cut at once.
            elapsed = self._relay.clock.monotonic() - began
            await self._abort(sending, self._settings.release_grace - elapsed)
            raise

    async def _answer(
        self, target: Target, response: EngineResponse, prefilled: _Prefilled, held: Held
    ) -> RelayedResponse:
        """Pass a good answer on; it keeps what is held until its body has ended."""
        body = self._request.body
        handed = prefilled.handoff is not None
        watch = _Watch(self, response, held.hand_over())
        reader = AnswerReader(
            response=response,
            instance=target.instance.name,
            rewriter=Rewriter(
                Edits(
                    cached_tokens=prefilled.cached_tokens if handed else None,
                    model=body.model if target.served_name != body.model else None,
                )
            ),
            watch=watch,
            whole_limit=self._settings.whole_body_limit,
            named_errors=body.kind in _NAMED_ERRORS,
            any_end=body.kind is BodyKind.PASSED,
        )
        try:
            content = await reader.read()
        except BaseException:
            await watch.aclose()
            raise
        return RelayedResponse(
            status=response.status,
            headers=reader.headers,
            decision=self._decision,
            body=content if isinstance(content, bytes) else None,
            source=None if isinstance(content, bytes) else content,
            close=None if reader.is_done else watch.aclose,
        )

    # -- if a leg fails

    async def _step(self, setback: Setback) -> None:
        """Change the course as `fallbacks` says; raise where it gives up."""
        planner, given_up = self._relay.planner, self._decision
        step = after_setback(self._progress, setback, attempts=self._attempts)
        match step:
            case GoOn(progress=progress):
                self._progress = progress
            case ReplanPrefill(progress=progress, reason=reason):
                planned = await planner.replan_local(given_up, reason, progress.excluded)
                if isinstance(planned, NoRoute):
                    raise NobodyAlive("no instance can take the request now")
                if planned.prefill is None and step.exhausted is not None:
                    raise step.exhausted
                self._progress = progress.follow(planned)
            case ReplanDecode(progress=progress):
                planned = await planner.replan_decode(given_up, progress.excluded)
                if isinstance(planned, NoRoute):
                    raise step.exhausted
                self._progress = progress.follow(planned)
            case GiveUp(error=error):
                raise error
        self._decision = self._progress.decision
        self._relay.hook.fell_back(given_up, step.fallback)

    @property
    def _attempts(self) -> int:
        """How many decode legs there may be; an upload that has begun cannot be sent again."""
        verbatim = self._request.verbatim
        begun = verbatim is not None and verbatim.upload is not None and verbatim.upload.started
        return 1 if begun else self._settings.decode_attempts

    def _failed(self, leg: Leg, error: UpstreamError) -> FailedLeg:
        self.note_failure(leg, error.instance, _kind(error))
        return FailedLeg(leg, error)

    def _failed_status(self, leg: Leg, placement: Placement, status: int) -> FailedLeg:
        """An answer of 5xx, or one that no engine gives; 503 alone says that nothing was run."""
        self.note_failure(leg, placement.instance, FailureKind.STATUS)
        error = UpstreamBroken(
            f"the engine answered {status}", instance=placement.instance, processed=status != 503
        )
        return FailedLeg(leg, error, overloaded=status == 503)

    def note_failure(self, leg: Leg, instance: str, kind: FailureKind) -> None:
        """Tell the breaker and the metrics."""
        self._relay.ledger.failed(instance, kind)
        self._relay.hook.upstream_failed(instance, leg, kind)

    def _refuse(self, leg: Leg, placement: Placement, answer: WholeAnswer) -> RelayedResponse:
        """Pass an engine's 4xx on as it is; one that is about our credential is our failure."""
        if answer.status in _OUR_CREDENTIAL:
            self._relay.hook.upstream_failed(placement.instance, leg, FailureKind.STATUS)
            raise UpstreamBroken(
                "the engine does not accept the gateway's credential",
                instance=placement.instance,
                processed=False,
            )
        return RelayedResponse(
            status=answer.status,
            headers=answer.headers,
            decision=self._decision,
            body=answer.body,
        )

    # -- calls and counts

    def _form_decode(self, target: Target, handoff: Handoff | None) -> EngineRequest:
        body = b""
        if self._request.verbatim is None:
            connector = self._relay.connector
            body = connector.form_decode(self._request.body, target.served_name, handoff)
        return self._form_call(Leg.DECODE, target, self._decision.decode, body)

    def _form_call(
        self, leg: Leg, target: Target, placement: Placement, body: bytes
    ) -> EngineRequest:
        self._calls[leg] += 1
        return form_call(
            leg=leg,
            target=target,
            placement=placement,
            path=self._request.path,
            body=body,
            client_headers=self._request.headers,
            request_id=self._request.request_id,
            attempt=self._calls[leg],
            timeouts=self._settings.timeouts,
            verbatim=self._request.verbatim,
        )

    def _book(self, held: Held) -> None:
        """Reserve what the legs will move between clusters."""
        ledger, prefix = self._relay.ledger, self._decision.prefix_transfer
        handoff = ledger.hand_over(self._decision, streams=self._request.body.stream)
        self._bookings = (
            (handoff,) if prefix is None else (handoff, ledger.book(prefix.link, prefix.bytes))
        )
        held.add(self._release_bookings)

    def _release_bookings(self) -> None:
        bookings, self._bookings = self._bookings, ()
        for booking in bookings:
            booking.release()

    def _count_bytes(self, outcome: KvOutcome) -> None:
        """Count a hand-off's bytes, once; without a hand-off there are none."""
        due, self._bytes_due = self._bytes_due, False
        if due and self._decision.kv_bytes is not None:
            self._relay.hook.kv_shipped(self._decision, self._decision.kv_bytes, outcome)

    # -- for the answer's watch

    def note_first_byte(self) -> None:
        """The decode instance has pulled what it needs and begins to answer."""
        for booking in self._bookings:
            booking.arrive()
        self._release_bookings()
        self._count_bytes(KvOutcome.USEFUL)
        elapsed = self._relay.clock.monotonic() - self._request.received_at
        self._relay.hook.first_byte(self._decision, elapsed)

    def note_end(self, usage: Usage | None, content_events: int, *, complete: bool) -> None:
        """The answer has ended."""
        self._count_bytes(KvOutcome.WASTED)  # only where no byte of an answer came of them
        if complete:
            self._relay.ledger.succeeded(self._decision.decode.instance)
        self._relay.hook.answered(self._decision, usage, content_events, complete=complete)


class _Watch:
    """Keeps what an answer holds until it has ended. Implements `flows.AnswerWatch`."""

    def __init__(self, course: _Course, response: EngineResponse, held: Held) -> None:
        self._course = course
        self._response = response
        self._held = held
        self._ended = False

    def began(self) -> None:
        """The first body byte is here."""
        self._course.note_first_byte()

    def broke(self, error: UpstreamError) -> None:
        """The engine broke off."""
        self._course.note_failure(Leg.DECODE, error.instance, _kind(error))

    def ended(self, usage: Usage | None, content_events: int, *, complete: bool) -> None:
        """The body has ended, one way or another."""
        if not self._ended:
            self._ended = True
            self._held.close()
            self._course.note_end(usage, content_events, complete=complete)

    async def aclose(self) -> None:
        """Cut the call if it still runs, free what it holds. Idempotent."""
        self.ended(None, 0, complete=False)
        await self._response.aclose()


async def _settle(task: asyncio.Task[Any], grace: Seconds) -> bool:
    """Give a task `grace` seconds to end, then cancel it; True if it has a result."""
    try:
        if grace > 0:
            await asyncio.wait({task}, timeout=grace)
    finally:
        task.cancel()
        await asyncio.wait({task})
    return not task.cancelled() and task.exception() is None


def _removed(leg: Leg, instance: str) -> FailedLeg:
    return FailedLeg(leg, UpstreamUnreachable("the instance was removed", instance=instance))


def _kind(error: UpstreamError) -> FailureKind:
    match error:
        case UpstreamUnreachable():
            return FailureKind.CONNECT
        case UpstreamTimeout():
            return FailureKind.TIMEOUT
        case UpstreamLost():
            return FailureKind.LOST
        case _:
            return FailureKind.BROKEN
