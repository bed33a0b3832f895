"""The fleet's live state: health, breakers, queues, legs in flight."""

from __future__ import annotations

import pytest

from router.control.health import BreakerRules, Health, ProbeRules, step_health
from router.domain.errors import Conflict, NotFound
from router.domain.topology import Cluster, ClusterKind, Instance, InstanceState, Role
from router.service.fleet import Fleet, FleetRules
from router.service.members import EngineReading
from tests.fakes.clocks import FakeClock

RULES = FleetRules(
    probe=ProbeRules(failures=3, successes=2),
    breaker=BreakerRules(failures=3, window=60, cooldown=30),
    signal_max_age=10,
)


def a_fleet(clock: FakeClock, *, alive: bool = True) -> Fleet:
    fleet = Fleet(
        [Cluster("pd", ClusterKind.PD), Cluster("west", ClusterKind.PRFAAS)],
        [
            Instance("p0", "pd", "http://127.0.0.1:1", Role.PREFILL),
            Instance("d0", "pd", "http://127.0.0.1:2", Role.DECODE),
            Instance("w0", "west", "http://127.0.0.1:3", Role.PREFILL),
        ],
        clock=clock,
        rules=RULES,
    )
    for name in ("p0", "d0", "w0") if alive else ():
        fleet.record_probe(name, ok=True)
    return fleet


def test_an_instance_is_not_ready_before_its_first_probe() -> None:
    """Nobody sends work to what was never seen alive."""
    fleet = a_fleet(FakeClock(), alive=False)
    assert not fleet.is_ready(fleet.member("p0"))
    fleet.record_probe("p0", ok=True)
    assert fleet.is_ready(fleet.member("p0"))


def test_r66_alternating_probes_do_not_flip_an_instance() -> None:
    """A run of failures takes an instance out, single ones do not."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    for _ in range(20):
        fleet.record_probe("p0", ok=False)
        fleet.record_probe("p0", ok=True)
    assert fleet.is_ready(fleet.member("p0"))
    assert fleet.member("p0").transitions == 0


def test_health_turns_after_a_run_and_back_after_a_run() -> None:
    """Three failures take it out, two successes bring it back, each counted once."""
    health = Health(alive=True)
    for ok, alive in [(False, True), (False, True), (False, False), (True, False), (True, True)]:
        health = step_health(health, ok, RULES.probe)
        assert health.alive is alive


def test_the_breaker_opens_on_failures_and_tries_once_after_the_cooldown() -> None:
    """Open: nothing goes there; half-open: one trial, whose outcome decides."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    member = fleet.member("p0")
    for _ in range(3):
        fleet.record_failure("p0")
    assert not fleet.is_ready(member)
    clock.advance(30)
    assert fleet.is_ready(member)
    with fleet.prefill_leg("p0", 1.0):
        assert not fleet.is_ready(member)
        fleet.record_failure("p0")
    assert not fleet.is_ready(member)
    clock.advance(30)
    with fleet.prefill_leg("p0", 1.0):
        fleet.record_success("p0")
    assert fleet.is_ready(member)


def test_open_breakers_leave_somebody_to_decode() -> None:
    """Whoever makes all decode engines fail does not end service; a healthy one goes first."""
    fleet = a_fleet(FakeClock())
    fleet.add(Instance("d1", "pd", "http://127.0.0.1:4", Role.DECODE), health=Health(alive=True))
    first, second = fleet.member("d0"), fleet.member("d1")
    for _ in range(3):
        fleet.record_failure("d0")
    assert (fleet.is_ready(first), fleet.is_ready(second)) == (False, True)
    for _ in range(3):
        fleet.record_failure("d1")
    assert (fleet.is_ready(first), fleet.is_ready(second)) == (True, True)
    assert fleet.load(first, 0.0, 1.0).ready
    fleet.record_success("d1")
    assert (fleet.is_ready(first), fleet.is_ready(second)) == (False, True)


def test_breakers_of_prefill_engines_and_of_dead_ones_hold() -> None:
    """A prompt can be computed elsewhere, and nobody is sent to an engine that does not live."""
    fleet = a_fleet(FakeClock())
    for name in ("p0", "d0", "w0"):
        for _ in range(3):
            fleet.record_failure(name)
            fleet.record_probe(name, ok=name != "d0")
    assert not any(fleet.is_ready(fleet.member(name)) for name in ("p0", "d0", "w0"))


def test_a_trial_that_ends_without_a_verdict_allows_another() -> None:
    """A client that leaves during the trial does not lock the instance out for ever."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    for _ in range(3):
        fleet.record_failure("p0")
    clock.advance(30)
    with fleet.prefill_leg("p0", 1.0):
        pass
    assert fleet.is_ready(fleet.member("p0"))


def test_old_failures_are_forgotten() -> None:
    """Failures count within the window only."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    for _ in range(10):
        fleet.record_failure("p0")
        fleet.record_failure("p0")
        clock.advance(61)
    assert fleet.is_ready(fleet.member("p0"))


def test_queue_depth_is_the_scrape_and_what_was_sent_since() -> None:
    """Our own dispatches count at once."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    fleet.record_probe("p0", ok=True, reading=EngineReading(at=0.0, waiting=2, running=1))
    clock.advance(1)
    member = fleet.member("p0")
    with fleet.prefill_leg("p0", 1.0), fleet.prefill_leg("p0", 1.0):
        assert fleet.queue_depth(member) == 4
    assert fleet.queue_depth(member) == 2


def test_an_old_scrape_is_unknown() -> None:
    """Beyond the age limit a queue is neither empty nor full."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    fleet.record_probe("p0", ok=True, reading=EngineReading(at=0.0, waiting=2, running=1))
    clock.advance(10.1)
    assert fleet.queue_depth(fleet.member("p0")) is None


def test_time_ahead_counts_our_legs_down_and_others_at_the_mean() -> None:
    """Expected seconds of our own queue shrink as time passes; foreign requests cost the mean."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    member = fleet.member("p0")
    with fleet.prefill_leg("p0", 4.0), fleet.prefill_leg("p0", 2.0):
        clock.advance(1)
        assert fleet.load(member, clock.monotonic(), 1.0).ahead == pytest.approx(5.0)
        fleet.record_probe("p0", ok=True, reading=EngineReading(at=1.0, waiting=4, running=1))
        assert fleet.load(member, clock.monotonic(), 1.0).ahead == pytest.approx(5.0 + 3.0)
    assert member.busy_until == clock.monotonic()


def test_what_of_ours_a_scrape_saw_is_not_taken_for_others() -> None:
    """A leg that ran at the scrape and has ended since leaves no queue behind.

    Taken for somebody else's it would send the next turn of a conversation away from its cache.
    """
    clock = FakeClock()
    fleet = a_fleet(clock)
    member = fleet.member("p0")
    with fleet.prefill_leg("p0", 1.0), fleet.decode_leg("p0"):
        at = clock.monotonic()
    fleet.record_probe("p0", ok=True, reading=EngineReading(at=at, waiting=3, running=2))
    assert fleet.others_running(member) == 3
    assert fleet.load(member, clock.monotonic(), 1.0).ahead == pytest.approx(3.0)
    fleet.record_probe("p0", ok=True, reading=EngineReading(at=at, waiting=3, running=2))
    assert fleet.others_running(member) == 5


def test_r09_counts_return_to_zero_however_a_leg_ends() -> None:
    """An exception inside a leg leaves no count behind."""
    fleet = a_fleet(FakeClock())
    for _ in range(50):
        with pytest.raises(RuntimeError), fleet.prefill_leg("p0", 1.0), fleet.decode_leg("d0"):
            raise RuntimeError
    assert [member.inflight for member in fleet.members] == [0, 0, 0]


def test_a_removed_instance_ends_its_legs_in_peace() -> None:
    """A leg may outlive its instance's membership, and a new one of the name starts clean."""
    fleet = a_fleet(FakeClock())
    with fleet.prefill_leg("p0", 1.0):
        removed = fleet.remove("p0")
        fleet.add(removed)
    assert fleet.member("p0").inflight == 0


def test_joining_and_leaving_name_what_is_wrong() -> None:
    """Names in use, unknown clusters and unknown names are refused."""
    fleet = a_fleet(FakeClock())
    with pytest.raises(Conflict):
        fleet.add(fleet.member("p0").instance)
    with pytest.raises(NotFound):
        fleet.add(Instance("x", "nowhere", "http://127.0.0.1:9", Role.PREFILL))
    with pytest.raises(NotFound):
        fleet.remove("x")
    with pytest.raises(Conflict):
        fleet.set_role("w0", Role.DECODE)


def test_a_drained_instance_gets_nothing_new() -> None:
    """Draining and disabled instances are not ready, active ones are."""
    fleet = a_fleet(FakeClock())
    member = fleet.set_state("p0", InstanceState.DRAINING)
    assert not fleet.is_ready(member)
    fleet.set_state("p0", InstanceState.ACTIVE)
    assert fleet.is_ready(member)


@pytest.mark.parametrize("age", [0.0, 9.9, 10.1])
@pytest.mark.parametrize("state", list(InstanceState))
def test_one_look_tells_what_each_question_would(age: float, state: InstanceState) -> None:
    """A member's load is what readiness, queue depth and others' requests are, asked one by one."""
    clock = FakeClock()
    fleet = a_fleet(clock)
    fleet.set_state("p0", state)
    fleet.record_probe("p0", ok=True, reading=EngineReading(at=0.0, waiting=3, running=2))
    clock.advance(age)
    member = fleet.member("p0")
    with fleet.prefill_leg("p0", 2.0), fleet.decode_due("p0"):
        load = fleet.load(member, clock.monotonic(), 1.0)
        assert load.ready is fleet.is_ready(member)
        assert load.queue_depth == fleet.queue_depth(member)
        assert load.inflight == 2 + fleet.others_running(member)
        assert load.ahead == pytest.approx(2.0 + fleet.others_running(member))


def test_what_is_derived_from_members_follows_every_change_of_them() -> None:
    """Who decodes, and who belongs to a cluster, is right after joining, leaving and a new role."""
    fleet = a_fleet(FakeClock())

    def names() -> tuple[list[str], list[str]]:
        members = [each.instance.name for each in fleet.members_of("pd", "m")]
        return members, [each.instance.name for each in fleet.decoders_of("m")]

    assert names() == (["p0", "d0"], ["d0"])
    seen = {fleet.generation}
    fleet.add(Instance("d1", "pd", "http://127.0.0.1:4", Role.DECODE))
    assert names() == (["p0", "d0", "d1"], ["d0", "d1"])
    seen.add(fleet.generation)
    fleet.set_role("p0", Role.BOTH)
    assert names() == (["p0", "d0", "d1"], ["p0", "d0", "d1"])
    seen.add(fleet.generation)
    fleet.remove("d0")
    assert names() == (["p0", "d1"], ["p0", "d1"])
    seen.add(fleet.generation)
    fleet.set_ranks("p0", 2)
    assert [each.instance.ranks for each in fleet.members_of("pd", "m")] == [2, 1]
    assert len(seen | {fleet.generation}) == 5
