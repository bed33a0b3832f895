"""Where `prfaas profile` has the KV bytes from: a peer that pulls them, or the model's geometry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from router.commands.admin_client import check_url
from router.commands.output import Unusable
from router.throughput.kv_geometry import GeometryError, KvGeometry, read_geometry


@dataclass(frozen=True, slots=True)
class MeasuredKv:
    """Bytes that a decode engine counts when it pulls a hand-off."""

    decode_url: str


@dataclass(frozen=True, slots=True)
class ModelledKv:
    """Bytes computed from what the model's layers keep. `basis` says from what, for people."""

    geometry: KvGeometry
    basis: str


KvSource = MeasuredKv | ModelledKv


def choose_kv_source(
    *,
    decode_url: str | None,
    config: Path | None,
    dtype: str | None,
    bytes_per_token: int | None,
    fixed_bytes: int | None,
) -> KvSource:
    """Return the one source that the options name. Raises Unusable for none, or several."""
    named = [value is not None for value in (decode_url, config, bytes_per_token)]
    if sum(named) != 1:
        raise Unusable(
            "name one source of KV bytes: --decode-url (measured), --model-config or "
            "--kv-bytes-per-token (modelled)"
        )
    if dtype is not None and config is None:
        raise Unusable("--kv-dtype belongs to --model-config")
    if fixed_bytes is not None and bytes_per_token is None:
        raise Unusable("--kv-fixed-bytes belongs to --kv-bytes-per-token")
    if decode_url is not None:
        return MeasuredKv(check_url(decode_url, option="--decode-url"))
    if config is not None:
        basis = f"the layers of its configuration, {dtype or 'in its own dtype'}"
        return ModelledKv(_read_config(config, dtype), basis)
    line = KvGeometry(bytes_per_token or 0, {}, fixed_bytes or 0)
    return ModelledKv(line, "the bytes a token and the fixed bytes given")


def _read_config(path: Path, dtype: str | None) -> KvGeometry:
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Unusable(f"{path} is no JSON document") from error
    if not isinstance(document, dict):
        raise Unusable(f"{path} is no model configuration")
    try:
        return read_geometry(document, dtype)
    except GeometryError as error:
        raise Unusable(
            f"{path}: {error}; measure with --decode-url, or give --kv-bytes-per-token"
        ) from error
