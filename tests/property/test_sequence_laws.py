"""The sequence machine against a simulated publisher that restarts, forgets and loses messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kvmeta.ingest.sequences import (
    Action,
    Apply,
    AskReplay,
    Attached,
    BeginEpoch,
    Count,
    LiveMessage,
    Observation,
    Phase,
    ProbeDue,
    Reconnected,
    ReplayAnswer,
    ReplayEnd,
    ReplayFailed,
    SequenceState,
    Touch,
    resume,
    step,
)
from kvmeta.types import SourceState

Message = tuple[int, bytes]


@dataclass
class World:
    """A publisher, the machine that follows it, and what the machine's actions built."""

    buffer_size: int
    life: int = 0
    published: list[Message] = field(default_factory=list)
    state: SequenceState = field(default_factory=lambda: SequenceState(can_replay=True))
    trust: SourceState = SourceState.UNKNOWN
    applied: list[Message] = field(default_factory=list)
    last_digest: bytes | None = None
    asked: int | None = None
    alive: bool = True

    def observe(self, observation: Observation) -> None:
        self.state, actions = step(self.state, observation)
        for action in actions:
            self.act(action)

    def act(self, action: Action) -> None:
        match action:
            case Apply():
                if self.applied:
                    assert action.sequence == self.applied[-1][0] + 1, "in order, without a hole"
                self.applied.append((action.sequence, action.payload))
                self.last_digest = action.digest
            case BeginEpoch():
                self.applied.clear()
                self.last_digest = None
                self.trust = action.state
            case AskReplay():
                self.asked = action.start
            case Touch() | Count():
                pass

    def publish(self, *, delivered: bool) -> None:
        number = len(self.published)
        message = (number, f"{self.life}:{number}".encode())
        self.published.append(message)
        if delivered:
            self.observe(LiveMessage(*message))

    def restart(self) -> None:
        """The process dies and another takes its address: the subscriber always notices that."""
        self.life += 1
        self.published = []
        self.observe(Reconnected())

    def come_back(self, *, published: int, restarted: bool) -> None:
        """The ingest was away: another goes on from what was applied, messages have come since."""
        if restarted:
            self.life += 1
            self.published = []
        for _ in range(published):
            number = len(self.published)
            self.published.append((number, f"{self.life}:{number}".encode()))
        self.asked = None
        fresh = SequenceState(can_replay=True)
        next_sequence = self.applied[-1][0] + 1 if self.applied else None
        known = None if next_sequence is None else resume(next_sequence, self.last_digest)
        self.state = known or fresh
        self.observe(Attached())

    def serve(self, *, fails: bool, drop: int | None = None, until: int | None = None) -> None:
        """Serve the open replay request wholly, as one publisher thread does.

        `drop`: a socket on the way loses the answer in that place. `until`: it breaks off there.
        """
        if self.asked is None:
            return
        start, self.asked = self.asked, None
        if fails:
            self.observe(ReplayFailed())
            return
        kept = self.published[-self.buffer_size :]
        for place, (number, payload) in enumerate(kept):
            if place == until:
                self.observe(ReplayFailed())
                return
            if number >= start and place != drop:
                self.observe(ReplayAnswer(number, payload))
                if self.asked is not None:
                    return  # the machine gave this replay up and asked another
        self.observe(ReplayEnd())

    def settle(self) -> None:
        """Let the machine have every replay that it asks for, then one probe."""
        for _ in range(20):
            while self.asked is not None:
                self.serve(fails=False)
            if self.state.phase is Phase.LISTENING and self.state.next == len(self.published):
                break
            self.observe(ProbeDue())


MOVES = st.sampled_from(
    [
        *("deliver", "deliver", "deliver", "lose", "serve", "hole", "break", "fail", "probe"),
        *("restart", "away", "both away"),
    ]
)


@settings(max_examples=600, deadline=None)
@given(st.lists(MOVES, max_size=60), st.integers(1, 40))
def test_whatever_happens_the_epoch_is_one_process_in_order(
    moves: list[str], buffer_size: int
) -> None:
    """What is applied in an epoch is a contiguous stretch of one life of the publisher."""
    world = World(buffer_size)
    world.observe(Attached())
    for move in moves:
        match move:
            case "deliver" | "lose":
                world.publish(delivered=move == "deliver")
            case "serve" | "fail":
                world.serve(fails=move == "fail")
            case "hole":
                world.serve(fails=False, drop=1)
            case "break":
                world.serve(fails=False, until=2)
            case "probe":
                world.observe(ProbeDue())
            case "restart":
                world.restart()
            case _:
                world.come_back(published=3, restarted=move == "both away")
        lives = {payload.split(b":")[0] for _, payload in world.applied}
        assert len(lives) <= 1
        if world.trust is SourceState.SYNCED and world.applied:
            assert world.applied[0][0] == 0
    world.settle()
    assert world.state.phase is Phase.LISTENING
    assert world.state.next == len(world.published)
    if world.trust is SourceState.SYNCED:
        assert world.applied == world.published
    else:
        assert world.applied == world.published[len(world.published) - len(world.applied) :]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["deliver", "lose", "restart"]), max_size=40))
def test_without_a_replay_endpoint_nothing_lost_stays_believed(moves: list[str]) -> None:
    """With nobody to ask, an epoch holds only what followed the last loss."""
    world = World(buffer_size=0, state=SequenceState(can_replay=False))
    world.observe(Attached())
    for move in moves:
        if move == "restart":
            world.restart()
        else:
            world.publish(delivered=move == "deliver")
        assert world.asked is None
        lives = {payload.split(b":")[0] for _, payload in world.applied}
        assert len(lives) <= 1
        if world.trust is SourceState.SYNCED and world.applied:
            assert world.applied[0][0] == 0
