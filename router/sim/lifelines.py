"""Processes that are not to outlive the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have this process sent a signal once the thread that started it ends, killed or not.

    `parent` is that thread's process; if it has ended before this call, the signal comes at once.
    Linux alone can do so; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
