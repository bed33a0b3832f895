"""Which configuration is in force, since when, and what became of the latest attempt at another."""

from __future__ import annotations

from enum import StrEnum

from router.ports import Clock
from router.service.decisions import Document


class ReloadOutcome(StrEnum):
    """What became of a changed configuration."""

    APPLIED = "applied"
    REFUSED = "refused"


class ConfigRecord:
    """What operators see of reloads."""

    def __init__(self, fingerprint: str, clock: Clock) -> None:
        """`fingerprint` stands for what is in force; it is equal where configurations are."""
        self._clock = clock
        self._loaded_at = clock.now()
        self._restart_needed: tuple[str, ...] = ()
        self._last_error: Document | None = None
        self.fingerprint = fingerprint

    def applied(self, fingerprint: str, restart_needed: tuple[str, ...]) -> None:
        """Note a configuration that is in force from now on."""
        self.fingerprint = fingerprint
        self._loaded_at = self._clock.now()
        self._restart_needed = restart_needed
        self._last_error = None

    def refused(self, message: str) -> None:
        """Note one that is not."""
        self._last_error = {"at": self._clock.now().isoformat(), "message": message}

    def describe(self) -> Document:
        """Return it as a document; `restart_needed` are changed settings that wait for one."""
        return {
            "hash": self.fingerprint,
            "loaded_at": self._loaded_at.isoformat(),
            "restart_needed": list(self._restart_needed),
            "last_error": self._last_error,
        }
