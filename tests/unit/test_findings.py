"""What the long loop found, as every process knows it."""

from __future__ import annotations

from router.adapters.memory_state import MemoryState
from router.control.balance import Finding, Proposal, StageReading, Verdict
from router.domain.conversions import Conversion
from router.domain.errors import NotLeading
from router.domain.topology import Role
from router.ports import Fence
from router.service.findings import FINDINGS, FindingsBook
from router.throughput.stages import Stage
from tests.fakes.clocks import FakeClock

PROPOSED = Finding(
    Verdict.PROPOSED,
    StageReading(4.0, 1.0),
    StageReading(0.0, 0.5, 1.0),
    Stage.PD_P,
    -0.4,
    Proposal(
        Conversion("m", "pd", "d0", Role.DECODE, Role.PREFILL),
        Stage.PD_P, -0.4, 1, 3, 2, 2, 1.0, 1.5, 1.5, 5,
    ),
)  # fmt: skip
UNKNOWN = Finding(Verdict.UNKNOWN, None, StageReading(0.0, 0.0))


class Process:
    """A process that may lead, and its copy."""

    def __init__(self, state: MemoryState, clock: FakeClock, *, leads: bool) -> None:
        self.leads = leads
        self.term = 1
        self.book = FindingsBook(state, self, clock)

    @property
    def fence(self) -> Fence | None:
        if not self.leads:
            raise NotLeading("no")
        return None


async def test_everybody_reads_what_the_leader_found() -> None:
    """Proposals and unknown stages arrive as they were, with their time."""
    state, clock = MemoryState(), FakeClock(5)
    leader, other = (Process(state, clock, leads=leads) for leads in (True, False))
    await leader.book.write({("m", "pd"): PROPOSED, ("n", "pd"): UNKNOWN})
    await other.book.refresh()
    assert other.book.findings == {("m", "pd"): PROPOSED, ("n", "pd"): UNKNOWN}
    assert other.book.at == leader.book.at == clock.now()
    await leader.book.write({})
    await other.book.refresh()
    assert other.book.findings == {}


async def test_only_who_leads_writes() -> None:
    """A leader of yesterday changes nothing, and learns what today's found."""
    state, clock = MemoryState(), FakeClock()
    before, after = (Process(state, clock, leads=True) for _ in range(2))
    await before.book.write({("m", "pd"): UNKNOWN})
    before.leads = False
    await after.book.write({("m", "pd"): PROPOSED})
    await before.book.write({("n", "pd"): UNKNOWN})
    assert before.book.findings == after.book.findings == {("m", "pd"): PROPOSED}
    assert (await state.read(FINDINGS)).version == 2


async def test_what_is_not_news_is_not_written_and_what_cannot_be_read_is_left() -> None:
    """An idle system costs the store no writes; another version's document harms nobody."""
    state, clock = MemoryState(), FakeClock()
    leader = Process(state, clock, leads=True)
    for _ in range(3):
        await leader.book.write({("m", "pd"): UNKNOWN})
    assert (await state.read(FINDINGS)).version == 1
    await state.write(FINDINGS, b"[1]", after=1)
    await leader.book.refresh()
    assert leader.book.findings == {("m", "pd"): UNKNOWN}
