"""What clients ask for: the shapes of load, and request bodies that are the same in every run."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

MODEL = "mock"
CHUNKS = 128
"""Events of a stream before `[DONE]`."""

LONG_BYTES = 495_000
_SMALL_IDS = 160
_SMALL_CHARACTERS = 1000
_SMALL_PREFIXES = 16
_SMALL_BODIES = 512
_LONG_BODIES = 8
_LONG_SHARED = 0.2
_VOCABULARY = 100_000
_ID_BYTES = len("54321,")
_PROSE = """
the of and to in that is was for it with as his on be at by this had not are but from or have an
they which one you were all her she there would their we him been has when who will no more if out
so up said what its about than into them can only other time new some could cache prefill decode
cluster tokens between measured throughput scheduler bandwidth international responsibility 1984
27 3,000 (see below) don't
"""


class Form(StrEnum):
    """How a prompt is given."""

    IDS = "ids"
    """`/v1/completions` with token ids."""
    TEXT = "text"
    """`/v1/chat/completions` with messages."""

    @property
    def path(self) -> str:
        """Where such a body is sent."""
        return "/v1/completions" if self is Form.IDS else "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of load. `interval_us` is the time between a stream's events, 0 for no pause."""

    name: str
    connections: int
    long: bool = False
    streams: bool = False
    interval_us: int = 0
    seconds: float = 2.0
    warm_up: float = 0.5

    @property
    def events(self) -> int:
        """Events of one answer, `[DONE]` included; 0 for answers that are no streams."""
        return CHUNKS + 1 if self.streams else 0


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        each.name: each
        for each in (
            Workload("small-1", 1),
            Workload("small-32", 32),
            Workload("small-256", 256),
            Workload("burst", 16, streams=True),
            # A stream takes 1.3 s: all are under way when the window begins, and some end in it.
            Workload("paced", 64, streams=True, interval_us=10_000, seconds=3.0, warm_up=1.4),
            Workload("long-4", 4, long=True),
        )
    }
)
"""By name. `paced` offers 6,400 events a second; `long-4` has bodies of 495 KB."""


def small_prefixes() -> list[list[int]]:
    """Return the beginnings that small token-id prompts share, each half of a prompt."""
    chance = random.Random(3)  # noqa: S311 - bodies of a benchmark
    return [_draw_ids(chance, _SMALL_IDS // 2) for _ in range(_SMALL_PREFIXES)]


def long_prefix() -> list[int]:
    """Return the beginning that all long token-id prompts share."""
    chance = random.Random(5)  # noqa: S311 - bodies of a benchmark
    return _draw_ids(chance, int(LONG_BYTES * _LONG_SHARED) // _ID_BYTES)


def write_bodies(directory: Path, workloads: Iterable[Workload], forms: Iterable[Form]) -> None:
    """Write the bodies of workloads, one a line, to the files that `bodies_file` names."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        bodies_file(directory, workload, form): (workload, form)
        for workload, form in itertools.product(workloads, forms)
    }
    for file, (workload, form) in files.items():
        prompts = _long_prompts(form) if workload.long else _small_prompts(form)
        # As clients send it: without blanks, which some routers would drop in any case.
        lines = (
            json.dumps(_form_body(prompt, streams=workload.streams), separators=(",", ":"))
            for prompt in prompts
        )
        file.write_text("\n".join(lines))


def bodies_file(directory: Path, workload: Workload, form: Form) -> Path:
    """Return the file with a workload's bodies."""
    size = "long" if workload.long else "small"
    return directory / f"{form}-{size}{'-stream' if workload.streams else ''}.jsonl"


def _form_body(prompt: Mapping[str, object], *, streams: bool) -> dict[str, object]:
    return {
        "model": MODEL,
        **prompt,
        "max_tokens": CHUNKS,
        "temperature": 0.7,
        "stream": streams,
    }


def _small_prompts(form: Form) -> Iterator[dict[str, object]]:
    chance = random.Random(7)  # noqa: S311 - bodies of a benchmark
    prefixes = small_prefixes()
    shared = [make_text(chance, _SMALL_CHARACTERS // 2) for _ in prefixes]
    for number in range(_SMALL_BODIES):
        at = number % _SMALL_PREFIXES
        match form:
            case Form.IDS:
                yield {"prompt": prefixes[at] + _draw_ids(chance, _SMALL_IDS // 2)}
            case Form.TEXT:
                own = f"[{number}] {make_text(chance, _SMALL_CHARACTERS // 2)}"
                yield {"messages": _messages(shared[at], own)}


def _long_prompts(form: Form) -> Iterator[dict[str, object]]:
    chance = random.Random(11)  # noqa: S311 - bodies of a benchmark
    prefix = long_prefix()
    shared = make_text(chance, int(LONG_BYTES * _LONG_SHARED))
    for number in range(_LONG_BODIES):
        match form:
            case Form.IDS:
                own = _draw_ids(chance, LONG_BYTES // _ID_BYTES - len(prefix))
                yield {"prompt": prefix + own}
            case Form.TEXT:
                text = make_text(chance, LONG_BYTES - len(shared))
                yield {"messages": _messages(shared, f"[{number}] {text}")}


def _messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _draw_ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(10_000, _VOCABULARY) for _ in range(count)]


def make_text(chance: random.Random, characters: int) -> str:
    """Return English-like text of that many characters, with sentences and paragraphs."""
    words = _PROSE.split()
    parts: list[str] = []
    length = 0
    while length < characters:
        sentence = " ".join(chance.choices(words, k=chance.randrange(4, 20)))
        parts.append(sentence.capitalize() + chance.choice((". ", ". ", "? ", ".\n", ":\n\n")))
        length += len(parts[-1])
    return "".join(parts)[:characters]
