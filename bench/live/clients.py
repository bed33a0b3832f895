"""Clients of the two gateways: an open loop of demands, and what came of every request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import httpx

from bench.live.plants import MODEL, OUTPUT_TOKENS
from bench.live.systems import LiveSystem
from router.domain.units import Seconds, Tokens
from router.sim.traffic import Demand

ANSWER_SECONDS: Final = 120.0
"""Longest answer that is waited for: far over any queue of a scene."""

_BASE: Final = 250
"""Token ids that stand for the digits of a prompt's number: 1 to 250 are no control tokens."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request as its client saw it. Times are seconds since the scene began.

    `ttft` and `seconds` are None where no first token and no end came. `status` is 0 where there
    was no answer at all; `whole` is whether the stream ended as it should.
    """

    at: Seconds
    total: Tokens
    replica: int
    status: int
    whole: bool = False
    ttft: Seconds | None = None
    seconds: Seconds | None = None
    route: str = ""
    reason: str = ""
    prefill: str = ""
    decode: str = ""
    uncached: Tokens | None = None
    threshold: Tokens | None = None
    error: str = ""

    @property
    def served(self) -> bool:
        """Whether the client got what it asked for."""
        return self.status == 200 and self.whole

    @property
    def offloaded(self) -> bool:
        """Whether the prompt was computed in the PrfaaS cluster."""
        return self.route == "prfaas"


class Clients:
    """Asks, and keeps every visit. `began` is the scene's zero on the loop's clock."""

    def __init__(self, system: LiveSystem, numbers: Iterator[int]) -> None:
        self.system = system
        self.visits: list[Visit] = []
        self._loop = asyncio.get_running_loop()
        self._numbers = numbers
        self._stopped = False
        self._turn = itertools.cycle(range(len(system.replicas)))
        self.began = self._loop.time()

    @property
    def now(self) -> Seconds:
        """Seconds since the scene began."""
        return self._loop.time() - self.began

    def fresh_prompt(self, tokens: Tokens) -> list[int]:
        """Return a prompt of which nobody has seen the first block."""
        number = next(self._numbers)
        digits = [1 + number // _BASE**place % _BASE for place in range(4)]
        return [*digits, *itertools.repeat(7, max(0, tokens - len(digits)))][:tokens]

    async def play(self, demands: Iterable[Demand], *, until: Seconds) -> None:
        """Send each demand when it is due, up to `until` or `stop`; return when all are answered.

        An open loop: nobody waits for an answer before the next one asks.
        """
        start = self.now
        async with asyncio.TaskGroup() as asking:
            for demand in demands:
                if start + demand.at >= until:
                    break
                await asyncio.sleep(start + demand.at - self.now)
                if self._stopped:
                    break
                asking.create_task(self.ask(self.fresh_prompt(demand.total)))

    def stop(self) -> None:
        """Send no more demands."""
        self._stopped = True

    async def ask(
        self, prompt: list[int], *, replica: int | None = None, output: Tokens = OUTPUT_TOKENS
    ) -> Visit:
        """Ask one gateway, each in turn where none is named; never raises for what goes wrong."""
        chosen = self._choose(replica)
        at = self.now
        visit = Visit(at, len(prompt), chosen, 0)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                visit = await self._stream(chosen, prompt, at, output)
        except (httpx.HTTPError, TimeoutError) as error:
            visit = Visit(at, len(prompt), chosen, 0, error=repr(error))
        self.visits.append(visit)
        return visit

    def _choose(self, replica: int | None) -> int:
        if replica is not None:
            return replica
        return next(each for each in self._turn if self.system.replicas[each].alive)

    async def _stream(self, replica: int, prompt: list[int], at: Seconds, output: Tokens) -> Visit:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": output, "stream": True}
        url = f"{self.system.replicas[replica].url}/v1/completions"
        first: Seconds | None = None
        tail = b""
        async with self.system.client.stream(
            "POST", url, json=body, timeout=ANSWER_SECONDS
        ) as answer:
            async for chunk in answer.aiter_raw():
                if first is None:
                    first = self.now - at
                tail = (tail + chunk)[-200:]
        seen = answer.headers
        return Visit(
            at,
            len(prompt),
            replica,
            answer.status_code,
            whole=tail.endswith(b"data: [DONE]\n\n"),
            ttft=first if answer.status_code == 200 else None,
            seconds=self.now - at,
            route=seen.get("x-prfaas-route", ""),
            reason=seen.get("x-prfaas-reason", ""),
            prefill=seen.get("x-prfaas-prefill", ""),
            decode=seen.get("x-prfaas-decode", ""),
            uncached=_number(seen.get("x-prfaas-uncached-tokens")),
            threshold=_number(seen.get("x-prfaas-threshold")),
            error="" if answer.status_code == 200 else tail.decode(errors="replace"),
        )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
