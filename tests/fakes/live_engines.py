"""Scripted engines that a gateway takes for living ones: probes succeed, both legs are answered.

    async with LiveEngine("p0") as engine:
        ...
        call = await engine.called()        # the first POST, probes left out
        assert call.json()["max_tokens"] == 1

Answers are such as vLLM gives, with the name of the engine for a text.
"""

from __future__ import annotations

import asyncio
import json

from tests.fakes.scripted_engine import (
    Recorded,
    Script,
    ScriptedEngine,
    answer,
    json_answer,
    stream,
)

DONE = b"data: [DONE]\n\n"
WORDS = ("To", " answer", " is", " human")


class LiveEngine(ScriptedEngine):
    """An engine that lives, with the queue that its metrics tell of.

    `reply` and `then` script completions as for any `ScriptedEngine`; `running` and `waiting` are
    what the next scrape reads.
    """

    def __init__(self, name: str) -> None:
        super().__init__(self._complete)
        self.name = name
        self.running = 0
        self.waiting = 0
        self.cached_tokens = 0
        self._handoffs = 0
        self.on("/health", answer(200))
        self.on("/metrics", lambda _: answer(200, self._metrics(), content_type="text/plain"))
        # As vLLM answers without --enable-scale-out, and then as its /tokenize does.
        self.on("/v1/completions/render", json_answer({"error": "scale-out is off"}, 403))
        self.on("/v1/chat/completions/render", json_answer({"error": "scale-out is off"}, 403))
        self.on("/tokenize", lambda _: json_answer({"count": 9, "tokens": list(range(1, 10))}))

    @property
    def calls(self) -> list[Recorded]:
        """The completions asked of it, in order: no probes, no counting."""
        return [
            request
            for request in self.requests
            if request.method == "POST" and request.path.endswith("completions")
        ]

    async def called(self, count: int = 1, *, within: float = 60.0) -> Recorded:
        """Wait for the `count`-th completion and return its request."""
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= count)
        return self.calls[count - 1]

    def _metrics(self) -> bytes:
        lines = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": 0.5,
        }
        return "".join(f'vllm:{name}{{engine="0"}} {n}\n' for name, n in lines.items()).encode()

    def _complete(self, request: Recorded) -> Script:
        """Answer a leg as an engine would."""
        body = request.json()
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_decode"):
            self._handoffs += 1
            return prefilled(f"{self.name}-{self._handoffs}", cached=self.cached_tokens)
        if body.get("stream"):
            return stream(*chat_events(body["model"]))
        return completed(self.name, body["model"])


def handoff(name: str) -> dict[str, object]:
    """A hand-off as vLLM's NIXL connector gives it; `name` tells it from others."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": f"engine-{name}",
        "remote_request_id": f"cmpl-{name}",
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
    }


def prefilled(name: str = "1", *, cached: int = 0, **changes: object) -> Script:
    """A prefill leg's answer."""
    document: dict[str, object] = {
        "id": "cmpl-p",
        "object": "text_completion",
        "choices": [{"index": 0, "text": "PREFILL-TOKEN", "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
        "kv_transfer_params": handoff(name),
    }
    return json_answer(document | changes)


def completed(text: str, model: str) -> Script:
    """A whole answer; its text tells who answered."""
    return json_answer(
        {
            "id": "cmpl-d",
            "object": "text_completion",
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "text": text,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 99},
            },
            "kv_transfer_params": None,
        }
    )


def chat_event(model: str, text: str, finish: str | None = None) -> bytes:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    document = {"id": "chatcmpl-d", "model": model, "choices": [choice]}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def chat_events(model: str) -> list[bytes]:
    """A whole chat stream, `[DONE]` included."""
    return [*(chat_event(model, word) for word in WORDS), chat_event(model, "", "stop"), DONE]
