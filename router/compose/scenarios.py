"""A scenario file -> what the planner plans."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from router.compose.models import CompositionError, build_profile
from router.domain.decision import GateLimits
from router.domain.topology import ClusterKind
from router.domain.units import from_gbps
from router.planning.scenarios import Basis, Configured, Knowledge, PrefixSet, Scenario
from router.settings.profile_files import ProfileFile
from router.settings.scenarios import (
    HistogramSettings,
    LengthsSettings,
    LoadedScenario,
    LogNormalSettings,
    ModelFormSettings,
    PriceSettings,
    ScenarioSettings,
    TraceSettings,
)
from router.sim.replay.traces import BLOCK_TOKENS, TraceFault, TraceRequest, parse_trace
from router.throughput.curves import Extrapolation, Interpolation
from router.throughput.demands import Form
from router.throughput.prices import Prices
from router.throughput.profiles import Profile, ProfileSource
from router.throughput.reuse import uncached_lengths
from router.throughput.stages import DecodeRules, Deployment, PdPool, RemotePool
from router.throughput.workloads import Atoms, Histogram, TruncatedLogNormal, Workload

_BASELINE = "baseline"


def build_scenario(loaded: LoadedScenario) -> Scenario:
    """Return what is to be planned; reads the trace, if the workload is one.

    Raises CompositionError where the trace cannot be used.
    """
    settings = loaded.settings
    profiles = {name: _profile(file, settings.solve) for name, file in loaded.profiles.items()}
    deployment = _deployment(settings, profiles)
    first = deployment.pds[0]
    own = loaded.baseline
    everybody = sum(cluster.instances for cluster in settings.clusters)
    baseline = PdPool(
        name=_BASELINE,
        profile=first.profile if own is None else _profile(own, settings.solve),
        prefill=0,
        decode=settings.baseline.instances or everybody,
        rules=first.rules,
    )
    wanted = settings.prefix_cache
    return Scenario(
        name=settings.name,
        description=settings.description,
        model=settings.model,
        deployment=deployment,
        workload=_workload(settings),
        baseline=baseline,
        limits=_limits(settings),
        rests_on=tuple(_rests_on(loaded)),
        knowledge=Knowledge(settings.scheduler.metadata, settings.scheduler.telemetry),
        form=Form(settings.solve.form),
        local_link=from_gbps(settings.solve.local_gbps),
        cache_hit_ratio=settings.workload.cache_hit_ratio,
        rate=settings.workload.requests_per_second,
        ttft_slo=settings.ttft_slo_seconds,
        prices=None if settings.prices is None else _prices(settings, settings.prices),
        configured=None
        if settings.configured is None
        else Configured(settings.configured.threshold, settings.configured.prefill),
        prefix_set=None
        if wanted is None
        else PrefixSet(wanted.prefixes, wanted.tokens, first.profile.kv_line),
    )


def _profile(file: ProfileFile, form: ModelFormSettings) -> Profile:
    return build_profile(
        file,
        interpolation=Interpolation(form.interpolation),
        extrapolation=Extrapolation(form.extrapolation),
    )


def _deployment(settings: ScenarioSettings, profiles: dict[str, Profile]) -> Deployment:
    rules = DecodeRules(
        slots=settings.decode.max_concurrency,
        step_seconds=1 / settings.decode.tokens_per_second_slo,
        output_tokens=settings.workload.output_tokens,
    )
    egress = {
        cluster.name: sum(link.gbps for link in settings.links if link.source == cluster.name)
        for cluster in settings.clusters
    }
    return Deployment(
        remotes=tuple(
            RemotePool(each.name, profiles[each.name], each.instances, from_gbps(egress[each.name]))
            for each in settings.clusters
            if each.kind is ClusterKind.PRFAAS
        ),
        pds=tuple(
            PdPool(each.name, profiles[each.name], 0, each.instances, rules)
            for each in settings.clusters
            if each.kind is ClusterKind.PD
        ),
        overlap=settings.solve.overlap,
    )


def _workload(settings: ScenarioSettings) -> Workload:
    workload = _lengths(settings)
    hits = settings.workload.cache_hit_ratio
    return workload.scaled(1 - hits) if hits else workload


def _lengths(settings: ScenarioSettings) -> Workload:
    match settings.workload.lengths:
        case LogNormalSettings(mu=mu, sigma=sigma, min_tokens=shortest, max_tokens=longest):
            return TruncatedLogNormal(mu, sigma, shortest, longest)
        case HistogramSettings(bounds=bounds, weights=weights):
            return Histogram.of(bounds, weights)
        case LengthsSettings(lengths=lengths):
            weights_of: dict[int, float] = {}
            for each in lengths:
                weights_of[each.tokens] = weights_of.get(each.tokens, 0.0) + each.weight
            return Atoms.of(weights_of)
        case TraceSettings() as trace:
            return _trace_lengths(trace)
        case never:
            assert_never(never)


def _trace_lengths(trace: TraceSettings) -> Workload:
    requests = list(read_trace(trace.path))
    if not requests:
        raise CompositionError(f"{trace.path} holds no request")
    if not trace.reuse:
        return Atoms.from_lengths(request.input_tokens for request in requests)
    prompts = ((request.input_tokens, request.blocks) for request in requests)
    return Atoms.from_lengths(
        uncached_lengths(prompts, block_tokens=BLOCK_TOKENS, capacity_blocks=trace.cache_blocks)
    )


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """Yield a trace's requests, of a gzipped file too. Raises CompositionError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            yield from parse_trace(lines)
    except OSError as error:
        raise CompositionError(f"{path} cannot be read: {error.strerror}") from error
    except TraceFault as error:
        raise CompositionError(f"{path}:{error}") from error


def _limits(settings: ScenarioSettings) -> GateLimits:
    gate = settings.gate
    return GateLimits(
        kv_rate=from_gbps(gate.max_kv_gbps),
        long_share=gate.min_long_share,
        long_tokens=gate.min_long_tokens,
        gain=gate.min_gain,
    )


def _prices(settings: ScenarioSettings, prices: PriceSettings) -> Prices:
    return Prices(
        {each.name: prices.gpu[each.name] * each.gpus_per_instance for each in settings.clusters},
        prices.gbps,
    )


def _rests_on(loaded: LoadedScenario) -> Iterator[Basis]:
    settings = loaded.settings
    for name, file in loaded.profiles.items():
        yield Basis(f"profile of {name}", ProfileSource(file.source), _described(file))
    if loaded.baseline is not None:
        file = loaded.baseline
        yield Basis("profile of the baseline", ProfileSource(file.source), _described(file))
    lengths = settings.workload.lengths.kind
    yield Basis("lengths and output", ProfileSource(settings.workload.source), lengths)
    slots = f"{settings.decode.max_concurrency} slots an instance"
    yield Basis("decode within the SLO", ProfileSource(settings.decode.source), slots)
    yield Basis("links", ProfileSource.QUOTED, "as the scenario gives them")
    if settings.prices is not None:
        yield Basis("prices", ProfileSource(settings.prices.source), "as the scenario gives them")


def _described(file: ProfileFile) -> str:
    return f"{file.hardware}, {file.engine}, {file.date}"
