"""What a scene has to show, judged from what was seen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles

from bench.live.clients import Visit
from bench.live.watching import Look
from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that must hold. `wanted` and `seen` are words for people."""

    what: str
    wanted: str
    seen: str
    holds: bool


@dataclass(slots=True)
class Outcome:
    """What came of a scene: claims, figures without a bound, and the series to draw.

    `marks` are moments to be marked, by their seconds.
    """

    scene: str
    claims: list[Claim] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    marks: list[tuple[Seconds, str]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether all that was claimed is so."""
        return all(claim.holds for claim in self.claims)

    def claim(self, what: str, wanted: str, seen: object, *, holds: bool) -> None:
        """Add a claim."""
        self.claims.append(Claim(what, wanted, str(seen), holds))


def claim_all_served(outcome: Outcome) -> None:
    """Claim that no client was failed."""
    claim_served_but(outcome, "requests answered whole", lambda visit: False)  # noqa: ARG005


def claim_served_but(outcome: Outcome, what: str, excused: Callable[[Visit], bool]) -> None:
    """Claim that no client was failed but those that are `excused`, who are counted."""
    failed = [visit for visit in outcome.visits if not visit.served]
    to_blame = [visit for visit in failed if not excused(visit)]
    seen = f"{len(outcome.visits)} requests, {len(to_blame)} failed"
    if len(failed) > len(to_blame):
        seen += f", and {len(failed) - len(to_blame)} of those"
    if to_blame:
        causes = Counter(f"{visit.status} {visit.error[:80]}".strip() for visit in to_blame)
        seen += f": {dict(causes)}"
    outcome.claim(what, "all", seen, holds=bool(outcome.visits) and not to_blame)


def claim_routed(
    outcome: Outcome, what: str, visits: Sequence[Visit], route: str, reason: str
) -> None:
    """Claim that all of some visits went one way, for one reason."""
    seen = Counter((visit.route, visit.reason) for visit in visits)
    told = ", ".join(f"{count} {way} {why}" for (way, why), count in seen.items()) or "no requests"
    outcome.claim(what, f"{route}, {reason}", told, holds=set(seen) == {(route, reason)})


def mean_ttft(visits: Iterable[Visit]) -> Seconds:
    """Return the mean time to the first token of those that got one; NaN without any."""
    found = [visit.ttft for visit in visits if visit.ttft is not None]
    return fmean(found) if found else float("nan")


def p90_ttft(visits: Iterable[Visit]) -> Seconds:
    """Return the ninth decile of the time to the first token; NaN with fewer than two."""
    found = [visit.ttft for visit in visits if visit.ttft is not None]
    return quantiles(found, n=10)[-1] if len(found) > 1 else float("nan")


def offload_share(visits: Sequence[Visit]) -> float:
    """Return the share of requests that were computed in the PrfaaS cluster; NaN without any."""
    return fmean([visit.offloaded for visit in visits]) if visits else float("nan")


def within(visits: Iterable[Visit], start: Seconds, end: Seconds) -> list[Visit]:
    """Return the visits that asked within a span of time."""
    return [visit for visit in visits if start <= visit.at < end]
