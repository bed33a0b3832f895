"""The scenes in which the relay is tested: scripted engines in their places, and what they say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from router.adapters.engine_http import HttpEngineClient
from router.domain.decision import Route
from router.domain.topology import Role
from router.service.bodies import BodyKind
from router.service.relay_ports import RelaySettings
from router.service.relayed import RelayedResponse
from tests.fakes.relay_parts import Rig, instance
from tests.fakes.scripted_engine import ScriptedEngine, Step, json_answer, stream

PROMPT = b'{"model":"m","prompt":"a long prompt","max_tokens":50}'
STREAMED = b'{"model":"m","prompt":"a long prompt","max_tokens":50,"stream":true}'
DONE = b"data: [DONE]\n\n"


def handoff(number: int = 1) -> dict[str, object]:
    """A hand-off as vLLM's NIXL connector gives it."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[number, number + 1]],
        "remote_engine_id": f"engine-{number}",
        "remote_request_id": f"cmpl-{number}",
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": 4096,
    }


def prefilled(number: int = 1, cached: int | None = 128, **changes: object) -> list[Step]:
    """A prefill leg's answer."""
    usage: dict[str, object] = {"prompt_tokens": 4096, "completion_tokens": 1}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    answer: dict[str, object] = {
        "id": "cmpl-p",
        "choices": [{"index": 0, "text": "PREFILL-TOKEN", "finish_reason": "length"}],
        "usage": usage,
        "kv_transfer_params": handoff(number),
    }
    return json_answer(answer | changes)


def completion(text: str = "answer", cached: int | None = 4095, **changes: object) -> list[Step]:
    """A whole answer."""
    usage: dict[str, object] = {"prompt_tokens": 4096, "completion_tokens": 3}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    answer: dict[str, object] = {
        "id": "cmpl-d",
        "model": "m",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": usage,
        "kv_transfer_params": None,
    }
    return json_answer(answer | changes)


def event(text: str, **changes: object) -> bytes:
    """One streamed piece of an answer, as vLLM writes it."""
    chunk = {"id": "cmpl-d", "model": "m", "choices": [{"index": 0, "text": text}]}
    return b"data: " + json.dumps(chunk | changes, separators=(",", ":")).encode() + b"\n\n"


def streamed(*texts: str, gap: float = 0.0) -> list[Step]:
    """A whole streamed answer."""
    return stream(*map(event, texts), DONE, gap=gap)


@dataclass
class Scene:
    """Two clusters: remote prefill, two local prefills, two decodes; and a relay over them."""

    rig: Rig
    remote: ScriptedEngine
    prefill: ScriptedEngine
    other_prefill: ScriptedEngine
    decode: ScriptedEngine
    other_decode: ScriptedEngine

    async def run(
        self,
        route: Route | None,
        body: bytes = PROMPT,
        *,
        kind: BodyKind = BodyKind.COMPLETION,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> RelayedResponse:
        """Relay one request as decided for `route` (None: one call)."""
        request = self.rig.request(body, kind=kind, headers=headers)
        return await self.rig.relay.run(request, self.rig.planner.decide(route))

    async def answer(
        self, route: Route | None, body: bytes = PROMPT, **more: object
    ) -> tuple[RelayedResponse, bytes]:
        """Relay one request and read its answer whole."""
        async with await self.run(route, body, **more) as response:  # type: ignore[arg-type]
            return response, b"".join([chunk async for chunk in response.chunks()])

    def move(self, name: str, url: str) -> None:
        """Give an instance another address."""
        moved = self.rig.planner.instances
        old = moved[name]
        moved[name] = instance(name, url, old.role, remote=old.cluster != "pd-east")


@asynccontextmanager
async def a_scene(
    settings: RelaySettings | None = None,
    *,
    keys: dict[str, str] | None = None,
    names: dict[str, str] | None = None,
) -> AsyncIterator[Scene]:
    """Start the engines. `keys` and `names` give instances an API key or a model name."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine()) for _ in range(5)]
        remote, prefill, other_prefill, decode, other_decode = engines
        for number, engine in enumerate((remote, prefill, other_prefill)):
            engine.reply(prefilled(number))
        for engine in (decode, other_decode):
            engine.reply(completion())
        client = HttpEngineClient()
        stack.push_async_callback(client.aclose)
        places = [
            ("pf-0", remote, Role.PREFILL, True),
            ("pd-p0", prefill, Role.PREFILL, False),
            ("pd-p1", other_prefill, Role.PREFILL, False),
            ("pd-d0", decode, Role.DECODE, False),
            ("pd-d1", other_decode, Role.DECODE, False),
        ]
        instances = []
        for name, engine, role, far in places:
            more = {"api_key": (keys or {}).get(name), "served_name": (names or {}).get(name)}
            given = {key: value for key, value in more.items() if value is not None}
            instances.append(instance(name, engine.url, role, remote=far, **given))
        yield Scene(Rig(client, instances, settings), *engines)
