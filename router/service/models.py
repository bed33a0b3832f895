"""The models that clients may name, and what the gateway knows of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kvmeta.types import CacheLayout
from router.domain.decision import GateLimits, KvSizing
from router.domain.errors import NotFound
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, Seconds, Tokens
from router.throughput.profiles import Profile
from router.throughput.stages import DecodeRules


class TokenizerKind(StrEnum):
    """Who counts the tokens of a text prompt."""

    ENGINE = "engine"
    HF = "hf"
    NONE = "none"


PAPER_DECODE: Final = DecodeRules(slots=20, step_seconds=0.025, output_tokens=1024)
"""Decode as in the paper's case study."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One configured model.

    `loras` maps its adapters' names to the engines' names of them. `profiles` are by kind of pool;
    a kind without one is unprofiled.
    """

    name: str
    layout: CacheLayout
    served_name: str
    aliases: frozenset[str] = frozenset()
    loras: Mapping[str, str] = field(default_factory=dict)
    tokenizer: TokenizerKind = TokenizerKind.ENGINE
    bytes_per_token: float = 4.0
    profiles: Mapping[ClusterKind, Profile] = field(default_factory=dict)
    gate_limits: GateLimits = GateLimits()
    decode_slots: int | None = None
    decode_rules: DecodeRules = PAPER_DECODE

    def prefill_seconds(self, kind: ClusterKind, uncached: Tokens) -> Seconds:
        """Return the expected prefill time on an instance of a pool.

        Unprofiled pools are compared by length alone, at 10,000 tokens a second: the order of
        candidates in one pool does not depend on the rate.
        """
        profile = self.profiles.get(kind)
        if profile is None:
            return uncached / 10_000
        return profile.prefill(uncached) if uncached > 0 else 0.0

    def sizing(self, total: Tokens) -> KvSizing:
        """Return the KV bytes of a prompt; the pools hold one model, so either profile does."""
        profile = self.profiles.get(ClusterKind.PRFAAS) or self.profiles.get(ClusterKind.PD)
        if profile is None:
            return KvSizing(None)
        return KvSizing(profile.kv_bytes(total), profile.kv_line.bytes_per_token)

    def kv_rate(self, tokens: float) -> BytesPerSecond | None:
        """Return Phi_kv of the offloading pool at a length, None when it is unprofiled."""
        profile = self.profiles.get(ClusterKind.PRFAAS)
        return profile.kv_rate(tokens) if profile else None


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a client's model name stands for: a model and perhaps an adapter, by its engine name."""

    asked: str
    model: ServedModel
    lora: str | None = None


class ModelCatalog:
    """Names to models: the model's own, its aliases, its LoRA adapters."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = tuple(models)
        self._names: dict[str, NamedModel] = {}
        for model in self._models:
            for name in (model.name, *sorted(model.aliases)):
                self._names[name] = NamedModel(name, model)
            for lora, served in sorted(model.loras.items()):
                self._names[lora] = NamedModel(lora, model, served)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The configured models, in order."""
        return self._models

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a client may use, in order."""
        return tuple(self._names)

    def resolve(self, name: str) -> NamedModel:
        """Return what a name stands for; raises NotFound (`model_not_found`)."""
        try:
            return self._names[name]
        except KeyError:
            raise NotFound(
                f"the model {name!r} does not exist", param="model", code="model_not_found"
            ) from None
