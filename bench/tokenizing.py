"""Measure in-process tokenizing against the plain tokenizer, and write the table.

Usage: python -m bench.tokenizing [--tokenizer DIR] [--rounds N] [--output FILE]

Processor time, of which ratios hold on a busy machine, too: in each round the plain tokenizer and
ours encode the same text, one right after the other.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.gateway.workloads import make_text
from router.adapters.tokenizers import HfTokenizer
from router.adapters.turn_tokenizers import TurnTokenizer
from router.sim.tokenizer import locate_tokenizer

TEXT_BYTES = 465_000
TURNS = 20
_QUESTION, _ANSWER = 4_000, 2_000
"""Characters of a turn: after twenty the prompt has 119,000."""
_IDEOGRAPHS = "敏捷的棕色狐狸，跳过了懒狗。它们在河边休息；"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing measured: milliseconds of the plain tokenizer and of ours, round by round."""

    name: str
    plain: tuple[float, ...]
    ours: tuple[float, ...]

    def tell(self) -> str:
        """Return the table's line; the ratio is the median of the rounds' own."""
        ratio = statistics.median(a / b for a, b in zip(self.plain, self.ours, strict=True))
        plain, ours = statistics.median(self.plain), statistics.median(self.ours)
        return f"| {self.name} | {plain:,.1f} | {ours:,.2f} | {ratio:.1f} |"


def milliseconds(call: Callable[[str], object], texts: Iterable[str]) -> float:
    """Return the processor time of calls with each text, of all threads."""
    began = time.process_time()
    for text in texts:
        call(text)
    return (time.process_time() - began) * 1e3


def measure(
    name: str,
    plain: HfTokenizer,
    ours: TurnTokenizer,
    texts: Callable[[], Iterator[str]],
    rounds: int,
) -> Line:
    """Encode what `texts` gives, which is another text in every round, by both."""
    pairs = []
    for _ in range(rounds):
        said = list(texts())
        for text in said:
            expected = plain.encode(text, add_special_tokens=False)
            found = ours.encode(text, add_special_tokens=False, scope="check")
            assert list(found) == expected  # noqa: S101 - measured right
        pairs.append((milliseconds(plain.encode, said), milliseconds(ours.encode, said)))
    first, second = zip(*pairs, strict=True)
    return Line(name, first, second)


def converse(tokenizer: HfTokenizer, chance: random.Random) -> Iterator[str]:
    """Yield the prompt of each turn of one conversation."""
    messages: list[dict[str, object]] = []
    for _ in range(TURNS):
        messages.append({"role": "user", "content": make_text(chance, _QUESTION)})
        yield tokenizer.render_chat(messages)
        messages.append({"role": "assistant", "content": make_text(chance, _ANSWER)})


def run(directory: Path, rounds: int) -> list[str]:
    """Measure everything and return the page's lines."""
    plain = HfTokenizer.load(directory)
    document = HfTokenizer.read_document(directory)
    ours = TurnTokenizer("bench", plain, max_bytes=1 << 26, document=document)
    began = time.process_time()
    ours.improve()
    proving = (time.process_time() - began) * 1e3
    chance = random.Random(23)  # noqa: S311 - texts of a benchmark

    def long() -> Iterator[str]:
        yield make_text(chance, TEXT_BYTES)

    def ideographs() -> Iterator[str]:
        yield "".join(chance.choices(_IDEOGRAPHS, k=TEXT_BYTES // 3))

    remembered = make_text(chance, TEXT_BYTES)
    ours.encode(remembered)
    lines = [
        measure(f"text of {TEXT_BYTES // 1000} KB, new", plain, ours, long, rounds),
        measure(f"ideographs of {TEXT_BYTES // 1000} KB, new", plain, ours, ideographs, rounds),
        measure(
            f"text of {TEXT_BYTES // 1000} KB, said before",
            plain,
            ours,
            lambda: iter([remembered]),
            rounds,
        ),
        measure(
            f"a conversation of {TURNS} turns, all its prompts",
            plain,
            ours,
            lambda: converse(plain, chance),
            rounds,
        ),
    ]
    return tell_page(lines, plain, f"{ours.describe()['encoder']}", proving, rounds)


def tell_page(
    lines: Sequence[Line], plain: HfTokenizer, encoder: str, proving: float, rounds: int
) -> list[str]:
    """Return the page's lines; `proving` took so many milliseconds."""
    return [
        "# Tokenizing in process, measured",
        "",
        f"Written by `python -m bench.tokenizing` on {platform.machine()}, {os.cpu_count()}"
        f" processors, Python {platform.python_version()}, tokenizers {version('tokenizers')},"
        f" tiktoken {version('tiktoken')}; a vocabulary of {plain.vocabulary_size:,}; load average"
        f" {os.getloadavg()[0]:.1f}, which processor times bear. Medians of {rounds} rounds.",
        "",
        "| what | plain tokenizer, ms | ours, ms | ratio |",
        "|---|---|---|---|",
        *(line.tell() for line in lines),
        "",
        f"Encoded by {encoder}, which took {proving:,.0f} ms to prove once, beside"
        " requests. Ids are compared in every round.",
        "",
    ]


def main() -> int:
    """Parse the arguments, measure, write and print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokenizer", type=Path, default=locate_tokenizer())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks/tokenizing.md"))
    arguments = parser.parse_args()
    page = "\n".join(run(arguments.tokenizer, arguments.rounds))
    arguments.output.write_text(page)
    sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
