"""Chain labels: an engine's own names for the prefixes of one token sequence.

Like vLLM's hashes they chain (each covers everything before it), the cache salt enters the first
unit alone and a LoRA name enters every one (ENGINE-FACTS 1.6). They are opaque: 64-bit xxh3 under
a seed of the engine, so that nobody is tempted to compare them between engines.
"""

from __future__ import annotations

from array import array

import xxhash

_BYTES_PER_TOKEN = 4
_ROOT = bytes(8)


def pack_tokens(tokens: list[int]) -> bytes:
    """Return `tokens` as unsigned 32-bit integers; raises OverflowError for any other integer."""
    return array("I", tokens).tobytes()


class TokenChain:
    """One request's tokens, prompt and answer, with a label at every full hash unit.

    Costs one hash per unit, over the unit's raw bytes. Tokens must be unsigned 32-bit.
    """

    __slots__ = (
        "_lora_bytes",
        "_parent",
        "_pending",
        "_seed",
        "labels",
        "lora",
        "salt",
        "tokens",
        "unit",
    )

    def __init__(
        self,
        tokens: list[int],
        *,
        unit: int,
        seed: int = 0,
        salt: str | None = None,
        lora: str | None = None,
        raw: bytes | None = None,
    ) -> None:
        self.tokens: list[int] = []
        self.labels: list[int] = []
        self.unit = unit
        self.salt = salt
        self.lora = lora
        self._seed = seed
        self._lora_bytes = b"" if lora is None else b"lora:" + lora.encode() + b"\0"
        self._parent = _ROOT
        self._pending = b""
        self.extend(tokens, raw)

    def extend(self, tokens: list[int], raw: bytes | None = None) -> None:
        """Append `tokens` and label the units that they fill; `raw` is their packed form."""
        self.tokens += tokens
        raw = self._pending + (pack_tokens(tokens) if raw is None else raw)
        width = self.unit * _BYTES_PER_TOKEN
        full = len(raw) - len(raw) % width
        labels, parent, seed, lora = self.labels, self._parent, self._seed, self._lora_bytes
        for start in range(0, full, width):
            salt = b""
            if not labels and self.salt is not None:
                salt = b"salt:" + self.salt.encode() + b"\0"
            label = xxhash.xxh3_64_intdigest(
                b"".join((parent, lora, salt, raw[start : start + width])), seed
            )
            labels.append(label)
            parent = label.to_bytes(8, "big")
        self._parent = parent
        self._pending = raw[full:]

    def block_label(self, index: int, block_size: int) -> int:
        """Return the label of block `index` of a group: that of the block's last unit."""
        return self.labels[(index + 1) * (block_size // self.unit) - 1]

    def extra_keys(self, index: int) -> list[str] | None:
        """Return what an event tells about block `index` beside its tokens; untagged, as vLLM."""
        keys = [] if self.lora is None else [self.lora]
        if index == 0 and self.salt is not None:
            keys.append(self.salt)
        return keys or None
