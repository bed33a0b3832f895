"""Logs on stderr, one line a record."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum


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
