"""Orders as values: what an edit changes, and that nothing else is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from router.control.links import BandwidthMode, LinkHealth
from router.domain.decision import Route, Rule, ThresholdMode
from router.domain.errors import Conflict, NotFound
from router.domain.topology import Instance, InstanceState, Role
from router.domain.units import BytesPerSecond
from router.service.operator import Operator, ThresholdRules
from router.service.orders import (
    InstanceOrder,
    LinkOrder,
    Orders,
    OverrideOrder,
    PairScope,
    PolicyOrder,
    ThresholdOrder,
    decode_orders,
    encode_orders,
    live_overrides,
    present,
    tag,
    with_added,
    with_instance,
    with_link,
    with_modes,
    with_override,
    with_policy,
    with_threshold,
    without_instance,
    without_overrides,
    without_threshold,
)
from tests.fakes.clocks import FakeClock

NOW = datetime(2026, 4, 16, tzinfo=UTC)
P0 = Instance("p0", "east", "http://p0", Role.PREFILL)
D0 = Instance("d0", "east", "http://d0", Role.DECODE)
NEW = Instance("d1", "east", "http://d1", Role.DECODE, api_key="sk-upstream")
CONFIGURED = {"p0": P0, "d0": D0}


def threshold(scope: PairScope, tokens: int = 100) -> ThresholdOrder:
    return ThresholdOrder(scope, ThresholdMode.MANUAL, tokens, NOW, "ops")


def override(model: str | None = None, ttl: float | None = None) -> OverrideOrder:
    until = None if ttl is None else NOW + timedelta(seconds=ttl)
    return OverrideOrder(Route.LOCAL, model, None, until, NOW, "ops")


def test_a_general_threshold_replaces_the_special_ones() -> None:
    """The latest word counts for all that it covers, and for nothing else."""
    orders = with_threshold(Orders(), threshold(PairScope(model="a", pd="east")))
    orders = with_threshold(orders, threshold(PairScope(model="b")))
    orders = with_threshold(orders, threshold(PairScope(model="a"), 7))
    assert {each.scope.model: each.tokens for each in orders.thresholds} == {"a": 7, "b": 100}
    assert without_threshold(orders, PairScope()) == Orders()


def test_overrides_end_by_the_clock() -> None:
    """One whose time is over counts no more, and goes with the next override."""
    orders = with_override(Orders(), override("a", ttl=10))
    assert live_overrides(orders, NOW + timedelta(seconds=9))
    later = NOW + timedelta(seconds=11)
    assert not live_overrides(orders, later)
    fresh = OverrideOrder(Route.PRFAAS, "b", None, None, later, "ops")
    assert with_override(orders, fresh).overrides == (fresh,)


def test_overrides_are_cleared_by_scope() -> None:
    """One scope's alone, or all where no scope is named."""
    orders = with_override(with_override(Orders(), override("a")), override("b"))
    assert [each.model for each in without_overrides(orders, "a", None).overrides] == ["b"]
    assert without_overrides(orders, None, None) == Orders()


def test_what_is_given_back_is_no_order() -> None:
    """A link with nothing said of it, and an instance as configured, leave no trace."""
    link = LinkOrder(LinkHealth.DOWN, BytesPerSecond(5.0))
    orders = with_modes(with_link(Orders(), "l", link), ["l", "m"], BandwidthMode.SCARCE)
    assert orders.links["l"] == LinkOrder(LinkHealth.DOWN, 5.0, BandwidthMode.SCARCE)
    assert with_link(with_modes(orders, ["m"], None), "l", LinkOrder()) == Orders()
    drained = with_instance(Orders(), CONFIGURED, "p0", InstanceOrder(InstanceState.DRAINING))
    assert drained.instances == {"p0": InstanceOrder(InstanceState.DRAINING)}
    as_it_was = InstanceOrder(InstanceState.ACTIVE, Role.PREFILL)
    assert with_instance(drained, CONFIGURED, "p0", as_it_was) == Orders()


def test_instances_join_and_leave() -> None:
    """Added ones join the configured, removed ones leave nothing said of them behind."""
    orders = with_added(Orders(), CONFIGURED, NEW)
    assert list(present(CONFIGURED, orders)) == ["p0", "d0", "d1"]
    with pytest.raises(Conflict):
        with_added(orders, CONFIGURED, NEW)
    orders = with_instance(orders, CONFIGURED, "d1", InstanceOrder(InstanceState.DISABLED))
    assert without_instance(orders, CONFIGURED, "d1") == Orders()
    for edit in (without_instance, lambda o, c, n: with_instance(o, c, n, InstanceOrder())):
        with pytest.raises(NotFound):
            edit(Orders(), CONFIGURED, "nobody")


@pytest.mark.parametrize("url", ["http://d0", "http://D0:80", "http://d0/"])
def test_an_engine_has_one_name(url: str) -> None:
    """Another name for it is refused, however it is spelt; another model there is not."""
    twin = Instance("d9", "east", url, Role.DECODE, model="m")
    with pytest.raises(Conflict, match="its engine is instance 'd0' already"):
        with_added(Orders(), CONFIGURED, twin)
    own = {"d0": replace(D0, model="other")}
    assert "d9" in present(own, with_added(Orders(), own, twin))
    gone = without_instance(Orders(), CONFIGURED, "d0")
    assert "d9" in present(CONFIGURED, with_added(gone, CONFIGURED, twin))
    back = with_added(gone, CONFIGURED, twin)
    with pytest.raises(Conflict, match="'d9'"):
        with_added(back, CONFIGURED, D0)


def test_a_removed_instance_may_come_back() -> None:
    """As configured it is the configured one again; as another it stands in for it."""
    gone = without_instance(Orders(), CONFIGURED, "d0")
    assert list(present(CONFIGURED, gone)) == ["p0"]
    assert with_added(gone, CONFIGURED, D0) == Orders()
    other = Instance("d0", "east", "http://elsewhere", Role.DECODE)
    replaced = with_added(gone, CONFIGURED, other)
    assert present(CONFIGURED, replaced)["d0"] == other
    assert list(present(CONFIGURED, without_instance(replaced, CONFIGURED, "d0"))) == ["p0"]


def test_orders_are_read_as_they_were_written() -> None:
    """Every kind of order survives, and a newer gateway's fields are no error."""
    orders = with_threshold(Orders(), threshold(PairScope(pd="east")))
    orders = with_override(orders, override("a", ttl=10))
    orders = with_link(orders, "l", LinkOrder(LinkHealth.UP, BytesPerSecond(1.5)))
    orders = with_added(orders, CONFIGURED, NEW)
    orders = with_instance(orders, CONFIGURED, "p0", InstanceOrder(role=Role.DECODE))
    orders = without_instance(orders, CONFIGURED, "d0")
    assert decode_orders(encode_orders(orders)) == orders
    newer = msgspec.json.decode(encode_orders(orders)) | {"curfew": True}
    assert decode_orders(msgspec.json.encode(newer)) == orders
    assert decode_orders(b"") == Orders()


def test_tags_tell_contents_apart() -> None:
    """The same content has the same tag, whatever was there between."""
    down = with_link(Orders(), "l", LinkOrder(LinkHealth.DOWN))
    assert tag(down.links) != tag(Orders().links)
    assert tag(with_link(down, "l", LinkOrder()).links) == tag(Orders().links)


def test_the_rule_is_ordered_and_given_back() -> None:
    """What was ordered is kept with its author; without it nothing is left of it."""
    ordered = with_policy(Orders(), PolicyOrder(Rule.EXPECTED, NOW, "ops"))
    assert decode_orders(encode_orders(ordered)) == ordered
    assert with_policy(ordered, None) == Orders()
    operator = Operator(ThresholdRules(), clock=FakeClock(), policy=Rule.SLACK)
    assert operator.policy is Rule.SLACK
    operator.follow(ordered)
    assert operator.policy is Rule.EXPECTED
