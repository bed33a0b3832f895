"""LMCache's coordinator as a `PrefixPool`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvmeta.errors import DirectoryError
from kvmeta.pools.lmcache import LOOKUP_PATH, Chunks, PoolShape, form_lookup, read_lookup
from router.control.health import (
    Breaker,
    BreakerRules,
    breaker_allows,
    step_abandoned,
    step_dispatched,
    step_failed,
    step_succeeded,
)
from router.domain.errors import UpstreamError
from router.domain.units import Seconds, Tokens
from router.ports import Clock, EngineClient, EngineRequest, Timeouts
from router.service.pools import PoolPrompt, PoolStatus

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """Where a coordinator is, and what it calls the model. `name` is ours, for the log."""

    name: str
    url: str
    model_name: str
    world_size: int
    timeout: Seconds


class LmcachePool:
    """Implements `PrefixPool`; asks in the coordinator's own words, within a budget.

    After `breaker.failures` failures in a row it is left alone for the cool-down.
    """

    def __init__(
        self,
        client: EngineClient,
        address: PoolAddress,
        shape: PoolShape,
        *,
        clock: Clock,
        breaker: BreakerRules,
    ) -> None:
        self._client = client
        self._address = address
        self._shape = shape
        self._clock = clock
        self._rules = breaker
        self._breaker = Breaker()
        self._status = PoolStatus()

    @property
    def status(self) -> PoolStatus:
        """Whether the latest question was answered, and when one last was."""
        return self._status

    async def look_up(self, prompt: PoolPrompt, members: Collection[str]) -> Mapping[str, Tokens]:
        """Ask for the whole prompt once, and read every member's depth from the answer."""
        now = self._clock.monotonic()
        short = len(prompt.tokens) < self._shape.chunk_tokens
        if short or not breaker_allows(self._breaker, now, self._rules):
            return {}
        self._breaker = step_dispatched(self._breaker, now, self._rules)
        try:
            chunks = await self._ask(prompt)
        except (UpstreamError, DirectoryError, TimeoutError) as error:
            self._breaker = step_failed(self._breaker, self._clock.monotonic(), self._rules)
            self._note(silent=True, why=str(error) or type(error).__name__)
            return {}
        except asyncio.CancelledError:
            self._breaker = step_abandoned(self._breaker)
            raise
        self._breaker = step_succeeded(self._breaker)
        self._note(silent=False)
        size = self._shape.chunk_tokens
        return {member: chunks.depth(member) * size for member in members}

    async def _ask(self, prompt: PoolPrompt) -> Chunks:
        address = self._address
        body = form_lookup(
            prompt.tokens,
            model_name=address.model_name,
            world_size=address.world_size,
            salt=prompt.salt,
        )
        request = EngineRequest(
            instance=address.name,
            base_url=address.url,
            path=LOOKUP_PATH,
            body=body,
            headers=[(b"content-type", b"application/json")],
            timeouts=Timeouts(address.timeout, address.timeout, address.timeout),
        )
        async with asyncio.timeout(address.timeout):
            response = await self._client.send(request)
            try:
                answer = await response.read()
            finally:
                await response.aclose()
        if response.status != 200:
            raise DirectoryError(f"it answered {response.status}")
        return read_lookup(answer, self._shape, total_tokens=len(prompt.tokens))

    def _note(self, *, silent: bool, why: str = "") -> None:
        """Log a change, once; nothing of a prompt is in it."""
        before = self._status
        at = before.answered_at if silent else self._clock.monotonic()
        self._status = PoolStatus(answering=not silent, answered_at=at)
        if silent and before.answering is not False:
            _LOG.warning("pool %s cannot be asked: %s", self._address.name, why)
        elif not silent and before.answering is False:
            _LOG.warning("pool %s answers again", self._address.name)
