"""Whose caches are foreseen: of sources that compute and count, and of no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmeta.hashing import prompt_blocks
from kvmeta.history import PromptHistory
from kvmeta.speculation import Speculation
from kvmeta.types import CacheLayout, SourceId
from router.domain.decision import Placement
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.service.fleet import Fleet, FleetRules
from router.service.foresight import Foresight
from tests.fakes.clocks import FakeClock

LAYOUT = CacheLayout("m@1", 4)
PROMPT = prompt_blocks(LAYOUT, list(range(20)))
SILENT = Instance("p0", "pd", "http://127.0.0.1:1", Role.PREFILL)


def foresight(*instances: Instance) -> Foresight:
    clock = FakeClock()
    return Foresight(
        Fleet([Cluster("pd", ClusterKind.PD)], instances, clock=clock, rules=FleetRules()),
        Speculation(clock=clock.monotonic, ttl_seconds=2),
        PromptHistory(clock=clock.monotonic, ttl_seconds=60, max_blocks=100),
    )


def expected(instance: Instance, rank: int | None = None) -> int:
    """How many prompts are expected somewhere while one is computed at `instance`."""
    built = foresight(instance)
    with built.computing(Placement("pd", instance.name, rank=rank), LAYOUT, PROMPT):
        return len(built.speculation)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.BOTH])
def test_an_instance_that_prefills_is_expected_to_keep_it(role: Role) -> None:
    """Prefill instances and those that do both count."""
    assert expected(replace(SILENT, role=role)) == 1


def test_a_decode_instance_is_not() -> None:
    """What only a decode instance holds counts for no cluster."""
    assert expected(replace(SILENT, role=Role.DECODE)) == 0


def test_of_several_ranks_only_a_pinned_one_is() -> None:
    """Where the engine chooses the rank nobody knows whose cache it will be."""
    assert expected(replace(SILENT, ranks=2)) == 0
    assert expected(replace(SILENT, ranks=2), rank=1) == 1


def test_an_instance_that_was_removed_is_not() -> None:
    """A leg may outlive its instance's place in the fleet."""
    built = foresight()
    with built.computing(Placement("pd", "p0"), LAYOUT, PROMPT):
        assert len(built.speculation) == 0
    built.computed(Placement("pd", "p0"), LAYOUT, PROMPT)
    assert not built.history.knows(SourceId("p0"))


def test_only_instances_without_events_are_remembered() -> None:
    """Where events tell, nobody guesses; `auto` is events too."""
    for events, remembered in ((None, True), ("tcp://127.0.0.1:1", False), ("auto", False)):
        built = foresight(replace(SILENT, kv_events=events))
        built.computed(Placement("pd", "p0"), LAYOUT, PROMPT)
        assert built.history.knows(SourceId("p0")) is remembered
