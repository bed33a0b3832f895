"""What a reload leaves behind."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

from router.compose.gateway import build_gateway
from router.settings import load
from router.settings.reloads import settle
from tests.fakes.configurations import SOUND, write_configuration

_BEFORE = 3
"""Reloads after which every cache that fills once is full."""

_RELOADS = 50


def count_ours() -> Counter[str]:
    """Count the objects of our own types, and functions that routes and closures are made of."""
    gc.collect()
    counted: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        module = getattr(each, "__module__", None) if kind.__name__ == "function" else None
        owner = module or kind.__module__
        if isinstance(owner, str) and owner.partition(".")[0] in {"router", "kvmeta", "fastapi"}:
            counted[f"{owner}.{kind.__qualname__}"] += 1
    return counted


async def test_reloads_leave_nothing_behind(tmp_path: Path) -> None:
    """After fifty configurations there is as much of everything as after three."""
    loaded = load(write_configuration(tmp_path), {})
    gateway = build_gateway(loaded)

    async def reload(tokens: int) -> None:
        nonlocal loaded
        text = SOUND.replace("tokens: 19400", f"tokens: {tokens}")
        settled = settle(loaded, load(write_configuration(tmp_path, text), {}))
        await gateway.reload(settled)
        loaded = settled.loaded

    for number in range(_BEFORE):
        await reload(1000 + number)
    before = count_ours()
    for number in range(_RELOADS):
        await reload(2000 + number)
    grown = {kind: count for kind, count in (count_ours() - before).items() if count >= _RELOADS}
    assert not grown
