"""Answers on their way to the client: what little of them is rewritten, and what is read off.

Bytes are copied. Only an object that carries one of three things is written anew, and of it only
those members: a `kv_transfer_params` that is not null (it names internal hosts), `cached_tokens`
where a prefill leg knows better (CASES R28), `model` where the engine has another name for it.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Struct

from router.domain.units import Tokens
from router.service.bodies import json_text
from router.service.relay_ports import Usage

_NULL: Final = msgspec.Raw(b"null")
_WRAPPERS: Final = ("response", "message")
"""Members that hold the answer itself, in the events of Responses and Messages."""

_LONGEST_COUNT: Final = 18
"""Digits of a number of tokens; more are no count."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()


# vLLM's completions say `"usage":null` in every event: there is nothing to read or hide in a null.
_NOTABLE: Final = rb'"(?:kv_transfer_params|usage)"(?!\s*:\s*null)'
_UNNAMED: Final = re.compile(_NOTABLE)
_NAMED: Final = re.compile(_NOTABLE + rb'|"model"')


_Told = Annotated[int, msgspec.Meta(ge=0)]


class _Details(Struct):
    cached_tokens: _Told | None = None


class _Counts(Struct):
    """A usage object of Completions and Chat Completions, without the members of other APIs."""

    prompt_tokens: _Told | None = None
    completion_tokens: _Told | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: None = None
    cache_read_input_tokens: None = None


class _Plain(Struct):
    """What an answer has that needs no change: a usage, no transfer parameters, no wrapper."""

    usage: _Counts
    kv_transfer_params: None = None
    response: None = None
    message: None = None


_PLAIN: Final = msgspec.json.Decoder(_Plain)


class Edits(Struct, frozen=True, gc=False):
    """What to change in answers, besides hiding transfer parameters.

    `cached_tokens` is what the prefill leg reported, None to leave the answer's own. `model` is
    the client's name, None where the engine's is the same.
    """

    cached_tokens: Tokens | None = None
    model: str | None = None


class Rewritten(Struct, frozen=True, gc=False):
    """An answer's JSON text and what it says of usage."""

    text: bytes
    usage: Usage | None


class Rewriter:
    """Applies `Edits` to JSON texts. Keeps no state between them."""

    def __init__(self, edits: Edits) -> None:
        self._cached = edits.cached_tokens
        self._model = None if edits.model is None else json_text(edits.model)
        self._wanted = _NAMED if self._model else _UNNAMED

    def concerns(self, text: bytes) -> bool:
        """Whether anything in `text` may have to be changed or noted.

        `rewrite` looks more closely; this is for many events at once, of which nearly none do.
        """
        usages = text.count(b'"usage"')
        return (
            (usages > 0 and usages != text.count(b'"usage":null'))
            or text.find(b'"kv_transfer_params"') >= 0
            or (self._model is not None and text.find(b'"model"') >= 0)
        )

    def rewrite(self, text: bytes) -> Rewritten:
        """Return `text`: itself, unless it is an object that needs a change.

        Most events of a stream cost one search; the others are decoded one level deep.
        """
        if self._wanted.search(text) is None:
            return Rewritten(text, None)
        if self._model is None and (told := _read_plain(text)) and self._agrees(told):
            return Rewritten(text, told)
        try:
            members = _OBJECT.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Rewritten(text, None)
        changes, usage = self._edit(members)
        for name in _WRAPPERS:
            if (inner := _read_object(members.get(name))) is None:
                continue
            inner_changes, inner_usage = self._edit(inner)
            usage = usage or inner_usage
            if inner_changes:
                changes[name] = _ENCODER.encode(inner | _raw(inner_changes))
        if changes:
            text = _ENCODER.encode(members | _raw(changes))
        return Rewritten(text, usage)

    def _agrees(self, told: Usage) -> bool:
        """Whether a usage says already what it should, or nothing, of cached tokens."""
        if self._cached is None or told.cached_tokens is None:
            return True
        return told.cached_tokens == min(self._cached, told.prompt_tokens or 0)

    def _edit(self, members: dict[str, msgspec.Raw]) -> tuple[dict[str, bytes], Usage | None]:
        """Return the changes that an object needs, and its usage."""
        changes: dict[str, bytes] = {}
        if bytes(members.get("kv_transfer_params", _NULL)) != b"null":
            changes["kv_transfer_params"] = b"null"
        if self._model is not None and "model" in members:
            changes["model"] = self._model
        if (usage := _read_object(members.get("usage"))) is None:
            return changes, None
        if edited := _edit_usage(usage, self._cached):
            usage |= _raw(edited)
            changes["usage"] = _ENCODER.encode(usage)
        return changes, _read_usage(usage)


def _read_plain(text: bytes) -> Usage | None:
    """Return the usage of an answer that is as most are, in one look; None for any other."""
    try:
        counts = _PLAIN.decode(text).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if counts.prompt_tokens is None:
        return None
    details = counts.prompt_tokens_details
    return Usage(
        counts.prompt_tokens,
        counts.completion_tokens,
        None if details is None else details.cached_tokens,
    )


def _raw(changes: dict[str, bytes]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(value) for name, value in changes.items()}


def _read_object(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw] | None:
    """Decode a member that is an object; None for anything else, and for what is malformed."""
    if raw is None or not bytes(raw).startswith(b"{"):
        return None
    try:
        return _OBJECT.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _edit_usage(usage: dict[str, msgspec.Raw], cached: Tokens | None) -> dict[str, bytes]:
    """Return the changes that make a usage object tell the prefill leg's cached tokens.

    Never more than the prompt's own tokens; where the engine tells none, none are added.
    """
    if cached is None:
        return {}
    total = _read_count(usage, "prompt_tokens", "input_tokens")
    told = b"%d" % (cached if total is None else min(cached, total))
    changes: dict[str, bytes] = {}
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = _read_object(usage.get(name))
        if details is not None and _read_count(details, "cached_tokens") is not None:
            changes[name] = _ENCODER.encode(details | _raw({"cached_tokens": told}))
    if _read_count(usage, "cache_read_input_tokens") is not None:
        changes["cache_read_input_tokens"] = told
    return changes


def _read_usage(usage: dict[str, msgspec.Raw]) -> Usage:
    details = _read_object(usage.get("prompt_tokens_details")) or _read_object(
        usage.get("input_tokens_details")
    )
    cached = _read_count(details or {}, "cached_tokens")
    if cached is None:
        cached = _read_count(usage, "cache_read_input_tokens")
    return Usage(
        prompt_tokens=_read_count(usage, "prompt_tokens", "input_tokens"),
        completion_tokens=_read_count(usage, "completion_tokens", "output_tokens"),
        cached_tokens=cached,
    )


def _read_count(members: dict[str, msgspec.Raw], *names: str) -> Tokens | None:
    """Return the first of the named members that is a count."""
    for name in names:
        text = bytes(members.get(name, _NULL))
        if text.isdigit() and len(text) <= _LONGEST_COUNT:
            return int(text)
    return None
