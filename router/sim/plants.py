"""What a simulated system is made of, and what happens to it: values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.control.slack import SlackRules
from router.domain.decision import GateView, Rule, ThresholdMode
from router.domain.errors import RouterError
from router.domain.topology import ClusterKind, Role
from router.domain.units import BytesPerSecond, Seconds, Tokens
from router.throughput.profiles import Profile

RDMA = BytesPerSecond(100e9)
"""800 Gb/s, the case study's fabric (arXiv 2604.15039, section 4)."""


class PlantFault(RouterError):
    """No system can be built like this."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A cluster: instances that prefill and, in a PD cluster, instances that decode.

    An instance prefills one prompt at a time, in `profile`'s time. `cache_blocks` bounds each
    instance's prefix cache, 0 for none.
    """

    name: str
    kind: ClusterKind
    profile: Profile
    prefills: int
    decodes: int = 0
    cache_blocks: int = 0


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The link that carries KV from a PrfaaS cluster to the PD cluster.

    With `overlap` a prompt's KV crosses while it is computed, layer by layer; without it crosses
    afterwards, and its instance computes nothing else until it has.
    """

    name: str
    source: str
    rate: BytesPerSecond
    overlap: bool = True


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """`slots` (BS_max) requests at once on an instance, None for any number, one token in `pace`.

    `reserved` slots are granted by the gateway before a request is routed, as production does
    where `max_concurrency` is set; otherwise requests wait for them at the engine, with their KV.
    """

    slots: int | None
    pace: Seconds
    reserved: bool = True


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """The configured parts of the rule: see `scheduler` in the configuration.

    `rule` is `scheduler.policy`, `slack` what its queue goes by.
    `by_total` compares total instead of uncached tokens with t, the classic mistake, which only
    simulations can make.
    """

    rule: Rule = Rule.PAPER
    slack: SlackRules = SlackRules()
    mode: ThresholdMode = ThresholdMode.MANUAL
    tokens: Tokens = 19_400
    by_total: bool = False
    remote_queue_limit: int = 16
    link_budget: Seconds = 30.0
    queue_size: int = 1024
    gates: GateView = GateView()


@dataclass(frozen=True, slots=True)
class PlantSpec:
    """A whole system: one PD cluster and any number of PrfaaS clusters, each with its link.

    `fabric` is the rate at which KV moves inside the PD cluster. `block_tokens` and `recurrent`
    describe the model's prefix caches. Raises PlantFault for what cannot be.
    """

    pools: tuple[PoolSpec, ...]
    links: tuple[LinkSpec, ...]
    decode: DecodeSpec
    rule: RuleSpec = RuleSpec()
    fabric: BytesPerSecond = RDMA
    block_tokens: Tokens = 512
    recurrent: bool = True

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        remote = {pool.name for pool in self.pools if pool.kind is ClusterKind.PRFAAS}
        if len(names) != len(set(names)):
            raise PlantFault("two clusters have one name")
        if len(names) - len(remote) != 1:
            raise PlantFault("a simulated system has exactly one PD cluster")
        if self.pd.decodes < 1:
            raise PlantFault(f"nobody decodes in {self.pd.name!r}")
        if self.rule.rule is Rule.SLACK and not self.pd.prefills:
            raise PlantFault(
                f"the rule `slack` needs an instance that prefills in {self.pd.name!r}"
            )
        sources = [link.source for link in self.links]
        if len(sources) != len(set(sources)) or set(sources) != remote:
            raise PlantFault("each PrfaaS cluster needs exactly one link")

    @property
    def pd(self) -> PoolSpec:
        """The PD cluster."""
        return next(pool for pool in self.pools if pool.kind is ClusterKind.PD)


@dataclass(frozen=True, slots=True)
class LinkChange:
    """From `at` on a link has another rate; 0 is an outage."""

    at: Seconds
    link: str
    rate: BytesPerSecond


@dataclass(frozen=True, slots=True)
class Conversion:
    """At `at` an instance is drained; `seconds` after it is empty it serves in its new role."""

    at: Seconds
    instance: str
    role: Role
    seconds: Seconds


Incident = LinkChange | Conversion


@dataclass(frozen=True, slots=True)
class Reference:
    """The latency promise: what a request would see alone, on the path that the paper gives it.

    The same for every policy and whatever happens, so goodput is compared at one promise.
    """

    threshold: float
    local: Profile
    remote: Profile | None
    link: BytesPerSecond
    fabric: BytesPerSecond
    overlap: bool = True

    def unloaded(
        self,
        fresh: Tokens,
        kv_bytes: float,
        known: Iterable[tuple[Profile, Seconds]] = (),
    ) -> Seconds:
        """Return the TTFT of a prompt with `fresh` uncached tokens in an empty system.

        `kv_bytes` is S_kv of all its tokens, `known` prefill seconds of `fresh` that are known.
        """
        if self.remote is None or fresh <= self.threshold:
            return _measure(self.local, fresh, known) + kv_bytes / self.fabric
        compute, crossing = _measure(self.remote, fresh, known), kv_bytes / self.link
        return max(compute, crossing) if self.overlap else compute + crossing


def _measure(profile: Profile, tokens: Tokens, known: Iterable[tuple[Profile, Seconds]]) -> Seconds:
    for each, seconds in known:
        if each is profile:
            return seconds
    return profile.prefill_seconds(tokens)
