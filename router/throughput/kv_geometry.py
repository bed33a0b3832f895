"""S_kv from a model's configuration: what its attention layers keep of a prompt.

Full attention keeps keys and values of every token, latent attention (MLA) one compressed vector,
a sliding window those of its last tokens only. What recurrent layers keep depends on the engine's
kernels, so a model with any is refused: its bytes are to be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router.domain.units import Bytes, Tokens
from router.throughput.profiles import KvLine

DTYPE_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of one KV element, by vLLM's names for `--kv-cache-dtype` and the models' own."""

_UNKNOWN_FORMS: Final = (
    "layers_block_type",
    "hybrid_override_pattern",
    "linear_attn_config",
    "full_attention_interval",
    "attn_layer_period",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "index_head_dim",
    "num_kv_shared_layers",
    "global_head_dim",
)
"""Keys of models whose KV is not told by heads and layers alone: recurrent layers, the keys of an
indexer, layers that share a cache or differ in their heads."""


class GeometryError(ValueError):
    """A configuration does not tell the size of the model's KV."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Bytes that all layers together keep of each token, and which of them look back how far.

    `windows` has, for each sliding window in tokens, the bytes a token of all its layers.
    """

    full_bytes_per_token: int
    windows: Mapping[Tokens, int]
    fixed_bytes: int = 0

    def kv_bytes(self, tokens: Tokens) -> Bytes:
        """Return S_kv of `tokens` tokens, without the rest of a last block."""
        slid = sum(size * min(tokens, window) for window, size in self.windows.items())
        return Bytes(self.fixed_bytes + self.full_bytes_per_token * tokens + slid)

    @property
    def line(self) -> KvLine | None:
        """S_kv as a line, None where windows bend it."""
        if self.windows:
            return None
        return KvLine(float(self.fixed_bytes), float(self.full_bytes_per_token))


def read_geometry(config: Mapping[str, object], kv_dtype: str | None = None) -> KvGeometry:
    """Read a model's `config.json`. `kv_dtype` is the cache's, None for the model's own.

    Raises GeometryError that names what is missing, or what such a computation would not know.
    """
    nested = config.get("text_config")
    text: Mapping[str, object] = nested if isinstance(nested, Mapping) else config
    for key in _UNKNOWN_FORMS:
        if text.get(key):
            raise GeometryError(f"a model with {key} keeps more or less than its heads tell")
    if text.get("is_encoder_decoder") is True:
        raise GeometryError("an encoder-decoder model keeps more than its decoder's heads tell")
    element = _element_bytes(kv_dtype or _dtype_of(text) or _dtype_of(config))
    layer = _vector_size(text) * element
    full = 0
    windows: dict[Tokens, int] = {}
    for window in _list_windows(text):
        if window is None:
            full += layer
        else:
            windows[window] = windows.get(window, 0) + layer
    return KvGeometry(full, windows)


def _vector_size(config: Mapping[str, object]) -> int:
    """Elements that one layer keeps of one token."""
    latent = _optional(config, "kv_lora_rank")
    if latent is not None:
        return latent + (_optional(config, "qk_rope_head_dim") or 0)
    heads = _count(config, "num_attention_heads")
    kv_heads = _optional(config, "num_key_value_heads") or heads
    size = _optional(config, "head_dim") or _count(config, "hidden_size") // heads
    return 2 * kv_heads * size


def _list_windows(config: Mapping[str, object]) -> Sequence[Tokens | None]:
    """Return for each layer its window in tokens, None for full attention."""
    layers = _count(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != layers:
            raise GeometryError(f"layer_types lists {len(kinds)} of {layers} layers")
        return [_window_of(config, kind) for kind in kinds]
    window = _optional(config, "sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return [None] * layers
    for key in ("max_window_layers", "sliding_window_pattern"):
        if config.get(key) is not None:
            raise GeometryError(f"{key} without layer_types does not tell which layers slide")
    return [window] * layers


def _window_of(config: Mapping[str, object], kind: object) -> Tokens | None:
    match kind:
        case "full_attention":
            return None
        case "sliding_attention":
            return _count(config, "sliding_window")
        case _:
            raise GeometryError(f"what layers of type {kind} keep is not told by a configuration")


def _dtype_of(config: Mapping[str, object]) -> str | None:
    dtype = config.get("dtype") or config.get("torch_dtype")
    return dtype if isinstance(dtype, str) else None


def _element_bytes(dtype: str | None) -> int:
    if dtype is None:
        raise GeometryError("no dtype is given: use --kv-dtype")
    known = DTYPE_BYTES.get(dtype)
    if known is None:
        raise GeometryError(f"dtype {dtype} is none of {', '.join(DTYPE_BYTES)}")
    return known


def _optional(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise GeometryError(f"{key} is no positive number")
    return value


def _count(config: Mapping[str, object], key: str) -> int:
    value = _optional(config, key)
    if value is None:
        raise GeometryError(f"{key} is missing")
    return value
