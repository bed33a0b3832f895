"""The pools around each PD cluster as they are now: what the model of throughput is asked about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.control.links import LinkState, is_up, usable_bandwidth
from router.domain.topology import Cluster, ClusterKind, Role
from router.domain.units import BytesPerSecond
from router.ports import Clock
from router.service.fleet import Fleet
from router.service.links import LinkBoard
from router.service.models import ServedModel
from router.throughput.stages import Deployment, PdPool, RemotePool


@dataclass(frozen=True, slots=True)
class LiveDeployments:
    """Reads live instances and links into the model's pools."""

    fleet: Fleet
    links: LinkBoard
    clock: Clock

    def around(self, model: ServedModel, pd: Cluster) -> Deployment | None:
        """Return the live pools around a PD cluster; None without profiles or links."""
        near = model.profiles.get(ClusterKind.PD)
        far = model.profiles.get(ClusterKind.PRFAAS)
        if near is None or far is None:
            return None
        now = self.clock.monotonic()
        remotes = tuple(
            RemotePool(
                state.link.source,
                far,
                self._ready(state.link.source, model, Role.PREFILL),
                usable_bandwidth(state, now) if is_up(state, now) else BytesPerSecond(0.0),
                1 / self._served_by(state.link.source),
            )
            for state in self.links_to(pd.name)
        )
        if not remotes:
            return None
        prefill = self._ready(pd.name, model, Role.PREFILL)
        decode = self._ready(pd.name, model, Role.DECODE)
        return Deployment(remotes, (PdPool(pd.name, near, prefill, decode, model.decode_rules),))

    def links_to(self, pd: str) -> Iterable[LinkState]:
        """Yield the links over which a PrfaaS cluster could send KV to a PD cluster."""
        return (
            state
            for state in self.links.states
            if state.link.target == pd
            and self.fleet.kind_of(state.link.source) is not ClusterKind.PD
        )

    def _served_by(self, prfaas: str) -> int:
        """Return how many PD clusters a PrfaaS cluster serves: each has an equal part of it."""
        return sum(
            state.link.source == prfaas and self.fleet.kind_of(state.link.target) is ClusterKind.PD
            for state in self.links.states
        )

    def _ready(self, cluster: str, model: ServedModel, role: Role) -> int:
        """Return how many live instances of a cluster take a role; `both` takes each."""
        return sum(
            self.fleet.is_ready(member) and member.instance.role in (role, Role.BOTH)
            for member in self.fleet.members_of(cluster, model.name)
        )
