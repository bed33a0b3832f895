"""The books at the end of a soak: three counts of the same requests, and what is left over.

The clients' own word, the gateway's log (a line a request) and its counters must agree request by
request: each was answered, refused or abandoned, once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.samples import Sample

from tests.fakes.systems import Document, Metrics
from tests.soak.visits import Ending, Result

ABANDONED = 499
"""What the gateway's log says of a client that left before its answer began."""

EXPECTED = frozenset({200, 400, 401, 404, 429, 502, 503, 504, ABANDONED})
"""Statuses that have a reason in a soak; 500 would be the gateway's own failure."""

_LINE = re.compile(r"prfaas\.access (\{.*\})")
_MOST_SHOWN = 5


def read_log(lines: Iterable[str]) -> dict[str, list[int]]:
    """Return the statuses logged for each request id."""
    logged: dict[str, list[int]] = {}
    for line in lines:
        if found := _LINE.search(line):
            document = json.loads(found[1])
            logged.setdefault(document["request_id"], []).append(document["status"])
    return logged


def count_codes(metrics: Metrics) -> Counter[int]:
    """Return how many requests were counted by status."""
    codes: Counter[int] = Counter()
    for sample in metrics.samples:
        if sample.name == "prfaas_requests_total":
            codes[int(sample.labels["code"])] += int(sample.value)
    return codes


def _is_negative_count(sample: Sample) -> bool:
    """Whether one of our counts is below 0; a ratio may be, such as a residual."""
    ours = sample.name.startswith("prfaas_") and not sample.name.endswith("_ratio")
    return ours and sample.value < 0


@dataclass(slots=True)
class Books:
    """Compares; `faults` says in words what does not add up."""

    faults: list[str] = field(default_factory=list)

    def compare(
        self,
        results: Sequence[Result],
        logged: Mapping[str, Sequence[int]],
        counted: Mapping[int, int],
    ) -> None:
        """Hold clients, log and counters against each other."""
        self._check_endings(results)
        self._check_log(results, logged)
        written = Counter(status for statuses in logged.values() for status in statuses)
        if written != Counter(counted):
            self.faults.append(f"log and counters differ: {dict(written)} and {dict(counted)}")
        if odd := sorted(set(written) - EXPECTED):
            self.faults.append(f"unexpected statuses: {odd}")

    def check_rest(self, state: Document, metrics: Metrics) -> None:
        """What is held once everybody has left: nothing."""
        for instance in state["instances"]:
            held = {
                name: instance[name]
                for name in ("inflight", "decode_slots_held", "prefills_inflight")
                if instance[name]
            }
            if held:
                self.faults.append(f"{instance['name']} still has {held}")
        for link in state["links"]:
            if link["inflight_bytes"]:
                self.faults.append(
                    f"{link['name']} still has {link['inflight_bytes']} bytes booked"
                )
        for gauge in ("instance_inflight", "queue_depth", "link_inflight_bytes"):
            if metrics.total(gauge):
                self.faults.append(f"prfaas_{gauge} is {metrics.total(gauge):g}")
        below = {sample.name for sample in metrics.samples if _is_negative_count(sample)}
        if below:
            self.faults.append(f"below 0: {sorted(below)}")

    def check_engine(self, name: str, state: Document) -> None:
        """What an engine holds for us: no request, no hand-off."""
        held = {key: state[key] for key in ("running", "waiting", "deferred", "handoffs")}
        if any(held.values()):
            self.faults.append(f"engine {name} still has {held}")

    def check_output(self, lines: Iterable[str]) -> None:
        """A traceback is a fault, wherever it comes from."""
        found = [line for line in lines if "Traceback" in line or "never retrieved" in line]
        if found:
            self.faults.append(f"{len(found)} tracebacks in the gateway's output")

    def _check_endings(self, results: Sequence[Result]) -> None:
        for ending in (Ending.BARE, Ending.HUNG, Ending.CUT, Ending.UNREACHED):
            found = [result for result in results if result.ending is ending]
            if found:
                shown = [f"{r.visit.id} {r.visit.kind} {r.status}" for r in found[:_MOST_SHOWN]]
                self.faults.append(f"{len(found)} visits ended {ending}: {shown}")

    def _check_log(self, results: Sequence[Result], logged: Mapping[str, Sequence[int]]) -> None:
        missing, twice, other = [], [], []
        for result in results:
            statuses = logged.get(result.visit.id, ())
            if not result.sent:
                continue
            if not statuses:
                missing.append(result.visit.id)
            elif len(statuses) > 1:
                twice.append(result.visit.id)
            elif result.status is not None and statuses[0] != result.status:
                other.append(f"{result.visit.id}: {result.status}, logged {statuses[0]}")
        for what, found in (("not in the log", missing), ("logged twice", twice), ("told", other)):
            if found:
                self.faults.append(f"{len(found)} requests {what}: {found[:_MOST_SHOWN]}")
        if unknown := set(logged) - {result.visit.id for result in results}:
            self.faults.append(f"{len(unknown)} requests in the log that nobody sent")
