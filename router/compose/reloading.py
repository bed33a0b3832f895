"""Reloads a configuration when it is told to, or when a file of it has changed.

What is wrong is told once, and leaves what is in force as it is.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from router.adapters.files import read_states
from router.control.file_watch import FileStates, FileWatch, step_looked
from router.domain.units import Seconds
from router.settings import Loaded, SettingsError
from router.settings.reloads import Settled, fingerprint_of, is_same, settle

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS: Final[Seconds] = 1.0
"""A few calls of stat a second; a change is in force after two to three."""


class ReloadRefused(Exception):
    """A configuration that is sound by itself cannot be taken over; one readable line."""


class Reloadable(Protocol):
    """What runs by a configuration, and can go on by another one."""

    async def reload(self, settled: Settled) -> None:
        """Take over a configuration as a whole. Raises ReloadRefused, having changed nothing."""
        ...

    def note_refused(self, message: str) -> None:
        """Told of each configuration that cannot be taken over."""
        ...


class Reloads:
    """Keeps `target` at what the files of its configuration say."""

    def __init__(
        self,
        loaded: Loaded,
        target: Reloadable,
        *,
        load: Callable[[], Loaded],
        look_seconds: Seconds = _LOOK_SECONDS,
    ) -> None:
        """`load` reads the files again, and raises SettingsError."""
        self._loaded = loaded
        self._target = target
        self._load = load
        self._look_seconds = look_seconds
        self._asked = asyncio.Event()
        self._files = loaded.files
        self._watch = FileWatch(read_states(loaded.files))
        self._restart_needed: tuple[str, ...] = ()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            asked = await self._wait()
            seen = await asyncio.to_thread(read_states, self._files)
            self._watch, changed = step_looked(self._watch, seen)
            if asked or changed:
                await self._reload()
                self._watch = FileWatch(self._as_loaded(seen))

    @contextmanager
    def on_hangup(self) -> Iterator[None]:
        """Reload at each SIGHUP for the time of the block."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._asked.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    async def _wait(self) -> bool:
        """Wait until the next look; True where a reload was asked for."""
        try:
            async with asyncio.timeout(self._look_seconds):
                await self._asked.wait()
        except TimeoutError:
            return False
        self._asked.clear()
        return True

    async def _reload(self) -> None:
        try:
            settled = settle(self._loaded, await asyncio.to_thread(self._load))
            same = is_same(settled.loaded, self._loaded)
            if same and settled.restart_needed == self._restart_needed:
                _LOG.info("the configuration is as it was%s", _needing(settled))
                return
            await self._target.reload(settled)
        except (SettingsError, ReloadRefused) as error:
            message = "; ".join(str(error).splitlines())
            _LOG.warning("the old configuration stays in force: %s", message)
            self._target.note_refused(message)
            return
        self._loaded, self._restart_needed = settled.loaded, settled.restart_needed
        told = fingerprint_of(self._loaded)
        _LOG.info("configuration %s is in force%s", told, _needing(settled))

    def _as_loaded(self, seen: FileStates) -> FileStates:
        """Return the states of the files now watched, as they were before they were read."""
        known = dict(zip(self._files, seen, strict=True))
        self._files = self._loaded.files
        return tuple(
            known.get(path, state)
            for path, state in zip(self._files, read_states(self._files), strict=True)
        )


def _needing(settled: Settled) -> str:
    if not settled.restart_needed:
        return ""
    return f"; only a restart changes {', '.join(settled.restart_needed)}"
