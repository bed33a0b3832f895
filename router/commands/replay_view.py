"""A replay's report for people."""

from __future__ import annotations

from router.commands.output import print_pairs, print_table
from router.sim.replay.reports import Agreement, Distribution, Report


def print_report(report: Report) -> None:
    """Print the report on stdout."""
    ended = " (interrupted)" if report.interrupted else ""
    print(
        f"{report.completed} of {report.requests} requests complete"
        f" in {report.duration:.1f} s{ended}"
    )
    if report.errors:
        print_pairs("errors", report.errors)
    print_pairs("routes", report.reasons or {"none told": "-"})
    print_table(
        "",
        ("seconds", "n", "mean", "p50", "p90", "p99", "max"),
        [
            _row("TTFT", report.ttft),
            _row("TPOT", report.tpot),
            _row("sent late", report.lateness),
        ],
    )
    if report.late:
        print(f"{report.late} requests were sent over 0.1 s late: this load was not the trace's")
    print_pairs("tokens", _token_rows(report))
    _print_agreement(report.agreement)


def _row(name: str, sample: Distribution) -> tuple[object, ...]:
    numbers = (sample.mean, sample.p50, sample.p90, sample.p99, sample.maximum)
    shown = [None if number is None else f"{number:.4f}" for number in numbers]
    return (name, sample.count, *shown)


def _token_rows(report: Report) -> dict[str, object]:
    believed = f"{report.believed_cached:,} (told of {report.believed_known} requests)"
    reported = f"{report.reported_cached:,} (told of {report.reported_known} requests)"
    return {
        "prompt": report.prompt_tokens,
        "output": report.output_tokens,
        "uncached, compared with t": report.uncached_tokens,
        "cached, the gateway believed": believed,
        "cached, the engines found": reported,
        "KV bytes handed off": report.egress_bytes,
    }


def _print_agreement(agreement: Agreement) -> None:
    if agreement.share is None:
        print("belief and engines: nothing to compare")
        return
    print(
        f"belief and engines agree in {agreement.equal} of {agreement.compared} requests"
        f" ({agreement.share:.2%})"
    )
    if agreement.differences:
        print_table(
            "",
            ("request", "id", "instance", "believed", "found"),
            [
                (item.index, item.request_id, item.instance, item.believed, item.reported)
                for item in agreement.differences
            ],
        )
