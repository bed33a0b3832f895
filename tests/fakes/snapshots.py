"""Snapshots for tests of the rule: two clusters and a link, and ways to vary them."""

from __future__ import annotations

from msgspec.structs import replace

from kvmeta.types import CacheBelief, SourceState
from router.domain.decision import (
    ClusterView,
    GateLimits,
    GateView,
    InstanceView,
    KvSizing,
    LinkView,
    PairView,
    Regime,
    RequestView,
    Snapshot,
    ThresholdMode,
    ThresholdView,
    TokenSource,
)
from router.domain.topology import ClusterKind, Role
from router.domain.units import Bytes, from_gbps

HOME, WEST = "pd-east", "prfaas-west"


def held(tokens: int | None) -> CacheBelief:
    """A belief of `tokens`, or the unknown."""
    return CacheBelief.unknown() if tokens is None else CacheBelief(tokens, SourceState.SYNCED)


def an_instance(
    name: str, role: Role, *, cluster: str = HOME, cached: int | None = 0, **changes: object
) -> InstanceView:
    """A live instance."""
    view = InstanceView(
        name=name,
        cluster=cluster,
        role=role,
        ready=True,
        takes_handoff=role is Role.DECODE,
        compatibility="r1",
        belief=held(cached),
        queue_depth=0,
        slots=20,
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def a_link(**changes: object) -> LinkView:
    """A link that is up, with measured utilisation and bytes to spare."""
    view = LinkView(
        name="west-east", up=True, regime=Regime.SCARCE, utilization=0.1, free=Bytes(10**10)
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def a_pair(**changes: object) -> PairView:
    """The pair prfaas-west -> pd-east with t = 19,400 and a profiled model within its gate."""
    view = PairView(
        prfaas=WEST,
        pd=HOME,
        link=a_link(),
        threshold=ThresholdView(ThresholdMode.MANUAL, 19_400),
        gates=GateView(kv_rate=from_gbps(3.2), limits=GateLimits(from_gbps(15))),
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def a_snapshot(
    total: int = 30_000,
    *,
    local: int | None = 0,
    remote: int | None = 0,
    pair: PairView | None = None,
    home: tuple[InstanceView, ...] | None = None,
    west: tuple[InstanceView, ...] | None = None,
    **changes: object,
) -> Snapshot:
    """A request of `total` tokens of which `local` and `remote` are cached."""
    pd = home or (
        an_instance("pd-p0", Role.PREFILL, cached=local),
        an_instance("pd-d0", Role.DECODE),
    )
    prfaas = (
        (an_instance("pf-0", Role.PREFILL, cluster=WEST, cached=remote),) if west is None else west
    )
    snapshot = Snapshot(
        request=RequestView("m", "default", total, TokenSource.CLIENT),
        clusters=(
            ClusterView(HOME, ClusterKind.PD, pd),
            ClusterView(WEST, ClusterKind.PRFAAS, prfaas),
        ),
        pairs=(pair or a_pair(),),
        sizing=KvSizing(Bytes(10**9), 17_000.0),
        default_threshold=ThresholdView(ThresholdMode.MANUAL, 19_400),
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]
