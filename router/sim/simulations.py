"""One run: requests through admission, the rule, prefill, the link and decode.

What decides is production's own: `FairQueue` grants decode slots, `decide` routes, the links are
`router.control.links` states that are booked, told telemetry once a second and asked for their
budget. Simulated is what decides nothing: engines, bytes and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from router.control.admission import AdmissionRules, FairQueue, Lane, Waiting
from router.control.conversions import Phase
from router.control.thresholds import StepRules, step_tokens
from router.domain.decision import Decision, NoRoute, Reason, Route, Rule
from router.domain.topology import Role
from router.domain.units import BytesPerSecond, Seconds, Tokens
from router.policy.route import decide, decide_local
from router.sim.instances import Instance
from router.sim.kernel import Calendar
from router.sim.late_binding import LateBinding
from router.sim.long_loops import LongLoop
from router.sim.plants import Conversion, Incident, LinkChange, PlantSpec, Reference
from router.sim.records import Outcome, Record
from router.sim.system import Job, System, Wire
from router.sim.traffic import Demand

SHORT_LOOP_SECONDS: Seconds = 1.0
"""How often links are told their telemetry: `scheduler.short_loop.period_seconds`."""

Solver = Callable[[Mapping[str, BytesPerSecond]], Tokens]
"""Returns the best threshold for what each PrfaaS cluster's link carries (equation 7)."""

_WORTH_SOLVING = 0.01
_LANE = Lane("model")


class Simulation:
    """A run in progress. Equal arguments give equal records."""

    def __init__(
        self,
        plant: PlantSpec,
        demands: Iterator[Demand],
        count: int,
        reference: Reference,
        incidents: tuple[Incident, ...] = (),
        solve: Solver | None = None,
        long_loop: LongLoop | None = None,
        steps: StepRules | None = None,
    ) -> None:
        """`count` requests are taken from `demands`; all of them are served to their end.

        With `solve` the threshold follows what the links' telemetry says, as in mode `auto`: by
        `steps` as production does, without them at once to what is best. With a long loop
        instances are converted, and t is the loop's to solve.
        """
        self.plant = plant
        self.records: list[Record] = []
        self.calendar = Calendar()
        self.system = System(plant)
        self._reference = reference
        self._solve = solve if long_loop is None else None
        self._long_loop = long_loop
        self._steps = steps
        self._wanted = plant.rule.tokens
        self._changed_at: Seconds = 0.0
        self._solved_for = {spec.source: spec.rate for spec in plant.links}
        self._demands = islice(demands, count)
        self._queue = FairQueue(AdmissionRules(queue_size=plant.rule.queue_size))
        self._queued: dict[Waiting, Job] = {}
        self._arrived = 0
        self._late = (
            LateBinding(self.system, plant.rule.slack) if plant.rule.rule is Rule.SLACK else None
        )
        self._left = count
        self._limit = plant.decode.slots if plant.decode.reserved else None
        for incident in incidents:
            self._plan(incident)

    def __repr__(self) -> str:
        return f"<Simulation at {self.calendar.now:.1f} s, {self._left} requests left>"

    def run(self) -> list[Record]:
        """Serve everything; return the records in the order of completion."""
        self._await_next()
        if self.system.wires:
            self.calendar.at(SHORT_LOOP_SECONDS, self._step_links, None)
        if self._long_loop is not None:
            self.calendar.at(SHORT_LOOP_SECONDS, self._step_long_loop, self._long_loop)
        self.calendar.run()
        return self.records

    # -- arrival and admission

    def _await_next(self) -> None:
        demand = next(self._demands, None)
        if demand is not None:
            self.calendar.at(demand.at, self._arrive, demand)

    def _arrive(self, demand: Demand) -> None:
        self._await_next()
        self._arrived += 1
        job = self.system.admit(self._arrived, demand, self._reference)
        if self._late is not None:
            self._join(job)
        elif self._queue or self.system.home.least_loaded(self._limit) is None:
            self._wait(job)
        else:
            self._route(job)

    def _join(self, job: Job) -> None:
        """Let a job wait for an instance instead of sending it to one."""
        assert self._late is not None  # noqa: S101 - only called where there is a queue
        if self._late.join(job, self.calendar.now):
            self._bind()
        else:
            self._reject(job)

    def _bind(self, _: object = None) -> None:
        """Let free instances take those that wait."""
        if self._late is not None:
            for job, decision in self._late.bind(self.calendar.now, self._limit):
                self._follow(job, decision)

    def _wait(self, job: Job) -> None:
        waiting = self._queue.join("default", 1.0, 0, _LANE, self.calendar.now)
        self._queued[waiting] = job
        for dropped in self._queue.overflow():
            self._reject(self._queued.pop(dropped))

    def _let_in(self) -> None:
        """Route whoever is next while there is a free slot."""
        while self._queue:
            least = self.system.home.least_loaded(self._limit)
            if least is None:
                return
            granted = self._queue.grant(self.calendar.now, _offer_once(least.name))
            for grant in granted:
                self._route(self._queued.pop(grant.waiting))

    # -- the decision

    def _route(self, job: Job) -> None:
        snapshot = self.system.view(job, self.calendar.now)
        self._follow(job, decide(snapshot))

    def _reroute(self, job: Job) -> None:
        """Prefill at home what the link took away, or let it wait for who can."""
        if self._late is not None:
            self._join(job)
            return
        snapshot = self.system.view(job, self.calendar.now)
        self._follow(job, decide_local(snapshot, Reason.REMOTE_PREFILL_FAILED))

    def _follow(self, job: Job, decision: Decision | NoRoute) -> None:
        if isinstance(decision, NoRoute):
            self._reject(job)
            return
        now = self.calendar.now
        if not job.attempts:
            job.admitted = now
        job.attempts += 1
        job.decision = decision
        if self._long_loop is not None and job.attempts == 1:
            self._long_loop.note(
                uncached=decision.uncached_tokens,
                computed=decision.compute_uncached_tokens,
                offloaded=decision.route is Route.PRFAAS,
            )
        decode = self.system.named[decision.decode.instance]
        prefill = (
            decode if decision.prefill is None else self.system.named[decision.prefill.instance]
        )
        decode.held += 1
        job.decode, job.prefill = decode, prefill
        pool = self.system.pool_named(prefill.cluster)
        work = self.system.prefill_seconds(job, pool, decision.compute_uncached_tokens)
        if job.demand.blocks:
            prefill.cache.store(job.demand.blocks, job.demand.total)
        if decision.route is Route.PRFAAS:
            self._send(job, prefill, work)
        else:
            self._compute(job, prefill, work)
        if self._late is not None:
            self.calendar.at(max(now, prefill.free_at), self._bind, None)

    def _compute(self, job: Job, prefill: Instance[Job], work: Seconds) -> None:
        assert job.decision is not None  # noqa: S101 - followed is what was decided
        job.started = prefill.take(self.calendar.now, work)
        job.prefilled = job.started + work
        crossing = (job.decision.kv_bytes or 0) / self.plant.fabric
        self.calendar.at(job.prefilled + crossing, self._deliver, job)

    # -- the remote leg

    def _send(self, job: Job, prefill: Instance[Job], work: Seconds) -> None:
        wire = self.system.wires[prefill.cluster]
        wire.book(job)
        job.wire = wire
        if wire.spec.overlap:
            job.started = prefill.take(self.calendar.now, work)
            job.prefilled = job.started + work
            job.legs = 2
            self.calendar.at(job.prefilled, self._finish_leg, job)
            if job.started > self.calendar.now:
                self.calendar.at(job.started, self._open, job)
            else:
                self._open(job)
            return
        # When its turn comes depends on the link; what is queued is the estimate.
        prefill.take(self.calendar.now, work + job.booked / wire.spec.rate)
        job.legs = 1
        job.work = work
        line = wire.line[prefill.name]
        line.append(job)
        if len(line) == 1:
            self._compute_alone(job)

    def _compute_alone(self, job: Job) -> None:
        """Compute the first in an instance's line, whose KV crosses before the next begins."""
        job.started = self.calendar.now
        job.prefilled = job.started + job.work
        self.calendar.at(job.prefilled, self._open, job)

    def _open(self, job: Job) -> None:
        wire = job.wire
        if job.dead or wire is None:
            return
        wire.link.open(self.calendar.now, job.booked, job)
        self._watch(wire)

    def _watch(self, wire: Wire) -> None:
        """Have the next completion told; what was planned before is stale."""
        wire.stamp += 1
        when = wire.link.next_completion()
        if when is not None:
            self.calendar.at(max(when, self.calendar.now), self._complete, (wire, wire.stamp))

    def _complete(self, told: tuple[Wire, int]) -> None:
        wire, stamp = told
        if stamp != wire.stamp:
            return
        for job in wire.link.take_done(self.calendar.now):
            self._finish_leg(job)
            if not wire.spec.overlap:
                self._leave_line(wire, job)
        self._watch(wire)
        self._bind()

    def _leave_line(self, wire: Wire, job: Job) -> None:
        assert job.prefill is not None  # noqa: S101 - as above
        line = wire.line[job.prefill.name]
        line.popleft()
        if line:
            self._compute_alone(line[0])

    def _finish_leg(self, job: Job) -> None:
        """Either prefill or crossing is over; when both are, the KV is there."""
        if job.dead:
            return
        job.legs -= 1
        if not job.legs:
            assert job.wire is not None  # noqa: S101 - only remote jobs have legs
            job.crossed += job.booked
            job.wire.release(job)
            self._deliver(job)

    # -- decode

    def _deliver(self, job: Job) -> None:
        decode, slots = job.decode, self.plant.decode.slots
        assert decode is not None  # noqa: S101 - routed jobs have one
        if slots is None or self.plant.decode.reserved or decode.running < slots:
            self._answer(job)
        else:
            decode.waiting.append(job)

    def _answer(self, job: Job) -> None:
        assert job.decode is not None  # noqa: S101 - as above
        job.decode.running += 1
        job.answered = self.calendar.now
        ends = job.answered + job.demand.output * self.plant.decode.pace
        self.calendar.at(ends, self._finish, job)

    def _finish(self, job: Job) -> None:
        decode = job.decode
        assert decode is not None  # noqa: S101 - as above
        decode.held -= 1
        decode.running -= 1
        self._note(job, Outcome.SERVED)
        if decode.waiting:
            self._answer(decode.waiting.popleft())
        if self._queue:
            self._let_in()
        self._bind()

    def _reject(self, job: Job) -> None:
        self._note(job, Outcome.REJECTED)

    def _note(self, job: Job, outcome: Outcome) -> None:
        self._left -= 1
        demand, decision = job.demand, job.decision
        self.records.append(
            Record(
                job.number,
                outcome.value,
                demand.at,
                demand.total,
                demand.fresh,
                demand.output,
                job.unloaded,
                decision.route.value if decision else "",
                decision.reason.value if decision else "",
                job.prefill.name if job.prefill else "",
                job.decode.name if job.decode else "",
                decision.uncached_tokens if decision else demand.total,
                decision.compute_uncached_tokens if decision else 0,
                decision.threshold if decision else 0,
                job.admitted,
                job.started,
                job.prefilled,
                job.answered,
                self.calendar.now,
                round(job.crossed),
                round(job.wasted),
                job.attempts,
            )
        )

    # -- incidents

    def _plan(self, incident: Incident) -> None:
        match incident:
            case LinkChange(at):
                self.calendar.at(at, self._change_link, incident)
            case Conversion(at):
                self.calendar.at(at, self._drain, incident)

    def _change_link(self, change: LinkChange) -> None:
        wire = self.system.wire_named(change.link)
        wire.link.change(self.calendar.now, change.rate)
        self._watch(wire)

    def _step_links(self, _: None) -> None:
        """Tell every link its telemetry, as a link agent does, and give up what a dead one has."""
        now = self.calendar.now
        for wire in self.system.wires.values():
            wire.report(now, SHORT_LOOP_SECONDS)
            if wire.link.rate <= 0:
                self._give_up(wire)
        self._solve_threshold()
        self._bind()
        if self._left:
            self.calendar.at(now + SHORT_LOOP_SECONDS, self._step_links, None)

    def _solve_threshold(self) -> None:
        """Solve t anew where a link carries clearly more or less than it was solved for."""
        if self._solve is None:
            return
        rates = {source: wire.link.rate for source, wire in self.system.wires.items()}
        if all(rates.values()) and any(
            abs(rate / self._solved_for[source] - 1) > _WORTH_SOLVING
            for source, rate in rates.items()
        ):
            self._solved_for = rates
            self._wanted = self._solve(rates)
        self._step_threshold()

    def _step_threshold(self) -> None:
        now, tokens, wanted = self.calendar.now, self.system.threshold, self._wanted
        if self._steps is not None:
            wanted = step_tokens(tokens, self._changed_at, wanted, now, self._steps)
        if wanted != tokens:
            self.system.threshold, self._changed_at = wanted, now

    def _give_up(self, wire: Wire) -> None:
        for job in wire.booked_jobs():
            wire.abandon(job, self.calendar.now)
            successor = job.succeed()
            assert job.decode is not None  # noqa: S101 - as above
            job.decode.held -= 1
            self._reroute(successor)
        self._watch(wire)

    def _step_long_loop(self, loop: LongLoop) -> None:
        """Look once more, and let an instance be as its conversion has it."""
        progress = loop.step(self.system, self.calendar.now)
        if progress is not None:
            conversion = progress.conversion
            match progress.phase:
                case Phase.DRAINING:
                    self._withdraw(conversion.instance)
                case Phase.SETTLED:
                    self._serve(conversion.instance, conversion.target)
                case Phase.ROLLED_BACK:
                    self._serve(conversion.instance, conversion.source)
                case _:
                    pass
        if self._left:
            self.calendar.at(self.calendar.now + SHORT_LOOP_SECONDS, self._step_long_loop, loop)

    def _drain(self, conversion: Conversion) -> None:
        self._withdraw(conversion.instance)
        self._convert_when_empty(conversion)

    def _withdraw(self, name: str) -> None:
        self.system.named[name].ready = False
        self.system.refresh()

    def _convert_when_empty(self, conversion: Conversion) -> None:
        instance, now = self.system.named[conversion.instance], self.calendar.now
        if instance.held or instance.free_at > now:
            again = max(now + SHORT_LOOP_SECONDS, instance.free_at)
            self.calendar.at(again, self._convert_when_empty, conversion)
        else:
            self.calendar.at(now + conversion.seconds, self._convert, conversion)

    def _convert(self, conversion: Conversion) -> None:
        self._serve(conversion.instance, conversion.role)

    def _serve(self, name: str, role: Role) -> None:
        """Let an instance work in a role, with nothing cached."""
        instance = self.system.named[name]
        instance.role = role
        instance.ready = True
        instance.cache.clear()
        self.system.refresh()
        self._let_in()
        self._bind()


def _offer_once(name: str) -> Callable[[Lane], str | None]:
    """Return what offers one slot to whoever is next, and none after."""
    offers = iter((name,))
    return lambda _lane: next(offers, None)
