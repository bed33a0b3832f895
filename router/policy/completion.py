"""Least expected completion: when to leave the side of t that a prompt belongs to.

The threshold tells which side serves a prompt of this length at the least cost to everybody; what
it cannot see are the queues of the moment. So t is the prior, and the other side takes the prompt
only where it would have the KV at the decode instance sooner by more than `PRIOR_WEIGHT` of the
prefill time at its own side. Without the margin (least completion alone) short prompts take the
offloading pool's time for small gains, which the next long ones pay for.
"""

from __future__ import annotations

from typing import Final

from router.domain.decision import InstanceView, LinkView, Reason
from router.domain.units import Bytes, Seconds, Tokens
from router.policy.gates import link_carries
from router.policy.select import expected_seconds

PRIOR_WEIGHT: Final = 0.5
"""The gain that leaving the own side must bring, in prefill times there.

Of 0, 1/4, 1/2, 1 and 2 it had the most goodput over the three loads of docs/evidence.md together.
"""


def arrive_seconds(candidate: InstanceView, link: LinkView, handoff: Bytes | None) -> Seconds:
    """Return when an offloaded prompt's KV would be at the decode instance, counted from now.

    It crosses while it is computed, behind all that is booked before it. A link of unknown
    bandwidth is taken for one that never binds.
    """
    computed = expected_seconds(candidate)
    if link.rate is None or handoff is None:
        return computed
    if link.rate <= 0:
        return float("inf")
    return max(computed, (link.booked + handoff) / link.rate)


def arrive_if_begun(work: Seconds, link: LinkView, handoff: Bytes | None) -> Seconds | None:
    """Return when a prompt's KV would be at its decode instance if its prefill began now.

    None where the link cannot take it now.
    """
    if not link_carries(link, handoff):
        return None
    if link.rate is None or handoff is None:
        return work
    return max(work, (link.booked + handoff) / link.rate) if link.rate > 0 else None


def correct_side(
    uncached: Tokens,
    threshold: Tokens,
    home: InstanceView | None,
    candidate: InstanceView | None,
    link: LinkView,
    handoff: Bytes | None,
) -> Reason:
    """Return `above_threshold` or `below_threshold`, or the `sooner_…` that leaves that side."""
    above = uncached > threshold
    prior = Reason.ABOVE_THRESHOLD if above else Reason.BELOW_THRESHOLD
    if home is None or candidate is None:
        return prior
    here, there = expected_seconds(home), arrive_seconds(candidate, link, handoff)
    if above:
        sooner = there - here > PRIOR_WEIGHT * candidate.prefill
        return Reason.SOONER_LOCAL if sooner else prior
    sooner = here - there > PRIOR_WEIGHT * home.prefill
    return Reason.SOONER_REMOTE if sooner else prior
