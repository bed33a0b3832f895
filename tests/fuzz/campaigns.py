"""Throws spoilt inputs at a whole gateway and says what it must never do.

Each input is made from the campaign's seed, its kind and its number alone, so that any of them can
be thrown again: a `Finding` names all three.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import httptools

from router.domain.units import Seconds
from router.sim.tokenizer import locate_tokenizer
from tests.fakes.live_engines import LiveEngine, completed, prefilled
from tests.fakes.raw_clients import calling
from tests.fakes.scripted_engine import Recorded, Script
from tests.fakes.systems import MODEL, System, scripted_system
from tests.fuzz.answers import AnswerInput, make_answer_input, make_count, make_cut_input
from tests.fuzz.requests import COUNTED_HERE, WireInput, make_body_input, make_wire_input

Kind = Literal["wire", "body", "answer", "cut"]
KINDS: Sequence[Kind] = ("wire", "body", "answer", "cut")

DEADLINE: Seconds = 30.0
"""No input may take longer. Each time-out of the gateway under test is half a second."""

_SOON: Seconds = 0.3
"""A request that takes longer to be sent may meet a connection that was closed for idling."""

_AT_ONCE = 24
_OURS = re.compile(rb"HTTP/1\.1 (500|501|505)")
_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"
_ALLOWED = frozenset({502, 503, 504})
_SETTINGS: Mapping[str, Any] = {
    "models": [
        {"name": MODEL, "revision": "1", "tokenizer": {"kind": "engine"}},
        {
            "name": COUNTED_HERE,
            "revision": "1",
            "tokenizer": {"kind": "hf", "path": str(locate_tokenizer())},
        },
    ],
    "scheduler": {"decision_timeout_ms": 500},
    "server": {
        "max_body_bytes": 2_000_000,
        "timeouts": {
            "head_seconds": 0.6,
            "body_seconds": 0.6,
            "idle_seconds": 0.4,
            "stall_seconds": 2,
        },
    },
    "upstream": {
        "connect_timeout_seconds": 2,
        "first_byte_timeout_seconds": 0.5,
        "idle_timeout_seconds": 0.5,
        "probe": {"interval_seconds": 30},
        "breaker": {"failures": 1_000_000},
    },
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What an input brought about that must not be."""

    seed: int
    kind: str
    number: int
    what: str

    def __str__(self) -> str:
        again = f"make fuzz ARGS='--seed {self.seed} --kind {self.kind} --number {self.number}'"
        return f"{self.what}\n  again: {again}"


class FuzzedEngine(LiveEngine):
    """An engine that answers as each input says, keeps no record, and reads nothing of a body.

    How it counts a prompt depends on that prompt, so that an input thrown again finds it the same.
    """

    def __init__(self, name: str, scripts: Mapping[str, tuple[Script, Script]]) -> None:
        super().__init__(name)
        self._scripts = scripts

    async def _record(self, request: Recorded) -> Script:
        path = request.path.partition("?")[0]
        if path.endswith(("/render", "/tokenize")):
            return make_count(Random(zlib.crc32(request.body)), len(request.body))
        source = self._paths.get(path)
        if source is not None:
            return source(request) if callable(source) else source
        ids = [value for name, value in request.headers if name.lower() == b"x-request-id"]
        stem = ids[0].decode("latin-1").partition("-")[0] if ids else ""
        prefills = b'"do_remote_decode":true' in request.body.replace(b" ", b"")
        if stem in self._scripts:
            return self._scripts[stem][0 if prefills else 1]
        return prefilled() if prefills else completed(self.name, MODEL)


@dataclass
class Campaign:
    """One gateway under fire. `findings` are what it did wrong, `answers` counts what it said."""

    system: System
    seed: int
    scripts: dict[str, tuple[Script, Script]]
    findings: list[Finding] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)
    logged: list[str] = field(default_factory=list)

    async def throw(self, inputs: Iterable[tuple[Kind, int]]) -> None:
        """Throw inputs, several at once, until all are answered or a deadline is over."""
        queue = iter(inputs)

        async def work() -> None:
            for kind, number in queue:
                await self._throw_one(kind, number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(work())

    async def _throw_one(self, kind: Kind, number: int) -> None:
        rng = Random(f"{self.seed}:{kind}:{number}")
        try:
            async with asyncio.timeout(DEADLINE):
                match kind:
                    case "wire":
                        said = await self._send(make_wire_input(rng))
                        self._judge_statuses(kind, number, said)
                    case "body":
                        said = await self._send(make_body_input(rng))
                        self._judge_answer(kind, number, said)
                    case "answer":
                        said = await self._ask(f"a{number}", make_answer_input(rng))
                        self._judge_answer(kind, number, said)
                        self._judge_word(kind, number, said)
                    case "cut":
                        said = await self._ask(f"c{number}", make_cut_input(number))
                        self._judge_answer(kind, number, said)
                        self._judge_word(kind, number, said)
                        self._judge_end(kind, number, said)
        except TimeoutError:
            self._find(kind, number, f"no end within {DEADLINE:g} s")
        if self.logged:
            self._find(kind, number, "logged about then: " + self.logged.pop())
            self.logged.clear()

    async def _send(self, thrown: WireInput) -> bytes:
        """Send the pieces; return what comes until the gateway closes, which it must."""
        async with calling(self.system.url) as client:
            try:
                for piece in thrown.pieces:
                    await client.send(piece)
                    await asyncio.sleep(0)
                if thrown.ending == "leave":
                    return b""
                if thrown.ending == "half-close":
                    client.writer.write_eof()
                return await client.read_rest(DEADLINE)
            except ConnectionError:
                return b""  # it may cut what goes on and on

    async def _ask(self, stem: str, thrown: AnswerInput) -> bytes:
        """Ask, and return what comes; nothing where the gateway resets a whole request."""
        self.scripts[stem] = (thrown.prefill, thrown.decode)
        otherwise = _LATE  # a busy machine may keep a request longer than the gateway waits
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with calling(self.system.url) as client:
                headers = {"x-request-id": stem, "connection": "close"}
                await client.ask(thrown.path, thrown.body, headers)
                if now() - began < _SOON:
                    otherwise = b""
                return await client.read_rest(DEADLINE) or otherwise
        except ConnectionError:
            return otherwise
        finally:
            del self.scripts[stem]

    def _judge_statuses(self, kind: Kind, number: int, said: bytes) -> None:
        if found := _OURS.search(said):
            self._find(kind, number, f"answered {found[0].decode()}: {said[:300]!r}")

    def _judge_answer(self, kind: Kind, number: int, said: bytes) -> None:
        """A single answer is HTTP as far as it goes, and no failure of the gateway's own."""
        reader = _AnswerReader()
        try:
            reader.read(said)
        except httptools.HttpParserError as error:
            self._find(kind, number, f"answered what is no HTTP ({error}): {said[:300]!r}")
            return
        for status in reader.statuses:
            self.answers[status] += 1
            if status >= 500 and status not in _ALLOWED:
                self._find(kind, number, f"answered {status}: {said[:600]!r}")

    def _judge_word(self, kind: Kind, number: int, said: bytes) -> None:
        """A whole request is told something, whatever becomes of it."""
        if not said:
            self._find(kind, number, "closed without a word")

    def _judge_end(self, kind: Kind, number: int, said: bytes) -> None:
        """What was cut short is told: no answer looks whole that is not (CASES R03)."""
        if said != _LATE and b'"error"' not in said and b"data: [DONE]\n" not in said:
            self._find(kind, number, f"a cut answer that says nothing of it: {said[-300:]!r}")

    def _find(self, kind: str, number: int, what: str) -> None:
        self.findings.append(Finding(self.seed, kind, number, what))

    # -- what is left

    async def settle(self) -> None:
        """Wait until nothing is left of any request; what stays is a finding."""
        gateway = self.system.gateway
        claims: Mapping[str, Callable[[], bool]] = {
            "client connections": lambda: not self.system.edge.connections,
            "bytes of bodies": lambda: gateway.budget.held == 0,
            "requests in flight": lambda: all(not m.inflight for m in gateway.core.fleet.members),
            "booked bytes": lambda: not any(s.booked for s in gateway.core.links.states),
            "engine connections": lambda: all(
                engine.open_connections <= 2 for engine in self.system.engines.values()
            ),
        }
        for name, holds in claims.items():
            try:
                async with asyncio.timeout(20):
                    while not holds():  # noqa: ASYNC110 - what is waited for sets no event
                        await asyncio.sleep(0.02)
            except TimeoutError:
                self._find("all", 0, f"{name} are left")

    def footprint(self) -> Footprint:
        """Return what the process holds now."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return Footprint(
            tasks=len(asyncio.all_tasks()),
            files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            memory=pages * os.sysconf("SC_PAGESIZE"),
        )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds: tasks, open files, bytes."""

    tasks: int
    files: int
    memory: int


class _AnswerReader:
    """Reads a client's bytes as HTTP responses."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self._parser = httptools.HttpResponseParser(self)

    def read(self, data: bytes) -> None:
        """Raises HttpParserError for what is no HTTP; a cut answer is some as far as it goes."""
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())


def inputs_of(kinds: Sequence[Kind], count: int, first: int = 0) -> Iterable[tuple[Kind, int]]:
    """Return `count` inputs, the kinds in turn."""
    return zip(
        itertools.islice(itertools.cycle(kinds), count),
        (first + number // len(kinds) for number in range(count)),
        strict=True,
    )


class _Ear(logging.Handler):
    """Keeps what is logged as an error, or with an exception."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self._heard = heard
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self._heard.append(self.format(record)[-2000:])


@asynccontextmanager
async def campaign(directory: Path, seed: int) -> AsyncIterator[Campaign]:
    """A gateway under fire over three engines, for the time of the block."""
    scripts: dict[str, tuple[Script, Script]] = {}

    def make_engine(name: str) -> LiveEngine:
        return FuzzedEngine(name, scripts)

    async with scripted_system(directory, make_engine=make_engine, **_SETTINGS) as system:
        running = Campaign(system, seed, scripts)
        ear = _Ear(running.logged)
        root, loop = logging.getLogger(), asyncio.get_running_loop()
        root.addHandler(ear)
        loop.set_exception_handler(
            lambda _, told: running.logged.append(f"{told['message']}: {told.get('exception')!r}")
        )
        try:
            yield running
        finally:
            loop.set_exception_handler(None)
            root.removeHandler(ear)
