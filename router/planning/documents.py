"""A plan as one JSON document. Every number has a unit in its key or beside it, and a source."""

from __future__ import annotations

import math

from router.domain.units import to_gbps
from router.planning.figures import list_figures, other_form_name
from router.planning.plans import Comparison, Plan
from router.planning.sensitivity import Reaction
from router.throughput.planner import Allocation
from router.throughput.stages import OperatingPoint, Stage

Document = dict[str, object]


def describe_plan(plan: Plan) -> Document:
    """Return the document. Infinite ceilings, of stages without requests, are null."""
    scenario = plan.scenario
    return {
        "scenario": scenario.name,
        "model": scenario.model,
        "form": scenario.form.value,
        "verdict": "offload" if plan.verdicts.passed else "stay_local",
        "gates": [
            {
                "gate": verdict.gate.value,
                "passed": verdict.passed,
                "doubts": [doubt.value for doubt in verdict.doubts],
            }
            for verdict in plan.verdicts
        ],
        "gain_over_local": _number(plan.verdicts.traffic.gain),
        "binding_stage": plan.point.binding.value,
        "other_form": other_form_name(plan),
        "figures": {
            figure.key: {
                "value": _number(figure.value),
                "unit": figure.unit,
                "source": figure.source.value,
                "label": figure.label,
            }
            for figure in list_figures(plan)
        },
        "comparisons": _modelled([_describe_comparison(each) for each in plan.comparisons]),
        "allocations": _modelled([_describe_allocation(each) for each in plan.allocations]),
        "sweep": _modelled([_describe_point(point) for point in plan.sweep]),
        "sensitivity": {
            each.axis.value: {
                **_modelled([_describe_reaction(reaction) for reaction in each.reactions]),
                "planned": each.planned,
            }
            for each in plan.sensitivities
        },
        "rests_on": [
            {"what": each.name, "source": each.source.value, "note": each.note}
            for each in scenario.rests_on
        ],
        "notes": list(plan.notes),
    }


def _modelled(rows: list[Document]) -> Document:
    return {"source": "modelled", "rows": rows}


def _describe_point(point: OperatingPoint) -> Document:
    demands = point.demands
    return {
        "threshold_tokens": demands.split.threshold,
        "offload_share": demands.offload_share,
        "lambda_max": _number(point.rate),
        "binding_stage": point.binding.value,
        "theta": {stage.value: _number(point.theta[stage]) for stage in Stage},
        "ceilings": {stage.value: _number(point.ceilings[stage]) for stage in Stage},
        "egress_gbps": to_gbps(point.egress),
    }


def _describe_comparison(each: Comparison) -> Document:
    return {
        "option": each.option.value,
        "prfaas_instances": sum(pool.instances for pool in each.deployment.remotes),
        "prefill_instances": sum(pd.prefill for pd in each.deployment.pds),
        "decode_instances": sum(pd.decode for pd in each.deployment.pds),
        **_describe_point(each.point),
        "ttft_mean_seconds": None if each.ttft is None else each.ttft.mean,
        "ttft_p90_seconds": None if each.ttft is None else each.ttft.p90,
        "cost": each.cost,
        "plan_gain": _number(each.gain),
    }


def _describe_allocation(each: Allocation) -> Document:
    return {
        "prefill_instances": each.prefill,
        "decode_instances": each.decode,
        "by_cluster": {pd.name: pd.prefill for pd in each.deployment.pds},
        **_describe_point(each.solution.point),
    }


def _describe_reaction(each: Reaction) -> Document:
    return {
        "value": each.value,
        "lambda_kept": each.kept,
        "lambda_resolved": each.resolved,
        "threshold_resolved": each.threshold,
        "offload_share": each.offload_share,
        "lambda_replanned": each.replanned,
    }


def _number(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
