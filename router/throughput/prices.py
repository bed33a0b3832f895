"""What a deployment costs, so that deployments of equal cost can be compared.

Money is in any one currency, time in any one period: only ratios matter to a comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from router.domain.errors import RouterError
from router.domain.units import to_gbps
from router.throughput.stages import Deployment, PdPool


class PriceError(RouterError):
    """A pool without a price, where everything must have one."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of one instance of each pool, by the pool's name, and of a Gbit/s of link."""

    instance: Mapping[str, float]
    gbps: float = 0.0


def price_of(deployment: Deployment, prices: Prices) -> float:
    """Return what all instances and links cost. Raises PriceError for a pool without a price."""
    instances = {pool.name: pool.instances for pool in deployment.remotes}
    instances |= {pd.name: pd.instances for pd in deployment.pds}
    missing = sorted(instances.keys() - prices.instance.keys())
    if missing:
        raise PriceError(f"no price for an instance of {', '.join(missing)}")
    hardware = sum(prices.instance[name] * count for name, count in instances.items())
    return hardware + prices.gbps * to_gbps(deployment.egress)


def pd_for_money(pd: PdPool, money: float, prices: Prices) -> PdPool:
    """Return the PD pool with as many whole instances as `money` buys, all of them decoding.

    Raises PriceError where instances are free or have no price.
    """
    price = prices.instance.get(pd.name, 0.0)
    if price <= 0:
        raise PriceError(f"no price for an instance of {pd.name}")
    return replace(pd, prefill=0, decode=int(money / price + 1e-9))


def gain_at_equal_cost(gain: float, cost: float, other_cost: float) -> float:
    """Return a throughput gain over another deployment, both scaled to the same cost.

    The paper's reading of equal cost: throughput grows in proportion to money.
    """
    return gain * other_cost / cost


def implied_price_ratio(
    gain: float, equal_cost_gain: float, *, remote: int, local: int, base: int
) -> float:
    """Return what a PrfaaS instance must cost, in PD instances, for a published pair of gains.

    `gain` is over `base` PD instances; the deployment has `remote` PrfaaS and `local` PD instances.
    """
    return (gain / equal_cost_gain * base - local) / remote
