"""What a link carries, inferred from hand-offs that wait for it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.bandwidth import Inference, InferenceRules, step_inference
from router.control.crossings import Crossed, Crossings
from router.control.links import (
    BandwidthSource,
    Inferred,
    LinkState,
    Telemetry,
    bandwidth_source,
    usable_bandwidth,
    utilization,
)
from router.domain.units import Bytes, BytesPerSecond, from_gbps
from tests.fakes.crossing_traffic import LINK, CrossingTraffic

RULES = InferenceRules()


@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_throttled_link_does_not_look_idle(*, overlap: bool, gateways: int) -> None:
    """Ten seconds after a fall from 100 to 5 Gbit/s every gateway knows, and it goes on knowing."""
    traffic = CrossingTraffic(load=3, overlap=overlap, gateways=gateways)
    traffic.run(20.5)
    assert traffic.usable_gbps() == 100
    traffic.throttle(5)
    traffic.run(30.5)
    for gateway in range(gateways):
        assert traffic.usable_gbps(gateway) == pytest.approx(5, rel=0.05)
    traffic.run(80.5)
    for seen in traffic.inferred.values():
        assert min(seen[35:80]) > 4.5
        assert max(seen[35:80]) < 6.0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("load", [1.5, 3, 20])
def test_a_fall_is_known_within_ten_seconds(load: float, *, overlap: bool) -> None:
    """Within 5 %, in five of six runs, from just above what the link carries to far more."""
    known = 0
    for seed in range(6):
        traffic = CrossingTraffic(load=load, overlap=overlap, gateways=2, seed=seed)
        traffic.run(20.5)
        assert set(traffic.inferred[0]) == {100.0}
        traffic.throttle(5)
        traffic.run(30.5)
        known += all(abs(traffic.usable_gbps(each) - 5) <= 0.25 for each in (0, 1))
    assert known >= 5


@settings(max_examples=30, deadline=None)
@given(
    gbps=st.floats(5, 100),
    load=st.floats(0.1, 20),
    overlap=st.booleans(),
    gateways=st.integers(1, 2),
    seed=st.integers(0, 10**6),
)
def test_a_link_is_never_taken_to_carry_much_less_than_it_does(
    gbps: float, load: float, gateways: int, seed: int, *, overlap: bool
) -> None:
    """Whatever it carries and however full it is: nobody is throttled by mistake."""
    traffic = CrossingTraffic(load=load, overlap=overlap, gateways=gateways, seed=seed)
    traffic.throttle(gbps)
    traffic.run(40.0)
    assert min(min(seen) for seen in traffic.inferred.values()) >= 0.9 * gbps


@pytest.mark.parametrize("seed", range(4))
def test_engines_that_hesitate_now_and_then_are_no_slow_link(seed: int) -> None:
    """One answer in ten is half a second late, here and over the link: one alone proves nothing."""
    traffic = CrossingTraffic(load=0.3, overlap=True, hiccups=10, seed=seed)
    traffic.run(200.0)
    assert set(traffic.inferred[0]) == {100.0}


def test_the_link_that_recovers_is_found_out_by_real_traffic() -> None:
    """Hand-offs that cross in no time disprove it within seconds; the rest takes minutes."""
    traffic = CrossingTraffic(load=2)
    traffic.throttle(5)
    traffic.run(60.0)
    assert traffic.usable_gbps() == pytest.approx(5, rel=0.1)
    traffic.throttle(100)
    traffic.run(75.0)
    assert traffic.usable_gbps() > 15
    traffic.run(240.0)
    assert traffic.usable_gbps() == 100
    assert traffic.boards[0].state("west-east").inferred is None


def test_a_link_that_recovers_is_found_out_where_kv_crosses_beside_the_prefills() -> None:
    """Nothing disproves what was inferred, but nobody waits either: it is tried the sooner."""
    traffic = CrossingTraffic(load=3, overlap=True)
    traffic.throttle(5)
    traffic.run(60.0)
    assert traffic.usable_gbps() == pytest.approx(5, rel=0.1)
    traffic.throttle(100)
    traffic.run(105.0)
    assert traffic.usable_gbps() > 10
    traffic.run(180.0)
    assert traffic.usable_gbps() == 100


def test_a_link_that_stays_narrow_is_tried_ever_more_rarely() -> None:
    """In ten minutes of a link of 5 Gbit/s what is inferred is over twice that in no tenth."""
    traffic = CrossingTraffic(load=3)
    traffic.throttle(5)
    traffic.run(600.0)
    seen = traffic.inferred[0][15:]
    assert sum(each > 10 for each in seen) < len(seen) / 10


def test_inference_can_be_switched_off() -> None:
    """Then a link without telemetry carries what the configuration says."""
    traffic = CrossingTraffic(load=3, infers=False)
    traffic.throttle(5)
    traffic.run(40.0)
    assert set(traffic.inferred[0]) == {100.0}


@pytest.mark.parametrize("answer", [0.05, 1.0])
@pytest.mark.parametrize("overlap", [False, True])
def test_slow_decode_instances_are_no_slow_link(*, overlap: bool, answer: float) -> None:
    """They let hand-offs within the cluster wait as well."""
    traffic = CrossingTraffic(load=3, overlap=overlap, answer=answer)
    traffic.run(150.0)
    assert set(traffic.inferred[0]) == {100.0}


def test_an_idle_link_tells_nothing() -> None:
    """Without a hand-off nothing is inferred, and what was grows back only after a while."""
    state = Inference(0.0)
    for second in range(60):
        state = step_inference(state, Crossed(), Crossed(), float(second), LINK.capacity)
    assert state.rate is None
    state = Inference(0.0, rate=from_gbps(5))
    held = step_inference(state, Crossed(), Crossed(), RULES.hold, LINK.capacity)
    assert held.rate == from_gbps(5)
    grown = step_inference(held, Crossed(), Crossed(), RULES.hold + 1.0, LINK.capacity)
    assert grown.rate == pytest.approx(from_gbps(5) * (1 + RULES.growth))


@pytest.mark.parametrize(("told", "inferred"), [(None, True), (0.1, False), (0.9, True)])
def test_waits_that_engines_transfers_do_not_explain_are_not_the_links(
    told: float | None, *, inferred: bool
) -> None:
    """An engine that tells of little time in transfers was slow by itself."""
    state, arrived = Inference(0.0), Crossed()
    for second in range(10):
        arrived += Crossed(0.6e9, 1.0, 1.5, 1)
        transfers = None if told is None else told * arrived.waited
        state = step_inference(state, arrived, Crossed(), second, LINK.capacity, transfers)
    assert (state.rate is not None) is inferred


def test_a_link_that_carries_nothing_is_tried_with_little() -> None:
    """However long hand-offs wait, a little of the nominal bandwidth is assumed."""
    waiting = Crossed(1e6, 1000.0, 1000.0, 1)
    state = step_inference(Inference(0.0), Crossed(), waiting, 1.0, LINK.capacity)
    assert state.rate == pytest.approx(RULES.least * LINK.capacity)


@given(
    sizes=st.lists(st.integers(10**6, 10**10), min_size=1, max_size=8),
    gbps=st.floats(0.1, 400),
    others=st.integers(0, 3),
)
def test_each_hand_off_of_a_shared_link_tells_the_same_rate(
    sizes: list[int], gbps: float, others: int
) -> None:
    """Begun together and sharing equally, each has bytes over link time equal to the rate."""
    rate, now, share = from_gbps(gbps), 0.0, 0.0
    crossings = Crossings(0.0, rate)
    swift = crossings.book(0.0, Bytes(1), None, timed=True)
    crossings.depart(0.0, swift)
    crossings.arrive(0.0, swift)  # so decode instances need no time by themselves
    crossings.hear(0.0, others)
    numbers = {crossings.book(0.0, Bytes(size), None, timed=True): size for size in sizes}
    for number in numbers:
        crossings.depart(0.0, number)
    left = len(sizes) + others
    for number, size in sorted(numbers.items(), key=lambda each: each[1]):
        now += (size / rate - share) * left
        share = size / rate
        left -= 1
        before = crossings.arrived
        crossings.arrive(now, number)
        assert (crossings.arrived - before).rate == pytest.approx(rate)
    assert crossings.arrived.link_seconds <= now * (1 + 1e-9)


def test_a_hand_off_that_nobody_times_counts_while_it_should_cross() -> None:
    """It takes its share from those beside it until the assumed rate has carried it."""
    crossings = Crossings(0.0, BytesPerSecond(1e9))
    timed = crossings.book(0.0, Bytes(10**9), None, timed=True)
    blind = crossings.book(0.0, Bytes(10**9), None, timed=False)
    for number in (timed, blind):
        crossings.depart(0.0, number)
    crossings.advance(1.9)
    assert crossings.crossing == 2
    crossings.advance(2.1)
    assert crossings.crossing == 1
    crossings.arrive(60.0, blind)
    assert crossings.arrived.count == 0


def test_whose_word_on_the_bandwidth_is_in_force() -> None:
    """The operator's, fresh telemetry's, the hand-offs', the configuration's, in this order."""
    state = LinkState(LINK)
    assert bandwidth_source(state, 0.0) is BandwidthSource.CONFIG
    state = replace(state, inferred=Inferred(from_gbps(5), 0.0))
    assert bandwidth_source(state, 0.0) is BandwidthSource.INFERRED
    assert usable_bandwidth(state, 0.0) == from_gbps(5)
    told = replace(state, telemetry=Telemetry(from_gbps(1), 0.0, available=from_gbps(40)))
    assert bandwidth_source(told, 0.0) is BandwidthSource.TELEMETRY
    assert usable_bandwidth(told, 0.0) == from_gbps(40)
    assert bandwidth_source(told, 10.1) is BandwidthSource.INFERRED
    ordered = replace(told, capacity=from_gbps(20))
    assert bandwidth_source(ordered, 0.0) is BandwidthSource.OPERATOR
    assert usable_bandwidth(ordered, 0.0) == from_gbps(20)
    assert usable_bandwidth(ordered, 10.1) == from_gbps(20)
    less = replace(told, capacity=from_gbps(60))
    assert bandwidth_source(less, 0.0) is BandwidthSource.TELEMETRY
    assert usable_bandwidth(less, 0.0) == from_gbps(40)


def test_loss_counts_once() -> None:
    """What was inferred has lost its bytes already; egress is measured against it."""
    report = Telemetry(from_gbps(4), 0.0, loss_ratio=0.5)
    state = LinkState(LINK, telemetry=report, inferred=Inferred(from_gbps(5), 0.0))
    assert usable_bandwidth(state, 0.0) == from_gbps(5)
    assert utilization(state, 0.0) == pytest.approx(0.8)


def test_a_change_of_source_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """One line each time that somebody else's word comes into force."""
    traffic = CrossingTraffic(load=3)
    with caplog.at_level(logging.INFO, logger="router.service.links"):
        traffic.throttle(5)
        traffic.run(25.0)
    assert [record.message.rpartition(" by ")[0] for record in caplog.records]
    assert "by inferred (was by config)" in caplog.records[0].message
