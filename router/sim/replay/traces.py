"""Traces of real traffic: when requests came, how long they were, what they shared.

The format is that of the Mooncake release (FAST '25): one JSON object a line with `timestamp` in
milliseconds, `input_length` and `output_length` in tokens, and `hash_ids`, one id for each block of
512 prompt tokens. Equal ids are equal blocks, so common leading ids are a shared prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from router.domain.errors import RouterError
from router.domain.units import Seconds, Tokens

BLOCK_TOKENS: Final[Tokens] = 512
"""Prompt tokens that one hash id stands for."""


class TraceFault(RouterError):
    """A line of a trace cannot be used. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace. `at` counts from the trace's first request."""

    index: int
    at: Seconds
    input_tokens: Tokens
    output_tokens: Tokens
    blocks: tuple[int, ...]


class _Line(msgspec.Struct):
    """A line as it is written. Further fields are ignored."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]


def parse_trace(lines: Iterable[bytes]) -> Iterator[TraceRequest]:
    """Yield the requests of a trace, in order. Empty lines are skipped.

    Raises TraceFault for the first line that is malformed, goes back in time, or lists another
    number of ids than its length needs.
    """
    decoder = msgspec.json.Decoder(_Line)
    index, start, before = 0, 0.0, 0.0
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceFault(number, f"not a request: {error}") from error
        if index == 0:
            start = before = line.timestamp
        if line.timestamp < before:
            raise TraceFault(number, f"timestamp {line.timestamp:g} after {before:g}")
        before = line.timestamp
        needed = -(-line.input_length // BLOCK_TOKENS)
        if len(line.hash_ids) != needed:
            raise TraceFault(
                number,
                f"input_length {line.input_length} needs {needed} hash_ids,"
                f" has {len(line.hash_ids)}",
            )
        yield TraceRequest(
            index=index,
            at=(line.timestamp - start) / 1000,
            input_tokens=line.input_length,
            output_tokens=max(1, line.output_length),
            blocks=tuple(line.hash_ids),
        )
        index += 1
