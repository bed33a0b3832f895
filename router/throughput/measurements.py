"""What makes a measured prefill time count, and what becomes of several of them.

An engine's own counters, read before and after a request, prove that it computed this prompt whole
and did nothing else meanwhile. What is not proved so is refused: a profile of cached or crowded
prefills would make every plan too hopeful, or too sad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from router.domain.errors import RouterError
from router.domain.units import Bytes, Seconds, Tokens

FIRST_LENGTH: Final[Tokens] = 1024
LONGEST_SUGGESTED: Final[Tokens] = 131_072
"""Lengths that are measured where none are asked for double from one to the other: the paper's
table 5 spans 1K to 128K tokens."""

ANSWER_TOKENS: Final[Tokens] = 1
"""A prefill ends with its first token; more of them would be decoding."""


class NotMeasured(RouterError):
    """A figure could not be measured, or what was measured is not what a profile means."""


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """An engine's counters at one moment, summed over its ranks; None where it has none such.

    `prefills` and `prefill_seconds` are count and sum of the time that requests spent in the
    PREFILL phase; `computed_tokens` leaves out every token whose KV came from a cache or a peer.
    """

    running: float
    waiting: float
    prompt_tokens: float
    generated_tokens: float
    computed_tokens: float | None = None
    prefills: float | None = None
    prefill_seconds: Seconds | None = None
    transferred_bytes: float | None = None

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return self.running == 0 and self.waiting == 0


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """What an answer says of its prompt. None is what the engine did not tell."""

    prompt_tokens: Tokens | None
    output_tokens: Tokens | None
    cached_tokens: Tokens | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Repeated prefill times of one length, in seconds."""

    tokens: Tokens
    samples: tuple[Seconds, ...]

    @property
    def seconds(self) -> Seconds:
        """The median: one hiccup does not move it."""
        return median(self.samples)

    @property
    def spread(self) -> float:
        """Longest less shortest, over the median: 0.1 is ten per cent. 0 for one sample."""
        middle = self.seconds
        return (max(self.samples) - min(self.samples)) / middle if middle > 0 else 0.0


def suggest_lengths(max_model_len: Tokens) -> tuple[Tokens, ...]:
    """Return lengths that double from 1,024 tokens to what the model takes, 131,072 at most."""
    lengths: list[Tokens] = []
    length = FIRST_LENGTH
    while length <= LONGEST_SUGGESTED and length + ANSWER_TOKENS <= max_model_len:
        lengths.append(length)
        length *= 2
    return tuple(lengths)


def check_idle(counters: EngineCounters) -> None:
    """Raise NotMeasured while an engine works for somebody else."""
    if not counters.idle:
        raise NotMeasured(
            f"the engine is busy: {counters.running:.0f} requests run and {counters.waiting:.0f} "
            "wait; take it out of traffic first"
        )


def check_answer(answer: PrefillAnswer, tokens: Tokens) -> None:
    """Raise NotMeasured unless an answer is one token after a prompt of which nothing was cached.

    A cache that the answer does not tell of is left to the counters.
    """
    if answer.prompt_tokens != tokens:
        raise NotMeasured(
            f"the engine read {answer.prompt_tokens} prompt tokens where {tokens} were sent"
        )
    if answer.cached_tokens:
        raise NotMeasured(
            f"{answer.cached_tokens} of {tokens} tokens came from a cache, so that is no full "
            "prefill; ask the engine itself, not through a cache that shares prompts"
        )
    if answer.output_tokens != ANSWER_TOKENS:
        raise NotMeasured(
            f"an answer of {answer.output_tokens} tokens is not the end of a prefill; one was asked"
        )


def check_alone(before: EngineCounters, after: EngineCounters, tokens: Tokens) -> None:
    """Raise NotMeasured unless an engine computed exactly this prompt between two readings."""
    prompts = after.prompt_tokens - before.prompt_tokens
    generated = after.generated_tokens - before.generated_tokens
    if prompts < 0 or generated < 0:
        raise NotMeasured("the engine restarted while it was measured")
    if prompts != tokens or generated != ANSWER_TOKENS:
        raise NotMeasured(
            f"the engine served others while it was measured ({prompts:.0f} prompt and "
            f"{generated:.0f} output tokens instead of {tokens} and {ANSWER_TOKENS}); take it out "
            "of traffic first"
        )


def check_computed(
    before: EngineCounters, after: EngineCounters, answer: PrefillAnswer, tokens: Tokens
) -> None:
    """Raise NotMeasured unless counters or answer prove that every token was computed."""
    if before.computed_tokens is None or after.computed_tokens is None:
        if answer.cached_tokens is None:
            raise NotMeasured(
                "the engine tells neither by cached_tokens nor by its metrics what it had cached; "
                "start it with --enable-prompt-tokens-details"
            )
        return
    computed = after.computed_tokens - before.computed_tokens
    if computed != tokens:
        raise NotMeasured(
            f"the engine computed {computed:.0f} of {tokens} tokens, so that is no full prefill"
        )


def read_prefill_seconds(before: EngineCounters, after: EngineCounters) -> Seconds:
    """Return the prefill time of the one request between two readings. Raises NotMeasured."""
    if (
        before.prefills is None
        or after.prefills is None
        or before.prefill_seconds is None
        or after.prefill_seconds is None
    ):
        raise NotMeasured(
            "the engine has no vllm:request_prefill_time_seconds; measure with --clock client"
        )
    count = after.prefills - before.prefills
    seconds = after.prefill_seconds - before.prefill_seconds
    if count != 1 or seconds <= 0:
        raise NotMeasured(
            f"the engine counted {count:.0f} prefills of {seconds:.3g} s together where one was "
            "sent; measure with --clock client"
        )
    return seconds


def check_measurements(measurements: Sequence[Measurement], max_spread: float) -> None:
    """Raise NotMeasured for repeats that differ too much, or times that fall with length."""
    for measurement in measurements:
        if measurement.spread > max_spread:
            raise NotMeasured(
                f"{measurement.tokens} tokens took {min(measurement.samples):.4g} to "
                f"{max(measurement.samples):.4g} s, a spread of {measurement.spread:.0%} where "
                f"{max_spread:.0%} is allowed; see what disturbs the engine, or --max-spread"
            )
    for shorter, longer in pairwise(measurements):
        if longer.seconds < shorter.seconds:
            raise NotMeasured(
                f"{longer.tokens} tokens took less time ({longer.seconds:.4g} s) than "
                f"{shorter.tokens} ({shorter.seconds:.4g} s): noise; choose lengths further "
                "apart, or more --repeats"
            )


def check_sizes(lengths: Sequence[Tokens], sizes: Sequence[Bytes]) -> None:
    """Raise NotMeasured for KV bytes that are none, or fall with length."""
    known = list(zip(lengths, sizes, strict=True))
    for tokens, size in known:
        if size <= 0:
            raise NotMeasured(f"{tokens} tokens had {size} bytes of KV")
    for (shorter, smaller), (longer, larger) in pairwise(known):
        if larger < smaller:
            raise NotMeasured(
                f"{longer} tokens moved fewer bytes ({larger}) than {shorter} ({smaller}): a part "
                "of that prompt was there already"
            )
