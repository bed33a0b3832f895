"""S_kv from what a model's configuration tells of its layers."""

from __future__ import annotations

from typing import Any

import pytest

from router.throughput.kv_geometry import GeometryError, read_geometry
from router.throughput.profiles import KvLine

DENSE: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def test_grouped_heads_keep_keys_and_values_of_every_token() -> None:
    """32 layers x 2 x 8 heads x 128 elements x 2 bytes are 131,072 bytes a token."""
    geometry = read_geometry(DENSE)
    assert geometry.kv_bytes(1000) == 131_072_000
    assert geometry.line == KvLine(0.0, 131_072.0)


@pytest.mark.parametrize(
    ("tokens", "pulled"), [(300, 81_920), (1000, 262_144), (2000, 516_096), (3000, 770_048)]
)
def test_a_real_engine_moves_these_bytes_and_the_rest_of_a_block(tokens: int, pulled: int) -> None:
    """What vLLM 0.32 counted for NIXL pulls of a two-layer model, in whole blocks of 32 tokens."""
    config = {**DENSE, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 32}
    geometry = read_geometry(config)
    assert geometry.kv_bytes(-(-tokens // 32) * 32) == pulled
    assert 0 <= pulled - geometry.kv_bytes(tokens) < geometry.kv_bytes(32)


def test_the_cache_may_have_a_dtype_of_its_own() -> None:
    """An fp8 cache is half of bfloat16's."""
    assert read_geometry(DENSE, "fp8").kv_bytes(1) == 65_536


def test_latent_attention_keeps_one_vector_a_layer() -> None:
    """MLA: 61 layers x (512 + 64) elements x 2 bytes, whatever the heads are."""
    config = {**DENSE, "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert read_geometry(config).kv_bytes(1) == 61 * 576 * 2


def test_sliding_layers_keep_no_more_than_their_window() -> None:
    """Half of the layers stop growing at the window, so S_kv is no line."""
    config = {
        **DENSE,
        "layer_types": ["full_attention", "sliding_attention"] * 16,
        "sliding_window": 1024,
    }
    geometry = read_geometry(config)
    assert geometry.kv_bytes(500) == 131_072 * 500
    assert geometry.kv_bytes(5000) == 65_536 * (5000 + 1024)
    assert geometry.line is None


def test_a_multimodal_model_is_read_by_its_text_part() -> None:
    """What the decoder keeps stands in `text_config`; the dtype may stand outside."""
    inner = {name: value for name, value in DENSE.items() if name != "torch_dtype"}
    assert read_geometry({"text_config": inner, "dtype": "float16"}).kv_bytes(1) == 131_072


def test_a_window_that_is_switched_off_is_none() -> None:
    """`use_sliding_window: false` leaves full attention, as those models run."""
    config = {**DENSE, "sliding_window": 4096, "use_sliding_window": False}
    assert read_geometry(config).kv_bytes(10_000) == 1_310_720_000
    assert read_geometry({**DENSE, "sliding_window": 4096}).kv_bytes(10_000) == 131_072 * 4096


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_attention_heads": "x"}, "num_attention_heads is no positive number"),
        ({"torch_dtype": None}, "--kv-dtype"),
        ({"torch_dtype": "int3"}, "dtype int3"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["full_attention"]}, "lists 1 of 32"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"linear_attn_config": {"head_dim": 128}}, "linear_attn_config"),
        ({"sliding_window": 9, "max_window_layers": 4}, "which layers slide"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_what_a_configuration_does_not_tell_is_refused(changes: dict[str, Any], said: str) -> None:
    """Recurrent state, unknown layers and missing keys are named, never guessed."""
    with pytest.raises(GeometryError, match=said):
        read_geometry({**DENSE, **changes})
