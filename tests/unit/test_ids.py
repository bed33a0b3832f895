"""Names for requests."""

from __future__ import annotations

from router.adapters.ids import RandomIds


def test_ids_are_drawn_once_each() -> None:
    """Every 16 bytes that are drawn name one request, in hexadecimal."""
    drawn = bytearray()

    def draw(count: int) -> bytes:
        piece = bytes((len(drawn) + at) // 16 % 251 for at in range(count))
        drawn.extend(piece)
        return piece

    new_id = RandomIds(draw)
    named = [bytes.fromhex(new_id()) for _ in range(1000)]
    wanted = {bytes(drawn[at : at + 16]) for at in range(0, len(drawn), 16)}
    assert all(len(name) == 16 for name in named)
    assert set(named) == wanted


def test_ids_differ() -> None:
    """Two generators never name two requests alike."""
    one, other = RandomIds(), RandomIds()
    assert len({*(one() for _ in range(600)), *(other() for _ in range(600))}) == 1200
