"""Laws of the simulator's parts, over generated inputs."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvmeta.types import CacheBelief, SourceState
from router.control.links import Telemetry
from router.domain.decision import ClusterView, Decision, InstanceView, Snapshot
from router.domain.topology import Role
from router.domain.units import BytesPerSecond, from_gbps
from router.policy.route import decide
from router.sim.arrivals import GammaArrivals, MmppArrivals, PoissonArrivals, draw_times
from router.sim.caches import PrefixCache
from router.sim.engines.link import Flow, LinkState
from router.sim.fair_links import FairLink
from router.sim.kernel import Calendar, PastEvent
from router.sim.system import System
from router.sim.traffic import Demand
from tests.fakes.plants import a_case_study, a_reference, demands


@given(times=st.lists(st.floats(0, 1e6), max_size=50))
def test_events_happen_in_order_and_ties_as_scheduled(times: list[float]) -> None:
    """The calendar sorts by time, and stably."""
    calendar, happened = Calendar(), list[tuple[float, int]]()
    for number, when in enumerate(times):
        calendar.at(when, happened.append, (when, number))
    calendar.run()
    assert happened == sorted(happened)
    assert len(happened) == len(times)


@given(when=st.floats(max_value=0.999) | st.just(float("nan")))
def test_nothing_is_scheduled_into_the_past(when: float) -> None:
    """A time that is over, or none, is refused and changes nothing."""
    calendar = Calendar()
    calendar.run(until=1.0)
    with pytest.raises(PastEvent):
        calendar.at(when, print, None)
    assert len(calendar) == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_fair_link_does_as_the_engines_link_does(seed: int) -> None:
    """Virtual time finds the completions of the link that keeps every flow's bytes."""
    random = Random(seed)
    rate = random.choice([10.0, 1e9])
    fast, slow = FairLink[int](rate), LinkState(rate=rate)
    asked = now = 0.0
    for number in range(40):
        when = fast.next_completion()
        step = now + random.choice([0.01, 1.0, 30.0]) * random.random()
        if when is not None and when <= step:
            now = when
            slow.advance(now)
            for owner in fast.take_done(now):
                assert slow.flows.pop(owner).left <= 1e-6 * rate
            continue
        now = step
        slow.advance(now)
        if random.random() < 0.7:
            size = rate * random.choice([0.1, 3.0]) * random.random()
            asked += size
            fast.open(now, size, number)
            slow.flows[number] = Flow(size)
        else:
            rate = random.choice([0.0, 10.0, 1e9])
            fast.change(now, rate)
            slow.rate = rate
    fast.advance(now)
    assert fast.sent == pytest.approx(slow.sent_bytes, rel=1e-6, abs=20)
    assert fast.sent <= asked * (1 + 1e-9) + 20


@given(rate=st.floats(0.5, 20), cv=st.sampled_from([0.5, 1.0, 2.0, 4.0]), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_streams_keep_their_mean_rate_and_never_go_back(rate: float, cv: float, seed: int) -> None:
    """However bursty, arrivals come at the rate asked for, in order."""
    count = 20_000
    for arrivals in (
        PoissonArrivals(rate),
        GammaArrivals(rate, cv),
        MmppArrivals(rate, surge=4, calm_seconds=30 / rate, busy_seconds=10 / rate),
    ):
        times = draw_times(arrivals, Random(seed))
        seen = [next(times) for _ in range(count)]
        assert seen == sorted(seen)
        assert seen[0] >= 0
        assert count / seen[-1] == pytest.approx(rate, rel=0.15)


prompts = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12)), min_size=1, max_size=30)


@given(prompts=prompts, recurrent=st.booleans(), capacity=st.integers(0, 40))
def test_caches_hold_no_more_than_they_may_and_hit_no_more_than_they_hold(
    prompts: list[tuple[int, int]], recurrent: bool, capacity: int
) -> None:
    """Never over capacity; a hit is whole blocks, of blocks that are there, under the total."""
    size = 16
    cache = PrefixCache(capacity, size, recurrent=recurrent)
    for family, length in prompts:
        blocks = tuple(family * 100 + number for number in range(length))
        total = length * size + 3
        hit = cache.match(blocks, total)
        assert hit % size == 0
        assert 0 <= hit <= min(total - 1, len(cache) * size)
        cache.store(blocks, total)
        assert len(cache) <= capacity
        if capacity >= length:
            assert cache.match(blocks, total) == length * size


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), total=st.integers(200, 120_000), starved=st.booleans())
def test_leaving_out_who_cannot_be_chosen_changes_no_decision(
    seed: int, total: int, *, starved: bool
) -> None:
    """`decide` answers the same on the views of all instances and on those that are shown."""
    random = Random(seed)
    system = System(a_case_study(cache_blocks=1_000))
    for each in system.named.values():
        each.held = random.randrange(4)
        if each.role is Role.PREFILL:
            for _ in range(random.randrange(4)):
                each.take(0.0, random.choice([0.5, 1.0, 3.0]))
    for wire in system.wires.values() if starved else ():
        available = from_gbps(random.choice((0, 5)))
        told = Telemetry(BytesPerSecond(0), observed_at=0.25, available=available)
        wire.state = dataclasses.replace(wire.state, telemetry=told)
    blocks = tuple(range(total // 512))
    for each in random.sample(sorted(system.named.values(), key=lambda e: e.name), 4):
        each.cache.store(blocks[: random.randrange(len(blocks) + 1)], 10**6)
    job = system.admit(1, Demand(0.0, total, total, 100, blocks), a_reference(system.plant))
    shown = system.view(job, 0.25)
    assert decide(shown) == decide(show_all(system, shown, blocks, total))


def show_all(system: System, shown: Snapshot, blocks: tuple[int, ...], total: int) -> Snapshot:
    """The snapshot with a view of every instance, as the gateway takes it."""
    clusters = []
    for pool, cluster in zip(system.pools, shown.clusters, strict=True):
        views: list[InstanceView] = []
        for each in pool.instances:
            if each.role is Role.DECODE:
                views.append(each.view_decode(system.plant.decode.slots))
                continue
            cached = each.cache.match(blocks, total)
            belief = CacheBelief(cached, SourceState.SYNCED)
            seconds = each.profile.prefill_seconds(total - cached)
            views.append(each.view_prefill(0.25, each.depth(0.25), belief, seconds))
        clusters.append(ClusterView(cluster.name, cluster.kind, tuple(views)))
    return replace(shown, clusters=tuple(clusters))


def test_pruned_views_are_few() -> None:
    """Without caches three views stand for the twelve instances of the case study."""
    system = System(a_case_study())
    demand = next(demands(PoissonArrivals(1)))
    snapshot = system.view(system.admit(1, demand, a_reference(system.plant)), 0.0)
    assert sum(len(cluster.instances) for cluster in snapshot.clusters) == 3
    assert isinstance(decide(snapshot), Decision)
