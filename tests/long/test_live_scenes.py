"""The live scenes, cut short: `make live` plays them whole."""

from __future__ import annotations

import logging
from dataclasses import astuple

import pytest

from bench.live.programs import choose_scenes, play_scenes

pytestmark = pytest.mark.long

_LOG = logging.getLogger(__name__)


@pytest.mark.timeout(900)
async def test_r09_every_claim_of_the_scenes_holds() -> None:
    """Links that starve or fail, floods, a killed leader: all as promised, and nobody failed."""
    played = await play_scenes(choose_scenes("abcefgi", quick=True), _LOG.info, quick=True)
    failed = [
        (outcome.scene, *astuple(claim))
        for outcome in played.values()
        for claim in outcome.claims
        if not claim.holds
    ]
    assert failed == []
    assert all(outcome.claims and outcome.looks for outcome in played.values())
