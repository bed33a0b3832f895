"""When the calls that wait for a dead engine are given up. A pure step.

An engine that stops with its connections open (a stopped process, a host that vanished, a network
that swallows packets) fails no call by itself: a long prefill is silent for minutes, too. What
tells them apart is that a living engine answers probes. So calls are cut where an engine was
declared down *and* nothing at all has come from it for as long as a probe may take, neither an
answer to a probe, whatever its status, nor a byte on any connection: an engine that is merely too
busy for its `/health` keeps its calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from router.domain.units import Seconds


@dataclass(frozen=True, slots=True)
class SilenceRules:
    """`patience` is how long an engine must have been silent, a probe's time-out.

    `stream_grace` is how long an answer that has begun waits on from then. Its client has bytes
    and cannot be served elsewhere, so that all there is to win is an earlier error.
    """

    patience: Seconds = 5.0
    stream_grace: Seconds = 30.0


class Cut(Enum):
    """Which calls at an engine are given up."""

    NOTHING = "nothing"
    UNBEGUN = "those without a byte of an answer"
    ALL = "all"


def step_silence(
    since: Seconds | None, *, down: bool, silent: Seconds, now: Seconds, rules: SilenceRules
) -> tuple[Seconds | None, Cut]:
    """Return since when an engine is lost (None: it is not), and what is to be cut now.

    `since` is what the look before returned; `down` whether probes or breaker declared it down,
    `silent` how long nothing came from it. The first look that finds it lost cuts nothing: after
    the gateway itself was suspended all time-outs are over at once, and the answers are read next.
    """
    if not down or silent < rules.patience:
        return None, Cut.NOTHING
    if since is None:
        return now, Cut.NOTHING
    return since, Cut.ALL if now - since >= rules.stream_grace else Cut.UNBEGUN
