"""Files that a configuration names: how they are called in faults, and whose fault is whose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from router.settings.errors import Fault, FilePlace, KeyPath, Place


@dataclass(frozen=True, slots=True)
class Naming:
    """Shows paths next to the configuration as they look from where it was named."""

    base: Path
    shown: str

    def of(self, path: Path) -> str:
        """Return the path as the person who named the configuration would write it."""
        if path.is_relative_to(self.base):
            return str(Path(self.shown).parent / path.relative_to(self.base))
        return str(path)


def point_here(fault: Fault, at: KeyPath, place: Place) -> Fault:
    """A file that cannot be read at all is a fault of the line that names it."""
    if isinstance(fault.place, FilePlace) and not fault.place.line:
        return Fault(place, at, f"{fault.place.file} {fault.message}")
    return fault
