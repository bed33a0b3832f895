"""Laws of the rule, over generated fleets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvmeta.types import CacheBelief, SourceState
from router.domain.decision import (
    ClusterView,
    Decision,
    GateLimits,
    GateView,
    InstanceView,
    KvSizing,
    LinkView,
    NoRoute,
    OverrideView,
    PairView,
    Reason,
    Regime,
    RequestView,
    Route,
    Snapshot,
    ThresholdMode,
    ThresholdView,
    TokenSource,
    UnknownMetadata,
    WorkloadView,
)
from router.domain.topology import ClusterKind, Role
from router.domain.units import Bytes, BytesPerSecond
from router.policy.route import decide, decide_local
from tests.fakes.snapshots import a_pair, a_snapshot

totals = st.integers(1, 200_000)
beliefs = st.one_of(
    st.just(CacheBelief.unknown()),
    st.builds(CacheBelief, st.integers(0, 250_000), st.sampled_from(list(SourceState))),
)
seconds = st.floats(0, 1e4)
sizes = st.integers(0, 10**11).map(Bytes)
rates = st.one_of(st.none(), st.floats(0, 1e12).map(BytesPerSecond))


def instances(cluster: str, prefix: str, roles: list[Role]) -> st.SearchStrategy[tuple]:
    def make(position: int) -> st.SearchStrategy[InstanceView]:
        return st.builds(
            InstanceView,
            name=st.just(f"{prefix}{position}"),
            cluster=st.just(cluster),
            role=st.sampled_from(roles),
            ready=st.booleans(),
            takes_handoff=st.booleans(),
            compatibility=st.sampled_from(["a", "b"]),
            belief=beliefs,
            ahead=seconds,
            prefill=seconds,
            queue_depth=st.one_of(st.none(), st.integers(0, 40)),
            inflight=st.integers(0, 40),
            slots=st.one_of(st.none(), st.integers(1, 40)),
            rank=st.none(),
        )

    return st.integers(0, 4).flatmap(lambda n: st.tuples(*(make(i) for i in range(n))))


def links(name: str) -> st.SearchStrategy[LinkView]:
    return st.builds(
        LinkView,
        name=st.just(name),
        up=st.booleans(),
        regime=st.sampled_from(Regime),
        utilization=st.one_of(st.none(), st.floats(0, 2)),
        free=st.one_of(st.none(), sizes),
        telemetry_required=st.booleans(),
        telemetry_age=st.one_of(st.none(), st.floats(0, 100)),
        telemetry_max_age=st.just(10.0),
    )


thresholds = st.builds(ThresholdView, st.sampled_from(ThresholdMode), st.integers(0, 200_000))


shares = st.one_of(st.none(), st.floats(0, 1))
lengths = st.one_of(st.none(), st.floats(1, 200_000))
gates = st.builds(
    GateView,
    kv_rate=rates,
    limits=st.builds(GateLimits, rates, shares, lengths),
    link_rate=rates,
    workload=st.one_of(st.none(), st.builds(WorkloadView, st.floats(0, 1), lengths)),
)


def pairs() -> st.SearchStrategy[PairView]:
    return st.builds(
        PairView,
        prfaas=st.sampled_from(["w1", "w2", "gone"]),
        pd=st.sampled_from(["e1", "e2"]),
        link=links("there"),
        threshold=thresholds,
        gates=gates,
        ships_to_pd=st.booleans(),
        ships_to_prfaas=st.booleans(),
        back_link=st.one_of(st.none(), links("back")),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    pd_roles = list(Role)
    clusters = tuple(
        ClusterView(name, kind, draw(instances(name, name, roles)))
        for name, kind, roles in (
            ("e1", ClusterKind.PD, pd_roles),
            ("e2", ClusterKind.PD, pd_roles),
            ("w1", ClusterKind.PRFAAS, [Role.PREFILL]),
            ("w2", ClusterKind.PRFAAS, [Role.PREFILL]),
        )
    )
    return Snapshot(
        request=draw(
            st.builds(
                RequestView,
                model=st.just("m"),
                tenant=st.just("t"),
                total_tokens=totals,
                token_source=st.sampled_from(TokenSource),
                disaggregable=st.booleans(),
                home=st.one_of(st.none(), st.sampled_from(["e1", "e2", "nowhere"])),
            )
        ),
        clusters=clusters,
        pairs=tuple(draw(st.lists(pairs(), max_size=4))),
        sizing=draw(st.builds(KvSizing, st.one_of(st.none(), sizes), st.floats(0, 1e6))),
        default_threshold=draw(thresholds),
        override=draw(st.one_of(st.none(), st.builds(OverrideView, st.sampled_from(Route)))),
        on_unknown=draw(st.sampled_from(UnknownMetadata)),
        remote_queue_limit=draw(st.integers(0, 40)),
    )


@given(snapshots())
@settings(max_examples=150)
def test_the_rule_is_total_and_places_only_on_live_compatible_instances(
    snapshot: Snapshot,
) -> None:
    """Every snapshot gets an answer, and nobody dead, unfit or foreign gets the request."""
    decision = decide(snapshot)
    views = {view.name: view for cluster in snapshot.clusters for view in cluster.instances}
    if isinstance(decision, NoRoute):
        assert not any(
            view.ready and view.role is not Role.PREFILL and view.cluster in ("e1", "e2")
            for view in views.values()
        )
        return
    decode = views[decision.decode.instance]
    assert decode.ready
    assert decode.cluster == decision.home
    assert decode.role is not Role.PREFILL
    if decision.prefill is not None and not decision.single_call:
        prefill = views[decision.prefill.instance]
        assert prefill.ready
        assert prefill.role is not Role.DECODE
        assert prefill.compatibility == decode.compatibility
        assert decode.takes_handoff
        assert (prefill.cluster in ("w1", "w2")) == (decision.route is Route.PRFAAS)


@given(snapshots())
@settings(max_examples=150)
def test_at_or_below_the_threshold_nothing_is_offloaded(snapshot: Snapshot) -> None:
    """PrfaaS by the rule means uncached > t and a link that is up; only an override may differ."""
    decision = decide(snapshot)
    if isinstance(decision, NoRoute) or decision.route is Route.LOCAL:
        return
    assert decision.link is not None
    assert decision.link.up
    if decision.reason is not Reason.OVERRIDE:
        assert decision.reason is Reason.ABOVE_THRESHOLD
        assert decision.uncached_tokens > decision.threshold


@given(snapshots())
@settings(max_examples=150)
def test_counts_stay_within_the_prompt(snapshot: Snapshot) -> None:
    """Uncached tokens are between 1 and the total; bytes are never negative."""
    decision = decide(snapshot)
    if isinstance(decision, NoRoute):
        return
    total = snapshot.request.total_tokens
    assert 1 <= decision.uncached_tokens <= total
    assert 1 <= decision.compute_uncached_tokens <= total
    assert decision.kv_bytes is None or decision.kv_bytes >= 0


@given(snapshots())
@settings(max_examples=150)
def test_a_prefix_counts_only_where_it_is_or_is_delivered(snapshot: Snapshot) -> None:
    """What is counted is held by the computing side, or a transfer over a live link is planned."""
    decision = decide(snapshot)
    if isinstance(decision, NoRoute):
        return
    views = {view.name: view for cluster in snapshot.clusters for view in cluster.instances}
    total = snapshot.request.total_tokens
    computing = decision.prefill or decision.decode
    own = min(views[computing.instance].belief.tokens or 0, total - 1)
    counted = total - decision.compute_uncached_tokens
    transfer = decision.prefix_transfer
    if transfer is None:
        assert counted == own
    else:
        assert counted == transfer.tokens > own
        assert decision.link is not None
        assert decision.link.regime is Regime.ABUNDANT


@given(totals, st.integers(0, 200_000), st.integers(0, 200_000), st.integers(0, 200_000))
def test_the_route_is_monotone_in_uncached_tokens(total: int, a: int, b: int, t: int) -> None:
    """With all else equal, less cached at home never turns PrfaaS into local."""
    more, less = max(a, b), min(a, b)
    pair = a_pair(threshold=ThresholdView(ThresholdMode.MANUAL, t))

    def route(local: int) -> Route:
        decision = decide(a_snapshot(total, local=local, pair=pair))
        assert isinstance(decision, Decision)
        return decision.route

    assert not (route(more) is Route.PRFAAS and route(less) is Route.LOCAL)


@given(snapshots())
def test_scarce_ignores_what_the_other_cluster_holds(snapshot: Snapshot) -> None:
    """With every link scarce, the value compared with t does not depend on remote prefixes."""
    scarce = replace(
        snapshot,
        pairs=tuple(
            replace(pair, link=replace(pair.link, regime=Regime.SCARCE)) for pair in snapshot.pairs
        ),
    )
    blind = replace(
        scarce,
        clusters=tuple(
            replace(
                cluster,
                instances=tuple(
                    replace(view, belief=CacheBelief.unknown()) for view in cluster.instances
                ),
            )
            if cluster.kind is ClusterKind.PRFAAS
            else cluster
            for cluster in scarce.clusters
        ),
    )
    seen, unseen = decide(scarce), decide(blind)
    if isinstance(seen, Decision) and isinstance(unseen, Decision):
        assert seen.uncached_tokens == unseen.uncached_tokens
        assert (seen.route, seen.reason) == (unseen.route, unseen.reason)


@given(snapshots(), st.sampled_from([Reason.DECISION_TIMEOUT, Reason.REMOTE_PREFILL_FAILED]))
def test_a_decision_after_the_fact_is_local(snapshot: Snapshot, reason: Reason) -> None:
    """decide_local never offloads, and finds a route wherever decide does."""
    decision = decide_local(snapshot, reason)
    assert isinstance(decision, NoRoute) == isinstance(decide(snapshot), NoRoute)
    if isinstance(decision, Decision):
        assert decision.route is Route.LOCAL
        assert reason in (decision.reason, decision.blocked_by)
