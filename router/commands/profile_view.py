"""How `prfaas profile` shows what it measured: notes in the file, a table, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.commands.kv_sources import KvSource, MeasuredKv, ModelledKv
from router.commands.output import print_table
from router.service.profiling import PrefillClock, ProfilingRules
from router.settings.profile_files import ProfileFile
from router.throughput.measurements import Measurement


def list_notes(rules: ProfilingRules, kv: KvSource, prefills: Sequence[Measurement]) -> list[str]:
    """Return how the figures came about, one line each: the comments of a profile file."""
    widest = max(prefill.spread for prefill in prefills)
    return [
        f"prefill_seconds: {_describe_times(rules)}; widest spread {widest:.1%}.",
        f"kv_bytes: {_describe_bytes(kv)}.",
    ]


def describe_outcome(
    document: ProfileFile, rules: ProfilingRules, kv: KvSource, prefills: Sequence[Measurement]
) -> dict[str, object]:
    """Return the profile as JSON, with every sample behind it, in seconds."""
    return {
        "profile": document.model_dump(mode="json", exclude_none=True),
        "prefill_seconds": _describe_times(rules),
        "kv_bytes": _describe_bytes(kv),
        "measurements": [
            {
                "tokens": prefill.tokens,
                "median_seconds": prefill.seconds,
                "spread": prefill.spread,
                "samples_seconds": list(prefill.samples),
            }
            for prefill in prefills
        ],
    }


def show_outcome(document: ProfileFile, prefills: Sequence[Measurement], path: Path) -> None:
    """Print the points as a table, and where they were written."""
    rows = [
        (point.tokens, point.prefill_seconds, f"{prefill.spread:.1%}", point.kv_bytes)
        for point, prefill in zip(document.points, prefills, strict=True)
    ]
    print(f"{document.model} on {document.hardware}, {document.engine} ({document.source})")
    print_table("", ("tokens", "prefill s", "spread", "KV bytes"), rows)
    print(f"written to {path}")


def _describe_times(rules: ProfilingRules) -> str:
    median = f"measured, median of {rules.repeats}"
    match rules.clock:
        case PrefillClock.ENGINE:
            return f"{median} by the engine's vllm:request_prefill_time_seconds"
        case PrefillClock.CLIENT:
            return f"{median} by the client's clock, HTTP included"


def _describe_bytes(kv: KvSource) -> str:
    match kv:
        case MeasuredKv():
            return "measured, the vllm:nixl_bytes_transferred of a decode engine that pulled them"
        case ModelledKv(basis=basis):
            return f"modelled, from {basis}"
