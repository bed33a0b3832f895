"""One sequence to generate, and what becomes known of it on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from router.sim.engines.answers import AnswerLimits
from router.sim.engines.block_cache import Holding
from router.sim.engines.handoffs import EarlyFlow
from router.sim.engines.transfers import JsonObject


@dataclass(frozen=True, slots=True)
class Generation:
    """One sequence to generate. `packed` is the prompt as unsigned 32-bit integers."""

    request_id: str
    prompt: list[int]
    packed: bytes
    limits: AnswerLimits
    salt: str | None = None
    lora: str | None = None
    transfer: JsonObject | None = None
    streams: bool = False
    reads_cache: bool = True
    choice: int = 0


@dataclass(frozen=True, slots=True)
class LookUp:
    """One cache look-up: how many batches had been published just before, and what it found.

    `limit` is the longest prefix that could have been found; `pulled` marks a decode leg, where
    recurrent groups take no part.
    """

    number: int
    request_id: str
    kv_event_seq: int
    cached_tokens: int
    prompt_tokens: int
    limit: int
    salted: bool
    pulled: bool


@dataclass(frozen=True, slots=True)
class Delta:
    """New output tokens with the text of each; the last delta says why it is the last."""

    tokens: list[int]
    pieces: list[str]
    finish_reason: str | None = None
    stop_reason: int | str | None = None


Emit = Callable[[Delta], Awaitable[None]]


@dataclass(slots=True)
class Run:
    """A generation under way and what became known of it."""

    generation: Generation
    look_up: LookUp | None = None
    cached_tokens: int = 0
    transfer: dict[str, object] | None = None
    holding: Holding | None = field(default=None, repr=False)
    early: EarlyFlow | None = field(default=None, repr=False)
