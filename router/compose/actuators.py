"""Which actuator carries conversions out, and what else the long loop goes by."""

from __future__ import annotations

from router.adapters.actuators.labels import LabelActuator
from router.control.balance import BalanceRules
from router.control.conversions import ConversionRules
from router.ports import Actuator
from router.service.balance import LongLoop
from router.service.conversions import Means
from router.service.fleet import Fleet
from router.service.models import ModelCatalog
from router.settings import Settings, build_topology


def build_actuator(settings: Settings, fleet: Fleet) -> Actuator | None:
    """Return what `scheduler.long_loop.actuator` names; None where the loop only proposes."""
    match settings.scheduler.long_loop.actuator:
        case "label":
            return LabelActuator(fleet)
        case _:
            return None


def build_long_loop(settings: Settings, catalog: ModelCatalog, fleet: Fleet) -> LongLoop:
    """Return what the long loop goes by."""
    loop = settings.scheduler.long_loop
    return LongLoop(
        catalog.models,
        settings.upstream.probe.interval_seconds,  # engines say nothing new in between
        loop.period_seconds,
        BalanceRules(loop.confirm_windows, loop.min_gain, loop.dwell_seconds),
        Means(
            build_actuator(settings, fleet),
            ConversionRules(
                drain=loop.drain_timeout_seconds,
                act=loop.act_timeout_seconds,
                verify=loop.verify_timeout_seconds,
                lease=settings.transfer.lease_seconds,
            ),
            {each.name: each for each in build_topology(settings).instances},
        ),
    )
