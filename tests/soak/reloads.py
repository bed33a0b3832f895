"""Reloads of the configuration under traffic: other limits, an engine less, a broken file."""

from __future__ import annotations

import asyncio
import copy
import random
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

from tests.fakes.processes import RunningCommand
from tests.fakes.systems import Document


class Reloading:
    """Changes the file, has it read, and puts it back."""

    def __init__(self, path: Path, gateway: RunningCommand, chance: random.Random) -> None:
        self._path = path
        self._gateway = gateway
        self._chance = chance
        self._text = path.read_text("utf-8")
        self._document: Document = yaml.safe_load(self._text)

    async def run(self, noting: Callable[[str], AbstractContextManager[None]]) -> None:
        """Reload now and then until cancelled; `noting` is told while something is changed."""
        while True:
            await asyncio.sleep(self._chance.uniform(20.0, 40.0))
            with noting("reload"):
                await self.reload()

    async def reload(self) -> None:
        """Change something for a while. A broken file must leave everything in force."""
        change = self._chance.choice(sorted(_CHANGES))
        self._put(_CHANGES[change](copy.deepcopy(self._document)))
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        await self.restore()

    async def restore(self) -> None:
        """Put the first configuration into force again."""
        self._put(self._text)

    def _put(self, text: str) -> None:
        """Replace the file in one step, and tell the gateway."""
        written = self._path.with_suffix(".new")
        written.write_text(text, "utf-8")
        written.replace(self._path)
        self._gateway.send(signal.SIGHUP)


def _change_limits(document: Document) -> str:
    for tenant in document["tenants"]:
        for name in ("requests_per_minute", "max_concurrency"):
            if name in tenant:
                tenant[name] *= 2
    return yaml.safe_dump(document)


def _change_threshold(document: Document) -> str:
    document["scheduler"]["threshold"]["tokens"] = 700
    return yaml.safe_dump(document)


def _drop_engine(document: Document) -> str:
    for cluster in document["clusters"]:
        if len(cluster["instances"]) > 1:
            cluster["instances"].pop()
    return yaml.safe_dump(document)


def _break_file(_: Document) -> str:
    return "models: [}\n"


def _break_sense(document: Document) -> str:
    document["links"][0]["to"] = "nowhere"
    return yaml.safe_dump(document)


_CHANGES: dict[str, Callable[[Document], str]] = {
    "limits": _change_limits,
    "threshold": _change_threshold,
    "engine": _drop_engine,
    "broken": _break_file,
    "senseless": _break_sense,
}
