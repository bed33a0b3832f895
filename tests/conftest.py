"""What the whole suite needs of the process that runs it."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings


def pytest_configure() -> None:
    """Let generated inputs take their time: a machine with much else to do is no slow test."""
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("patient", patient)
    settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let children hear Ctrl-C: background jobs of a shell ignore it, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """Keep collections short: one of all that a suite has loaded stops the loop for a second.

    What a module left open is told of at its end as well, rather than in a later module.
    """
    yield
    gc.collect()
    gc.freeze()
