"""What carries conversions out has what it needs, and knows the clusters that it is to serve."""

from __future__ import annotations

from collections.abc import Iterator

from router.domain.topology import ClusterKind
from router.settings.errors import KeyPath
from router.settings.root import Settings
from router.settings.validation import Complaint, suggest

_LOOP: KeyPath = ("scheduler", "long_loop")


def check_actuator(settings: Settings) -> Iterator[Complaint]:
    """Yield what the chosen actuator lacks, and workloads of clusters that are not there."""
    loop = settings.scheduler.long_loop
    if loop.actuator == "webhook":
        if loop.webhook.url is None:
            yield (*_LOOP, "webhook", "url"), "is required with `actuator: webhook`"
        if loop.webhook.secret is None:
            yield (*_LOOP, "webhook", "secret"), "is required with `actuator: webhook`"
    if loop.actuator == "kubernetes" and not loop.kubernetes.workloads:
        yield (*_LOOP, "kubernetes", "workloads"), "is required with `actuator: kubernetes`"
    yield from _check_workloads(settings)


def _check_workloads(settings: Settings) -> Iterator[Complaint]:
    clusters = [cluster.name for cluster in settings.clusters if cluster.kind is ClusterKind.PD]
    models = [model.name for model in settings.models]
    seen: set[tuple[str, str | None]] = set()
    for i, pair in enumerate(settings.scheduler.long_loop.kubernetes.workloads):
        at: KeyPath = (*_LOOP, "kubernetes", "workloads", i)
        if pair.cluster not in clusters:
            hint = suggest(pair.cluster, clusters)
            yield (*at, "cluster"), f"no pd cluster is named {pair.cluster!r}{hint}"
        if pair.model is not None and pair.model not in models:
            hint = suggest(pair.model, models)
            yield (*at, "model"), f"no model is named {pair.model!r}{hint}"
        if (pair.cluster, pair.model) in seen:
            yield at, f"{pair.cluster!r} has its workloads above already"
        seen.add((pair.cluster, pair.model))


def note_unscaled(settings: Settings) -> Iterator[str]:
    """Yield the clusters in which the chosen actuator can convert nothing."""
    loop = settings.scheduler.long_loop
    if loop.actuator != "kubernetes":
        return
    scaled = {pair.cluster for pair in loop.kubernetes.workloads}
    for cluster in settings.clusters:
        if cluster.kind is ClusterKind.PD and cluster.name not in scaled:
            yield f"no workloads are configured for {cluster.name}: nothing converts there"
