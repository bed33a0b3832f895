"""Conversions carried out over a real order book: each step, each way back, each other voice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from router.adapters.memory_state import MemoryState
from router.control.conversions import ConversionRules, Phase, Progress
from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed, Changed, NotFound, StoreAway
from router.domain.topology import Cluster, ClusterKind, Instance, InstanceState, Role
from router.ports import Fence, Kept
from router.service.conversions import ConversionOutcome, Converter, Means
from router.service.fleet import Fleet
from router.service.members import EngineReading
from router.service.order_book import Order, OrderBook
from router.service.orders import (
    InstanceOrder,
    Orders,
    with_abort,
    with_instance,
    with_progress,
    without_instance,
)
from tests.fakes.clocks import FakeClock

P0 = Instance("p0", "pd", "http://p0", Role.PREFILL, convertible=True)
P1 = Instance("p1", "pd", "http://p1", Role.PREFILL, convertible=True)
D0 = Instance("d0", "pd", "http://d0", Role.DECODE, convertible=True)
CONFIGURED = {each.name: each for each in (P0, P1, D0)}
TO_DECODE = Conversion("m", "pd", "p0", Role.PREFILL, Role.DECODE)
RULES = ConversionRules(drain=60, act=20, verify=30, lease=10, spread=2)


class ScriptedActuator:
    """Says yes, unless told what goes wrong; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses: set[str] = set()
        self.serves = True
        self.in_place = True

    def choose(self, _model: str, instances: Sequence[Instance]) -> Sequence[Instance]:
        return instances

    async def act(self, conversion: Conversion) -> None:
        self._ask("act", conversion)

    async def confirm(self, conversion: Conversion) -> bool:
        self._ask("confirm", conversion)
        return self.serves

    async def undo(self, conversion: Conversion) -> None:
        self._ask("undo", conversion)

    def _ask(self, what: str, conversion: Conversion) -> None:
        assert conversion == replace(TO_DECODE, in_place=self.in_place)
        self.asked.append(what)
        if what in self.refuses:
            raise ActuationFailed(f"{what} was refused")


class FlakyState(MemoryState):
    """A store that answers only while `here`."""

    here = True

    async def read(self, name: str) -> Kept:
        if not self.here:
            raise StoreAway("away")
        return await super().read(name)


class Controller:
    """A process that leads, with a fleet of its own, over a state that others may share."""

    def __init__(self, state: MemoryState, clock: FakeClock, term: int = 1) -> None:
        self.clock = clock
        self.leads = True
        self.term = term
        self.fence: Fence | None = None
        self.outcomes: list[ConversionOutcome] = []
        self.actuator = ScriptedActuator()
        self.fleet = Fleet([Cluster("pd", ClusterKind.PD)], CONFIGURED.values(), clock=clock)
        self.book = OrderBook(state, clock, self._put)
        self.converter = Converter(
            self.fleet,
            clock=clock,
            hook=self,
            command=self,
            means=Means(self.actuator, RULES, CONFIGURED),
        )

    def converted(self, outcome: ConversionOutcome) -> None:
        self.outcomes.append(outcome)

    async def _put(self, orders: Orders) -> None:
        for name, base in CONFIGURED.items():
            order = orders.instances.get(name, InstanceOrder())
            if name in orders.removed:
                if any(member.instance.name == name for member in self.fleet.members):
                    self.fleet.remove(name)
                continue
            self.fleet.set_state(name, order.state or InstanceState.ACTIVE)
            self.fleet.set_role(name, order.role or base.role)

    @property
    def progress(self) -> Progress:
        progress = self.book.orders.conversion
        assert progress is not None
        return progress

    @property
    def phase(self) -> Phase:
        return self.progress.phase

    def described(self) -> tuple[InstanceState, Role]:
        member = self.fleet.member("p0")
        return member.state, member.instance.role

    async def step(self, seconds: float = 1.0, *, running: int = 0) -> Phase:
        """Let time pass, the engines be scraped, and the converter look."""
        self.clock.advance(seconds)
        for member in self.fleet.members:
            reading = EngineReading(self.clock.seconds, 0, running)
            self.fleet.record_probe(member.instance.name, ok=True, reading=reading)
        await self.book.refresh()
        await self.converter.step(self.book)
        return self.phase

    async def reach(self, phase: Phase) -> None:
        """Begin, and go as far as this without trouble."""
        await self.converter.begin(self.book, TO_DECODE)
        for _ in range(40):
            if self.phase is phase:
                return
            await self.step()
        raise AssertionError(f"never {phase}, but {self.phase}")


@pytest.fixture
def state() -> FlakyState:
    return FlakyState()


@pytest.fixture
def controller(state: FlakyState) -> Controller:
    return Controller(state, FakeClock())


async def order(controller: Controller, edit: object) -> None:
    """Change the orders as an operator does."""
    await controller.book.change(
        Order("instance.set", "p0", lambda orders: orders.instances, edit),  # type: ignore[arg-type]
        by="ops",
    )


async def test_an_instance_is_drained_converted_and_put_to_work(controller: Controller) -> None:
    """No work while it changes, the new role afterwards, and every phase in the audit."""
    await controller.converter.begin(controller.book, TO_DECODE)
    assert controller.described() == (InstanceState.DRAINING, Role.PREFILL)
    began = controller.clock.seconds
    while controller.phase is Phase.DRAINING:
        await controller.step()
    assert controller.clock.seconds - began >= 12, "KV leases of the last hand-off, and the spread"
    while not controller.phase.is_over:
        await controller.step()
    assert controller.described() == (InstanceState.ACTIVE, Role.DECODE)
    assert controller.actuator.asked == ["act", "confirm"]
    assert controller.outcomes == [ConversionOutcome.SETTLED]
    audit = await controller.book.audit(10)
    assert [each["action"] for each in reversed(audit)] == [
        "conversion.draining",
        "conversion.acting",
        "conversion.verifying",
        "conversion.settled",
    ]
    assert {each["by"] for each in audit} == {"controller"}
    assert not await controller.converter.step(controller.book), "what is over is left alone"


async def test_where_another_one_comes_the_instance_keeps_its_role(
    controller: Controller,
) -> None:
    """It ended: should it ever come back, it is what it was and may be used."""
    controller.actuator.in_place = False
    await controller.reach(Phase.SETTLED)
    assert controller.actuator.asked == ["act", "confirm"]
    assert controller.described() == (InstanceState.ACTIVE, Role.PREFILL)
    assert controller.book.orders.instances == {}


async def test_busy_engines_are_waited_for(controller: Controller) -> None:
    """What runs at the engine, or is due there from a gateway, starts the quiet anew."""
    await controller.converter.begin(controller.book, TO_DECODE)
    for _ in range(15):
        await controller.step(running=1)
    with controller.fleet.prefill_leg("p0", 1.0):
        for _ in range(15):
            await controller.step()
    assert controller.phase is Phase.DRAINING
    for _ in range(12):
        await controller.step()
    assert controller.phase is Phase.DRAINING
    assert await controller.step() is Phase.ACTING


async def test_an_engine_that_says_nothing_is_not_idle(controller: Controller) -> None:
    """Without fresh readings an instance is never touched, and put back when its time is over."""
    await controller.converter.begin(controller.book, TO_DECODE)
    controller.clock.advance(30)
    await controller.converter.step(controller.book)
    controller.clock.advance(29)
    await controller.converter.step(controller.book)
    assert controller.phase is Phase.DRAINING
    controller.clock.advance(2)
    await controller.converter.step(controller.book)
    assert controller.phase is Phase.ROLLED_BACK
    assert controller.described() == (InstanceState.ACTIVE, Role.PREFILL)
    assert controller.actuator.asked == []


@pytest.mark.parametrize("refused", ["act", "confirm"])
async def test_a_refusal_is_undone(controller: Controller, refused: str) -> None:
    """Whatever the engine refuses, it is asked for its old role and put back to work in it."""
    controller.actuator.refuses = {refused}
    await controller.reach(Phase.ROLLED_BACK)
    assert controller.actuator.asked[-1] == "undo"
    assert controller.described() == (InstanceState.ACTIVE, Role.PREFILL)
    assert controller.progress.cause == f"{refused} was refused"
    assert controller.outcomes == [ConversionOutcome.ROLLED_BACK]


async def test_a_role_that_is_never_served_is_undone(controller: Controller) -> None:
    """Verification polls until its time-out."""
    controller.actuator.serves = False
    await controller.reach(Phase.VERIFYING)
    for _ in range(30):
        assert await controller.step() is Phase.VERIFYING
    assert await controller.step() is Phase.UNDOING
    assert await controller.step() is Phase.ROLLED_BACK
    assert controller.described() == (InstanceState.ACTIVE, Role.PREFILL)


async def test_an_engine_that_cannot_be_put_back_gets_no_work(controller: Controller) -> None:
    """Where undoing fails until its time-out the instance stays drained, for an operator."""
    controller.actuator.refuses = {"act", "undo"}
    await controller.reach(Phase.UNDOING)
    while not controller.phase.is_over:
        await controller.step(5)
    assert controller.phase is Phase.STUCK
    assert controller.described() == (InstanceState.DRAINING, Role.PREFILL)
    assert controller.outcomes == [ConversionOutcome.STUCK]


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.ACTING, Phase.VERIFYING])
async def test_an_operator_can_abort_at_any_step(controller: Controller, phase: Phase) -> None:
    """Aborted, the instance does its old work again, and who did it is told."""
    await controller.reach(phase)
    await order(controller, lambda orders: with_abort(orders, "ops"))
    for _ in range(3):
        await controller.step()
    assert controller.phase is Phase.ROLLED_BACK
    assert controller.progress.cause == "aborted by ops"
    assert controller.described() == (InstanceState.ACTIVE, Role.PREFILL)
    assert ("undo" in controller.actuator.asked) is (phase is not Phase.DRAINING)


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.ACTING, Phase.VERIFYING])
@pytest.mark.parametrize(
    ("given", "then"),
    [
        (InstanceOrder(), (InstanceState.ACTIVE, Role.PREFILL)),
        (InstanceOrder(InstanceState.DISABLED), (InstanceState.DISABLED, Role.PREFILL)),
        (InstanceOrder(InstanceState.DRAINING, Role.BOTH), (InstanceState.DRAINING, Role.BOTH)),
    ],
)
async def test_an_operators_order_wins_over_a_conversion(
    controller: Controller,
    phase: Phase,
    given: InstanceOrder,
    then: tuple[InstanceState, Role],
) -> None:
    """What an operator says of the instance ends the conversion, and stays."""
    await controller.reach(phase)
    await order(controller, lambda orders: with_instance(orders, CONFIGURED, "p0", given))
    for _ in range(3):
        await controller.step()
    assert controller.phase is Phase.ROLLED_BACK
    assert controller.described() == then


async def test_an_instance_that_is_removed_ends_its_conversion(controller: Controller) -> None:
    """It is not put back where there is nothing to put."""
    await controller.reach(Phase.VERIFYING)
    await order(controller, lambda orders: without_instance(orders, CONFIGURED, "p0"))
    for _ in range(3):
        await controller.step()
    assert controller.phase is Phase.ROLLED_BACK
    assert "p0" in controller.book.orders.removed


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.ACTING, Phase.VERIFYING, Phase.UNDOING])
async def test_a_new_leader_goes_on_and_the_old_one_is_refused(
    state: FlakyState, phase: Phase
) -> None:
    """Whatever the phase: the next term takes over, and what the last one still writes is void."""
    clock = FakeClock()
    old, new = Controller(state, clock, term=1), Controller(state, clock, term=2)
    if phase is Phase.UNDOING:
        old.actuator.refuses = {"act"}
    await old.reach(phase)
    seen = old.progress
    await new.step()
    assert new.progress.term == 2
    with pytest.raises(Changed):
        await order(old, lambda orders: with_progress(orders, CONFIGURED, seen, seen))
    while not new.phase.is_over:
        await new.step()
    rolled_back = phase is Phase.UNDOING
    assert new.phase is (Phase.ROLLED_BACK if rolled_back else Phase.SETTLED)
    await old.step()
    role = Role.PREFILL if rolled_back else Role.DECODE
    assert old.described() == new.described() == (InstanceState.ACTIVE, role)


async def test_who_no_longer_leads_when_the_engine_answers_writes_nothing(
    controller: Controller,
) -> None:
    """A leader that lost its lease while it waited leaves the next step to the next one."""
    await controller.reach(Phase.ACTING)
    controller.leads = False
    assert await controller.step() is Phase.ACTING


async def test_a_store_that_is_away_stops_nothing_for_good(
    controller: Controller, state: FlakyState
) -> None:
    """The same step is done again when the store is back."""
    await controller.reach(Phase.ACTING)
    state.here = False
    with pytest.raises(StoreAway):
        await controller.converter.step(controller.book)
    state.here = True
    while not controller.phase.is_over:
        await controller.step()
    assert controller.phase is Phase.SETTLED


async def test_a_configuration_without_actuator_ends_what_is_under_way(
    controller: Controller,
) -> None:
    """Back at `dry_run` before the engine was touched, the instance is put back."""
    await controller.reach(Phase.DRAINING)
    controller.converter.means = Means(None, RULES, CONFIGURED)
    assert await controller.step() is Phase.ROLLED_BACK
    assert controller.described() == (InstanceState.ACTIVE, Role.PREFILL)


async def test_what_an_operator_drained_is_not_converted(controller: Controller) -> None:
    """A conversion of an instance that is not active does not begin."""
    drained = InstanceOrder(InstanceState.DRAINING)
    await order(controller, lambda orders: with_instance(orders, CONFIGURED, "p0", drained))
    await controller.converter.begin(controller.book, TO_DECODE)
    assert controller.book.orders.conversion is None


async def test_nothing_to_abort_is_told(controller: Controller) -> None:
    """Before and after a conversion there is none to abort."""
    with pytest.raises(NotFound):
        await order(controller, lambda orders: with_abort(orders, "ops"))
    await controller.reach(Phase.SETTLED)
    with pytest.raises(NotFound):
        await order(controller, lambda orders: with_abort(orders, "ops"))
