"""A plan's numbers, each with its unit and how it is known: the one list that every view shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from router.domain.units import to_gbps
from router.planning.plans import Option, Plan
from router.throughput.profiles import ProfileSource
from router.throughput.stages import Stage

_MODELLED = ProfileSource.MODELLED

STAGE_NAMES = {Stage.PRFAAS: "PrfaaS", Stage.PD_P: "PD prefill", Stage.PD_D: "PD decode"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `key` is for programs, `label` for people; a value of None does not apply."""

    key: str
    label: str
    value: float | None
    unit: str
    source: ProfileSource


def list_figures(plan: Plan) -> tuple[Figure, ...]:
    """Return every figure of a plan, in the order in which people ask for them."""
    return (
        *_decisions(plan),
        *_rates(plan),
        *_link_figures(plan),
        *_kv_figures(plan),
        *_latency_figures(plan),
        *_memory_figures(plan),
    )


def _decisions(plan: Plan) -> Iterator[Figure]:
    demands = plan.point.demands
    yield Figure("threshold", "threshold t*", demands.split.threshold, "tokens", _MODELLED)
    yield Figure("prefill_instances", "N_p", plan.best.prefill, "instances", _MODELLED)
    yield Figure("decode_instances", "N_d", plan.best.decode, "instances", _MODELLED)
    yield Figure("offload_share", "offload share p", demands.offload_share, "ratio", _MODELLED)
    yield Figure("long_tokens", "mean offloaded", demands.long_tokens, "tokens", _MODELLED)
    yield Figure("short_tokens", "mean kept local", demands.short_tokens, "tokens", _MODELLED)


def _rates(plan: Plan) -> Iterator[Figure]:
    point = plan.point
    yield Figure("lambda_max", "Lambda_max", point.rate, "requests/s", _MODELLED)
    for stage in Stage:
        label = f"Theta {STAGE_NAMES[stage]}"
        yield Figure(f"theta_{stage}", label, point.theta[stage], "requests/s", _MODELLED)
    other = plan.other_form
    form = other_form_name(plan)
    yield Figure(f"lambda_max_{form}", f"Lambda_max, {form}", other.rate, "requests/s", _MODELLED)
    t = other.split.threshold
    yield Figure(f"threshold_{form}", f"t*, {form}", t, "tokens", _MODELLED)
    if plan.scenario.rate is not None:
        load = plan.scenario.rate / point.rate if point.rate else None
        yield Figure("load", "load at the asked rate", load, "ratio", _MODELLED)


def _link_figures(plan: Plan) -> Iterator[Figure]:
    egress = plan.best.deployment.egress
    if not egress:
        return
    carried = plan.point.egress
    yield Figure("link_gbps", "links", to_gbps(egress), "Gbit/s", ProfileSource.QUOTED)
    yield Figure("egress_gbps", "egress at Lambda_max", to_gbps(carried), "Gbit/s", _MODELLED)
    yield Figure("link_headroom", "link headroom", plan.headroom, "ratio", _MODELLED)


def _kv_figures(plan: Plan) -> Iterator[Figure]:
    profiles = {pool.name: pool.profile for pool in plan.scenario.deployment.remotes}
    for pool in plan.verdicts.pools:
        source = profiles[pool.name].source
        label = f"Phi_kv of {pool.name}"
        yield Figure(f"kv_gbps.{pool.name}", label, to_gbps(pool.rate), "Gbit/s", source)
        label = f"all of {pool.name}, busy"
        yield Figure(
            f"kv_demand_gbps.{pool.name}", label, to_gbps(pool.demand), "Gbit/s", _MODELLED
        )


def _latency_figures(plan: Plan) -> Iterator[Figure]:
    planned = next(each for each in plan.comparisons if each.option is Option.PLANNED)
    if planned.ttft is not None:
        yield Figure("ttft_mean", "TTFT mean, unloaded", planned.ttft.mean, "s", _MODELLED)
        yield Figure("ttft_p90", "TTFT P90, unloaded", planned.ttft.p90, "s", _MODELLED)
    if plan.scenario.ttft_slo is not None:
        slo = plan.scenario.ttft_slo
        yield Figure("ttft_slo", "TTFT P90 wanted", slo, "s", ProfileSource.QUOTED)


def _memory_figures(plan: Plan) -> Iterator[Figure]:
    for pool in plan.transfer_pools:
        label = f"transfer cache of {pool.name}"
        yield Figure(f"transfer_bytes.{pool.name}", label, pool.bytes, "bytes", _MODELLED)
    if plan.prefix_bytes is not None:
        yield Figure("prefix_bytes", "prefix caches", plan.prefix_bytes, "bytes", _MODELLED)


def other_form_name(plan: Plan) -> str:
    """Return the name of the form that was not asked for."""
    return "representative" if plan.scenario.form == "exact" else "exact"


def format_figure(figure: Figure) -> str:
    """Write a figure for people, with its unit."""
    value = figure.value
    if value is None:
        return "-"
    match figure.unit:
        case "ratio":
            return f"{value:.1%}"
        case "bytes":
            return f"{value / 1e9:,.2f} GB"
        case "tokens" | "instances":
            return f"{value:,.0f} {figure.unit}"
        case unit:
            return f"{value:,.4g} {unit}"
