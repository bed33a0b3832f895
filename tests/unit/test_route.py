"""The rule, one claim a test."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from router.domain.decision import (
    ClusterView,
    Decision,
    GateLimits,
    GateView,
    KvSizing,
    NoRoute,
    OverrideView,
    PairView,
    PrefixTransfer,
    Reason,
    Regime,
    Route,
    Rule,
    Snapshot,
    ThresholdMode,
    ThresholdView,
    UnknownMetadata,
    WorkloadView,
)
from router.domain.topology import ClusterKind, Role
from router.domain.units import Bytes, from_gbps
from router.policy.route import decide, decide_bound, decide_local, fill_links, without
from tests.fakes.snapshots import HOME, WEST, a_link, a_pair, a_snapshot, an_instance, held


def decided(snapshot: Snapshot) -> Decision:
    """The decision of a snapshot that has one."""
    decision = decide(snapshot)
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize(
    ("uncached", "route", "reason"),
    [
        (19_400, Route.LOCAL, Reason.BELOW_THRESHOLD),
        (19_401, Route.PRFAAS, Reason.ABOVE_THRESHOLD),
    ],
)
def test_r54_a_tie_stays_local_and_one_more_token_is_offloaded(
    uncached: int, route: Route, reason: Reason
) -> None:
    """Offload iff uncached > t."""
    decision = decided(a_snapshot(uncached))
    assert (decision.route, decision.reason, decision.uncached_tokens) == (route, reason, uncached)


def test_r54_cached_tokens_count_in_full_whatever_their_tier() -> None:
    """30,000 tokens of which 12,000 are cached are 18,000 uncached: local at t = 19,400."""
    decision = decided(a_snapshot(30_000, local=12_000))
    assert (decision.uncached_tokens, decision.route) == (18_000, Route.LOCAL)


@pytest.mark.parametrize("claimed", [64_000, 63_999, 10**9])
def test_r54_a_whole_cached_prompt_leaves_the_last_token_uncached(claimed: int) -> None:
    """A belief never counts more than total - 1, so uncached is never 0 or negative."""
    decision = decided(a_snapshot(64_000, local=claimed))
    assert (decision.uncached_tokens, decision.route) == (1, Route.LOCAL)


@pytest.mark.parametrize("total", [1, 100, 131_072])
def test_r54_a_threshold_of_zero_offloads_everything(total: int) -> None:
    """T = 0 sends away whatever has an uncached token, and every prompt has one."""
    pair = a_pair(threshold=ThresholdView(ThresholdMode.MANUAL, 0))
    assert decided(a_snapshot(total, local=total, pair=pair)).route is Route.PRFAAS


BLOCKED = [
    (Reason.LINK_DOWN, {"link": a_link(up=False)}),
    (Reason.LINK_STALE, {"link": a_link(telemetry_required=True, telemetry_age=None)}),
    (Reason.LINK_STALE, {"link": a_link(telemetry_required=True, telemetry_age=10.1)}),
    (Reason.GATE_MODEL, {"gates": GateView(from_gbps(33), GateLimits(from_gbps(15)))}),
    (Reason.GATE_MODEL, {"gates": GateView(from_gbps(33), link_rate=from_gbps(30))}),
    (
        Reason.GATE_MODEL,
        {"gates": GateView(), "threshold": ThresholdView(ThresholdMode.AUTO, 19_400)},
    ),
    (
        Reason.GATE_WORKLOAD,
        {"gates": GateView(None, GateLimits(long_share=0.1), workload=WorkloadView(0.09, 40_000))},
    ),
    (Reason.LINK_CONGESTED, {"link": a_link(free=Bytes(10**9 - 1))}),
]


@pytest.mark.parametrize(("reason", "changes"), BLOCKED)
def test_every_block_of_a_pair_keeps_a_long_prompt_local(
    reason: Reason, changes: dict[str, object]
) -> None:
    """Each reason between below_threshold and above_threshold is reached, and means local."""
    decision = decided(a_snapshot(pair=a_pair(**changes)))
    assert (decision.route, decision.reason) == (Route.LOCAL, reason)
    assert decision.prefill is not None
    assert decision.prefill.instance == "pd-p0"


@pytest.mark.parametrize(("reason", "changes"), BLOCKED)
def test_a_short_prompt_is_below_the_threshold_whatever_else_is_wrong(
    reason: Reason, changes: dict[str, object]
) -> None:
    """below_threshold is asked before the links and the gates."""
    decision = decided(a_snapshot(100, pair=a_pair(**changes)))
    assert decision.reason is Reason.BELOW_THRESHOLD
    assert reason is not Reason.BELOW_THRESHOLD


def test_an_unprofiled_model_may_be_offloaded_by_hand() -> None:
    """In manual mode the operator vouches for a model without a profile."""
    decision = decided(a_snapshot(pair=a_pair(gates=GateView()), sizing=KvSizing(None)))
    assert (decision.route, decision.kv_bytes) == (Route.PRFAAS, None)


def test_a_link_reported_in_time_is_not_stale() -> None:
    """Telemetry exactly as old as allowed still counts."""
    link = a_link(telemetry_required=True, telemetry_age=10.0)
    assert decided(a_snapshot(pair=a_pair(link=link))).route is Route.PRFAAS


def test_unknown_metadata_is_taken_as_nothing_cached() -> None:
    """By default an unknown prefix counts 0 and is shown as unknown, never as 0."""
    decision = decided(a_snapshot(30_000, local=None))
    assert decision.uncached_tokens == 30_000
    assert dict(decision.cached)[HOME].tokens is None


def test_unknown_metadata_may_keep_requests_local() -> None:
    """on_unknown_metadata: local turns the unknown into gate_scheduler."""
    decision = decided(a_snapshot(30_000, local=None, on_unknown=UnknownMetadata.LOCAL))
    assert (decision.route, decision.reason) == (Route.LOCAL, Reason.GATE_SCHEDULER)


@pytest.mark.parametrize(
    "west",
    [
        (),
        (an_instance("pf-0", Role.PREFILL, cluster=WEST, ready=False),),
        (an_instance("pf-0", Role.PREFILL, cluster=WEST, compatibility="other"),),
    ],
    ids=["none", "dead", "incompatible"],
)
def test_without_a_live_compatible_remote_instance_a_long_prompt_stays(west: tuple) -> None:
    """remote_unavailable: prefill and decode are never paired across differing revisions."""
    decision = decided(a_snapshot(west=west))
    assert (decision.route, decision.reason) == (Route.LOCAL, Reason.REMOTE_UNAVAILABLE)


def test_a_full_remote_queue_keeps_a_long_prompt_local() -> None:
    """remote_queue_full is asked of the best candidate."""
    west = (an_instance("pf-0", Role.PREFILL, cluster=WEST, queue_depth=16),)
    assert decided(a_snapshot(west=west)).reason is Reason.REMOTE_QUEUE_FULL


def test_an_instance_with_room_comes_before_a_full_one() -> None:
    """A quicker but full instance does not hide one that has room."""
    west = (
        an_instance("pf-0", Role.PREFILL, cluster=WEST, queue_depth=16),
        an_instance("pf-1", Role.PREFILL, cluster=WEST, queue_depth=1, ahead=9.0),
    )
    decision = decided(a_snapshot(west=west))
    assert decision.prefill is not None
    assert decision.prefill.instance == "pf-1"


@pytest.mark.parametrize(
    ("inflight", "reason"), [(15, "above_threshold"), (16, "remote_queue_full")]
)
def test_a_stale_queue_reading_is_neither_empty_nor_full(inflight: int, reason: str) -> None:
    """Without a fresh reading our own dispatches stand in for the queue."""
    west = (an_instance("pf-0", Role.PREFILL, cluster=WEST, queue_depth=None, inflight=inflight),)
    assert decided(a_snapshot(west=west)).reason == reason


def test_scarce_counts_only_the_home_prefix() -> None:
    """With a scarce link a prefix in the other cluster changes nothing."""
    assert decided(a_snapshot(30_000, local=0, remote=29_000)).uncached_tokens == 30_000


def abundant(**changes: object) -> object:
    """A pair in the abundant regime whose connector ships prefixes both ways."""
    return a_pair(
        link=a_link(regime=Regime.ABUNDANT),
        ships_to_pd=True,
        ships_to_prfaas=True,
        back_link=a_link(name="east-west"),
        **changes,
    )


def test_abundant_counts_a_remote_prefix_that_is_shipped_home() -> None:
    """<= t by the longer remote prefix: local, with the prefix transfer in the plan."""
    decision = decided(a_snapshot(30_000, local=0, remote=20_000, pair=abundant()))
    assert (decision.route, decision.uncached_tokens) == (Route.LOCAL, 10_000)
    transfer = decision.prefix_transfer
    assert transfer is not None
    assert (transfer.source, transfer.target, transfer.tokens) == (WEST, HOME, 20_000)
    assert transfer.bytes == 20_000 * 17_000
    assert decision.compute_uncached_tokens == 10_000


def test_abundant_ships_a_longer_home_prefix_to_the_remote_side() -> None:
    """> t by the better prefix: PrfaaS, and what only the home cluster holds travels there."""
    decision = decided(a_snapshot(60_000, local=20_000, remote=5_000, pair=abundant()))
    assert (decision.route, decision.uncached_tokens) == (Route.PRFAAS, 40_000)
    transfer = decision.prefix_transfer
    assert transfer is not None
    assert (transfer.source, transfer.target, transfer.tokens) == (HOME, WEST, 20_000)
    assert (transfer.link, transfer.bytes) == ("east-west", 15_000 * 17_000)
    assert decision.compute_uncached_tokens == 40_000


def test_abundant_without_a_way_back_computes_the_home_prefix_again() -> None:
    """No link towards PrfaaS: the remote side computes all that it does not hold itself."""
    pair = replace(abundant(), back_link=None)
    decision = decided(a_snapshot(60_000, local=20_000, remote=5_000, pair=pair))
    assert decision.prefix_transfer is None
    assert decision.compute_uncached_tokens == 55_000


@pytest.mark.parametrize(
    "pair",
    [
        replace(abundant(), ships_to_pd=False),
        replace(abundant(), link=a_link(regime=Regime.ABUNDANT, up=False)),
        replace(abundant(), link=a_link(regime=Regime.ABUNDANT, free=Bytes(1))),
        replace(abundant(), link=a_link(regime=Regime.SCARCE)),
    ],
    ids=["connector", "down", "no budget", "scarce"],
)
def test_a_prefix_that_nobody_delivers_is_never_counted(pair: object) -> None:
    """Where nothing ships the prefix home, it is exactly the scarce rule."""
    snapshot = a_snapshot(30_000, local=1_000, remote=25_000, pair=pair)
    assert decided(snapshot).uncached_tokens == 29_000


def test_an_equal_prefix_is_not_shipped() -> None:
    """Only a strictly longer prefix travels."""
    decision = decided(a_snapshot(30_000, local=20_000, remote=20_000, pair=abundant()))
    assert (decision.uncached_tokens, decision.prefix_transfer) == (10_000, None)


def test_mode_off_keeps_everything_local() -> None:
    """Off means disabled, before any override is asked."""
    pair = a_pair(threshold=ThresholdView(ThresholdMode.OFF, 0))
    decision = decided(a_snapshot(pair=pair, override=OverrideView(Route.PRFAAS)))
    assert (decision.route, decision.reason) == (Route.LOCAL, Reason.DISABLED)


def test_an_override_wins_over_the_threshold() -> None:
    """Short prompts go away and long ones stay, as ordered."""
    away = decided(a_snapshot(100, override=OverrideView(Route.PRFAAS)))
    stay = decided(a_snapshot(10**5, override=OverrideView(Route.LOCAL)))
    assert (away.route, away.reason) == (Route.PRFAAS, Reason.OVERRIDE)
    assert (stay.route, stay.reason) == (Route.LOCAL, Reason.OVERRIDE)


@pytest.mark.parametrize(
    ("changes", "blocked_by"),
    [
        ({"pair": a_pair(link=a_link(up=False))}, Reason.LINK_DOWN),
        ({"west": ()}, Reason.REMOTE_UNAVAILABLE),
        ({"pairs": ()}, Reason.REMOTE_UNAVAILABLE),
    ],
)
def test_an_override_never_selects_a_dead_path(
    changes: dict[str, object], blocked_by: Reason
) -> None:
    """The request stays local and the blocking reason is told."""
    decision = decided(a_snapshot(override=OverrideView(Route.PRFAAS), **changes))  # type: ignore[arg-type]
    assert (decision.route, decision.reason, decision.blocked_by) == (
        Route.LOCAL,
        Reason.OVERRIDE,
        blocked_by,
    )


def not_disaggregable(snapshot: Snapshot) -> Snapshot:
    """The same request with echo or prompt_logprobs."""
    return replace(snapshot, request=replace(snapshot.request, disaggregable=False))


def test_what_cannot_be_disaggregated_runs_whole_on_one_instance() -> None:
    """An aggregated instance does it all; without one a decode instance does."""
    decision = decided(not_disaggregable(a_snapshot()))
    assert (decision.reason, decision.single_call) == (Reason.NOT_DISAGGREGABLE, True)
    assert decision.decode.instance == "pd-d0"
    home = (an_instance("agg", Role.BOTH), an_instance("pd-d0", Role.DECODE))
    aggregated = decided(not_disaggregable(a_snapshot(home=home)))
    assert aggregated.decode.instance == "agg"


def test_without_local_prefill_a_short_prompt_is_computed_by_decode() -> None:
    """local_prefill_unavailable, and the reason behind it is told."""
    home = (an_instance("pd-d0", Role.DECODE),)
    decision = decided(a_snapshot(100, home=home))
    assert decision.prefill is None
    assert (decision.reason, decision.blocked_by) == (
        Reason.LOCAL_PREFILL_UNAVAILABLE,
        Reason.BELOW_THRESHOLD,
    )


def test_without_local_prefill_a_long_prompt_still_goes_to_prfaas() -> None:
    """Over t and remote possible: PrfaaS computes it."""
    assert decided(a_snapshot(home=(an_instance("pd-d0", Role.DECODE),))).route is Route.PRFAAS


def test_nobody_to_decode_is_no_route() -> None:
    """Without a live decode instance there is nothing to decide."""
    home = (an_instance("pd-p0", Role.PREFILL), an_instance("pd-d0", Role.DECODE, ready=False))
    assert decide(a_snapshot(home=home)) == NoRoute("m")
    assert decide_local(a_snapshot(home=home), Reason.DECISION_TIMEOUT) == NoRoute("m")


def test_the_least_expected_time_chooses_the_local_candidate_and_its_prefix() -> None:
    """cached(pd) is the candidate's own prefix, not the best of the cluster."""
    home = (
        an_instance("pd-p0", Role.PREFILL, cached=9_000, ahead=5.0, prefill=1.0),
        an_instance("pd-p1", Role.PREFILL, cached=0, ahead=0.0, prefill=3.0),
        an_instance("pd-d0", Role.DECODE),
    )
    decision = decided(a_snapshot(10_000, home=home))
    assert decision.prefill is not None
    assert (decision.prefill.instance, decision.uncached_tokens) == ("pd-p1", 10_000)


def test_ties_go_by_name() -> None:
    """Equal candidates are chosen by name, so two replicas choose alike."""
    home = (
        an_instance("pd-p1", Role.PREFILL),
        an_instance("pd-p0", Role.PREFILL),
        an_instance("pd-d1", Role.DECODE),
        an_instance("pd-d0", Role.DECODE),
    )
    decision = decided(a_snapshot(100, home=home))
    assert decision.prefill is not None
    assert (decision.prefill.instance, decision.decode.instance) == ("pd-p0", "pd-d0")


def test_an_aggregated_instance_does_a_local_request_in_one_call() -> None:
    """Role both is its own decode instance."""
    decision = decided(a_snapshot(100, home=(an_instance("agg", Role.BOTH),)))
    assert decision.single_call
    assert decision.kv_bytes == 0


def test_an_aggregated_instance_takes_a_handoff_only_where_it_says_so() -> None:
    """accepts_handoff decides whether a remote prefill is possible at all."""
    closed = (an_instance("agg", Role.BOTH),)
    willing = (an_instance("agg", Role.BOTH, takes_handoff=True),)
    assert decided(a_snapshot(home=closed)).reason is Reason.REMOTE_UNAVAILABLE
    assert decided(a_snapshot(home=willing)).route is Route.PRFAAS


def test_the_home_asked_for_is_used_while_it_lives() -> None:
    """A request's home cluster decodes it; a dead one is passed over."""
    other = ClusterView(
        "pd-north",
        ClusterKind.PD,
        (
            an_instance("n-p", Role.PREFILL, cluster="pd-north"),
            an_instance("n-d", Role.DECODE, cluster="pd-north"),
        ),
    )
    snapshot = a_snapshot(100)
    snapshot = replace(snapshot, clusters=(*snapshot.clusters, other))
    asked = replace(snapshot, request=replace(snapshot.request, home="pd-north"))
    assert decided(asked).home == "pd-north"
    assert decided(without(asked, frozenset({"n-d"}))).home == HOME


def test_each_pair_has_its_own_threshold() -> None:
    """Of several PrfaaS clusters the one that takes the request computes it."""
    north = ClusterView(
        "prfaas-north",
        ClusterKind.PRFAAS,
        (an_instance("nf-0", Role.PREFILL, cluster="prfaas-north"),),
    )
    lower = a_pair(prfaas="prfaas-north", threshold=ThresholdView(ThresholdMode.MANUAL, 1_000))
    snapshot = a_snapshot(5_000)
    snapshot = replace(
        snapshot, clusters=(*snapshot.clusters, north), pairs=(*snapshot.pairs, lower)
    )
    decision = decided(snapshot)
    assert (decision.route, decision.threshold) == (Route.PRFAAS, 1_000)
    assert decision.prefill is not None
    assert decision.prefill.instance == "nf-0"


def test_kv_bytes_spare_the_prefix_that_the_decode_side_holds() -> None:
    """The token-proportional part of its own prefix need not cross; state always ships."""
    home = (
        an_instance("pd-p0", Role.PREFILL),
        an_instance("pd-d0", Role.DECODE, cached=10_000),
    )
    assert decided(a_snapshot(home=home)).kv_bytes == 10**9 - 10_000 * 17_000


def test_a_failed_remote_prefill_is_planned_again_without_the_dead() -> None:
    """decide_local over the snapshot without the failed instance."""
    snapshot = without(a_snapshot(), frozenset({"pf-0"}))
    decision = decide_local(snapshot, Reason.REMOTE_PREFILL_FAILED)
    assert isinstance(decision, Decision)
    assert (decision.route, decision.reason) == (Route.LOCAL, Reason.REMOTE_PREFILL_FAILED)


def test_a_local_decision_after_the_fact_tells_the_pairs_threshold() -> None:
    """What was compared is shown, not the default of pairs without an order."""
    pair = a_pair(threshold=ThresholdView(ThresholdMode.MANUAL, 7))
    decision = decide_local(a_snapshot(pair=pair), Reason.DECISION_TIMEOUT)
    assert isinstance(decision, Decision)
    assert (decision.threshold, decision.uncached_tokens) == (7, 30_000)


NORTH = "prfaas-north"


def two_pairs(north: ThresholdView, west: ThresholdView) -> Snapshot:
    """A snapshot with two PrfaaS clusters alike but for their thresholds."""
    snapshot = a_snapshot(pair=a_pair(threshold=west))
    view = an_instance("north-0", Role.PREFILL, cluster=NORTH)
    return replace(
        snapshot,
        clusters=(*snapshot.clusters, ClusterView(NORTH, ClusterKind.PRFAAS, (view,))),
        pairs=(*snapshot.pairs, a_pair(prfaas=NORTH, threshold=north)),
    )


def test_equal_pairs_are_chosen_by_name() -> None:
    """Of two clusters that are equally good the one whose candidate's name comes first."""
    t = ThresholdView(ThresholdMode.MANUAL, 100)
    prefill = decided(two_pairs(t, t)).prefill
    assert prefill is not None
    assert prefill.instance == "north-0"


def test_a_pair_that_is_off_takes_nothing() -> None:
    """One pair's `off` leaves the other; both off are disabled."""
    on, off = ThresholdView(ThresholdMode.MANUAL, 100), ThresholdView(ThresholdMode.OFF, 100)
    prefill = decided(two_pairs(off, on)).prefill
    assert prefill is not None
    assert prefill.cluster == WEST
    assert decided(two_pairs(off, off)).reason is Reason.DISABLED
    forced = replace(two_pairs(off, on), override=OverrideView(Route.PRFAAS))
    assert decided(forced).prefill == prefill


def test_unknown_is_shown_for_a_cluster_without_a_candidate() -> None:
    """Every candidate cluster is named in the beliefs, an empty one as unknown."""
    beliefs = dict(decided(a_snapshot(west=())).cached)
    assert beliefs == {HOME: held(0), WEST: held(None)}


@pytest.mark.parametrize(
    ("total", "bound", "route", "reason"),
    [
        (30_000, "pf-1", Route.PRFAAS, Reason.ABOVE_THRESHOLD),
        (8_000, "pf-1", Route.PRFAAS, Reason.SOONER_REMOTE),
        (8_000, "pd-p1", Route.LOCAL, Reason.BELOW_THRESHOLD),
        (30_000, "pd-p1", Route.LOCAL, Reason.SOONER_LOCAL),
    ],
)
def test_what_is_bound_prefills_there(total: int, bound: str, route: Route, reason: Reason) -> None:
    """The instance that the queue chose does it, however long its line; t is told if it agrees."""
    snapshot = a_snapshot(
        total,
        home=(
            an_instance("pd-p0", Role.PREFILL),
            an_instance("pd-p1", Role.PREFILL, ahead=9.0),
            an_instance("pd-d0", Role.DECODE),
        ),
        west=(
            an_instance("pf-0", Role.PREFILL, cluster=WEST),
            an_instance("pf-1", Role.PREFILL, cluster=WEST, ahead=9.0),
        ),
    )
    decision = decide_bound(snapshot, bound)
    assert isinstance(decision, Decision)
    assert (decision.route, decision.reason) == (route, reason)
    assert decision.prefill is not None
    assert decision.prefill.instance == bound


def test_who_cannot_be_bound_to_leaves_it_to_the_rule() -> None:
    """A name that is not ready is as if nothing had been bound."""
    snapshot = a_snapshot(30_000)
    assert decide_bound(snapshot, "pf-9") == decide(snapshot)


def test_a_full_link_takes_nothing_but_what_an_operator_orders() -> None:
    """No byte is free on it: the prompt stays, unless it is overridden."""
    snapshot = a_snapshot(30_000)
    assert fill_links(snapshot, frozenset()) is snapshot
    assert decided(fill_links(snapshot, {"another"})).route is Route.PRFAAS
    full = fill_links(snapshot, {"west-east"})
    assert decided(full).reason is Reason.LINK_CONGESTED
    assert not decided(full).link_bytes
    ordered = replace(full, override=OverrideView(Route.PRFAAS))
    assert decided(ordered).route is Route.PRFAAS


def test_a_decision_tells_the_bytes_that_it_moves_over_links() -> None:
    """A hand-off's over its link, a shipped prefix's over the link in its direction."""
    decision = decided(a_snapshot(30_000))
    assert decision.link_bytes == {"west-east": decision.kv_bytes}
    assert not decided(a_snapshot(1_000)).link_bytes
    shipped = replace(
        decision, prefix_transfer=PrefixTransfer(HOME, WEST, 100, "east-west", Bytes(7))
    )
    assert shipped.link_bytes == {"west-east": decision.kv_bytes, "east-west": 7}


def starving(rate: float) -> PairView:
    """The pair over a link built for 100 Gbit/s that carries `rate`."""
    return a_pair(link=a_link(capacity=from_gbps(100), rate=from_gbps(rate), free=Bytes(0)))


@pytest.mark.parametrize(
    ("instances", "rate", "total", "chosen"),
    [
        (3, 5, 30_000, "p1"),  # over t: it would be elsewhere
        (3, 5, 9_701, "p1"),
        (3, 5, 9_700, "p0"),  # half of t is short
        (3, 60, 30_000, "p0"),  # a busy link does not starve
        (3, 0, 30_000, "p1"),
        (2, 5, 30_000, "p0"),  # half of the home is too much to keep
    ],
)
def test_while_a_link_starves_one_instance_is_left_to_short_prompts(
    instances: int, rate: float, total: int, chosen: str
) -> None:
    """Long ones that stay at home take the quickest of the others."""
    prefills = [an_instance(f"p{n}", Role.PREFILL, ahead=float(n)) for n in range(instances)]
    home = (*prefills, an_instance("d0", Role.DECODE))
    for rule in (Rule.PAPER, Rule.EXPECTED):
        decision = decided(a_snapshot(total, home=home, pair=starving(rate), rule=rule))
        assert decision.route is Route.LOCAL
        assert decision.prefill is not None
        assert decision.prefill.instance == chosen
