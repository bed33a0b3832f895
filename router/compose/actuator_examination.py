"""Examines what would carry conversions out: read only, before any instance is drained for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from router.adapters.actuators.kube_api import KubeApi, Workload
from router.adapters.actuators.sglang import SglangActuator
from router.adapters.clocks import SystemClock
from router.compose.actuators import build_kube_api, build_sglang, build_workload
from router.domain.errors import ActuationFailed
from router.domain.topology import Instance
from router.domain.units import Seconds
from router.service.diagnoses import Finding, Verdict
from router.settings import Settings, build_topology


async def examine_actuator(settings: Settings, *, timeout: Seconds) -> list[Finding]:
    """Return what is to be said of the configured actuator; each call takes `timeout` at most.

    A webhook has no question that changes nothing, so it is not asked.
    """
    loop = settings.scheduler.long_loop
    match loop.actuator:
        case "dry_run" | "label" | "webhook":
            return []
        case "kubernetes":
            kubernetes = loop.kubernetes.model_copy(
                update={"timeout_seconds": timeout, "attempts": 1}
            )
            workloads = dict.fromkeys(
                build_workload(each)
                for pair in kubernetes.workloads
                for each in (pair.prefill, pair.decode)
            )
            return await _examine_workloads(build_kube_api(kubernetes), workloads)
        case "sglang":
            instances = {
                each.name: each for each in build_topology(settings).instances if each.convertible
            }
            sglang = loop.sglang.model_copy(update={"timeout_seconds": timeout})
            actuator = build_sglang(sglang, instances.__getitem__, SystemClock())
            return await _examine_roles(actuator, instances.values())


async def _examine_workloads(api: KubeApi, workloads: Iterable[Workload]) -> list[Finding]:
    async def examine(workload: Workload) -> Finding:
        try:
            scale = await api.read_scale(workload)
            seen = await api.read_readiness(workload)
        except ActuationFailed as error:
            return Finding(str(workload), "scale", Verdict.FAULT, str(error))
        ready = "an unknown number" if seen is None else seen.ready
        told = f"{scale.replicas} replicas are wanted, {ready} ready"
        return Finding(str(workload), "scale", Verdict.FINE, told)

    return await asyncio.gather(*(examine(workload) for workload in workloads))


async def _examine_roles(actuator: SglangActuator, instances: Iterable[Instance]) -> list[Finding]:
    async def examine(instance: Instance) -> Finding:
        try:
            roles = await actuator.read_roles(instance.name)
        except ActuationFailed as error:
            return Finding(instance.name, "live role", Verdict.FAULT, str(error))
        told = " and ".join(sorted(map(str, set(roles))))
        if set(roles) != {instance.role}:
            told = f"it is in role {told}, configured is {instance.role}"
            return Finding(instance.name, "live role", Verdict.FAULT, told)
        return Finding(instance.name, "live role", Verdict.FINE, told)

    return await asyncio.gather(*(examine(instance) for instance in instances))
