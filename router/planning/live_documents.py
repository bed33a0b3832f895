"""A live plan as a JSON document: every number with its unit, and how it is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from router.domain.units import to_gbps
from router.planning.documents import Document
from router.planning.figures import STAGE_NAMES, Figure
from router.planning.live_plans import Lack, LivePlan, Situation
from router.throughput.profiles import ProfileSource
from router.throughput.stages import OperatingPoint, Stage

_MODELLED, _MEASURED, _QUOTED = (
    ProfileSource.MODELLED,
    ProfileSource.MEASURED,
    ProfileSource.QUOTED,
)

_LACKS = {
    Lack.PROFILES: "the model needs a profile of both kinds of cluster",
    Lack.LINKS: "no PrfaaS cluster has a link to this PD cluster",
    Lack.REQUESTS: "too few prompts were seen to know their lengths",
    Lack.RANGE: "a profile may not be extrapolated to these lengths",
}


def describe_lack(model: str, pd: str, lack: Lack) -> Document:
    """Return the document of a model and PD cluster of which the model cannot speak."""
    return {"model": model, "pd": pd, "lacks": lack, "notes": [_LACKS[lack]]}


def describe_live_plan(plan: LivePlan) -> Document:
    """Return the document. Infinite ceilings, of stages without requests, are null."""
    situation = plan.situation
    return {
        "model": situation.model,
        "pd": situation.pd,
        "lacks": None,
        "inputs": _describe(_inputs(plan)),
        "threshold_tokens": plan.held_tokens,
        "solved_tokens": plan.best_tokens,
        "bounds": {"min_tokens": situation.bounds[0], "max_tokens": situation.bounds[1]},
        "gain_over_local": _number(plan.gain),
        "in_force": _describe_point(plan.held),
        "best": _describe_point(plan.best),
        "notes": list(plan.notes),
    }


def _describe_point(point: OperatingPoint) -> Document:
    return {"binding_stage": point.binding, "figures": _describe(_point_figures(point))}


def _describe(figures: Iterable[Figure]) -> Document:
    return {
        figure.key: {
            "value": _number(figure.value),
            "unit": figure.unit,
            "source": figure.source,
            "label": figure.label,
        }
        for figure in figures
    }


def _inputs(plan: LivePlan) -> Iterator[Figure]:
    """Yield what the model was asked about. What somebody supposed is `quoted`."""
    situation = plan.situation

    def known(part: str) -> ProfileSource:
        return _QUOTED if part in situation.supposed else _MEASURED

    yield Figure("requests_seen", "prompts seen", situation.seen, "requests", _MEASURED)
    mean_source = known("lengths")
    yield Figure("mean_uncached_tokens", "mean uncached", plan.mean, "tokens", mean_source)
    share = situation.offload_share
    yield Figure("offload_share", "offloaded of late", share, "ratio", _MEASURED)
    for pd in situation.deployment.pds:
        yield Figure("prefill_instances", "N_p", pd.prefill, "instances", known("prefill"))
        yield Figure("decode_instances", "N_d", pd.decode, "instances", known("decode"))
        yield Figure("decode_slots", "BS_max", pd.rules.slots, "requests", _QUOTED)
        yield Figure("decode_step_seconds", "T_decode", pd.rules.step_seconds, "s", _QUOTED)
        yield Figure("output_tokens", "L_out", pd.rules.output_tokens, "tokens", _QUOTED)
    yield from _remote_inputs(situation)


def _remote_inputs(situation: Situation) -> Iterator[Figure]:
    for pool, link in zip(situation.deployment.remotes, situation.links, strict=True):
        source = _QUOTED if pool.name in situation.supposed else _MEASURED
        label = f"instances of {pool.name}"
        yield Figure(
            f"prfaas_instances.{pool.name}",
            label,
            pool.instances * pool.share,
            "instances",
            source,
        )
        label = f"usable of {link.name}"
        gbps = to_gbps(pool.egress)
        yield Figure(f"link_gbps.{link.name}", label, gbps, "Gbit/s", link.source)


def _point_figures(point: OperatingPoint) -> Iterator[Figure]:
    demands = point.demands
    yield Figure("offload_share", "offload share p", demands.offload_share, "ratio", _MODELLED)
    yield Figure("long_tokens", "mean offloaded", demands.long_tokens, "tokens", _MODELLED)
    yield Figure("short_tokens", "mean kept local", demands.short_tokens, "tokens", _MODELLED)
    yield Figure("lambda_max", "Lambda_max", point.rate, "requests/s", _MODELLED)
    for stage in Stage:
        label = f"Theta {STAGE_NAMES[stage]}"
        yield Figure(f"theta_{stage}", label, point.theta[stage], "requests/s", _MODELLED)
    for stage in Stage:
        label = f"ceiling {STAGE_NAMES[stage]}"
        yield Figure(f"ceiling_{stage}", label, point.ceilings[stage], "requests/s", _MODELLED)
    for each in point.remotes:
        label = f"Theta {each.name}, by {each.bound}"
        yield Figure(f"theta_prfaas.{each.name}", label, each.rate, "requests/s", _MODELLED)
    yield Figure("egress_gbps", "egress at Lambda_max", to_gbps(point.egress), "Gbit/s", _MODELLED)
    yield Figure("residual_7", "residual of (7)", point.threshold_residual, "ratio", _MODELLED)
    yield Figure("residual_8", "residual of (8)", point.balance_residual, "ratio", _MODELLED)


def _number(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
