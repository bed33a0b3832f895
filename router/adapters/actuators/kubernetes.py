"""Conversions as two workloads of Kubernetes: one has a replica less, the other one more.

The accelerators move, not the instance: the drained one ends, and another, configured beforehand
under the stable name of the pod to come, answers once it has loaded its weights. A StatefulSet and
a LeaderWorkerSet remove their highest ordinal and nothing else, so only that instance can be
converted; a Deployment is told by the pod's deletion cost which one to remove.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from router.adapters.actuators.calls import NoAnswer
from router.adapters.actuators.instances import Find, find_instance
from router.adapters.actuators.kube_api import KubeApi, Workload, WorkloadKind
from router.adapters.actuators.scalings import Scaling, ScalingRecord
from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed
from router.domain.topology import Instance, Role

_CHEAPEST: Final = -(2**31)
"""The least deletion cost that Kubernetes accepts."""


@dataclass(frozen=True, slots=True)
class WorkloadPair:
    """The workloads that run a cluster's prefill and decode instances."""

    prefill: Workload
    decode: Workload

    def of(self, role: Role) -> Workload:
        """Return the workload of a role. Raises ActuationFailed for `both`, which has none."""
        match role:
            case Role.PREFILL:
                return self.prefill
            case Role.DECODE:
                return self.decode
            case Role.BOTH:
                raise ActuationFailed("kubernetes: instances that do both have no workload to join")


Pairs = Mapping[tuple[str, str | None], WorkloadPair]
"""By cluster and model; None stands for every model without a pair of its own."""


class KubernetesActuator:
    """Implements `Actuator` by scaling."""

    in_place = False

    def __init__(self, api: KubeApi, pairs: Pairs, find: Find, record: ScalingRecord) -> None:
        self._api = api
        self._pairs = pairs
        self._find = find
        self._record = record

    def choose(self, model: str, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Those of Deployments, and of each other workload the one with the highest ordinal."""
        chosen: list[Instance] = []
        last: dict[Workload, tuple[int, Instance]] = {}
        for instance in instances:
            pair = self._pair(instance.cluster, model)
            if pair is None or instance.role is Role.BOTH:
                continue
            workload = pair.of(instance.role)
            if workload.kind is WorkloadKind.DEPLOYMENT:
                chosen.append(instance)
                continue
            ordinal = _ordinal(instance, workload)
            if ordinal is not None and (workload not in last or last[workload][0] < ordinal):
                last[workload] = ordinal, instance
        return [*chosen, *(instance for _, instance in last.values())]

    async def act(self, conversion: Conversion) -> None:
        """Remove the instance's pod, then have another one of the target role.

        Who calls it twice changes nothing more. Raises ActuationFailed where one of the workloads
        was scaled by somebody else meanwhile.
        """
        shrinking, growing = self._workloads(conversion)
        before = await self._record.find(conversion)
        if before is None or before.confirmed:
            before = await self._begin(conversion)
        if before.pod is not None:
            await self._api.prefer_removal(before.pod, _CHEAPEST)
        await self._scale(shrinking, before.shrinking, before.shrinking - 1)
        await self._scale(growing, before.growing, before.growing + 1)

    async def confirm(self, conversion: Conversion) -> bool:
        """Return whether the one more is ready."""
        _, growing = self._workloads(conversion)
        before = await self._record.find(conversion)
        try:
            seen = await self._api.read_readiness(growing)
        except NoAnswer:
            return False
        # A store that was flushed knows nothing: that every replica is ready is enough then.
        wanted = before.growing + 1 if before is not None else seen.wanted if seen else 0
        if seen is None or seen.ready < wanted:
            return False
        await self._record.confirm(conversion)
        return True

    async def undo(self, conversion: Conversion) -> None:
        """Give both workloads the replicas that they had."""
        before = await self._record.find(conversion)
        if before is None:
            return  # it is written down before anything is scaled
        shrinking, growing = self._workloads(conversion)
        await self._scale(growing, before.growing + 1, before.growing)
        await self._scale(shrinking, before.shrinking - 1, before.shrinking)
        if before.pod is not None:
            await self._api.prefer_removal(before.pod, None)
        await self._record.forget(conversion)

    async def _begin(self, conversion: Conversion) -> Scaling:
        """Look at both workloads and at the pod that goes, and write down what was before."""
        shrinking, growing = self._workloads(conversion)
        await self._record.forget_confirmed()
        replicas = (await self._api.read_scale(shrinking)).replicas
        if replicas < 2:
            raise ActuationFailed(
                f"kubernetes: {shrinking} has {replicas} replica(s): none to spare"
            )
        pod = await self._single_out(conversion.instance, shrinking, replicas)
        scaling = Scaling(replicas, (await self._api.read_scale(growing)).replicas, pod)
        return await self._record.keep(conversion, scaling)

    async def _single_out(self, instance: str, workload: Workload, replicas: int) -> str | None:
        """Return the instance's pod where it must be marked to be the one that goes.

        Raises ActuationFailed where the workload would remove another one.
        """
        found = find_instance(self._find, instance)
        if workload.kind is WorkloadKind.DEPLOYMENT:
            host = _host(found)
            return await self._api.find_pod(host, address=_is_address(host))
        seen = await self._api.read_readiness(workload)
        first = 0 if seen is None else seen.first_ordinal
        last = first + replicas - 1
        if _ordinal(found, workload) != last:
            raise ActuationFailed(
                f"kubernetes: {workload} removes its pod {workload.name}-{last} first, and the URL"
                f" of {instance} does not name it"
            )
        return None

    async def _scale(self, workload: Workload, old: int, new: int) -> None:
        """Bring a workload from one number to another, if it has not come there."""
        for _ in range(self._api.attempts):
            scale = await self._api.read_scale(workload)
            if scale.replicas == new:
                return
            if scale.replicas != old:
                raise ActuationFailed(
                    f"kubernetes: {workload} has {scale.replicas} replicas, neither {old} nor"
                    f" {new}: somebody else scales it"
                )
            if await self._api.write_scale(workload, new, scale.version):
                return
            await asyncio.sleep(self._api.pause)
        raise ActuationFailed(f"kubernetes: {workload} is changed all the time")

    def _workloads(self, conversion: Conversion) -> tuple[Workload, Workload]:
        """Return the workload that shrinks and the one that grows."""
        pair = self._pair(conversion.cluster, conversion.model)
        if pair is None:
            raise ActuationFailed(
                f"kubernetes: no workloads are configured for {conversion.model}"
                f" in {conversion.cluster}"
            )
        return pair.of(conversion.source), pair.of(conversion.target)

    def _pair(self, cluster: str, model: str) -> WorkloadPair | None:
        return self._pairs.get((cluster, model)) or self._pairs.get((cluster, None))


def _host(instance: Instance) -> str:
    return urlsplit(instance.url).hostname or ""


def _ordinal(instance: Instance, workload: Workload) -> int | None:
    """Return the ordinal of the pod that an instance's URL names, None for no pod of it."""
    name, _, ordinal = _host(instance).partition(".")[0].rpartition("-")
    return int(ordinal) if name == workload.name and ordinal.isdecimal() else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
