"""The benchmark's page: what counts, what is void, and which ratio is told."""

import dataclasses

from bench.gateway.contestants import Mode
from bench.gateway.profiles import LOOP, sum_up
from bench.gateway.reports import (
    GOALS,
    Circumstances,
    find_disturbance,
    judge,
    tell_page,
    tell_workload,
)
from bench.gateway.runs import Row
from bench.gateway.workloads import Form

THROUGHPUT = GOALS[0]
LATENCY = next(goal for goal in GOALS if goal.workload == "small-1")


def row(contestant: str, rate: float = 100.0, form: Form = Form.IDS, number: int = 0) -> Row:
    return Row(
        mode=Mode.PD,
        contestant=contestant,
        form=form,
        workload="small-32",
        round=number,
        requests_per_second=rate,
        events_per_second=0.0,
        p50_us=500,
        p99_us=900,
        first_p50_us=500,
        gap_p99_us=None,
        cpu_us=70.0,
        router_cpus=0.9,
        peak_mib=90.0,
        others=0.0,
        stolen=0.0,
    )


def test_both_are_compared_with_the_same_bodies() -> None:
    """A goal is judged by token ids against token ids; text against text is told beside it."""
    rows = [row("ours", 150), row("vllm-router", 100), row("vllm-router", 200, Form.TEXT)]
    (verdict,) = judge(rows, [THROUGHPUT])
    assert (verdict.theirs, verdict.ratio, verdict.text) == (100, 1.5, None)
    assert verdict.reached
    (verdict,) = judge([*rows, row("ours", 100, Form.TEXT)], [THROUGHPUT])
    assert (verdict.ratio, verdict.text) == (1.5, 0.5)


def test_where_less_is_better_a_ratio_of_one_is_reached() -> None:
    """A latency as long as the peer's is within its bound of 1."""
    rows = [
        dataclasses.replace(each, workload="small-1", p50_us=400)
        for each in (row("ours"), row("vllm-router"))
    ]
    (verdict,) = judge(rows, [LATENCY])
    assert (verdict.ratio, verdict.reached) == (1.0, True)


def test_ratios_are_of_rounds_and_rounds_with_an_error_do_not_count() -> None:
    """Each round is a ratio of its own; a void row takes its round out, and the page says so."""
    broken = dataclasses.replace(row("ours", 999, number=1), errors=("3 answers were no 200",))
    rows = [row("ours", 100), broken, row("ours", 300, number=2)]
    rows += [row("vllm-router", 100, number=number) for number in range(3)]
    (verdict,) = judge(rows, [THROUGHPUT])
    assert verdict.ratios == (1.0, 3.0)
    (line,) = [each for each in tell_workload(rows, "small-32") if "ours" in each]
    assert "1 of 3 rounds void: 3 answers were no 200" in line
    assert "| 200 |" in line


def test_a_line_without_a_sound_round_tells_no_number() -> None:
    """Nothing is told of the speed of answers that were wrong."""
    (line,) = tell_workload([dataclasses.replace(row("ours"), errors=("no answer",))], "small-32")[
        2:
    ]
    assert "void: no answer" in line
    assert "100" not in line


def test_other_reasons_than_the_length_are_told() -> None:
    """Decisions that ran out of time are told beside the row that they make fast."""
    late = dataclasses.replace(row("ours"), reasons={"below_threshold": 3, "decision_timeout": 1})
    (line,) = tell_workload([late], "small-32")[2:]
    assert "decision_timeout 25.0%" in line


def test_a_busy_machine_is_told() -> None:
    """Others' use of the processors, or what the host takes, disturbs; the page says which."""
    busy = [dataclasses.replace(row("ours"), others=0.6, stolen=0.0)]
    assert "0.60" in (find_disturbance(busy) or "")
    assert "host" in (find_disturbance([dataclasses.replace(row("ours"), stolen=0.1)]) or "")
    assert find_disturbance([row("ours")]) is None
    told = Circumstances("2 x CPU", "versions", "abc1234", "2026-01-01", 1, 0.5, "too loud")
    page = tell_page(busy, told, [])
    assert "**not quiet**: too loud" in page
    assert "abc1234" in page


def test_a_profile_is_summed_up_by_room() -> None:
    """Functions count for the room that their file is in; what nobody saw is the loop's."""
    shares = sum_up(
        {
            ("/some/where/router/service/relay.py", 1, "send"): 0.3,
            ("/some/where/router/service/relay.py", 9, "read"): 0.1,
            ("/some/where/kvmeta/match.py", 1, "match"): 0.2,
            ("~", 0, "<method 'write' of 'X' objects>"): 0.1,
            ("/lib/msgspec/x.py", 1, "f"): -0.1,
        },
        1.0,
    )
    told = {share.room: round(share.share, 2) for share in shares}
    assert told == {"router/service": 0.4, LOOP: 0.3, "kvmeta": 0.2, "functions in C": 0.1}
    assert shares[0].functions == (("relay.send", 0.3), ("relay.read", 0.1))
