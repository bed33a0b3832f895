"""Event loops under test: what talks to sockets is held to its contract on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Run the engine client on asyncio's own loop and on uvloop, which serves in production."""
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if item.path.stem == "test_engine_http":
        factories["uvloop"] = uvloop.new_event_loop
    return factories
