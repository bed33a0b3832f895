"""What clients ask, drawn from a seed: every API, long and short prompts, several tenants."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from tests.fakes.systems import MODEL
from tests.soak.visits import Manner, Visit

Document = dict[str, Any]

KEYS = {"alpha": "key-alpha", "beta": "key-beta", "gamma": "key-gamma", "delta": "key-delta"}

TENANTS: list[Document] = [
    {"name": "alpha", "api_keys": [KEYS["alpha"]], "weight": 2},
    {"name": "beta", "api_keys": [KEYS["beta"]], "requests_per_minute": 240},
    {"name": "gamma", "api_keys": [KEYS["gamma"]], "max_concurrency": 2},
    {"name": "delta", "api_keys": [KEYS["delta"]], "tokens_per_minute": 20_000},
]
"""One without limits, and one for each kind of limit."""

_SHARES = {"alpha": 6, "beta": 2, "gamma": 2, "delta": 2}
_KINDS = {"chat": 4, "completions": 6, "responses": 2, "messages": 2, "embeddings": 1, "bad": 1}
_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
_MANNERS = {Manner.STAY: 12, Manner.SLOW: 2, Manner.LEAVE: 5}
_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "thinks",
    "about",
    "caches",
]


class Asking:
    """Makes visits; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seed = seed
        self._count = 0
        self._prefixes = [self._ids(self._chance.randrange(100, 700)) for _ in range(12)]

    def next(self) -> Visit:
        """Return the next visit."""
        self._count += 1
        chance = self._chance
        kind = _pick(chance, _KINDS)
        manner = _pick(chance, _MANNERS)
        streams = chance.random() < 0.6 and kind not in {"embeddings", "bad"}
        path, body = (
            self._ask_badly() if kind == "bad" else (_PATHS[kind], self._body(kind, streams))
        )
        wrong = chance.random() < 0.01
        return Visit(
            id=f"soak-{self._seed}-{self._count}",
            kind=kind,
            path=path,
            body=body,
            key="key-of-nobody" if wrong else KEYS[_pick(chance, _SHARES)],
            streams=streams,
            manner=manner,
            patience=chance.choice([0.0, 0.005, 0.02, 0.1, 0.4, 1.0, 3.0])
            * chance.uniform(0.5, 1.5)
            + 0.002,
        )

    def _body(self, kind: str, streams: bool) -> bytes:
        chance = self._chance
        limit = chance.choice([1, 4, 16, 48])
        document: Document = {"model": MODEL}
        match kind:
            case "completions":
                document |= {"prompt": self._prompt(), "max_tokens": limit, "stream": streams}
            case "chat":
                document |= {"messages": self._messages(), "max_tokens": limit, "stream": streams}
            case "messages":
                document |= {"messages": self._messages(), "max_tokens": limit, "stream": streams}
            case "responses":
                document |= {"input": self._text(), "max_output_tokens": limit, "stream": streams}
            case _:
                document |= {"input": self._text()}
        if streams and kind in {"chat", "completions"} and chance.random() < 0.3:
            document["stream_options"] = {"include_usage": True}
        return json.dumps(document).encode()

    def _ask_badly(self) -> tuple[str, bytes]:
        """A client's own fault: refused without a leg."""
        return self._chance.choice(
            [
                ("/v1/completions", b'{"model": "tiny", "prompt": '),
                ("/v1/chat/completions", b'{"model":"nobodys","messages":[]}'),
                ("/v1/messages", b"[]"),
            ]
        )

    def _prompt(self) -> list[int]:
        """Token ids: new ones, or a prefix that others share with a new end."""
        if self._chance.random() < 0.5:
            return self._ids(self._chance.choice([8, 40, 150, 400, 1200]))
        return self._chance.choice(self._prefixes) + self._ids(self._chance.randrange(1, 60))

    def _ids(self, count: int) -> list[int]:
        return [self._chance.randrange(1, 250) for _ in range(count)]

    def _messages(self) -> list[Mapping[str, str]]:
        return [{"role": "user", "content": self._text()}]

    def _text(self) -> str:
        return " ".join(self._chance.choices(_WORDS, k=self._chance.choice([3, 30, 120])))


def _pick(chance: random.Random, shares: Mapping[Any, int]) -> Any:  # noqa: ANN401 - a key of `shares`
    return chance.choices(list(shares), list(shares.values()))[0]
