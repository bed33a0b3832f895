"""The arithmetic of replay reports, and what a stream's end tells."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sim.replay.answers import TAIL_BYTES, StreamEnd, StreamTail
from router.sim.replay.reports import Outcome, distribute, percentile, sum_metric, summarise


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_interpolate_as_statistics_do(sample: list[float]) -> None:
    """Quartiles equal those of the standard library's inclusive method."""
    ordered = sorted(sample)
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive")
    found = [percentile(ordered, share) for share in (0.25, 0.5, 0.75)]
    assert found == pytest.approx(quartiles, abs=1e-6)


def test_a_distribution_leaves_out_what_is_unknown() -> None:
    """None is no zero; without any value nothing is claimed."""
    sample = distribute([3.0, None, 1.0])
    assert (sample.count, sample.mean, sample.p50, sample.maximum) == (2, 2.0, 2.0, 3.0)
    assert distribute([None]).mean is None


def outcome(index: int, **values: object) -> Outcome:
    return Outcome(index, sent_at=0.0, lateness=0.0, **values)  # type: ignore[arg-type]


def test_a_report_counts_routes_errors_and_tokens() -> None:
    """Failed requests count as errors and in their route, never in latencies or tokens."""
    report = summarise(
        [
            outcome(1, route="prfaas", reason="above_threshold", ttft=2.0, prompt_tokens=100),
            outcome(0, route="local", reason="below_threshold", ttft=1.0, prompt_tokens=10),
            outcome(2, route="local", reason="link_down", error="cut", ttft=9.0, prompt_tokens=7),
            outcome(3, error="http_503"),
        ],
        duration=4.0,
        egress_bytes=12,
    )
    assert (report.requests, report.completed) == (4, 2)
    assert report.errors == {"cut": 1, "http_503": 1}
    assert report.routes == {"local": 2, "prfaas": 1}
    assert report.reasons == {
        "local/below_threshold": 1,
        "local/link_down": 1,
        "prfaas/above_threshold": 1,
    }
    assert report.ttft.maximum == 2.0
    assert (report.prompt_tokens, report.egress_bytes) == (110, 12)


def test_agreement_is_exact_and_only_where_both_told() -> None:
    """One token off is a difference; an unknown side is not compared; ten are listed."""
    outcomes = [
        outcome(0, believed_cached=64, reported_cached=64),
        outcome(1, believed_cached=64, reported_cached=63, request_id="r1", prefill="p0"),
        outcome(2, believed_cached=None, reported_cached=0),
        outcome(3, believed_cached=0, reported_cached=None),
        *(outcome(index, believed_cached=1, reported_cached=2) for index in range(4, 20)),
    ]
    report = summarise(outcomes, duration=1.0)
    agreement = report.agreement
    assert (agreement.compared, agreement.equal, agreement.share) == (18, 1, 1 / 18)
    assert len(agreement.differences) == 10
    first = agreement.differences[0]
    assert (first.index, first.request_id, first.instance) == (1, "r1", "p0")
    assert (first.believed, first.reported) == (64, 63)
    assert (report.believed_known, report.reported_known) == (19, 19)
    assert summarise([], duration=0.0).agreement.share is None


def test_late_requests_are_counted() -> None:
    """A load that was not the trace's says so."""
    late = Outcome(0, sent_at=1.0, lateness=0.2)
    assert summarise([late, outcome(1)], duration=1.0).late == 1


def test_the_end_of_a_stream_tells_its_usage() -> None:
    """Usage is read from the last events, whatever the chunks that they came in."""
    stream = (
        b'data: {"choices":[{"text":"a"}],"usage":null}\n\n: ping\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":8},"total_tokens":11}}\r\n\r\ndata: [DONE]\n\n'
    )
    tail = StreamTail()
    for byte in stream:
        tail.feed(bytes([byte]))
    assert tail.end() == StreamEnd(finished=True, prompt_tokens=9, output_tokens=2, cached_tokens=8)


@pytest.mark.parametrize(
    ("stream", "end"),
    [
        (b"", StreamEnd()),
        (b'data: {"error":{"message":"gone"}}\n\n', StreamEnd(failed=True)),
        (b'data: {"error":{"message":"gone"}}\n\ndata: [DONE]\n\n', StreamEnd(True, True)),
        (b'data: {"choices":[{"text":"\\"error\\""}],"error":null}\n\n', StreamEnd()),
        (b'data: {"usage":{"prompt_tokens":', StreamEnd()),
        (b'data: {"usage":{"prompt_tokens":"x"}}\n\n', StreamEnd()),
        (
            b'data: {"usage":{"prompt_tokens":3}}\n\n',
            StreamEnd(prompt_tokens=3),
        ),
    ],
)
def test_ends_that_tell_less(stream: bytes, end: StreamEnd) -> None:
    """A cut, an error or missing details leave the rest unknown and raise nothing."""
    tail = StreamTail()
    tail.feed(stream)
    assert tail.end() == end


def test_only_the_end_of_a_stream_is_kept() -> None:
    """A long answer costs bounded memory, and its usage is still found."""
    tail = StreamTail()
    for _ in range(100):
        tail.feed(b'data: {"choices":[{"text":"aaaa"}],"usage":null}\n\n' * 100)
    tail.feed(b'data: {"usage":{"prompt_tokens":3}}\n\n')
    assert len(tail._bytes) <= 2 * TAIL_BYTES
    assert tail.end().prompt_tokens == 3


@pytest.mark.parametrize(
    ("text", "total"),
    [
        (
            'prfaas_kv_bytes_total{outcome="useful"} 10\n'
            'prfaas_kv_bytes_total{outcome="a } b"} 2e3\n'
            'prfaas_kv_bytes_total_created{outcome="useful"} 99\n',
            2010.0,
        ),
        ("prfaas_kv_bytes_total 7 1700000000\n", 7.0),
        ("# HELP prfaas_x y\nprfaas_store_up 1\n", 0.0),
        ("up 1\n", None),
        ("", None),
        ("prfaas_kv_bytes_total{} what\n", 0.0),
    ],
)
def test_a_counter_is_added_up_over_its_series(text: str, total: float | None) -> None:
    """All series of the name count, none of another; no gateway metrics at all is unknown."""
    assert sum_metric(text, "prfaas_kv_bytes_total") == total
