"""The lengths of prompts that the gateway saw of late, by model."""

from __future__ import annotations

import math
from typing import Final

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

_RESCALE_AT: Final = 1e100


class ModelLengths:
    """Decayed means and shares of one model's prompts, in tokens.

    `offloaded` is the mean uncached length of offloaded prompts: the model gate's operating point.
    `computed` is the mean length that instances compute, for queues that others filled.
    """

    def __init__(self) -> None:
        self.offloaded: float | None = None
        self.computed: float | None = None
        self._counts = [0.0] * (len(_BOUNDS) - 1)
        self._offloads = 0.0
        # Instead of shrinking every count at each request, what is added grows.
        self._unit = 1.0
        self._seen = 0
        self._views: dict[Tokens, tuple[int, WorkloadView]] = {}

    def note(self, *, uncached: Tokens, computed: Tokens, offloaded: bool) -> None:
        """Take one decision into the means and shares."""
        self.computed = _mix(self.computed, computed)
        if offloaded:
            self.offloaded = _mix(self.offloaded, uncached)
        place = int(_BINS_PER_OCTAVE * math.log2(1 + max(0, uncached)))
        self._counts[min(place, len(self._counts) - 1)] += self._unit
        self._offloads += self._unit * offloaded
        self._seen += 1
        self._unit /= 1 - _SHARE_WEIGHT
        if self._unit > _RESCALE_AT:
            self._counts = [count / self._unit for count in self._counts]
            self._offloads /= self._unit
            self._unit = 1.0

    @property
    def seen(self) -> int:
        """How many prompts were seen."""
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


class OperatingLengths:
    """The lengths of every model, by the model's configured name."""

    def __init__(self) -> None:
        self._models: dict[str, ModelLengths] = {}

    def of(self, model: str) -> ModelLengths:
        """Return the lengths of one model."""
        return self._models.setdefault(model, ModelLengths())


def _mix(mean: float | None, value: Tokens) -> float:
    return float(value) if mean is None else mean + _MEAN_WEIGHT * (value - mean)
