"""What is served: models, their tokenizers, caches, profiles and limits."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kvmeta.types import CPU, GPU, GroupKind
from router.settings.fields import (
    Count,
    FilePath,
    ModelName,
    PositiveCount,
    PositiveNumber,
    PositiveTokens,
    Ratio,
    Section,
    Text,
    incoherent,
)


class EngineTokenizerSettings(Section):
    """Prompts are counted by an engine: its render endpoint or `/tokenize`."""

    kind: Literal["engine"] = "engine"
    """Ask an engine, which knows the chat template and multimodal placeholders."""


class HfTokenizerSettings(Section):
    """Prompts are counted in process by a Hugging Face tokenizer."""

    kind: Literal["hf"]
    """Use a tokenizer on disk."""
    path: FilePath
    """Directory with `tokenizer.json` (and `tokenizer_config.json` for the chat template), or that
    file itself; relative to the configuration file."""
    revision: Text | None = None
    """Names the tokenizer's state: part of every block's identity."""
    encoder: Literal["auto", "hf"] = "auto"
    """`auto` encodes by tiktoken, several times faster, where it is proved to give the same ids,
    and remembers the turns of conversations; `hf` leaves everything to the tokenizer itself."""
    remembered_bytes: Count = 67_108_864
    """Most memory for the ids of turns that were encoded before; 0 remembers none. 64 MiB hold
    sixteen million tokens: 160 conversations of 100K."""


class EstimateTokenizerSettings(Section):
    """Prompts are estimated from their length; what is cached is then unknown."""

    kind: Literal["none"]
    """Do not tokenize."""
    bytes_per_token: PositiveNumber = 4
    """UTF-8 bytes of a prompt per token. About 4 for English text with today's vocabularies."""


TokenizerSettings = Annotated[
    EngineTokenizerSettings | HfTokenizerSettings | EstimateTokenizerSettings,
    Field(discriminator="kind"),
]


class CacheGroupSettings(Section):
    """A kind of KV group that must be present for a prefix to be reusable."""

    kind: GroupKind
    """`full_attention` (MLA too), `sliding_window` or `recurrent` (linear attention, Mamba)."""
    window: PositiveTokens | None = None
    """The window of `sliding_window` in tokens; required there, refused elsewhere."""
    count: PositiveCount | None = None
    """How many groups of the kind the model has; left out, as many as its engines announce."""
    block_size: PositiveTokens | None = None
    """The group's own block in tokens; left out, learnt from the engines' events."""

    @model_validator(mode="after")
    def _window_fits_kind(self) -> Self:
        if self.kind is GroupKind.SLIDING_WINDOW and self.window is None:
            raise incoherent("window", "is required for kind sliding_window")
        if self.kind is not GroupKind.SLIDING_WINDOW and self.window is not None:
            raise incoherent("window", f"belongs to kind sliding_window, not to {self.kind}")
        return self


class CacheSettings(Section):
    """The model's prefix cache, as its engines keep it."""

    block_size: PositiveTokens = 16
    """The engines' hash unit in tokens (vLLM's default block)."""
    alignment: PositiveTokens | None = None
    """Granularity of the engines' hits in tokens; left out, the least common multiple of the block
    sizes, as vLLM's scheduler has it."""
    groups: Annotated[tuple[CacheGroupSettings, ...], Field(min_length=1)] = (
        CacheGroupSettings(kind=GroupKind.FULL_ATTENTION),
    )
    """The KV groups. Plain transformers have full attention alone."""

    @model_validator(mode="after")
    def _alignment_is_whole_blocks(self) -> Self:
        if self.alignment is not None and self.alignment % self.block_size:
            message = f"must be a multiple of block_size ({self.block_size}; got {self.alignment})"
            raise incoherent("alignment", message)
        return self


class LoraSettings(Section):
    """An adapter that is served under its own name."""

    name: ModelName
    """The name clients use."""
    served_name: ModelName | None = None
    """The engines' name for it; left out, the same name."""


class GateSettings(Section):
    """When prefills of a model stay at home whatever their length."""

    max_kv_gbps: PositiveNumber | None = None
    """Limit of Phi_kv = S_kv / T_prefill at the operating length, in Gbit/s for one PrfaaS
    instance; left out, no limit. A link that one instance would fill by itself is one always."""
    min_long_share: Ratio | None = None
    """Least share of prompts over the threshold, among the last thousand or so; below it a remote
    pool would idle. Left out, not asked; nor is it of the first hundred prompts."""
    min_long_tokens: PositiveTokens | None = None
    """Least mean uncached length of those prompts, in tokens; left out, not asked."""
    min_gain: PositiveNumber | None = None
    """Least factor by which offloading must raise what is sustained, by the model of today's
    instances, links and lengths; left out, not asked. Needs profiles of both pools."""


class DecodeSettings(Section):
    """What decode instances of the model are dimensioned for."""

    max_concurrency: PositiveCount = 256
    """Decode slots of an instance, BS_max of the paper's SLO. 256 is vLLM's long-standing
    `max_num_seqs`; lower it to what holds the token rate."""
    tokens_per_second_slo: PositiveNumber = 40
    """Decode rate promised to a request (the paper's SLO of 40 tokens/s)."""
    expected_output_tokens: PositiveTokens = 1024
    """Mean output length, for capacity of the decode stage (the paper's case study)."""


class ModelSettings(Section):
    """A model, by the name that clients use."""

    name: ModelName
    """The name clients use."""
    served_name: ModelName | None = None
    """The engines' name for it; left out, the same name. An instance may have its own."""
    aliases: tuple[ModelName, ...] = ()
    """Further names that clients may use."""
    loras: tuple[LoraSettings, ...] = ()
    """Adapters; each has its own prefixes in the cache."""
    revision: Text | None = None
    """Names the weights' state. KV is never shared between revisions, and a profile of another
    revision is refused. Quote it: YAML would read 1.10 as 1.1."""
    kv_dtype: Text = "auto"
    """Data type of the KV cache, part of every block's identity (vLLM's `--kv-cache-dtype`)."""
    world_size: PositiveCount = 1
    """Ranks that share a request's KV: tensor times pipeline parallel size. Part of every block's
    identity."""
    eagle: bool = False
    """Whether engines speculate with EAGLE: their hits are one block shorter."""
    media: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Cache tiers that count as reusable for this model; left out, `kvmeta.counted_media`."""
    tokenizer: TokenizerSettings = EngineTokenizerSettings()
    """How prompts are counted."""
    cache: CacheSettings = CacheSettings()
    """The prefix cache."""
    gate: GateSettings = GateSettings()
    """Limits of what may be offloaded."""
    profiles: dict[str, FilePath] = Field(default_factory=dict)
    """Profile files by pool: `prfaas` and `pd`, or the name of one cluster where its hardware
    differs. Without one, KV bytes are not booked and `auto` has nothing to solve."""
    decode: DecodeSettings = DecodeSettings()
    """What decode is dimensioned for."""

    @property
    def engine_name(self) -> str:
        """The name engines know the model by, where an instance has no own."""
        return self.served_name or self.name


DEFAULT_MEDIA = (GPU, CPU)
