"""`prfaas`, and on SIGUSR1 one line on stderr that counts its tasks by what they run.

python -m tests.soak.gateway serve --config F
"""

from __future__ import annotations

import asyncio
import json
import runpy
import signal
import sys
from collections import Counter
from types import FrameType


def tell_tasks(_number: int, _frame: FrameType | None) -> None:
    """Count the tasks of the loop that runs now."""
    loop = asyncio._get_running_loop()
    names: Counter[str] = Counter()
    if loop is not None:
        for task in asyncio.all_tasks(loop):
            names[getattr(task.get_coro(), "__qualname__", "?")] += 1
    sys.stderr.write(f"tasks {json.dumps(names)}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell_tasks)
    runpy.run_module("router", run_name="__main__", alter_sys=True)
