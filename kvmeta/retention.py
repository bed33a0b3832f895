"""What an engine keeps of a prompt that it computes, before any event has said so.

For what is believed *ahead* of the events (`kvmeta.speculation`) and *without* them
(`kvmeta.history`). Both must err on the low side, hence only what an engine keeps by its defaults
(vllm/v1/core/single_type_kv_cache_manager.py, `prefix_cache_retention_interval` 0):

    full attention only   every full block; any prefix of it that ends at the alignment
    with sliding windows  one length alone: the replay boundary, the prompt's length less one, cut
    or recurrent states   to the alignment. Shorter prefixes have attention blocks and no state
    EAGLE                 a block less, for attention needs one beyond; with sparse groups the
                          boundary moves as well, and nothing is promised
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

from kvmeta.types import BlockHash, CacheLayout, PromptBlocks


class Kept(Struct, frozen=True, eq=False, gc=False):
    """What one computed prompt leaves behind. Lengths are in tokens.

    `unit` is the length that one hash stands for. `boundary` is the only length that can be reused,
    None where every aligned one can; `beyond` must be there past a reused length as well.
    """

    hashes: Sequence[BlockHash]
    unit: int
    alignment: int
    beyond: int = 0
    boundary: int | None = None

    @property
    def longest(self) -> int:
        """The longest prefix that any prompt can reuse of this."""
        if self.boundary is not None:
            return self.boundary
        return self.align(len(self.hashes) * self.unit)

    def reusable(self, prompt: PromptBlocks) -> int:
        """Return how much of `prompt` could be reused. Cost: the logarithm of its blocks."""
        if self.boundary is not None:
            at = self.boundary // self.unit
            holds = (
                self.boundary <= prompt.limit
                and at <= len(prompt.hashes)
                and prompt.hashes[at - 1] == self.hashes[at - 1]
            )
            return self.boundary if holds else 0
        return self.align(min(self._shared(prompt.hashes) * self.unit, prompt.limit))

    def align(self, length: int) -> int:
        """Return how much of `length` tokens, all of them kept, can be reused."""
        length = max(0, length - self.beyond)
        return length - length % self.alignment

    def _shared(self, hashes: Sequence[BlockHash]) -> int:
        """How many blocks both begin with: equal hashes at one place mean equal prefixes."""
        if not hashes or not self.hashes or hashes[0] != self.hashes[0]:
            return 0
        return bisect_left(
            range(min(len(hashes), len(self.hashes))),
            True,  # noqa: FBT003  # the first place at which they differ
            key=lambda at: hashes[at] != self.hashes[at],
        )


def keep_prompt(layout: CacheLayout, prompt: PromptBlocks) -> Kept | None:
    """Return what an engine keeps of `prompt` once it has computed it; None where nothing is sure.

    The leg that computes it ends one token after `prompt.limit`: a connector that cuts the
    prefill leg's prompt has cut the limit with it.
    """
    unit, alignment = layout.block_size, layout.declared_alignment
    computed = prompt.limit + 1
    if layout.attends_fully:
        kept = Kept(
            prompt.hashes[: computed // unit], unit, alignment, beyond=unit if layout.eagle else 0
        )
        return kept if kept.longest else None
    boundary = prompt.limit - prompt.limit % alignment
    whole = prompt.total_tokens - 1
    if layout.eagle or boundary < unit or boundary != whole - whole % alignment:
        return None  # the last: cut or whole, the prompt ends at different boundaries
    return Kept(prompt.hashes[: boundary // unit], unit, alignment, boundary=boundary)
