"""Exactly once, in order: the sequence numbers of one publisher as a pure state machine.

A publisher numbers its batches from 0, per process, without an incarnation number; a subscriber may
attach late, miss messages, or find another process behind the same address. What the publisher
still has in its buffer it replays on request (vllm/distributed/kv_events.py). From that stream the
machine decides what to apply, when to ask, and what can be believed.

Phases, and what each observation means in them:

    observation       LISTENING                      ATTACHING/FILLING/VERIFYING (a replay runs)
    Attached          forget; ask from 0             the same, abandoning the replay
                      (resumed: verify)
    LiveMessage       next: apply · above: hold and  hold, in order of arrival
                      ask from the first missing ·
                      at or below the last live:
                      restart · else: duplicate
    ReplayAnswer      (ignored: abandoned)           next: apply · below: skip · above: lost if
                                                     it is the first, else ask for the rest
    ReplayEnd         (ignored)                      settle the question asked, then go through
                                                     what was held as if it came now
    ReplayFailed      (ignored)                      ask for the rest if anything came since the
                                                     last request, else settle it for the worse
    Reconnected       verify; no replay: forget      ATTACHING: ask from 0 anew · else: verify
    ProbeDue          verify, or attach again if     (ignored)
                      an attach or a fill failed

    ATTACHING  asked from 0. First answer 0, or nothing at all: synced. Later: partial, for what
               came before is unknown. Failed: go on with live messages, attach again at a probe.
    FILLING    asked from the first missing number. It comes: go on, nothing happened. It does not:
               what was held there cannot be trusted, a new epoch begins, partial.
    VERIFYING  asked for the *last applied* number again. The same payload: same process, and what
               follows it are the messages that we missed. Another payload, or none: another
               process; forget and attach. A restarted engine is found even while it is idle, or
               when its new numbers have run past ours.

A restart shows as a live number at or below the last live one. Number 0 then begins a synced epoch;
any other means that its first messages were missed, so the machine attaches anew.

An ingest that restarts, or takes a source over, goes on from what the index has: `resume` begins
with its next number and the digest of the batch before, and the first attach verifies instead of
forgetting. So nothing that the publisher's buffer has lost since is lost here.

Without a replay endpoint nothing can be asked: the first live number tells synced (0) from partial,
a gap begins a partial epoch, and a reconnection makes the source unknown until it speaks again.

`step` is pure: state and observation in, state and actions out. Actions are to be done in order.
The shell must drop what an abandoned replay still answers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from kvmeta.types import SourceState

MAX_HELD = 1_024
"""Live messages held while a replay runs. A replay takes seconds and an engine step some 10 ms, so
hundreds do; what does not fit is a gap later, and is asked for then."""

RECENT = 256
"""Digests kept of what was applied last, to tell a duplicate from a restart's equal number."""


class Phase(Enum):
    """Which question is open, if any."""

    LISTENING = auto()
    ATTACHING = auto()
    FILLING = auto()
    VERIFYING = auto()


@dataclass(frozen=True, slots=True)
class Attached:
    """The subscription is in force; whatever was known of the publisher is not any more."""


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """A published message, in order of arrival."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """One message of the replay that was asked for last."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """The replay's end marker."""


@dataclass(frozen=True, slots=True)
class ReplayFailed:
    """The replay broke off or never answered."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The connection was lost and is back: maybe to another process."""


@dataclass(frozen=True, slots=True)
class ProbeDue:
    """It is time to prove that nothing was missed."""


Observation = (
    Attached | LiveMessage | ReplayAnswer | ReplayEnd | ReplayFailed | Reconnected | ProbeDue
)


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply this message; the machine gives every number once an epoch, rising.

    `digest` stands for the payload, for `resume`.
    """

    sequence: int
    payload: bytes
    digest: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask for all messages from `start` on, abandoning a replay that still runs."""

    start: int


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Forget everything that the source holds; `state` is what can be believed from now on."""

    state: SourceState


@dataclass(frozen=True, slots=True)
class Touch:
    """The publisher just proved that nothing was missed."""


@dataclass(frozen=True, slots=True)
class Count:
    """Something worth a counter happened."""

    cause: str


Action = Apply | AskReplay | BeginEpoch | Touch | Count


@dataclass(frozen=True, slots=True)
class SequenceState:
    """All that the machine remembers.

    `next` is the number to apply next, None while nothing is known of this epoch. `last_live` is
    the last number that came live. `recent` are digests of the payloads applied last, ending with
    number `next - 1`. `answered`: the open question got at least one answer; `first_due`: the
    latest request has not got its first. `must_verify`: nothing can be believed unless the running
    check passes. `reattach`: a replay failed where it
    mattered; ask from 0 again at the next probe. `resuming`: what is known comes from an earlier
    run, and the first attach is to prove it.
    """

    can_replay: bool
    phase: Phase = Phase.LISTENING
    next: int | None = None
    last_live: int | None = None
    recent: tuple[bytes, ...] = ()
    held: tuple[LiveMessage, ...] = ()
    answered: bool = False
    first_due: bool = False
    must_verify: bool = False
    reattach: bool = False
    resuming: bool = False


Step = tuple[SequenceState, list[Action]]


def resume(next_sequence: int, last_digest: bytes | None) -> SequenceState | None:
    """Return the state of a machine that goes on where an earlier one stopped; None: it cannot.

    `last_digest` stands for the batch before `next_sequence` (`Apply.digest`).
    """
    if next_sequence and not last_digest:
        return None
    recent = (last_digest,) if last_digest else ()
    return SequenceState(can_replay=True, next=next_sequence, recent=recent, resuming=True)


def step(state: SequenceState, observation: Observation) -> Step:
    """Return the state after `observation` and what to do, in order. Never raises."""
    match observation:
        case Attached() if state.resuming:
            return _verify(replace(state, resuming=False), required=True)
        case Attached():
            forgotten = SequenceState(can_replay=state.can_replay)
            actions: list[Action] = [BeginEpoch(SourceState.UNKNOWN)]
            return _attach(forgotten, actions) if state.can_replay else (forgotten, actions)
        case LiveMessage():
            if state.phase is not Phase.LISTENING:
                return _hold(state, observation)
            return _take_live(state, observation)
        case ReplayAnswer():
            return _take_answer(state, observation)
        case ReplayEnd():
            return _end_replay(state)
        case ReplayFailed():
            return _fail_replay(state)
        case Reconnected():
            return _reconnect(state)
        case ProbeDue():
            return _probe(state)


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=8).digest()


def _apply(state: SequenceState, sequence: int, payload: bytes) -> tuple[SequenceState, Apply]:
    digest = _digest(payload)
    recent = (*state.recent, digest)[-RECENT:]
    return replace(state, next=sequence + 1, recent=recent), Apply(sequence, payload, digest)


def _begin(state: SequenceState) -> SequenceState:
    """Forget the epoch's numbers; what is held, and the last live number, stay."""
    return replace(state, next=None, recent=())


def _ask(state: SequenceState, phase: Phase, start: int, actions: list[Action]) -> Step:
    reattach = state.reattach and phase is not Phase.ATTACHING
    asking = replace(
        state,
        phase=phase,
        answered=False,
        first_due=True,
        must_verify=False,
        reattach=reattach,
    )
    return asking, [*actions, AskReplay(start)]


def _ask_on(state: SequenceState, cause: str) -> Step:
    """The replay lost its thread on the way, not in the publisher's buffer: ask for the rest.

    Ends, since every request but the last brought at least one message.
    """
    return replace(state, first_due=True), [Count(cause), AskReplay(state.next or 0)]


def _hold(state: SequenceState, message: LiveMessage) -> Step:
    if len(state.held) >= MAX_HELD:
        return state, [Count("held_overflow")]
    return replace(state, held=(*state.held, message)), []


# -- live messages -----------------------------------------------------------------------------


def _take_live(state: SequenceState, message: LiveMessage) -> Step:
    sequence = message.sequence
    if state.last_live is not None and sequence <= state.last_live:
        return _restart(state, message)
    if state.next is None:
        return _first_live(state, message)
    if sequence == state.next:
        after, apply = _apply(state, sequence, message.payload)
        return replace(after, last_live=sequence), [apply]
    if sequence < state.next:
        return _repeat(state, message)
    if state.can_replay:
        waiting = replace(state, held=(message, *state.held))
        return _ask(waiting, Phase.FILLING, state.next, [Count("gap")])
    return _lose(state, message)


def _first_live(state: SequenceState, message: LiveMessage) -> Step:
    """The first word of an epoch that no replay began: 0 is its beginning, others are not."""
    trust = SourceState.SYNCED if message.sequence == 0 else SourceState.PARTIAL
    after, apply = _apply(_begin(state), message.sequence, message.payload)
    return replace(after, last_live=message.sequence), [BeginEpoch(trust), apply]


def _repeat(state: SequenceState, message: LiveMessage) -> Step:
    """A number that a replay gave already: the same message again, or a restarted engine's."""
    assert state.next is not None  # noqa: S101  # the caller compared with it
    back = state.next - message.sequence
    if back <= len(state.recent):
        if state.recent[-back] != _digest(message.payload):
            return _restart(state, message)
        return replace(state, last_live=message.sequence), []
    if not state.can_replay:
        return _restart(state, message)
    return _verify(replace(state, held=(message, *state.held)), required=True)


def _lose(state: SequenceState, message: LiveMessage) -> Step:
    """Messages are gone for good, removals among them: nothing held before can be trusted."""
    after, apply = _apply(_begin(state), message.sequence, message.payload)
    lost: list[Action] = [Count("gap"), Count("lost"), BeginEpoch(SourceState.PARTIAL), apply]
    return replace(after, last_live=message.sequence), lost


def _restart(state: SequenceState, message: LiveMessage) -> Step:
    fresh = replace(_begin(state), last_live=None)
    if message.sequence == 0 or not state.can_replay:
        after, actions = _first_live(fresh, message)
        return after, [Count("restart"), *actions]
    return _attach_anew(state)


def _go_through_held(state: SequenceState, actions: list[Action]) -> Step:
    """Take what was held as if it came now, until one of the messages opens a question again."""
    held = state.held
    state = replace(state, phase=Phase.LISTENING, held=())
    for position, message in enumerate(held):
        state, more = _take_live(state, message)
        actions.extend(more)
        if state.phase is not Phase.LISTENING:
            # A new attach answers for the rest as well; any other question leaves it to come.
            rest = () if state.phase is Phase.ATTACHING else held[position + 1 :]
            return replace(state, held=(*state.held, *rest)), actions
    return state, actions


# -- replays -----------------------------------------------------------------------------------


def _take_answer(state: SequenceState, answer: ReplayAnswer) -> Step:
    if state.phase is Phase.LISTENING:
        return state, []
    first, due = not state.answered, state.first_due
    state = replace(state, answered=True, first_due=False)
    match state.phase:
        case Phase.ATTACHING if first:
            trust = SourceState.SYNCED if answer.sequence == 0 else SourceState.PARTIAL
            return _take_from(_begin(state), answer, [BeginEpoch(trust)])
        case Phase.VERIFYING if first:
            return _compare(state, answer)
        case _:
            return _continue(state, answer, due=due)


def _take_from(state: SequenceState, answer: ReplayAnswer, actions: list[Action]) -> Step:
    after, apply = _apply(state, answer.sequence, answer.payload)
    return after, [*actions, apply]


def _continue(state: SequenceState, answer: ReplayAnswer, *, due: bool) -> Step:
    """One more answer; `due` if it is the first to its request."""
    if state.next is not None and answer.sequence < state.next:
        return state, []
    if answer.sequence == state.next:
        return _take_from(state, answer, [])
    if not due:
        return _ask_on(state, "replay_hole")
    # The buffer begins after what is missing: that is gone for good.
    lost: list[Action] = [Count("lost"), BeginEpoch(SourceState.PARTIAL)]
    return _take_from(_begin(state), answer, lost)


def _compare(state: SequenceState, answer: ReplayAnswer) -> Step:
    """The first answer to "number n again?", where n was applied last."""
    if not state.next:  # nothing was applied yet, so this is simply what comes next
        return _continue(state, answer, due=True)
    if answer.sequence >= state.next:
        # n has left the buffer, so nobody can tell whether this is the same process.
        lost: list[Action] = [Count("lost"), BeginEpoch(SourceState.PARTIAL)]
        return _take_from(_begin(state), answer, lost)
    if answer.sequence < state.next - 1:
        return replace(state, answered=False, first_due=True), []
    if _digest(answer.payload) != state.recent[-1]:
        return _attach_anew(state)
    # The same process: what it sent live below `next` are repeats of what was applied.
    later = tuple(message for message in state.held if message.sequence >= state.next)
    return replace(state, held=later), []


def _end_replay(state: SequenceState) -> Step:
    match state.phase:
        case Phase.LISTENING:
            return state, []
        case Phase.ATTACHING if not state.answered:  # nothing was published yet
            empty: list[Action] = [BeginEpoch(SourceState.SYNCED), Touch()]
            return _go_through_held(replace(_begin(state), next=0), empty)
        case Phase.VERIFYING if not state.answered and state.next:
            return _attach_anew(state)
        case Phase.ATTACHING | Phase.VERIFYING:
            return _go_through_held(state, [Touch()])
        case Phase.FILLING:
            return _end_fill(state)


def _end_fill(state: SequenceState) -> Step:
    trigger = state.held[0]
    if state.next is not None and state.next < trigger.sequence:
        return _go_through_held(_begin(state), [Count("lost")])
    return _go_through_held(state, [])


def _fail_replay(state: SequenceState) -> Step:
    match state.phase:
        case Phase.LISTENING:
            return state, []
        case _ if not state.first_due:
            return _ask_on(state, "replay_broken")
        case Phase.ATTACHING if not state.answered:
            return _go_through_held(replace(state, reattach=True), [Count("replay_failed")])
        case Phase.FILLING:
            failed: list[Action] = [Count("replay_failed"), Count("lost")]
            return _go_through_held(replace(_begin(state), reattach=True), failed)
        case Phase.VERIFYING if not state.must_verify:
            return _go_through_held(state, [Count("probe_failed")])
        case Phase.ATTACHING | Phase.VERIFYING:
            # Half a history, or a process of which nobody knows whether it is the same.
            forget: list[Action] = [Count("replay_failed"), BeginEpoch(SourceState.UNKNOWN)]
            return _go_through_held(replace(_begin(state), reattach=True), forget)


def _attach(state: SequenceState, actions: list[Action]) -> Step:
    """Learn the stream from its beginning.

    What is held was published before this request, so the answer has it, or another process sent
    it; either way it is not needed.
    """
    return _ask(replace(state, last_live=None, held=()), Phase.ATTACHING, 0, actions)


def _attach_anew(state: SequenceState) -> Step:
    """Another process answers: forget, and learn its stream."""
    return _attach(_begin(state), [Count("restart"), BeginEpoch(SourceState.UNKNOWN)])


def _verify(state: SequenceState, *, required: bool) -> Step:
    """Ask for the last applied number again; `required` if nothing can be believed without it."""
    start = max(0, (state.next or 0) - 1)
    asking, actions = _ask(state, Phase.VERIFYING, start, [])
    return replace(asking, must_verify=required), actions


def _reconnect(state: SequenceState) -> Step:
    if not state.can_replay:
        if state.next is None:
            return state, []
        forget: list[Action] = [Count("reconnected"), BeginEpoch(SourceState.UNKNOWN)]
        return replace(_begin(state), last_live=None), forget
    if state.phase is Phase.ATTACHING or state.next is None:
        return _attach(_begin(state), [Count("reconnected"), BeginEpoch(SourceState.UNKNOWN)])
    # Also in the middle of a fill: the check brings what is missing too, if it passes.
    after, actions = _verify(state, required=True)
    return after, [Count("reconnected"), *actions]


def _probe(state: SequenceState) -> Step:
    if not state.can_replay or state.phase is not Phase.LISTENING:
        return state, []
    if state.next is None or state.reattach:
        return _attach(state, [])
    return _verify(state, required=False)
