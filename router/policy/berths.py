"""Where a prompt that waits may be prefilled, and whose lane it waits in. Pure.

What `router.control.slack` orders is found here: for the gateway from a snapshot, and the choice of
the lane for the simulator as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.domain.units import Seconds

HOLDS_A_GOOD_PART: Final = 1.5
"""A prompt waits for the instance that holds its prefix where that saves a third of its prefill."""


def choose_lane(
    side: str, whole: Seconds, works: Iterable[tuple[str, Seconds]]
) -> tuple[str, Seconds]:
    """Return the lane of a prompt on one side of t, and its prefill time there.

    `side` is the cluster, which would take `whole` with nothing cached; `works` are its instances'
    prefill times with what they hold.
    """
    lane, work = side, whole
    for instance, seconds in works:
        if seconds * HOLDS_A_GOOD_PART < whole and seconds < work:
            lane, work = instance, seconds
    return lane, work
