"""The chain hash: framing, canonical forms and refusals."""

from __future__ import annotations

from array import array

import pytest

from kvmeta.errors import KvMetaError, TokenRangeError
from kvmeta.hashing import (
    chain_root,
    encode_extra,
    extend_chain,
    hash_blocks,
    pack_tokens,
    prompt_blocks,
)
from kvmeta.types import CacheLayout

LAYOUT = CacheLayout("model@1", 4)


@pytest.mark.parametrize(
    ("lora", "salt"), [(None, None), ("", None), (None, ""), ("ab", "c"), ("a", "bc"), ("abc", "")]
)
def test_roots_of_different_namespaces_differ(lora: str | None, salt: str | None) -> None:
    """Absent, empty and shifted fields never meet: every field is framed."""
    others = [(None, None), ("", None), (None, ""), ("ab", "c"), ("a", "bc"), ("abc", "")]
    others.remove((lora, salt))
    root = chain_root(LAYOUT, lora, salt)
    assert len(root) == 16
    assert root not in {chain_root(LAYOUT, *other) for other in others}


def test_roots_depend_on_the_fingerprint_and_the_block_size() -> None:
    """`("f1", 2)` and `("f", 12)` are different models."""
    roots = {chain_root(CacheLayout(name, size)) for name, size in [("f1", 2), ("f", 12), ("f", 2)]}
    assert len(roots) == 3


def test_r51_a_root_does_not_contain_its_salt() -> None:
    """What is kept of a salt is a digest."""
    assert b"tenant" not in chain_root(LAYOUT, None, "tenant-secret")


def test_known_answer() -> None:
    """Hashes are a contract between processes: they must never change silently."""
    hashes = hash_blocks(chain_root(LAYOUT), [1, 2, 3, 4, 5, 6, 7, 8], 4)
    assert [value.hex() for value in hashes] == [
        "d0dd2e9f8cabb3a1532320c7d8e7b6e3",
        "bff3fa863305d08e37faf4f1d8898e7c",
    ]


def test_any_sequence_of_integers_hashes_alike() -> None:
    """Lists, tuples and arrays of any integer type are the same tokens."""
    root = chain_root(LAYOUT)
    expected = hash_blocks(root, [1, 2, 3, 2**32 - 1], 4)
    for tokens in (
        (1, 2, 3, 2**32 - 1),
        array("I", [1, 2, 3, 2**32 - 1]),
        array("q", [1, 2, 3, 2**32 - 1]),
    ):
        assert hash_blocks(root, tokens, 4) == expected


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, "1", None])
def test_a_token_id_that_no_engine_could_hold_is_refused(bad: object) -> None:
    """The error is the package's own and a ValueError."""
    with pytest.raises(TokenRangeError) as caught:
        pack_tokens([1, bad])  # type: ignore[list-item]  # the point of the test
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, KvMetaError)


def test_a_partial_block_has_no_hash() -> None:
    """Engines cache full blocks only."""
    assert hash_blocks(chain_root(LAYOUT), [1, 2, 3], 4) == []
    assert len(hash_blocks(chain_root(LAYOUT), [1] * 7, 4)) == 1


def test_an_extra_changes_its_block_and_all_that_follow() -> None:
    """The same placeholder tokens with another image are other blocks."""
    root = chain_root(LAYOUT)
    packed = pack_tokens([1] * 12)
    plain = extend_chain(root, packed, 4)
    image = extend_chain(root, packed, 4, {1: encode_extra([("image-a", 2)])})
    other = extend_chain(root, packed, 4, {1: encode_extra([("image-b", 2)])})
    assert plain[0] == image[0] == other[0]
    assert len({plain[1], image[1], other[1]}) == 3
    assert len({plain[2], image[2], other[2]}) == 3


def test_no_extra_is_the_same_as_an_empty_one() -> None:
    """`encode_extra` of nothing adds nothing."""
    root = chain_root(LAYOUT)
    packed = pack_tokens([1] * 8)
    assert encode_extra([]) == b""
    assert extend_chain(root, packed, 4, {0: encode_extra([])}) == extend_chain(root, packed, 4)


@pytest.mark.parametrize(
    ("total", "limit", "expected"),
    [(8, None, 7), (8, 100, 7), (8, 3, 3), (8, -1, 0), (0, None, 0), (1, None, 0)],
)
def test_the_limit_of_a_prompt_leaves_its_last_token(
    total: int, limit: int | None, expected: int
) -> None:
    """Engines recompute the last token, so `total - 1` is the most, and never below 0."""
    prompt = prompt_blocks(LAYOUT, [1] * total, limit=limit)
    assert (prompt.total_tokens, prompt.limit) == (total, expected)


def test_a_salted_prompt_says_so() -> None:
    """Sources that cannot tell salts must be unknown for it."""
    assert prompt_blocks(LAYOUT, [1], salt="s").salted
    assert not prompt_blocks(LAYOUT, [1]).salted
