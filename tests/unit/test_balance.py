"""The long loop's windows: who binds, whether the model agrees, and what the grid is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.control.balance import (
    BalanceRules,
    BalanceState,
    Candidate,
    Sample,
    Situation,
    StageReading,
    ThresholdChoice,
    Verdict,
    find_binding,
    list_divisions,
    step_sample,
    step_window,
)
from router.domain.topology import Role
from router.throughput.planner import list_allocations, solve_whole_threshold, tabulate
from router.throughput.stages import Stage
from tests.fakes.model_cases import CASE_WORKLOAD, case_study

RULES = BalanceRules(windows=3, gain=0.05, dwell=600)
IDLE = StageReading(queued=0.0, busy=0.5)
FULL = StageReading(queued=4.0, busy=1.0)
PREFILL_BINDS = Sample(FULL, IDLE)
DECODE_BINDS = Sample(IDLE, FULL)


def situation(
    prefill: int, decode: int, *, spare: int | None = None, rested: float | None = None
) -> Situation:
    """The case study with its 8 PD instances divided so; `spare` of each role may be converted."""
    deployment = case_study(prefill=prefill, decode=decode)
    table = tabulate(deployment, CASE_WORKLOAD)
    solved = solve_whole_threshold(deployment, table)
    counts = {Role.PREFILL: prefill, Role.DECODE: decode}
    return Situation(
        "m",
        "pd",
        deployment,
        table,
        ThresholdChoice(round(solved.split.threshold), fixed=False, bounds=(512, 131_072)),
        tuple(
            Candidate(f"{role[0]}{i}", role, load=9 - i)
            for role, count in counts.items()
            for i in range(count if spare is None else spare)
        ),
        rested,
    )


def windows(sample: Sample, given: Situation | None, count: int) -> BalanceState:
    """The state after some equal windows."""
    state = BalanceState()
    for _ in range(count):
        state = step_window(step_sample(state, sample), given, RULES)
    return state


def test_a_confirmed_lack_of_prefill_is_proposed_to_be_met() -> None:
    """Two prefill and six decode instances: the third window proposes what the grid says."""
    given = situation(2, 6)
    verdicts = [windows(PREFILL_BINDS, given, n).finding.verdict for n in (1, 2, 3)]  # type: ignore[union-attr]
    assert verdicts == [Verdict.CONFIRMING, Verdict.CONFIRMING, Verdict.PROPOSED]
    finding = windows(PREFILL_BINDS, given, 3).finding
    assert finding is not None
    proposal = finding.proposal
    assert proposal is not None
    assert proposal.binding is Stage.PD_P
    assert proposal.residual < 0
    assert (proposal.prefill, proposal.decode) == (2, 6)
    assert (proposal.best_prefill, proposal.best_decode) == (3, 5)
    assert (proposal.conversion.source, proposal.conversion.target) == (Role.DECODE, Role.PREFILL)
    assert proposal.conversion.instance == "d5", "who has least to finish is converted"
    assert proposal.rate < proposal.next_rate == proposal.best_rate
    assert proposal.gain == pytest.approx(proposal.best_rate / proposal.rate - 1)
    assert proposal.gain >= RULES.gain


def test_a_confirmed_lack_of_decode_is_met_the_other_way() -> None:
    """Six prefill and two decode instances: prefills become decodes, one at a time."""
    finding = windows(DECODE_BINDS, situation(6, 2), 3).finding
    assert finding is not None
    assert finding.proposal is not None
    assert finding.proposal.conversion.target is Role.DECODE
    assert finding.proposal.best_decode == 5
    assert finding.proposal.next_rate < finding.proposal.best_rate


def test_the_grid_is_the_planners() -> None:
    """Where every instance may be converted the divisions are the planner's, less the ends."""
    given = situation(3, 5)
    planned = list_allocations(given.deployment, given.table, whole=True)[1:-1]
    found = list_divisions(given)
    assert [each.prefill for each in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [each.solution.rate for each in found] == [each.solution.rate for each in planned]


@pytest.mark.parametrize("sample", [PREFILL_BINDS, DECODE_BINDS, Sample(FULL, FULL)])
def test_the_best_division_is_left_alone(sample: Sample) -> None:
    """Whatever binds, nothing is proposed where no division is better."""
    finding = windows(sample, situation(3, 5), 4).finding
    assert finding is not None
    assert finding.verdict in {Verdict.NO_GAIN, Verdict.UNCONFIRMED, Verdict.BALANCED}
    assert finding.proposal is None


def test_what_is_measured_and_what_is_modelled_must_agree() -> None:
    """With too little prefill by equation 8, pressure on decode alone proposes nothing."""
    finding = windows(DECODE_BINDS, situation(2, 6), 5).finding
    assert finding is not None
    assert finding.verdict is Verdict.UNCONFIRMED


@pytest.mark.parametrize(
    ("prefill", "decode", "binding"),
    [
        (FULL, IDLE, Stage.PD_P),
        (IDLE, FULL, Stage.PD_D),
        (StageReading(0.0, 0.95), IDLE, Stage.PD_P),
        (IDLE, StageReading(1.0, 0.2), Stage.PD_D),
        (IDLE, StageReading(0.0, 0.6, held=1.0), Stage.PD_D),
        (FULL, StageReading(0.0, 0.6, held=1.0), Stage.PD_P),
        (FULL, FULL, None),
        (IDLE, IDLE, None),
    ],
)
def test_the_binding_stage_is_the_only_pressed_one(
    prefill: StageReading, decode: StageReading, binding: Stage | None
) -> None:
    """A queue or a busy stage binds, unless the other one is pressed as well."""
    assert find_binding(prefill, decode, RULES) is binding


@pytest.mark.parametrize("unknown", [Sample(None, IDLE), Sample(FULL, None), Sample(None, None)])
def test_an_unknown_stage_never_proposes(unknown: Sample) -> None:
    """Stale readings are neither pressure nor the lack of it, and windows start to count anew."""
    given = situation(2, 6)
    state = step_window(step_sample(windows(PREFILL_BINDS, given, 2), unknown), given, RULES)
    assert state.finding is not None
    assert state.finding.verdict is Verdict.UNKNOWN
    assert state.windows == 0


def test_a_window_bears_some_missed_probes_but_not_a_blind_third() -> None:
    """A quarter of the samples may be missing."""
    given = situation(2, 6)

    def verdict(missing: int) -> Verdict:
        state = BalanceState()
        for i in range(8):
            sample = replace(PREFILL_BINDS, prefill=None) if i < missing else PREFILL_BINDS
            state = step_sample(state, sample)
        finding = step_window(state, given, RULES).finding
        assert finding is not None
        return finding.verdict

    assert verdict(2) is Verdict.CONFIRMING
    assert verdict(3) is Verdict.UNKNOWN


def test_a_window_without_samples_is_unknown() -> None:
    """Nothing read is not nothing waiting."""
    finding = step_window(BalanceState(), situation(2, 6), RULES).finding
    assert finding is not None
    assert finding.verdict is Verdict.UNKNOWN


def test_nothing_is_proposed_before_anything_is_solved() -> None:
    """Without profiles, links or enough prompts there is no model to ask."""
    finding = windows(PREFILL_BINDS, None, 5).finding
    assert finding is not None
    assert finding.verdict is Verdict.UNSOLVED


def test_one_calm_window_starts_the_count_anew() -> None:
    """The gain has to hold for windows in a row."""
    given = situation(2, 6)
    state = step_window(
        step_sample(windows(PREFILL_BINDS, given, 2), Sample(IDLE, IDLE)), given, RULES
    )
    state = step_window(step_sample(state, PREFILL_BINDS), given, RULES)
    assert state.windows == 1
    assert state.finding is not None
    assert state.finding.verdict is Verdict.CONFIRMING


def test_a_recent_conversion_is_given_time_to_show() -> None:
    """Within the dwell nothing is proposed, after it at once: windows are counted meanwhile."""
    state = windows(PREFILL_BINDS, situation(2, 6, rested=599), 4)
    assert state.finding is not None
    assert state.finding.verdict is Verdict.RESTING
    after = step_window(step_sample(state, PREFILL_BINDS), situation(2, 6, rested=600), RULES)
    assert after.finding is not None
    assert after.finding.verdict is Verdict.PROPOSED


def test_nobody_of_other_hardware_is_proposed() -> None:
    """Without an instance that may be converted there is a gain, but no candidate."""
    finding = windows(PREFILL_BINDS, situation(2, 6, spare=0), 4).finding
    assert finding is not None
    assert finding.verdict is Verdict.NO_CANDIDATE


@pytest.mark.parametrize(("prefill", "decode"), [(7, 1), (1, 7)])
def test_one_instance_of_each_role_is_always_left(prefill: int, decode: int) -> None:
    """However the model would divide them, no stage is left without an instance."""
    counts = [each.prefill for each in list_divisions(situation(prefill, decode))]
    assert counts[0] == 1
    assert counts[-1] == 7
    last = Sample(FULL, IDLE) if decode == 1 else Sample(IDLE, FULL)
    finding = windows(last, situation(prefill, decode), 4).finding
    assert finding is not None
    assert finding.proposal is None


def test_a_fixed_threshold_is_part_of_the_prediction() -> None:
    """Where an operator fixed t the grid keeps it instead of solving for a better one."""
    given = situation(2, 6)
    fixed = replace(given, threshold=ThresholdChoice(60_000, fixed=True, bounds=(512, 131_072)))
    points = [each.solution.point for each in list_divisions(fixed)]
    assert {point.demands.split.threshold for point in points} == {60_000.0}
