"""Laws of the chain hash."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvmeta.hashing import chain_root, extend_chain, hash_blocks, pack_tokens
from kvmeta.types import CacheLayout

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
BLOCKS = st.integers(1, 7)
NAMES = st.one_of(st.none(), st.text(max_size=4))


@given(TOKENS, TOKENS, BLOCKS)
def test_hashes_of_a_prefix_are_a_prefix_of_the_hashes(
    tokens: list[int], more: list[int], block: int
) -> None:
    """What follows a block never changes its hash."""
    root = chain_root(CacheLayout("f", block))
    shorter = hash_blocks(root, tokens, block)
    assert hash_blocks(root, tokens + more, block)[: len(shorter)] == shorter


@given(TOKENS, TOKENS, BLOCKS)
def test_different_tokens_part_for_ever(left: list[int], right: list[int], block: int) -> None:
    """Two prompts share exactly the hashes of the blocks before their first difference."""
    root = chain_root(CacheLayout("f", block))
    same = 0
    while left[same * block : (same + 1) * block] == right[same * block : (same + 1) * block]:
        if len(left) < (same + 1) * block or len(right) < (same + 1) * block:
            break
        same += 1
    shared = set(hash_blocks(root, left, block)) & set(hash_blocks(root, right, block))
    assert len(shared) == same


@given(
    st.tuples(st.text(max_size=4), BLOCKS, NAMES, NAMES),
    st.tuples(st.text(max_size=4), BLOCKS, NAMES, NAMES),
)
def test_namespaces_are_disjoint(
    one: tuple[str, int, str | None, str | None], other: tuple[str, int, str | None, str | None]
) -> None:
    """Equal roots mean equal fingerprint, block size, adapter and salt."""
    roots = [
        chain_root(CacheLayout(name, block), lora, salt) for name, block, lora, salt in (one, other)
    ]
    assert (roots[0] == roots[1]) == (one == other)


@given(TOKENS, BLOCKS, st.integers(0, 6))
def test_a_chain_can_be_continued_anywhere(tokens: list[int], block: int, cut: int) -> None:
    """Hashing in two steps gives what hashing at once gives."""
    root = chain_root(CacheLayout("f", block))
    whole = hash_blocks(root, tokens, block)
    cut = min(cut, len(whole))
    parent = whole[cut - 1] if cut else root
    assert extend_chain(parent, pack_tokens(tokens[cut * block :]), block) == whole[cut:]
