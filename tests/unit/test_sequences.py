"""The sequence machine, transition by transition."""

from __future__ import annotations

import pytest

from kvmeta.ingest.sequences import (
    MAX_HELD,
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

SYNCED, PARTIAL, UNKNOWN = SourceState.SYNCED, SourceState.PARTIAL, SourceState.UNKNOWN


def live(number: int, life: str = "first") -> LiveMessage:
    return LiveMessage(number, f"{life} {number}".encode())


def answer(number: int, life: str = "first") -> ReplayAnswer:
    return ReplayAnswer(number, f"{life} {number}".encode())


def apply(number: int, life: str = "first") -> Apply:
    return Apply(number, f"{life} {number}".encode())


def run(
    *observations: Observation, can_replay: bool = True, state: SequenceState | None = None
) -> tuple[SequenceState, list[Action]]:
    """Feed `observations` in order; the actions of all of them."""
    state = state or SequenceState(can_replay=can_replay)
    done: list[Action] = []
    for observation in observations:
        state, actions = step(state, observation)
        done.extend(actions)
    return state, done


def synced_to(number: int) -> SequenceState:
    """A source attached at its beginning that has sent `number` live messages."""
    state, _ = run(Attached(), ReplayEnd(), *(live(at) for at in range(number)))
    return state


def test_attach_asks_from_the_beginning_and_a_first_answer_of_zero_means_synced() -> None:
    """The publisher still has its first batch, so nothing was missed."""
    _, actions = run(Attached(), answer(0), answer(1), ReplayEnd())
    assert actions == [
        BeginEpoch(UNKNOWN),
        AskReplay(0),
        BeginEpoch(SYNCED),
        apply(0),
        apply(1),
        Touch(),
    ]


def resumed(number: int, life: str = "first") -> SequenceState:
    """A machine that goes on after number - 1 was applied by an earlier one."""
    _, actions = run(live(number - 1, life), state=synced_to(number - 1))
    (last,) = actions
    assert isinstance(last, Apply)
    state = resume(number, last.digest)
    assert state is not None
    return state


def test_a_resumed_machine_forgets_nothing_of_the_same_process() -> None:
    """The batch applied last is still what it was: only what came since is applied."""
    _, actions = run(
        Attached(), live(5), answer(2), answer(3), answer(4), ReplayEnd(), state=resumed(3)
    )
    assert actions == [AskReplay(2), apply(3), apply(4), Touch(), apply(5)]


def test_a_resumed_machine_finds_another_process() -> None:
    """Equal numbers, other payloads: forget, and learn the new stream from its beginning."""
    _, actions = run(Attached(), answer(2, "second"), state=resumed(3))
    assert actions == [AskReplay(2), Count("restart"), BeginEpoch(UNKNOWN), AskReplay(0)]


def test_a_resumed_machine_believes_nothing_that_nobody_can_prove() -> None:
    """The buffer has moved on past the last batch: what is held cannot be trusted."""
    _, actions = run(Attached(), answer(7), ReplayEnd(), state=resumed(3))
    assert actions[1:3] == [Count("lost"), BeginEpoch(PARTIAL)]


def test_without_the_last_digest_nothing_is_resumed() -> None:
    """A number alone does not tell one process from another; number 0 needs no proof."""
    assert resume(3, None) is None
    assert resume(0, None) is not None


def test_attach_to_a_publisher_that_published_nothing_is_synced() -> None:
    """Only the end marker: known to be empty, and the next number is 0."""
    state, actions = run(Attached(), ReplayEnd(), live(0))
    assert actions[2:] == [BeginEpoch(SYNCED), Touch(), apply(0)]
    assert state.next == 1


def test_attach_to_a_publisher_whose_buffer_lost_its_beginning_is_partial() -> None:
    """What was announced before the first answer is unknown."""
    _, actions = run(Attached(), answer(7), ReplayEnd(), live(8))
    assert actions[2:] == [BeginEpoch(PARTIAL), apply(7), Touch(), apply(8)]


def test_attach_holds_live_messages_until_the_replay_ends() -> None:
    """Order is kept and what came both ways is applied once."""
    _, actions = run(Attached(), live(1), answer(0), live(2), answer(1), ReplayEnd(), live(3))
    applied = [action for action in actions if isinstance(action, Apply)]
    assert applied == [apply(0), apply(1), apply(2), apply(3)]


def test_attach_whose_replay_fails_learns_forward_and_asks_again_at_a_probe() -> None:
    """Live messages make it partial; a later full replay makes it synced."""
    state, actions = run(Attached(), ReplayFailed(), live(5))
    assert actions[2:] == [Count("replay_failed"), BeginEpoch(PARTIAL), apply(5)]
    state, actions = run(ProbeDue(), answer(0), state=state)
    assert actions == [AskReplay(0), BeginEpoch(SYNCED), apply(0)]


def test_attach_whose_replay_breaks_off_believes_nothing() -> None:
    """Half a history without its end is no state of the cache."""
    _, actions = run(Attached(), answer(0), ReplayFailed(), ReplayFailed(), live(9))
    assert actions[3:] == [
        apply(0),
        Count("replay_broken"),
        AskReplay(1),
        Count("replay_failed"),
        BeginEpoch(UNKNOWN),
        BeginEpoch(PARTIAL),
        apply(9),
    ]


def test_a_replay_that_breaks_off_is_continued_where_it_stopped() -> None:
    """Progress was made, so the rest is asked for; the epoch goes on."""
    _, actions = run(Attached(), answer(0), ReplayFailed(), answer(1), ReplayEnd())
    assert actions[3:] == [
        apply(0),
        Count("replay_broken"),
        AskReplay(1),
        apply(1),
        Touch(),
    ]


def test_a_hole_within_a_replay_is_asked_for_again() -> None:
    """A socket's high-water mark dropped it on the way; the buffer has it still."""
    state, actions = run(Attached(), answer(0), answer(3))
    assert actions[3:] == [apply(0), Count("replay_hole"), AskReplay(1)]
    _, actions = run(answer(1), answer(2), answer(3), ReplayEnd(), state=state)
    assert actions == [apply(1), apply(2), apply(3), Touch()]


def test_a_hole_that_the_buffer_has_as_well_is_lost() -> None:
    """The rest was asked for and begins later: it left the buffer meanwhile."""
    _, actions = run(Attached(), answer(0), answer(3), answer(3), ReplayEnd())
    assert actions[5:] == [AskReplay(1), Count("lost"), BeginEpoch(PARTIAL), apply(3), Touch()]


@pytest.mark.parametrize(("first", "trust"), [(0, SYNCED), (3, PARTIAL)])
def test_without_replay_the_first_number_tells_synced_from_partial(
    first: int, trust: SourceState
) -> None:
    """Number 0 is the beginning of a process; any other came after something unheard."""
    _, actions = run(Attached(), live(first), can_replay=False)
    assert actions == [BeginEpoch(UNKNOWN), BeginEpoch(trust), apply(first)]


def test_r42_a_gap_asks_exactly_for_the_first_missing_number() -> None:
    """0, 1, then 4: replay from 2, and all five are applied in order, once."""
    state, actions = run(live(4), state=synced_to(2))
    assert actions == [Count("gap"), AskReplay(2)]
    _, actions = run(answer(2), live(5), answer(3), answer(4), ReplayEnd(), state=state)
    applied = [action for action in actions if isinstance(action, Apply)]
    assert applied == [apply(2), apply(3), apply(4), apply(5)]
    assert not any(isinstance(action, BeginEpoch) for action in actions)


def test_r42_a_gap_that_the_buffer_lost_begins_a_partial_epoch() -> None:
    """The replay starts later than asked: what was held cannot be trusted any more."""
    _, actions = run(live(4), answer(3), answer(4), ReplayEnd(), state=synced_to(2))
    assert actions == [
        Count("gap"),
        AskReplay(2),
        Count("lost"),
        BeginEpoch(PARTIAL),
        apply(3),
        apply(4),
    ]


@pytest.mark.parametrize("ending", [ReplayEnd(), ReplayFailed()])
def test_r42_a_gap_that_nobody_fills_begins_a_partial_epoch(ending: Observation) -> None:
    """No answer at all: go on from what came live, and say that it is a lower bound."""
    _, actions = run(live(4), ending, live(5), state=synced_to(2))
    assert Count("lost") in actions
    assert actions[-3:] == [BeginEpoch(PARTIAL), apply(4), apply(5)]


def test_r42_a_gap_without_replay_begins_a_partial_epoch() -> None:
    """Nobody to ask."""
    _, actions = run(Attached(), live(0), live(2), can_replay=False)
    assert actions[-4:] == [Count("gap"), Count("lost"), BeginEpoch(PARTIAL), apply(2)]


def test_r44_a_live_message_that_a_replay_gave_already_is_skipped() -> None:
    """The same payload under the same number is the same batch."""
    state, _ = run(Attached(), answer(0), answer(1), ReplayEnd())
    _, actions = run(live(0), live(1), live(2), state=state)
    assert actions == [apply(2)]


def test_a_restart_that_begins_at_zero_is_synced_again() -> None:
    """A number at or below the last live one is another process; 0 is its beginning."""
    _, actions = run(live(0, "second"), live(1, "second"), state=synced_to(3))
    assert actions == [
        Count("restart"),
        BeginEpoch(SYNCED),
        apply(0, "second"),
        apply(1, "second"),
    ]


def test_a_restart_whose_beginning_was_missed_attaches_anew() -> None:
    """Its first messages are asked for; meanwhile nothing is believed."""
    state, actions = run(live(1, "second"), state=synced_to(3))
    assert actions == [Count("restart"), BeginEpoch(UNKNOWN), AskReplay(0)]
    _, actions = run(answer(0, "second"), answer(1, "second"), ReplayEnd(), state=state)
    assert actions == [BeginEpoch(SYNCED), apply(0, "second"), apply(1, "second"), Touch()]


def test_a_restart_without_replay_is_partial_unless_it_begins_at_zero() -> None:
    """The rule of the first live number holds again."""
    state, _ = run(Attached(), live(0), live(1), can_replay=False)
    _, actions = run(live(1, "second"), state=state)
    assert actions == [Count("restart"), BeginEpoch(PARTIAL), apply(1, "second")]


def test_a_repeated_number_with_another_payload_is_a_restart() -> None:
    """After a replay, a low live number is a duplicate only if it is the same batch."""
    state, _ = run(Attached(), answer(0), answer(1), ReplayEnd())
    _, actions = run(live(0, "second"), state=state)
    assert actions == [Count("restart"), BeginEpoch(SYNCED), apply(0, "second")]


def test_a_probe_proves_an_idle_source_alive_and_complete() -> None:
    """The last number comes back unchanged and nothing follows it."""
    state, actions = run(ProbeDue(), answer(2), ReplayEnd(), state=synced_to(3))
    assert actions == [AskReplay(2), Touch()]
    assert state.phase is Phase.LISTENING


def test_a_probe_of_a_source_that_published_nothing_asks_from_zero() -> None:
    """Nothing there yet is a proof as well; something there is simply applied."""
    _, actions = run(
        ProbeDue(), ReplayEnd(), ProbeDue(), answer(0), ReplayEnd(), state=synced_to(0)
    )
    assert actions == [AskReplay(0), Touch(), AskReplay(0), apply(0), Touch()]


def test_a_probe_finds_last_messages_that_never_arrived() -> None:
    """What follows the last applied number was missed: no gap would ever have shown it."""
    _, actions = run(ProbeDue(), answer(2), answer(3), ReplayEnd(), state=synced_to(3))
    assert actions == [AskReplay(2), apply(3), Touch()]


@pytest.mark.parametrize(
    "told", [(answer(2, "second"),), (ReplayEnd(),)], ids=["another payload", "fewer messages"]
)
def test_a_probe_finds_a_restarted_engine_that_is_idle(told: tuple[Observation, ...]) -> None:
    """The last applied number has another payload, or does not exist there."""
    state, actions = run(ProbeDue(), *told, state=synced_to(3))
    assert actions == [AskReplay(2), Count("restart"), BeginEpoch(UNKNOWN), AskReplay(0)]
    assert state.phase is Phase.ATTACHING


def test_a_probe_that_fails_proves_nothing_and_changes_nothing() -> None:
    """No touch: the source ages."""
    state, actions = run(ProbeDue(), live(3), ReplayFailed(), state=synced_to(3))
    assert actions == [AskReplay(2), Count("probe_failed"), apply(3)]
    assert state.next == 4


def test_a_probe_whose_number_left_the_buffer_begins_a_partial_epoch() -> None:
    """Nobody can tell whether it is the same process."""
    _, actions = run(ProbeDue(), answer(5), ReplayEnd(), state=synced_to(3))
    assert actions == [AskReplay(2), Count("lost"), BeginEpoch(PARTIAL), apply(5), Touch()]


def test_a_restart_hidden_behind_a_gap_is_found_after_a_reconnection() -> None:
    """The new process is past our number already: only the last payload tells."""
    state, actions = run(Reconnected(), live(6, "second"), state=synced_to(3))
    assert actions == [Count("reconnected"), AskReplay(2)]
    _, actions = run(answer(2, "second"), answer(0, "second"), ReplayEnd(), state=state)
    assert actions == [
        Count("restart"),
        BeginEpoch(UNKNOWN),
        AskReplay(0),
        BeginEpoch(SYNCED),
        apply(0, "second"),
        Touch(),
    ]


def test_a_reconnection_to_the_same_process_costs_nothing() -> None:
    """The check passes, what was missed meanwhile comes with it, held messages follow."""
    state, actions = run(Reconnected(), live(5), state=synced_to(3))
    state, actions = run(answer(2), answer(3), answer(4), answer(5), ReplayEnd(), state=state)
    assert [action for action in actions if isinstance(action, Apply)] == [
        apply(3),
        apply(4),
        apply(5),
    ]
    assert not any(isinstance(action, BeginEpoch) for action in actions)


def test_a_reconnection_that_cannot_be_checked_believes_nothing() -> None:
    """It may be another process; attach again at the next probe."""
    state, actions = run(Reconnected(), ReplayFailed(), state=synced_to(3))
    assert actions == [
        Count("reconnected"),
        AskReplay(2),
        Count("replay_failed"),
        BeginEpoch(UNKNOWN),
    ]
    _, actions = run(ProbeDue(), state=state)
    assert actions == [AskReplay(0)]


def test_a_reconnection_in_the_middle_of_a_fill_checks_first() -> None:
    """The fill's answers could come from another process."""
    state, actions = run(live(5), Reconnected(), state=synced_to(3))
    assert actions == [Count("gap"), AskReplay(3), Count("reconnected"), AskReplay(2)]
    _, actions = run(answer(2), answer(3), answer(4), answer(5), ReplayEnd(), state=state)
    assert [action for action in actions if isinstance(action, Apply)] == [
        apply(3),
        apply(4),
        apply(5),
    ]


def test_a_reconnection_without_replay_makes_the_source_unknown_until_it_speaks() -> None:
    """Whether the process is the same cannot be asked."""
    state, _ = run(Attached(), live(0), can_replay=False)
    _, actions = run(Reconnected(), live(1), state=state)
    assert actions == [
        Count("reconnected"),
        BeginEpoch(UNKNOWN),
        BeginEpoch(PARTIAL),
        apply(1),
    ]


def test_a_flood_during_a_replay_is_held_up_to_a_bound() -> None:
    """Beyond the bound messages are let go; the gap they leave is asked for afterwards."""
    flood = [live(at) for at in range(1, MAX_HELD + 11)]
    state, actions = run(Attached(), *flood)
    assert len(state.held) == MAX_HELD
    assert actions.count(Count("held_overflow")) == 10
    _, actions = run(answer(0), ReplayEnd(), live(MAX_HELD + 11), state=state)
    assert actions[-1] == AskReplay(MAX_HELD + 1)


@pytest.mark.parametrize("stray", [answer(3), ReplayEnd(), ReplayFailed()])
def test_answers_that_nobody_asked_for_change_nothing(stray: Observation) -> None:
    """While listening no replay runs, so its observations are ignored."""
    state = synced_to(3)
    assert run(stray, state=state) == (state, [])


@pytest.mark.parametrize(
    "open_question", [Attached(), live(9), ProbeDue()], ids=["attaching", "filling", "verifying"]
)
def test_a_probe_waits_for_the_open_question(open_question: Observation) -> None:
    """One replay at a time."""
    state, _ = run(open_question, state=synced_to(3))
    assert run(ProbeDue(), state=state) == (state, [])
