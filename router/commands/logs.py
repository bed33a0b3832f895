"""Logs on stderr, one line a record."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from enum import StrEnum

from router.adapters.access_lines import AccessLines
from router.gateway.access import AccessLog, RecordedAccess


class LogLevel(StrEnum):
    """How much is logged; `info` has one line a request."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure_logs(level: LogLevel) -> None:
    """Send this process's logs to stderr. Libraries are heard from `warning` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("prfaas", "router", "kvmeta"):
        logging.getLogger(name).setLevel(level.upper())


@contextlib.contextmanager
def writing_access_log() -> Iterator[AccessLog]:
    """Return where the requests' lines go, by the level that was configured; flush at the end."""
    recorded = RecordedAccess()
    if not recorded.is_on:
        yield recorded
        return
    lines = AccessLines(_write_bytes)
    try:
        yield lines
    finally:
        lines.flush()


def _write_bytes(text: bytes) -> None:
    """Write to stderr. As with other logs, nobody fails since nobody can be told."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()
