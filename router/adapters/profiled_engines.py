"""A vLLM engine as the profiler asks it: over httpx, one request at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from router.service.profiling import EngineIdentity, HandOff
from router.throughput.measurements import (
    ANSWER_TOKENS,
    EngineCounters,
    NotMeasured,
    PrefillAnswer,
)

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_PROMPT: Final = "vllm:prompt_tokens_total"
_GENERATED: Final = "vllm:generation_tokens_total"
_COMPUTED: Final = "vllm:request_prefill_kv_computed_tokens_sum"
_PREFILLS: Final = "vllm:request_prefill_time_seconds_count"
_PREFILL_SECONDS: Final = "vllm:request_prefill_time_seconds_sum"
_TRANSFERRED: Final = "vllm:nixl_bytes_transferred_sum"
_NEEDED: Final = (_RUNNING, _WAITING, _PROMPT, _GENERATED)
_PREFILL_LEG: Final = {"do_remote_decode": True, "do_remote_prefill": False}


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    usage: _Usage | None = None
    kv_transfer_params: dict[str, Any] | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


_Document = TypeVar("_Document", bound=msgspec.Struct)


class HttpProfiledEngine:
    """Implements `ProfiledEngine`. `client` carries time-outs and key; its owner closes it."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url = url
        self._client = client

    async def identify(self, model: str | None) -> EngineIdentity:
        """Ask `/version` and `/v1/models`."""
        version = self._decode(await self._call("GET", "/version"), _Version).version
        listed = self._decode(await self._call("GET", "/v1/models"), _Models).data
        for served in listed:
            if model in {None, served.id}:
                return EngineIdentity(served.id, version, served.max_model_len)
        names = ", ".join(served.id for served in listed) or "no model"
        raise NotMeasured(f"{self._url} serves {names}" + (f", not {model}" if model else ""))

    async def read_counters(self) -> EngineCounters:
        """Ask `/metrics`."""
        body = await self._call("GET", "/metrics")
        sums = sum_samples(body.decode("utf-8", "replace"))
        missing = [name for name in _NEEDED if name not in sums]
        if missing:
            raise NotMeasured(f"{self._url}/metrics has no {missing[0]}: is it a vLLM engine?")
        return EngineCounters(
            running=sums[_RUNNING],
            waiting=sums[_WAITING],
            prompt_tokens=sums[_PROMPT],
            generated_tokens=sums[_GENERATED],
            computed_tokens=sums.get(_COMPUTED),
            prefills=sums.get(_PREFILLS),
            prefill_seconds=sums.get(_PREFILL_SECONDS),
            transferred_bytes=sums.get(_TRANSFERRED),
        )

    async def prefill(self, model: str, prompt: Sequence[int]) -> PrefillAnswer:
        """Complete a prompt by one token."""
        raw = await self._call("POST", "/v1/completions", _encode(model, prompt))
        usage = self._decode(raw, _Completion).usage or _Usage()
        details = usage.prompt_tokens_details or _Details()
        return PrefillAnswer(
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=details.cached_tokens,
        )

    async def prefill_for_peer(self, model: str, prompt: Sequence[int]) -> HandOff:
        """Send the prefill leg of a NIXL hand-off."""
        raw = await self._call("POST", "/v1/completions", _encode(model, prompt, _PREFILL_LEG))
        hand_off = self._decode(raw, _Completion).kv_transfer_params
        if not hand_off:
            raise NotMeasured(f"{self._url} hands no KV over: does it run a NixlConnector?")
        return hand_off

    async def decode_from_peer(self, model: str, prompt: Sequence[int], hand_off: HandOff) -> None:
        """Send the decode leg of a NIXL hand-off."""
        await self._call("POST", "/v1/completions", _encode(model, prompt, hand_off))

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            response = await self._client.request(
                method, self._url + path, content=body, headers=headers
            )
        except httpx.TimeoutException as error:
            raise NotMeasured(f"{self._url}{path} did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise NotMeasured(f"cannot reach {self._url}: {said}") from error
        if response.status_code != 200:
            said = _message(response.content)
            raise NotMeasured(f"{self._url}{path} answered {response.status_code}{said}")
        return response.content

    def _decode(self, raw: bytes, kind: type[_Document]) -> _Document:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise NotMeasured(f"{self._url} does not answer as a vLLM engine does") from error


def sum_samples(exposition: str) -> Mapping[str, float]:
    """Add up vLLM's samples by name, over models and ranks. Raises NotMeasured for what is none."""
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                if sample.name.startswith("vllm:"):
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    except ValueError as error:
        raise NotMeasured("the engine's /metrics cannot be read") from error
    return sums


def _encode(
    model: str, prompt: Sequence[int], transfer: Mapping[str, object] | None = None
) -> bytes:
    """Return a completion of one token; `ignore_eos`, since an answer of none ends no prefill."""
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": False,
    }
    if transfer is not None:
        body["kv_transfer_params"] = transfer
    return msgspec.json.encode(body)


def _message(raw: bytes) -> str:
    """The engine's own words, on one line; nothing where it has none."""
    try:
        document = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return ""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f": {' '.join(message.split())}" if isinstance(message, str) and message else ""
