"""The metrics that outsiders rely on: name, type and labels, without the prefix `prfaas_`.

The rules and panels under deploy/ are checked against this table, and so is the code that exports.
"""

from collections.abc import Iterable

from kvmeta.types import SourceState
from router.domain.decision import Reason, Regime, Route
from router.domain.topology import Role
from router.gateway.refusals import Refusal
from router.service.config_record import ReloadOutcome
from router.service.conversions import ConversionOutcome
from router.service.late_binding import BindingOutcome
from router.service.relay_ports import FailureKind, Fallback, KvOutcome

PREFIX = "prfaas_"

LABELS: dict[str, frozenset[str]] = {
    name: frozenset(labels.split())
    for name, labels in {
        "requests_total": "route reason code",
        "refused_connections_total": "cause",
        "decisions_total": "route reason regime",
        "uncached_tokens": "route",
        "prompt_tokens_total": "",
        "prompts_estimated_total": "",
        "cached_tokens_total": "cluster",
        "threshold_tokens": "model prfaas pd",
        "threshold_solved_tokens": "model prfaas pd",
        "threshold_at_bound": "model prfaas pd",
        "link_up": "link",
        "link_capacity_bytes_per_second": "link",
        "link_available_bytes_per_second": "link",
        "link_egress_bytes_per_second": "link",
        "link_utilization_ratio": "link",
        "link_inflight_bytes": "link",
        "instance_up": "instance role",
        "instance_inflight": "instance role",
        "instance_queue_depth": "instance role",
        "instance_breaker_open": "instance role",
        "instance_transitions_total": "instance role",
        "queue_depth": "tenant",
        "queue_seconds": "tenant",
        "prefill_queue_depth": "cluster",
        "prefill_queue_seconds": "outcome",
        "stage_capacity_requests_per_second": "stage",
        "balance_residual_ratio": "equation",
        "offload_share_ratio": "kind",
        "time_to_first_token_seconds": "route",
        "time_per_output_token_seconds": "route",
        "request_duration_seconds": "route",
        "index_lookup_seconds": "",
        "index_blocks": "instance rank",
        "index_source_state": "instance rank state",
        "index_source_age_seconds": "instance rank",
        "index_truth_total": "instance rank outcome",
        "index_events_total": "type",
        "index_event_errors_total": "cause",
        "fallbacks_total": "reason",
        "upstream_errors_total": "instance kind",
        "kv_bytes_total": "outcome",
        "tokenizer_drift_total": "",
        "config_reloads_total": "outcome",
        "controller_leader": "",
        "controller_term": "",
        "conversions_total": "outcome",
        "store_up": "",
    }.items()
}

HISTOGRAMS = frozenset(
    {
        "uncached_tokens",
        "queue_seconds",
        "prefill_queue_seconds",
        "time_to_first_token_seconds",
        "time_per_output_token_seconds",
        "request_duration_seconds",
        "index_lookup_seconds",
    }
)

VALUES: dict[tuple[str, str], Iterable[str]] = {
    ("requests_total", "route"): Route,
    ("requests_total", "reason"): Reason,
    ("requests_total", "code"): ("200", "429", "502", "503", "504"),
    ("prefill_queue_seconds", "outcome"): BindingOutcome,
    ("refused_connections_total", "cause"): Refusal,
    ("decisions_total", "route"): Route,
    ("decisions_total", "reason"): Reason,
    ("decisions_total", "regime"): Regime,
    ("instance_up", "role"): Role,
    ("stage_capacity_requests_per_second", "stage"): ("prfaas", "pd_p", "pd_d"),
    ("balance_residual_ratio", "equation"): ("7", "8"),
    ("offload_share_ratio", "kind"): ("measured", "planned"),
    ("index_source_state", "state"): SourceState,
    ("index_truth_total", "outcome"): ("exact", "over", "under", "missed"),
    ("fallbacks_total", "reason"): Fallback,
    ("upstream_errors_total", "kind"): FailureKind,
    ("kv_bytes_total", "outcome"): KvOutcome,
    ("config_reloads_total", "outcome"): ReloadOutcome,
    ("conversions_total", "outcome"): ConversionOutcome,
}
"""Label values from a closed list, the product's own where the code has one."""


def label_values(series: str, label: str) -> frozenset[str] | None:
    """Return the closed list of values of a series' label; None where values are open."""
    values = VALUES.get((series.removeprefix(PREFIX), label))
    return None if values is None else frozenset(str(value) for value in values)


def series_labels() -> dict[str, frozenset[str]]:
    """Return every series name as Prometheus stores it, with the labels that it carries."""
    series: dict[str, frozenset[str]] = {}
    for name, labels in LABELS.items():
        if name not in HISTOGRAMS:
            series[PREFIX + name] = labels
            continue
        series[f"{PREFIX}{name}_bucket"] = labels | {"le"}
        series[f"{PREFIX}{name}_sum"] = labels
        series[f"{PREFIX}{name}_count"] = labels
    return series
