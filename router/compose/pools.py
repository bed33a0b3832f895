"""Settings -> the pools that clusters share."""

from __future__ import annotations

from collections.abc import Iterator

from kvmeta.pools.lmcache import PoolShape
from router.adapters.lmcache import LmcachePool, PoolAddress
from router.control.health import BreakerRules
from router.ports import Clock, EngineClient
from router.service.pools import PrefixPool
from router.settings import Settings
from router.settings.fleet import ClusterSettings, PoolSettings
from router.settings.serving import ModelSettings


def build_pools(
    settings: Settings, client: EngineClient, clock: Clock
) -> dict[tuple[str, str], PrefixPool]:
    """Return every cluster's pool, by (cluster, model): each for the models that it serves."""
    failures, cooldown = settings.kvmeta.breaker.failures, settings.kvmeta.breaker.cooldown_seconds
    rules = BreakerRules(failures=failures, cooldown=cooldown)
    return {
        (cluster.name, model.name): LmcachePool(
            client, _address(cluster, pool, model), _shape(pool), clock=clock, breaker=rules
        )
        for cluster, pool in _configured(settings)
        for model in settings.models
    }


def _configured(settings: Settings) -> Iterator[tuple[ClusterSettings, PoolSettings]]:
    for cluster in settings.clusters:
        if cluster.pool is not None:
            yield cluster, cluster.pool


def _address(cluster: ClusterSettings, pool: PoolSettings, model: ModelSettings) -> PoolAddress:
    return PoolAddress(
        name=f"{cluster.name}/{pool.kind}",
        url=pool.url,
        model_name=pool.model_name or model.engine_name,
        world_size=model.world_size,
        timeout=pool.timeout_ms / 1000,
    )


def _shape(pool: PoolSettings) -> PoolShape:
    return PoolShape(
        chunk_tokens=pool.chunk_size,
        object_groups=pool.object_groups,
        tiers=frozenset(pool.tiers),
        any_server=pool.peers,
    )
