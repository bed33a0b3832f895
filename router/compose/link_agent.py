"""Puts a link agent together: this host's counters, and the gateways that hear of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from router.adapters.clocks import SystemClock
from router.adapters.gateway_door import HttpDoor
from router.adapters.linux_egress import LinuxCounters, Network, find_speed
from router.domain.units import BytesPerSecond, Seconds
from router.service.link_agent import AgentRules, LinkAgent

_TIMEOUT_SECONDS: Final = 5.0
_SPARE: Final = 1.25
"""Over what interfaces say that they carry: a first reading may come a little late."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent is told. `capacity` None: what the interfaces say of themselves."""

    link: str
    urls: tuple[str, ...]
    key: str | None = field(repr=False)
    interfaces: tuple[str, ...]
    peers: tuple[Network, ...] = ()
    interval: Seconds = 1.0
    capacity: BytesPerSecond | None = None
    available: BytesPerSecond | None = None
    root: Path = Path("/")


@asynccontextmanager
async def open_agent(options: AgentOptions) -> AsyncIterator[LinkAgent]:
    """Yield an agent, with connections that are kept for the time of the block."""
    clock = SystemClock()
    most = options.capacity or find_speed(options.interfaces, options.root)
    rules = AgentRules(interval=options.interval, available=options.available)
    if most is not None:
        most = BytesPerSecond(_SPARE * most)
        rules = AgentRules(options.interval, most, options.available)
    async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
        doors: Sequence[HttpDoor] = [
            HttpDoor(client, url, options.link, options.key) for url in options.urls
        ]
        counters = LinuxCounters(options.interfaces, options.peers, options.root)
        yield LinkAgent(counters, doors, clock=clock, rules=rules)
