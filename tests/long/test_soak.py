"""The soak, for five minutes: `make soak` runs it for longer, with other seeds."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.soak.run import SoakOptions, run_soak

pytestmark = pytest.mark.long

_LOG = logging.getLogger(__name__)


@pytest.mark.timeout(900)
async def test_every_request_is_accounted_for_and_nothing_grows(tmp_path: Path) -> None:
    """After aborts and faults: clients, log and counters agree, and nothing is held any more."""
    report = await run_soak(SoakOptions(minutes=5.0), tmp_path, _LOG.info)
    assert report.faults == []
    assert len(report.broken) >= 10
