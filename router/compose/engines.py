"""Settings -> the stand-in engines of one cluster."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from router.adapters.tokenizers import HfTokenizer, TokenizerLoadError
from router.compose.models import CompositionError, build_profile
from router.domain.topology import AUTO_EVENTS
from router.settings import Loaded, Settings
from router.settings.fleet import ClusterSettings, InstanceSettings
from router.settings.serving import ModelSettings
from router.sim.engines.errors import SpecError
from router.sim.engines.specs import (
    CacheSpec,
    ClusterSpec,
    EngineSpec,
    EventEncoding,
    GroupSpec,
    LinkSpec,
    LoadFailurePolicy,
)
from router.sim.tokenizer import locate_tokenizer


def load_engine_tokenizer(settings: Settings) -> HfTokenizer:
    """Load the tokenizer of the stand-ins. Raises CompositionError."""
    configured = settings.engines.tokenizer
    try:
        return HfTokenizer.load(locate_tokenizer() if configured is None else configured)
    except TokenizerLoadError as error:
        raise CompositionError(f"engines.tokenizer: {error}") from error


def build_cluster_spec(
    loaded: Loaded, name: str, *, time_scale: float | None = None
) -> ClusterSpec:
    """Return the stand-ins of a configured cluster, at the addresses that the gateway will use.

    `time_scale` overrides the configured one. Raises CompositionError, naming what is missing.
    """
    settings = loaded.settings
    cluster = _find_cluster(settings, name)
    if not cluster.instances:
        raise CompositionError(f"clusters[{name}]: has no instances to stand in for")
    try:
        return ClusterSpec(
            name=name,
            engines=tuple(_build_engine(entry, cluster, loaded) for entry in cluster.instances),
            links=tuple(
                LinkSpec(
                    link.name,
                    link.target,
                    link.capacity_gbps,
                    overlap=settings.engines.layerwise_overlap,
                )
                for link in settings.links
                if link.source == name
            ),
            host=_resolve_host(cluster.instances, name),
            time_scale=settings.engines.time_scale if time_scale is None else time_scale,
        )
    except SpecError as error:
        raise CompositionError(f"clusters[{name}]: {error}") from error


def _find_cluster(settings: Settings, name: str) -> ClusterSettings:
    for cluster in settings.clusters:
        if cluster.name == name:
            return cluster
    known = ", ".join(cluster.name for cluster in settings.clusters)
    raise CompositionError(f"no cluster is named {name!r} (there are: {known})")


def _resolve_host(instances: Sequence[InstanceSettings], cluster: str) -> str:
    """Return the address to bind: all stand-ins of a cluster live in one process, on one host."""
    hosts = {urlsplit(entry.url).hostname or "" for entry in instances}
    if len(hosts) != 1:
        raise CompositionError(
            f"clusters[{cluster}]: stand-ins of one cluster share a host, not {sorted(hosts)}"
        )
    host = hosts.pop()
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise CompositionError(f"clusters[{cluster}]: cannot resolve {host!r}: {error}") from error


def _build_engine(entry: InstanceSettings, cluster: ClusterSettings, loaded: Loaded) -> EngineSpec:
    settings, engines = loaded.settings, loaded.settings.engines
    model = next(
        (model for model in settings.models if model.name == entry.model), settings.models[0]
    )
    profile = loaded.profile_of(model.name, cluster.name)
    if profile is None:
        raise CompositionError(
            f"models[{model.name}].profiles: stand-ins of {cluster.name!r} need one for"
            f" {cluster.kind.value!r}"
        )
    return EngineSpec(
        name=entry.name,
        profile=build_profile(profile),
        model=entry.served_name or model.engine_name,
        role=entry.role,
        port=urlsplit(entry.url).port or 80,
        events_port=_port_of(entry.kv_events),
        replay_port=_port_of(AUTO_EVENTS if entry.kv_events == AUTO_EVENTS else entry.kv_replay),
        cache=_build_cache(model, engines.blocks, engines.seed),
        max_model_len=engines.max_model_len,
        max_concurrency=model.decode.max_concurrency,
        decode_tokens_per_second=model.decode.tokens_per_second_slo,
        event_encoding=EventEncoding(engines.event_encoding),
        lease_seconds=settings.transfer.lease_seconds,
        # The gateway does not run in simulated time: what it may rely on must not pass faster.
        lease_floor_seconds=settings.transfer.lease_seconds,
        load_failure_policy=LoadFailurePolicy(engines.load_failure_policy),
        enable_scale_out=True,
        loras=tuple(lora.served_name or lora.name for lora in model.loras),
    )


def _build_cache(model: ModelSettings, blocks: int, seed: int) -> CacheSpec:
    return CacheSpec(
        hash_unit=model.cache.block_size,
        blocks=blocks,
        groups=tuple(
            GroupSpec(group.kind, group.count or 1, group.window, group.block_size)
            for group in model.cache.groups
        ),
        hash_seed=seed,
    )


def _port_of(endpoint: str | None) -> int | None:
    """The port to bind; a free one where the gateway will ask for it."""
    if endpoint == AUTO_EVENTS:
        return 0
    return None if endpoint is None else int(endpoint.rpartition(":")[2])
