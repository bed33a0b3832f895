"""A local system with chosen KV groups, and trace replays against it through the real command."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvmeta.types import CacheLayout
from router.commands.local_system import run_system, write_demo_config
from router.domain.topology import Instance
from router.settings import build_layout, build_topology, load_settings
from router.sim.replay.prompts import Vocabulary, make_prompt
from router.sim.replay.traces import TraceRequest, parse_trace

TRACE = Path(__file__).parent.parent / "data" / "conversation_trace_2000.jsonl.gz"

GROUPS = {
    "dense": ["full_attention"],
    "recurrent": ["full_attention", "recurrent"],
    "sliding": ["full_attention", "sliding_window, window: 1024, count: 5"],
}
"""KV groups of the model, by the name of a test's case."""

_GROUPS_IN_DEMO = """        - {kind: full_attention}
        - {kind: recurrent}
"""


@dataclass(frozen=True, slots=True)
class System:
    """A local system that runs."""

    url: str
    layout: CacheLayout
    instances: Sequence[Instance]

    @property
    def prefills(self) -> list[Instance]:
        """The instances that compute prompts."""
        return [instance for instance in self.instances if instance.can_prefill]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay reported, and its requests one by one."""

    report: dict
    records: list[dict]
    requests: list[TraceRequest]

    def prompts(self) -> dict[str, list[int]]:
        """Return the prompts by the gateway's request id."""
        vocabulary = Vocabulary()
        return {
            record["request_id"]: make_prompt(self.requests[record["index"]], vocabulary)
            for record in self.records
        }


@contextmanager
def local_system(
    directory: Path, groups: Sequence[str], *, time_scale: float, store: str = "memory://"
) -> Iterator[System]:
    """Run the demo's system with other KV groups and store, as processes of their own."""
    config = write_demo_config(directory, 0, time_scale)
    text = config.read_text()
    assert _GROUPS_IN_DEMO in text
    listed = "".join(f"        - {{kind: {group}}}\n" for group in groups)
    text = text.replace(_GROUPS_IN_DEMO, listed)
    config.write_text(f"{text}\nstore: {{url: '{store}'}}\n")
    settings = load_settings(config, {})
    with run_system(config) as (url, _):
        yield System(
            url,
            build_layout(settings.models[0], settings),
            build_topology(settings).instances,
        )


def replay_trace(system: System, directory: Path, *options: str, limit: int) -> Replayed:
    """Replay the first `limit` requests of the trace; the command must succeed."""
    trace, records = directory / "trace.jsonl", directory / "records.jsonl"
    lines = gzip.decompress(TRACE.read_bytes()).splitlines(keepends=True)[:limit]
    trace.write_bytes(b"".join(lines))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "router", "replay", str(trace), "--url", system.url),
            *("--json", "--max-output", "8", "--records", str(records), *options),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Replayed(
        json.loads(done.stdout),
        [json.loads(line) for line in records.read_text().splitlines()],
        list(parse_trace(lines)),
    )
