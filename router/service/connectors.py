"""How a request is split in two: what each KV connector puts into the legs and reads from them.

The prefill leg makes one engine fill its cache with the prompt; its answer carries a hand-off, an
opaque object that tells the decode engine where the KV lies. All functions are pure: bodies in,
bodies out. Third parties add connectors by the entry-point group `prfaas.connectors`: a name and
a function without arguments that makes a `Connector`.

Sources: vLLM's `nixl/pull_scheduler.py` (the three bodies) and `sampling_params.py` (what is
illegal together with a limit of one token).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Protocol

import msgspec
from msgspec import Struct

from kvmeta.types import CacheLayout, GroupKind
from router.domain.errors import NotFound
from router.domain.units import Tokens
from router.service.bodies import BodyKind, ClientBody, json_text

ENTRY_POINT_GROUP = "prfaas.connectors"

_LIMITS: Mapping[BodyKind, tuple[str, ...]] = {
    BodyKind.CHAT: ("max_tokens", "max_completion_tokens"),
    BodyKind.COMPLETION: ("max_tokens", "max_completion_tokens"),
    BodyKind.RESPONSES: ("max_output_tokens", "max_tokens"),
    BodyKind.MESSAGES: ("max_tokens",),
    BodyKind.PASSED: ("max_tokens",),
}
"""The spellings of the output limit; the first is the one to add where a body has none."""

_NOT_FOR_PREFILL = frozenset(
    (
        # Illegal beside a limit of one token, or without a stream.
        "stream_options",
        "min_tokens",
        "min_completion_tokens",
        # One token of one answer is enough; it is thrown away.
        "n",
        "best_of",
        "use_beam_search",
        # They cost time or bandwidth, `prompt_logprobs` the cache look-up as well.
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "echo",
        "return_token_ids",
        "return_prompt_text",
        # A stop on the first token loses the hand-off where only a reached limit gives one.
        "stop",
        "stop_sequences",
        "stop_token_ids",
        "include_stop_str_in_output",
    )
)


class Handoff(Struct, frozen=True, gc=False):
    """Where a prompt's KV lies. Single-use. `changes` are members of the decode leg's body."""

    changes: Mapping[str, bytes]

    def __repr__(self) -> str:
        return "<Handoff>"


class PrefillAnswer(Struct, frozen=True, gc=False):
    """What a prefill leg's response tells. Its prompt count may be short by a truncation."""

    handoff: Handoff | None
    prompt_tokens: Tokens | None
    cached_tokens: Tokens | None


class Connector(Protocol):
    """One way to move KV from the engine that computes a prompt to the one that answers."""

    @property
    def name(self) -> str:
        """The name that the configuration uses."""
        ...

    @property
    def splits(self) -> bool:
        """Whether there are two legs at all."""
        ...

    @property
    def ships_prefix(self) -> bool:
        """Whether a bare prefix can be moved before the prompt is computed (DESIGN 5)."""
        ...

    def prefill_truncation(self, layout: CacheLayout) -> Tokens:
        """Return by how many tokens the prefill engine shortens its own prompt."""
        ...

    def form_prefill(self, body: ClientBody, served_name: str) -> bytes:
        """Return the prefill leg's body."""
        ...

    def read_prefill(self, response: bytes) -> PrefillAnswer:
        """Read the prefill leg's response. Raises ValueError where it is not what it should be."""
        ...

    def form_decode(self, body: ClientBody, served_name: str, handoff: Handoff | None) -> bytes:
        """Return the decode leg's body, or (None) that of a call that does everything itself."""
        ...


class NixlConnector:
    """VLLM's NixlConnector in pull mode: the decode engine reads the prefill engine's memory.

    With a recurrent group the prefill engine truncates its own prompt by one token: the state
    must stand before the last token, which the decode engine recomputes.
    """

    name = "nixl"
    splits = True
    ships_prefix = False

    _REQUEST = b'{"do_remote_decode":true,"do_remote_prefill":false}'

    def prefill_truncation(self, layout: CacheLayout) -> Tokens:
        """1 with a recurrent group, else 0."""
        return int(any(group.kind is GroupKind.RECURRENT for group in layout.groups))

    def form_prefill(self, body: ClientBody, served_name: str) -> bytes:
        """Ask for one token and for the KV to be kept."""
        return body.form(prefill_changes(body, served_name) | {"kv_transfer_params": self._REQUEST})

    def read_prefill(self, response: bytes) -> PrefillAnswer:
        """Take `kv_transfer_params` as it is; null, missing or empty is no hand-off (R23)."""
        try:
            answer = _NIXL_ANSWER.decode(response)
            params = _NIXL_PARAMS.decode(answer.kv_transfer_params) or {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError("the prefill's answer is not a completion") from error
        prompt_tokens, cached = _read_usage(answer.usage)
        if cached is None:
            cached = _read_count(params.get(_NIXL_CACHED))
        handoff = None
        if params:
            handoff = Handoff({"kv_transfer_params": bytes(answer.kv_transfer_params)})
        return PrefillAnswer(handoff, prompt_tokens, cached)

    def form_decode(self, body: ClientBody, served_name: str, handoff: Handoff | None) -> bytes:
        """Return the client's body and, where there is one, the hand-off verbatim."""
        return _form_answering(body, served_name, handoff)


class NoConnector:
    """No KV is moved: every request is one call."""

    name = "none"
    splits = False
    ships_prefix = False

    def prefill_truncation(self, layout: CacheLayout) -> Tokens:  # noqa: ARG002 - the protocol's
        """0: there is no prefill leg."""
        return 0

    def form_prefill(self, body: ClientBody, served_name: str) -> bytes:
        """Return a body that fills a cache, for engines that share one without being told."""
        return body.form(prefill_changes(body, served_name))

    def read_prefill(self, response: bytes) -> PrefillAnswer:  # noqa: ARG002 - the protocol's
        """No hand-off."""
        return PrefillAnswer(None, None, None)

    def form_decode(self, body: ClientBody, served_name: str, handoff: Handoff | None) -> bytes:
        """Return the client's body."""
        return _form_answering(body, served_name, handoff)


def prefill_changes(body: ClientBody, served_name: str) -> dict[str, bytes | None]:
    """Return the changes that make a body fill a cache and answer with one token.

    Every spelling of the limit that is present becomes 1, and one is added where none is (R20).
    What shapes the prompt stays. `ignore_eos` keeps a prompt whose first token would be the end
    of the answer from finishing before its limit, at which some versions give no hand-off.
    """
    spellings = _LIMITS[body.kind]
    present = [name for name in spellings if name in body.fields] or [spellings[0]]
    changes: dict[str, bytes | None] = dict.fromkeys(_NOT_FOR_PREFILL & body.fields.keys())
    changes |= dict.fromkeys(present, b"1")
    changes |= {"model": json_text(served_name), "stream": b"false", "ignore_eos": b"true"}
    if body.kind is BodyKind.RESPONSES:
        changes["store"] = b"false"
    return changes


def find_connector(
    name: str, third_party: Mapping[str, Callable[[], Connector]] | None = None
) -> Connector:
    """Return the connector of that name; ours come before `third_party` ones.

    Raises NotFound, naming those that exist.
    """
    known: dict[str, Callable[[], Connector]] = {
        **(third_party or {}),
        NixlConnector.name: NixlConnector,
        NoConnector.name: NoConnector,
    }
    if name not in known:
        raise NotFound(f"no connector {name!r}; there are: {', '.join(sorted(known))}")
    return known[name]()


def third_party_connectors() -> dict[str, Callable[[], Connector]]:
    """Read the installed distributions' connectors; each is imported only when it is made."""
    return {
        point.name: lambda point=point: point.load()()  # type: ignore[misc]
        for point in entry_points(group=ENTRY_POINT_GROUP)
    }


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    input_tokens_details: _PromptDetails | None = None
    cache_read_input_tokens: int | None = None


class _NixlAnswer(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


_USAGE = msgspec.json.Decoder(_Usage | None)
_NIXL_ANSWER = msgspec.json.Decoder(_NixlAnswer)
_NIXL_PARAMS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_NIXL_CACHED = "remote_prefill_cached_tokens"


def _read_usage(raw: msgspec.Raw) -> tuple[Tokens | None, Tokens | None]:
    """Read prompt and cached tokens from a usage object of any endpoint.

    One that cannot be read tells nothing.
    """
    try:
        usage = _USAGE.decode(raw) or _Usage()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        usage = _Usage()
    details = usage.prompt_tokens_details or usage.input_tokens_details or _PromptDetails()
    cached = details.cached_tokens
    return (
        usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
        usage.cache_read_input_tokens if cached is None else cached,
    )


def _read_count(raw: msgspec.Raw | None) -> int | None:
    text = b"" if raw is None else bytes(raw)
    return int(text) if text.isdigit() else None


def _form_answering(body: ClientBody, served_name: str, handoff: Handoff | None) -> bytes:
    changes: dict[str, bytes | None] = {"model": json_text(served_name)}
    return body.form(changes | dict(handoff.changes) if handoff else changes)
