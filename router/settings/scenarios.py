"""Scenario files of the planner: what could be built, for which traffic, at which price.

Read as the configuration is: unknown keys are faults, each fault has its line and column, and
`${VAR}` reads the environment. Figures are as certain as their `source` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from router.domain.topology import ClusterKind
from router.settings.documents import Document, read_document
from router.settings.errors import Fault, KeyPath, SettingsError
from router.settings.fields import (
    Count,
    Duration,
    FilePath,
    LogTokens,
    ModelName,
    Name,
    PositiveCount,
    PositiveDuration,
    PositiveNumber,
    PositiveTokens,
    Ratio,
    Section,
    Text,
    TokenCount,
    incoherent,
)
from router.settings.interpolation import interpolate
from router.settings.neighbours import Naming, point_here
from router.settings.profile_files import ProfileFile, read_profile
from router.settings.secrets import Surroundings
from router.settings.simulated import SimulationSettings
from router.settings.validation import UNKNOWN_KEY, Complaint, validate_value

Source = Literal["measured", "modelled", "quoted"]

MOST_INSTANCES: Final = 100_000
"""Of one pool: each is an object of a simulation, and a row of the grid."""


class ScenarioClusterSettings(Section):
    """A pool of equal instances."""

    name: Name
    """Unique among clusters."""
    kind: ClusterKind
    """`pd` (prefill and decode) or `prfaas` (prefill only)."""
    instances: Annotated[Count, Field(le=MOST_INSTANCES)]
    """How many; in a PD cluster each may take either role."""
    gpus_per_instance: PositiveCount = 8
    """Accelerators of one instance, for prices."""
    profile: FilePath
    """What one instance needs for a prompt; relative to the scenario."""


class ScenarioLinkSettings(Section):
    """A directed path between clusters."""

    source: Name = Field(alias="from")
    """The PrfaaS cluster that sends."""
    target: Name = Field(alias="to")
    """The PD cluster that receives."""
    gbps: Duration
    """Bandwidth in Gbit/s (1e9 bit/s) that KV transfers may use."""


class LogNormalSettings(Section):
    """A truncated log-normal."""

    kind: Literal["lognormal"]
    """ln L is normal within bounds."""
    mu: LogTokens
    """Mean of ln L."""
    sigma: PositiveNumber
    """Standard deviation of ln L."""
    min_tokens: PositiveTokens
    """Shortest prompt."""
    max_tokens: PositiveTokens
    """Longest prompt."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_tokens >= self.max_tokens:
            raise incoherent("max_tokens", f"must be greater than min_tokens ({self.min_tokens})")
        return self


class HistogramSettings(Section):
    """Shares by bins of length."""

    kind: Literal["histogram"]
    """Uniform within each bin."""
    bounds: Annotated[tuple[TokenCount, ...], Field(min_length=2)]
    """Increasing bounds of the bins, in tokens."""
    weights: Annotated[tuple[Duration, ...], Field(min_length=1)]
    """Weight of each bin; one fewer than bounds."""

    @model_validator(mode="after")
    def _bins_are_sound(self) -> Self:
        if any(b <= a for a, b in pairwise(self.bounds)):
            raise incoherent("bounds", "must increase")
        if len(self.weights) != len(self.bounds) - 1:
            raise incoherent("weights", f"must be {len(self.bounds) - 1}, one for each bin")
        if not any(self.weights):
            raise incoherent("weights", "must not all be 0")
        return self


class LengthWeightSettings(Section):
    """One length."""

    tokens: PositiveTokens
    """The length."""
    weight: PositiveNumber = 1
    """How often it occurs, relative to the others."""


class LengthsSettings(Section):
    """A few lengths."""

    kind: Literal["lengths"]
    """Single lengths with their weights."""
    lengths: Annotated[tuple[LengthWeightSettings, ...], Field(min_length=1)]
    """The lengths."""


class TraceSettings(Section):
    """Lengths of real traffic, less what a prefix cache would have had."""

    kind: Literal["trace"]
    """A trace with block ids (one JSON object a line, 512 tokens a block)."""
    path: FilePath
    """The trace, relative to the scenario."""
    reuse: bool = True
    """Whether shared prefixes are cached: lengths are then what is left uncached."""
    cache_blocks: PositiveCount | None = None
    """Blocks that the cache holds; left out, everything that ever came."""


class WorkloadSettings(Section):
    """The traffic."""

    lengths: Annotated[
        LogNormalSettings | HistogramSettings | LengthsSettings | TraceSettings,
        Field(discriminator="kind"),
    ]
    """Uncached prompt tokens of a request, L."""
    output_tokens: PositiveNumber = 1024
    """Mean output length, L_out."""
    cache_hit_ratio: Annotated[float, Field(ge=0, lt=1)] = 0
    """Share of every prompt that a cache holds, on top of what `lengths` already leave out."""
    requests_per_second: PositiveNumber | None = None
    """Arrival rate to plan for; left out, only what can be sustained is told."""
    source: Source = "quoted"
    """How these figures came about."""


class ScenarioDecodeSettings(Section):
    """What decode is held to."""

    max_concurrency: PositiveCount
    """Decode slots of an instance within the SLO, BS_max."""
    tokens_per_second_slo: PositiveNumber = 40
    """Decode rate promised to a request; its inverse is T_decode."""
    source: Source = "quoted"
    """How BS_max is known."""


class ScenarioGateSettings(Section):
    """What is wanted before prefills leave home. A least value of 0 asks nothing."""

    max_kv_gbps: PositiveNumber = 15
    """Limit of Phi_kv of one instance at the operating length. The paper's hybrid models make 1.2
    to 8.3 Gbit/s, its dense ones 21 to 60 from 8K on."""
    min_long_share: Ratio = 0.05
    """Least share of prompts over the threshold: below it the remote pool serves rare guests."""
    min_long_tokens: TokenCount = 4000
    """Least mean uncached length of those prompts: below it a transfer costs what it saves."""
    min_gain: Duration = 1.1
    """Least factor by which the whole must sustain more than its PD clusters alone."""


class KnowledgeSettings(Section):
    """What the scheduler would know in production."""

    metadata: bool = True
    """Whether KV events or another source tell what is cached; without them lengths are totals."""
    telemetry: bool = True
    """Whether the links' egress is reported."""


class PriceSettings(Section):
    """Money, in any one currency and period."""

    gpu: dict[Name, PositiveNumber]
    """Price of one accelerator, by cluster."""
    gbps: Duration = 0
    """Price of a Gbit/s of link."""
    source: Source = "quoted"
    """How the prices are known."""


class BaselineSettings(Section):
    """The homogeneous deployment to compare with."""

    instances: Annotated[PositiveCount, Field(le=MOST_INSTANCES)] | None = None
    """PD instances; left out, as many as all clusters have together."""
    profile: FilePath | None = None
    """Their profile; left out, the first PD cluster's."""


class ConfiguredSettings(Section):
    """What is in force today, to see what planning changes."""

    threshold: TokenCount
    """t in tokens."""
    prefill: dict[Name, Count] = Field(default_factory=dict)
    """Prefill instances by PD cluster; left out, the best number."""


class ModelFormSettings(Section):
    """How the model is solved."""

    form: Literal["exact", "representative"] = "exact"
    """`exact` averages over lengths; `representative` is the paper's one length for all."""
    overlap: bool = True
    """Whether KV travels layer by layer while the prefill runs."""
    interpolation: Literal["pchip", "linear"] = "pchip"
    """Between the points of a profile."""
    extrapolation: Literal["linear", "clamp", "error"] = "linear"
    """Outside the points of a profile."""
    local_gbps: PositiveNumber = 800
    """Fabric of an instance inside a PD cluster, for TTFT (the paper's RDMA)."""


class PrefixSettings(Section):
    """What the prefix caches should hold, for their size."""

    prefixes: PositiveCount
    """Prefixes that must be resumable."""
    tokens: PositiveTokens
    """Tokens of all of them together."""


class ScenarioSettings(Section):
    """A deployment that could be, and its traffic."""

    name: Text
    """Shown as the title."""
    description: Annotated[str, Field(max_length=2000)] = ""
    """What it is about, and where its figures are from."""
    model: ModelName
    """The model that all profiles must be of."""
    clusters: Annotated[tuple[ScenarioClusterSettings, ...], Field(min_length=1)]
    """The pools."""
    links: tuple[ScenarioLinkSettings, ...] = ()
    """Paths from PrfaaS to PD clusters."""
    workload: WorkloadSettings
    """The traffic."""
    decode: ScenarioDecodeSettings
    """The decode SLO."""
    ttft_slo_seconds: PositiveDuration | None = None
    """Wanted 90th percentile of TTFT."""
    gate: ScenarioGateSettings = ScenarioGateSettings()
    """The gates' limits."""
    scheduler: KnowledgeSettings = KnowledgeSettings()
    """What would be known."""
    prices: PriceSettings | None = None
    """Prices; left out, nothing is compared at equal cost."""
    baseline: BaselineSettings = BaselineSettings()
    """The homogeneous baseline."""
    configured: ConfiguredSettings | None = None
    """What is in force today."""
    prefix_cache: PrefixSettings | None = None
    """What the prefix caches should hold."""
    solve: ModelFormSettings = ModelFormSettings()
    """How the model is solved."""
    simulation: SimulationSettings = SimulationSettings()
    """How `prfaas simulate` lets the traffic come."""


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    """A scenario and the profiles that it names, by cluster; `baseline` is the baseline's own."""

    settings: ScenarioSettings
    profiles: Mapping[str, ProfileFile]
    baseline: ProfileFile | None
    shown: str


def load_scenario(path: Path | str, environ: Mapping[str, str]) -> LoadedScenario:
    """Read a scenario and its profiles. Raises SettingsError with every fault found."""
    shown = os.fspath(path)
    absolute = Path(os.path.abspath(shown))  # noqa: PTH100  # resolve() follows symlinks
    document = read_document(absolute, shown)
    complaints: list[Complaint] = []
    root = interpolate(document.root, environ, lambda at, said: complaints.append((at, said)))
    outcome = validate_value(
        ScenarioSettings, {} if root is None else root, Surroundings(absolute.parent)
    )
    if isinstance(outcome, list):
        raise SettingsError(_place([*complaints, *outcome], document))
    faults = list(_place([*complaints, *_check(outcome)], document))
    reader = _ProfileReader(outcome.model, document, Naming(absolute.parent, shown))
    profiles = {
        cluster.name: reader.read(("clusters", i, "profile"), cluster.profile)
        for i, cluster in enumerate(outcome.clusters)
    }
    baseline = outcome.baseline.profile
    own = None if baseline is None else reader.read(("baseline", "profile"), baseline)
    faults += reader.faults
    if faults:
        raise SettingsError(faults)
    sound = {name: profile for name, profile in profiles.items() if profile is not None}
    return LoadedScenario(outcome, sound, own, shown)


def _place(complaints: list[Complaint], document: Document) -> Iterator[Fault]:
    for at, said in complaints:
        yield Fault(document.place_of(at, key=said.startswith(UNKNOWN_KEY)), at, said)


class _ProfileReader:
    """Reads profiles and gathers what is wrong with them."""

    def __init__(self, model: str, document: Document, naming: Naming) -> None:
        self.faults: list[Fault] = []
        self._model = model
        self._document = document
        self._naming = naming

    def read(self, at: KeyPath, path: Path) -> ProfileFile | None:
        shown = self._naming.of(path)
        place = self._document.place_of(at)
        try:
            profile = read_profile(path, shown)
        except SettingsError as error:
            self.faults += [point_here(fault, at, place) for fault in error.faults]
            return None
        if profile.model != self._model:
            said = f"{shown} is a profile of model {profile.model!r}, not of {self._model!r}"
            self.faults.append(Fault(place, at, said))
        return profile


def _check(scenario: ScenarioSettings) -> Iterator[Complaint]:
    """Yield what contradicts itself between sections."""
    kinds: dict[str, ClusterKind] = {}
    for i, cluster in enumerate(scenario.clusters):
        if cluster.name in kinds:
            yield ("clusters", i, "name"), f"the cluster name {cluster.name!r} is already taken"
        kinds[cluster.name] = cluster.kind
    if ClusterKind.PD not in kinds.values():
        yield ("clusters",), "must have a cluster of kind pd: somebody decodes"
    yield from _check_links(scenario, kinds)
    yield from _check_names(scenario, kinds)


def _check_links(
    scenario: ScenarioSettings, kinds: Mapping[str, ClusterKind]
) -> Iterator[Complaint]:
    seen: set[tuple[str, str]] = set()
    for i, link in enumerate(scenario.links):
        ends = (("from", link.source, ClusterKind.PRFAAS), ("to", link.target, ClusterKind.PD))
        for key, name, kind in ends:
            if kinds.get(name) is not kind:
                yield ("links", i, key), f"must name a cluster of kind {kind} (got {name!r})"
        if (link.source, link.target) in seen:
            yield ("links", i), f"{link.source} and {link.target} have a link already"
        seen.add((link.source, link.target))


def _check_names(
    scenario: ScenarioSettings, kinds: Mapping[str, ClusterKind]
) -> Iterator[Complaint]:
    """Yield prices and prefill counts that fit no cluster, and clusters without a price."""
    if scenario.prices is not None:
        for name in scenario.prices.gpu.keys() - kinds.keys():
            yield ("prices", "gpu", name), f"no cluster is named {name!r}"
        for name in kinds.keys() - scenario.prices.gpu.keys():
            yield ("prices", "gpu"), f"has no price for {name}"
    if scenario.configured is None:
        return
    sizes = {c.name: c.instances for c in scenario.clusters if c.kind is ClusterKind.PD}
    for name, count in scenario.configured.prefill.items():
        at: KeyPath = ("configured", "prefill", name)
        if name not in sizes:
            yield at, f"no PD cluster is named {name!r}"
        elif count > sizes[name]:
            yield at, f"must be at most the cluster's instances ({sizes[name]}; got {count})"
