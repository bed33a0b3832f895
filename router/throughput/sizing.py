"""How much memory the cache pools need (the paper's two kinds of block)."""

from __future__ import annotations

from dataclasses import dataclass

from router.domain.units import Bytes, Seconds, Tokens
from router.throughput.profiles import KvLine
from router.throughput.stages import Deployment, OperatingPoint, RemotePool


@dataclass(frozen=True, slots=True)
class TransferPool:
    """The transfer-cache blocks of one PrfaaS cluster at an operating point."""

    name: str
    in_flight: float
    bytes: Bytes


def size_prefix_pool(line: KvLine, *, prefixes: int, tokens: Tokens) -> Bytes:
    """Return the bytes of prefix-cache blocks: S_kv of each prefix, `tokens` in all of them.

    Each prefix that must be resumable keeps a state of fixed size beside its tokens.
    """
    return Bytes(round(line.fixed_bytes * prefixes + line.bytes_per_token * tokens))


def size_transfer_pools(
    deployment: Deployment, point: OperatingPoint, *, held: Seconds = 0.0
) -> tuple[TransferPool, ...]:
    """Return the working set of hand-offs in flight of each PrfaaS pool, by Little's law.

    A hand-off's blocks live from the start of its prefill until the link has carried them, and for
    `held` seconds more (the wait for a decode slot). Infinite queues are not counted: this is the
    set at the rate of `point`, and bursts need more.
    """
    demands = point.demands
    together = sum(each.rate for each in point.remotes)
    if demands.remote is None or not together:
        return ()
    offloaded = demands.offload_share * point.rate
    pools = []
    for pool, rate, demand in zip(deployment.remotes, point.remotes, demands.remote, strict=True):
        arrivals = offloaded * rate.rate / together
        resident = demand.seconds + _transfer_seconds(pool, demand.kv_bytes) + held
        in_flight = arrivals * resident
        pools.append(TransferPool(pool.name, in_flight, Bytes(round(in_flight * demand.kv_bytes))))
    return tuple(pools)


def _transfer_seconds(pool: RemotePool, kv_bytes: float) -> Seconds:
    """A request alone on the link; its share of a full one takes longer, in which it also waits."""
    return kv_bytes / pool.egress if pool.egress else 0.0
