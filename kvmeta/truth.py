"""Whether a source keeps its word: what was believed of it, against what its engine then found.

An engine reports how much of a prompt it had cached. Below the belief means that the index counts
on what is not there: the costly error, since a long prefill then stays where it was thought short.
One such answer is no fault: an eviction may be on its way. Many in a short time are: a lost event
that nobody noticed, a wrong layout, an engine configured otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 16
"""Answers looked back on: enough to tell a rate, few enough to notice within a burst."""

TOO_OFTEN = 6
"""Over-statements in the window at which a source is demoted. Where an eviction is on its way in
one of fifty answers, six in sixteen come by chance once in two million (binomial tail, 5e-7); a
source that is wrong half of the time is found within some dozen answers, one that always is with
its sixth."""

_MASK = (1 << WINDOW) - 1


@dataclass(frozen=True, slots=True)
class TruthRecord:
    """The latest answers of one source as bits, the newest lowest; a bit set means over-stated."""

    overs: int = 0


def weigh_answer(record: TruthRecord, believed: int, found: int) -> tuple[TruthRecord, bool]:
    """Return the record after one answer and whether the source is to be demoted now.

    `believed` and `found` are in tokens. Demoting begins a new record: a source that a new epoch
    has healed needs as many new faults to be demoted again.
    """
    overs = (record.overs << 1 | (believed > found)) & _MASK
    if overs.bit_count() >= TOO_OFTEN:
        return TruthRecord(), True
    return TruthRecord(overs), False
