"""The links that leave a cluster, and which of them a hand-off takes."""

from __future__ import annotations

from router.sim.engines.errors import PullError
from router.sim.engines.handoffs import EarlyFlow
from router.sim.engines.link import Link


class Egress:
    """The links that leave a cluster, by the cluster they lead to."""

    def __init__(self, cluster: str, links: tuple[Link, ...], *, leaves: bool) -> None:
        self.cluster = cluster
        self.links = {link.spec.target: link for link in links}
        self._sole = links[0] if leaves and len(links) == 1 else None

    def open_early(self, size: float) -> EarlyFlow | None:
        """Start a transfer with its prefill, where its way is known beforehand.

        That takes layer-wise overlap, a cluster that only prefills and a single link out of it.
        """
        if self._sole is None or not self._sole.spec.overlap:
            return None
        return EarlyFlow(self._sole, self._sole.open(size))

    async def cross(self, target: str, size: float, early: EarlyFlow | None) -> None:
        """Send `size` bytes to cluster `target`; nothing to wait for within the cluster.

        Raises PullError if no link leads there. The early flow, if any, is used up.
        """
        link = self.links.get(target)
        if early is not None and early.link is not link:
            early.link.close(early.flow_id)
            early = None
        if target == self.cluster:
            return
        if link is None:
            raise PullError(f"no link from {self.cluster} to {target}")
        flow_id = link.open(size) if early is None else early.flow_id
        try:
            await link.cross(flow_id, size)
        finally:
            link.close(flow_id)
