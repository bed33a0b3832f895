"""Ten thousand spoilt inputs, a sample of them on every run: no crash, no hang, no 500, no leak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaigns import KINDS, campaign, inputs_of

WARM_UP = 150
KEPT = 5
"""Idle connections to engines that may be kept in addition; each is two files and a task here."""

MEMORY_GROWTH = 64_000_000
"""Bytes that a process may take in addition: what one round of inputs holds at once, and slack."""


@pytest.mark.parametrize(
    ("count", "seed"),
    [
        (400, 1),
        pytest.param(10_000, 2, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
async def test_nothing_that_peers_send_breaks_the_gateway(
    tmp_path: Path, count: int, seed: int
) -> None:
    """Spoilt requests and spoilt answers end in time, blame nobody wrongly and leave nothing."""
    async with campaign(tmp_path, seed) as running:
        await running.throw(inputs_of(KINDS, WARM_UP, first=1_000_000))
        await running.settle()
        before = running.footprint()
        await running.throw(inputs_of(KINDS, count))
        await running.settle()
        after = running.footprint()
        findings = "\n".join(str(finding) for finding in running.findings[:10])
        assert not running.findings, f"{len(running.findings)} findings\n{findings}"
        assert after.tasks <= before.tasks + KEPT
        assert after.files <= before.files + 2 * KEPT
        assert after.memory <= before.memory + MEMORY_GROWTH
        assert {200, 400, 404, 502} <= running.answers.keys()
