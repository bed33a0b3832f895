"""Shares of an instance's decode slots, for processes that hand them out by themselves. Pure.

Each process has a *share* of an instance's slots: so many requests it lets decode there without
asking anybody. Shares never sum to more than the instance has, since a process only ever takes what
nobody has and gives back what it does not use.

While there is enough, each keeps some to spare, so that a request waits for nobody. Where somebody
wants more than he has, all strive for the **max-min fair division** (Bertsekas, Gallager 1992, 6.5)
of what there is: nobody gets more than he can use, and nobody gets less than another who has more
than he. What does not divide goes round by turns, so that of two who want the last slot each has it
in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What one process has of an instance's slots, and how many it could use now."""

    share: int = 0
    demand: int = 0


def divide(total: int, demands: Mapping[str, int], turn: int) -> dict[str, int]:
    """Return the max-min fair division of `total` slots; the remainder begins at `turn`.

    Sums to the lesser of `total` and all demands.
    """
    shares = dict.fromkeys(demands, 0)
    left = total
    hungry = sorted(name for name, demand in demands.items() if demand > 0)
    while hungry and left >= len(hungry):
        each = left // len(hungry)
        for name in hungry:
            given = min(each, demands[name] - shares[name])
            shares[name] += given
            left -= given
        hungry = [name for name in hungry if shares[name] < demands[name]]
    for place in range(left if hungry else 0):
        shares[hungry[(turn + place) % len(hungry)]] += 1
    return shares


def is_contended(total: int, mine: Claim, others: Mapping[str, Claim]) -> bool:
    """Whether somebody wants more than he has, or all have more than there is."""
    claims = (mine, *others.values())
    wanting = any(claim.demand > claim.share for claim in claims)
    return wanting or sum(claim.share for claim in claims) > total


def aim(total: int, me: str, mine: Claim, others: Mapping[str, Claim], turn: int) -> int:
    """Return the share that a process should strive for.

    Half of the slots are to spare in equal parts, the other half is for whoever needs them.
    """
    if is_contended(total, mine, others):
        demands = {me: mine.demand, **{name: claim.demand for name, claim in others.items()}}
        return divide(total, demands, turn)[me]
    return min(total, mine.demand + total // (2 * (1 + len(others))))
