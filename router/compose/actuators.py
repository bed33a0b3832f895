"""Which actuator carries conversions out, and what else the long loop goes by."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from router.adapters.actuators.calls import Caller
from router.adapters.actuators.instances import Find
from router.adapters.actuators.kube_api import KubeApi, ServiceAccount, Workload, WorkloadKind
from router.adapters.actuators.kubernetes import KubernetesActuator, WorkloadPair
from router.adapters.actuators.labels import LabelActuator
from router.adapters.actuators.scalings import ScalingRecord
from router.adapters.actuators.sglang import SglangActuator
from router.adapters.actuators.webhook import Receiver, WebhookActuator
from router.control.balance import BalanceRules
from router.control.conversions import ConversionRules
from router.domain.errors import ActuationFailed
from router.domain.topology import Instance
from router.ports import Actuator, Clock, StateStore
from router.service.balance import LongLoop
from router.service.conversions import Means
from router.service.fleet import Fleet
from router.service.leadership import Leadership
from router.service.models import ModelCatalog
from router.settings import Settings, build_topology
from router.settings.actuators import (
    KubernetesSettings,
    SglangSettings,
    WebhookSettings,
    WorkloadSettings,
)

_PAUSE: Final = 0.2
"""Seconds before a call to Kubernetes is repeated the first time; a conflict is over by then."""


@dataclass(frozen=True, slots=True)
class Controls:
    """What of a gateway the long loop and its actuator work with."""

    fleet: Fleet
    state: StateStore
    leadership: Leadership
    clock: Clock


def build_long_loop(settings: Settings, catalog: ModelCatalog, controls: Controls) -> LongLoop:
    """Return what the long loop goes by."""
    loop = settings.scheduler.long_loop
    return LongLoop(
        catalog.models,
        settings.upstream.probe.interval_seconds,  # engines say nothing new in between
        loop.period_seconds,
        BalanceRules(loop.confirm_windows, loop.min_gain, loop.dwell_seconds),
        Means(
            build_actuator(settings, controls),
            ConversionRules(
                drain=loop.drain_timeout_seconds,
                act=loop.act_timeout_seconds,
                verify=loop.verify_timeout_seconds,
                lease=settings.transfer.lease_seconds,
            ),
            {each.name: each for each in build_topology(settings).instances},
        ),
    )


def build_actuator(settings: Settings, controls: Controls) -> Actuator | None:
    """Return what `scheduler.long_loop.actuator` names; None where the loop only proposes.

    Nothing is opened or read yet: what is missing then makes a conversion fail.
    """
    loop, fleet = settings.scheduler.long_loop, controls.fleet

    def find(name: str) -> Instance:
        return fleet.member(name).instance

    match loop.actuator:
        case "dry_run":
            return None
        case "label":
            return LabelActuator(fleet)
        case "sglang":
            return build_sglang(loop.sglang, find, controls.clock)
        case "kubernetes":
            return _build_kubernetes(loop.kubernetes, find, _record(controls))
        case "webhook":
            return _build_webhook(loop.webhook, controls)


def build_sglang(settings: SglangSettings, find: Find, clock: Clock) -> SglangActuator:
    """Return the actuator that asks engines themselves."""
    caller = Caller("the engine", settings.timeout_seconds)
    memory = settings.decode_cuda_graph_memory_gb
    return SglangActuator(caller, find, clock=clock, graph_memory_gb=memory)


def _build_kubernetes(
    settings: KubernetesSettings, find: Find, record: ScalingRecord
) -> KubernetesActuator:
    pairs = {
        (pair.cluster, pair.model): WorkloadPair(
            build_workload(pair.prefill), build_workload(pair.decode)
        )
        for pair in settings.workloads
    }
    return KubernetesActuator(build_kube_api(settings), pairs, find, record)


def build_kube_api(settings: KubernetesSettings) -> KubeApi:
    """Return what calls the API server as the service account."""
    account = ServiceAccount(settings.service_account)
    return KubeApi(
        Caller("kubernetes", settings.timeout_seconds, account.trust),
        settings.url,
        account,
        settings.namespace,
        attempts=settings.attempts,
        pause=_PAUSE,
    )


def _record(controls: Controls) -> ScalingRecord:
    return ScalingRecord(controls.state, lambda: controls.leadership.fence)


def build_workload(settings: WorkloadSettings) -> Workload:
    """Return the workload that an entry names."""
    return Workload(WorkloadKind(settings.kind), settings.name)


def _build_webhook(settings: WebhookSettings, controls: Controls) -> WebhookActuator:
    assert settings.url is not None  # noqa: S101 - `check_actuator` sees to both
    assert settings.secret is not None  # noqa: S101 - the same
    receiver = Receiver(
        settings.url,
        settings.secret.get_secret_value().encode(),
        attempts=settings.attempts,
        undo_timeout=settings.undo_timeout_seconds,
    )
    return WebhookActuator(
        Caller("the webhook", settings.timeout_seconds, _trust(settings.ca_file)),
        receiver,
        in_place=settings.in_place,
        clock=controls.clock,
        term=lambda: controls.leadership.term,
        make_key=partial(secrets.token_hex, 16),
    )


def _trust(path: Path | None) -> Callable[[], ssl.SSLContext]:
    """Return what reads the authorities that vouch for a webhook."""
    if path is None:
        return ssl.create_default_context

    def read() -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=path)
        except OSError as error:  # of which a file that is no certificate is one
            raise ActuationFailed("the webhook's ca_file cannot be read as certificates") from error

    return read
