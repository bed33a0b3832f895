"""The lengths of prompts of late, by model: those that this process saw, and its peers.

Processes tell each other how many prompts of each length they have seen in all. Whoever hears it
takes in what is new since it heard last, as if it had seen that itself, so that all remember the
same: each prompt with the same weight, however the load is spread, and whoever saw it may be gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from router.domain.decision import WorkloadView
from router.domain.units import Tokens
from router.throughput.demands import DemandTable
from router.throughput.workloads import Histogram, Split

_MEAN_WEIGHT: Final = 0.01
"""A mean forgets in some hundreds of requests, quicker than a day's traffic turns."""

_SHARE_WEIGHT: Final = 0.001
"""Shares look at a thousand requests: a tenth of them is then known to one point."""

_ENOUGH: Final = 100
"""Requests before shares mean anything: a tenth of them is then known to three points."""

_STALE_AFTER: Final = 32
"""Requests after which a view is made anew: they move a share by 3 % of itself at most."""

_BINS_PER_OCTAVE: Final = 8
_OCTAVES: Final = 22
_BOUNDS: Final = tuple(
    2 ** (i / _BINS_PER_OCTAVE) - 1 for i in range(_BINS_PER_OCTAVE * _OCTAVES + 1)
)
"""Bounds of the bins: 9 % apart, up to four million tokens."""
_BINS: Final = len(_BOUNDS) - 1

_RESCALE_AT: Final = 1e100

_MOST_AT_ONCE: Final = round(1 / _SHARE_WEIGHT)
"""Prompts that are taken in at once: more would leave nothing of what was known before."""

_MOST_PEERS: Final = 1024
"""Processes of which is remembered what they told: more than those that ever run at once."""


class ToldLengths(Struct, frozen=True, array_like=True):
    """What a process has seen of one model since it began: prompts by the bin of their length."""

    seen: int
    offloads: int
    bins: dict[int, int]

    def since(self, before: ToldLengths | None) -> ToldLengths:
        """Return what is new; all of it where nothing was told before."""
        if before is None:
            return self
        new = {place: count - before.bins.get(place, 0) for place, count in self.bins.items()}
        return ToldLengths(
            self.seen - before.seen,
            self.offloads - before.offloads,
            {place: count for place, count in new.items() if count > 0},
        )


class KeptLengths(Struct, frozen=True):
    """What was remembered of one model, as it is kept: shares of prompts by the bin of length."""

    seen: int
    offload_share: float
    shares: dict[int, float]

    def workload(self) -> Histogram:
        """Return it as the model of throughput takes it. Raises WorkloadError for no shares."""
        return Histogram.of(_BOUNDS, [self.shares.get(i, 0.0) for i in range(_BINS)])


class ModelLengths:
    """Decayed means and shares of one model's prompts, in tokens.

    `offloaded` is the mean uncached length of offloaded prompts: the model gate's operating point.
    `computed` is the mean length that instances compute, for queues that others filled.
    """

    def __init__(self) -> None:
        self.offloaded: float | None = None
        self.computed: float | None = None
        self._counts = [0.0] * _BINS
        self._offloads = 0.0
        # Instead of shrinking every count at each request, what is added grows.
        self._unit = 1.0
        self._seen = 0
        self._views: dict[Tokens, tuple[int, WorkloadView]] = {}
        self._own_seen = 0
        self._own_offloads = 0
        self._own_bins: dict[int, int] = {}

    def note(self, *, uncached: Tokens, computed: Tokens, offloaded: bool) -> None:
        """Take one decision into the means and shares."""
        self.computed = _mix(self.computed, computed)
        if offloaded:
            self.offloaded = _mix(self.offloaded, uncached)
        place = min(int(_BINS_PER_OCTAVE * math.log2(1 + max(0, uncached))), _BINS - 1)
        self._own_seen += 1
        self._own_offloads += offloaded
        self._own_bins[place] = self._own_bins.get(place, 0) + 1
        self._counts[place] += self._unit
        self._offloads += self._unit * offloaded
        self._forget(1)

    def hear(self, told: ToldLengths) -> None:
        """Take in prompts that another process saw, as of now."""
        if told.seen <= 0:
            return
        part = min(1.0, _MOST_AT_ONCE / told.seen)
        for place, count in told.bins.items():
            self._counts[min(max(place, 0), _BINS - 1)] += self._unit * part * count
        self._offloads += self._unit * part * told.offloads
        self._forget(max(1, round(part * told.seen)))

    def restore(self, kept: KeptLengths) -> None:
        """Begin with what was kept, unless something was seen already."""
        if self._seen or not kept.shares or kept.seen <= 0:
            return
        weight = min(kept.seen, _MOST_AT_ONCE)
        for place, share in kept.shares.items():
            self._counts[min(max(place, 0), _BINS - 1)] += weight * share
        self._offloads = weight * kept.offload_share
        self._seen = weight

    def tell(self) -> ToldLengths:
        """Return what this process saw."""
        return ToldLengths(self._own_seen, self._own_offloads, dict(self._own_bins))

    def keep(self) -> KeptLengths | None:
        """Return what is remembered of everybody's, None before the first prompt."""
        share, total = self.offload_share, sum(self._counts)
        if share is None:
            return None
        shares = {place: count / total for place, count in enumerate(self._counts) if count}
        return KeptLengths(self._seen, share, shares)

    @property
    def seen(self) -> int:
        """How many prompts are known of, this process's and the others'."""
        return self._seen

    @property
    def offload_share(self) -> float | None:
        """The share of prompts that were offloaded of late, None before the first."""
        return self._offloads / sum(self._counts) if self._seen else None

    def workload(self) -> Histogram | None:
        """Return the uncached lengths of late, None where too few were seen."""
        return Histogram.of(_BOUNDS, self._counts) if self._seen >= _ENOUGH else None

    def against(self, threshold: Tokens) -> WorkloadView | None:
        """Return the share of prompts over a threshold and their mean; None where few were seen.

        As of at most some dozens of requests ago, since every request asks for it.
        """
        made, view = self._views.get(threshold, (-_STALE_AFTER, None))
        if view is not None and self._seen - made < _STALE_AFTER:
            return view
        workload = self.workload()
        if workload is None:
            return None
        demands = DemandTable.of(workload, (), ()).at(Split(float(threshold)))
        view = WorkloadView(demands.offload_share, demands.long_tokens)
        if len(self._views) > 64:  # what-if thresholds are many, those in force are few
            self._views.clear()
        self._views[threshold] = (self._seen, view)
        return view

    def _forget(self, count: int) -> None:
        """Let what is remembered weigh less by so many prompts, that were just taken in."""
        self._seen += count
        self._unit /= (1 - _SHARE_WEIGHT) ** count
        if self._unit > _RESCALE_AT:
            self._counts = [each / self._unit for each in self._counts]
            self._offloads /= self._unit
            self._unit = 1.0


class OperatingLengths:
    """The lengths of every model, by the model's configured name."""

    def __init__(self) -> None:
        self._models: dict[str, ModelLengths] = {}
        self._told: dict[str, Mapping[str, ToldLengths]] = {}
        self._listening = False

    def of(self, model: str) -> ModelLengths:
        """Return the lengths of one model."""
        lengths = self._models.get(model)
        if lengths is None:
            lengths = self._models[model] = ModelLengths()
        return lengths

    def tell(self) -> dict[str, ToldLengths]:
        """Return what this process saw of every model."""
        return {name: lengths.tell() for name, lengths in self._models.items()}

    def hear(self, told: Mapping[str, Mapping[str, ToldLengths]]) -> None:
        """Take in what is new of what other processes saw, by process and model.

        Of those that were there before this one the past counts only where nothing else is known.
        """
        for process, models in told.items():
            before = self._told.pop(process, {})
            for name, lengths in models.items():
                model = self.of(name)
                past = name not in before and not self._listening
                if not past or not model.seen:
                    model.hear(lengths.since(before.get(name)))
            self._told[process] = models
        self._listening = True
        while len(self._told) > _MOST_PEERS:
            del self._told[next(iter(self._told))]


def _mix(mean: float | None, value: Tokens) -> float:
    return float(value) if mean is None else mean + _MEAN_WEIGHT * (value - mean)
