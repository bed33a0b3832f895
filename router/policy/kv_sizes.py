"""How many bytes cross when KV is handed over or a prefix travels."""

from __future__ import annotations

from router.domain.decision import KvSizing
from router.domain.units import Bytes, Tokens


def size_handoff(sizing: KvSizing, held_by_decode: Tokens) -> Bytes | None:
    """Return what the decode instance will pull, in bytes; None for an unprofiled model.

    S_kv(total) less the token-proportional part of the prefix that the decode instance holds
    itself; recurrent state always ships (DESIGN 5).
    """
    if sizing.total is None:
        return None
    return Bytes(max(0, round(sizing.total - sizing.per_token * held_by_decode)))


def size_prefix(sizing: KvSizing, longer: Tokens, shorter: Tokens) -> Bytes:
    """Return the bytes of a prefix of `longer` tokens sent to where `shorter` are held.

    Only the token-proportional part travels beyond what is there; 0 for an unprofiled model.
    """
    return Bytes(max(0, round(sizing.per_token * (longer - shorter))))
