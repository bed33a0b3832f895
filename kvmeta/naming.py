"""How a stored event's blocks get our names, and whether its tokens suffice for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvmeta.events import BlockStored
from kvmeta.hashing import TOKEN_BYTES, extend_chain
from kvmeta.types import GPU, BlockHash
from kvmeta.waiting import Link


class Surveyor(Protocol):
    """Tells where in its chain a block stands, for a back end that stores blocks by that."""

    def __call__(self, before: bytes | None, names: Sequence[BlockHash], units: int) -> list[bytes]:
        """Return the spot of every `units`-th of `names`, which follow the block at `before`.

        `before` is None at the start of a chain. A block's spot depends on its chain alone.
        """
        ...


@dataclass(slots=True)
class SaltEvidence:
    """What an engine's events showed of how it tells what salts its blocks."""

    tells_extras: bool = False
    names_salts: bool = False
    kept_silent: bool = False

    @property
    def tells_salts(self) -> bool:
        """False once blocks were announced by an engine that never tells what salts them."""
        return self.tells_extras or self.names_salts or not self.kept_silent

    def trusts_tokens(self, event: BlockStored) -> bool:
        """Whether tokens alone name the blocks of `event`, which is evidence itself.

        Not if extras are left out by an engine that tells them elsewhere, or of an offload tier,
        which never knows them: the block may be salted or hold an image. Its label still names it.
        """
        if event.extras is not None:
            self.tells_extras = True
            return True
        if event.salt is not None:
            # Salts are named by themselves; whatever has none is unsalted by that.
            self.names_salts = True
            return True
        if event.medium != GPU:
            return False
        self.kept_silent = True
        return not self.tells_extras


def name_blocks(
    start: BlockHash, event: BlockStored, position: int, unit_tokens: int
) -> list[BlockHash]:
    """Name every hash unit of the engine's blocks from `position` on, given the name before them.

    A block of several units gives its extra to the first.
    """
    units = event.block_size // unit_tokens
    extras = {
        at * units: extra for at, extra in enumerate((event.extras or ())[position:]) if extra
    }
    tokens = event.tokens[position * event.block_size * TOKEN_BYTES :]
    return extend_chain(start, tokens, unit_tokens, extras)


def link_at(event: BlockStored, position: int) -> Link | None:
    """Return how the block at `position` follows from the one before it; None at a chain's root."""
    parent = event.labels[position - 1] if position else event.parent
    if parent is None:
        return None
    width = event.block_size * TOKEN_BYTES
    tokens = event.tokens[position * width : (position + 1) * width]
    return Link(parent, tokens, event.extras[position] if event.extras else b"")


def name_linked(parent: BlockHash, link: Link, unit_tokens: int) -> list[BlockHash]:
    """Name every hash unit of one engine block that waited for its parent's name."""
    return extend_chain(parent, link.tokens, unit_tokens, {0: link.extra} if link.extra else {})
