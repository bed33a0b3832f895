"""Calls under way, as far as those who watch silence need to know of them."""

from __future__ import annotations


class FakeLines:
    """Implements `router.ports.EngineLines`; `silences` by address is what is heard."""

    def __init__(self) -> None:
        self.silences: dict[str, float] = {}
        self.cuts: list[tuple[str, bool]] = []

    def silence(self, url: str) -> float | None:
        return self.silences.get(url)

    def cut(self, url: str, *, begun: bool) -> int:
        self.cuts.append((url, begun))
        return 1
