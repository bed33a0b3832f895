"""SGLang engines that change their role as they run: `POST /pd_role_switch`.

Source: sgl-project/sglang pull request 28403, `srt/disaggregation/role_switch.py`. Release 0.5.21
is the first that is said to have it; engines need `--enable-pd-role-switch` and a transfer back end
that supports it (Mooncake, MORI). What the engine does:

- It takes `{"new_role": "prefill" | "decode"}`; a switch to decoding may need
  `decode_cuda_graph_memory_gb` besides. It answers `{"success", "message", "old_role",
  "new_role"}`, with 200, or 400 where it refuses.
- It refuses while it is not idle: KV that is still sent counts, which its queue does not show.
- It has no way back of its own: a switch that fails in the middle leaves it unhealthy until it is
  restarted.
- `/server_info` (`/get_server_info` before) tells the *live* role for each scheduler, below
  `internal_states`. The `disaggregation_mode` beside it is the one that it was launched with.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from router.adapters.actuators.calls import Answer, Caller, NoAnswer
from router.adapters.actuators.instances import Find, find_instance
from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed
from router.domain.topology import Instance, Role
from router.domain.units import Seconds
from router.ports import Clock

_SWITCH: Final = "/pd_role_switch"
_TELLING: Final = "/server_info"
_TOLD_BEFORE: Final = "/get_server_info"
_BUSY: Final = "not idle"


class SglangActuator:
    """Implements `Actuator` by asking the instance itself.

    An engine that is busy with what its queue does not show is asked again, every `pause` seconds
    for `caller.timeout` in all.
    """

    in_place = True

    def __init__(
        self,
        caller: Caller,
        find: Find,
        *,
        clock: Clock,
        graph_memory_gb: float | None = None,
        pause: Seconds = 0.5,
    ) -> None:
        self._caller = caller
        self._find = find
        self._clock = clock
        self._graph_memory = graph_memory_gb
        self._pause = pause

    def choose(self, _model: str, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Any of them."""
        return instances

    async def act(self, conversion: Conversion) -> None:
        """Have the engine switch. One that takes long is left to `confirm`."""
        await self._switch(conversion.instance, conversion.target, wait=False)

    async def confirm(self, conversion: Conversion) -> bool:
        """Ask for the role of every scheduler, and whether the engine is healthy in it.

        An engine that says nothing may be in the middle of the switch.
        """
        engine = self._engine(conversion.instance)
        try:
            roles = _roles(await engine.told())
            if any(role != conversion.target for role in roles):
                return False
            return (await engine.get("/health")).status == 200
        except NoAnswer:
            return False

    async def undo(self, conversion: Conversion) -> None:
        """Have the engine switch back, and wait for its answer."""
        await self._switch(conversion.instance, conversion.source, wait=True)

    async def read_roles(self, instance: str) -> list[object]:
        """Return the live role of each of an instance's schedulers. Raises ActuationFailed."""
        return _roles(await self._engine(instance).told())

    async def _switch(self, instance: str, role: Role, *, wait: bool) -> None:
        """Have an engine take a role. With `wait`, an answer that is late is a failure."""
        engine = self._engine(instance)
        told = await engine.told()
        if all(each == role for each in _roles(told)):
            return
        body: dict[str, object] = {"new_role": role.value}
        memory = self._memory(told) if role is Role.DECODE else None
        if memory is not None:
            body["decode_cuda_graph_memory_gb"] = memory
        until = self._clock.monotonic() + self._caller.timeout
        while True:
            try:
                answer = await engine.post(_SWITCH, body)
            except NoAnswer as error:
                if wait or not error.late:
                    raise
                return
            if answer.fine and answer.document().get("success") is True:
                return
            reason = _refusal(answer, _SWITCH)
            if _BUSY not in reason or self._clock.monotonic() >= until:
                raise ActuationFailed(f"{instance} refuses to {role}: {reason}")
            await asyncio.sleep(self._pause)

    def _memory(self, told: Mapping[str, Any]) -> float | None:
        """What must be free before graphs are captured: as configured, else as the engine says."""
        if self._graph_memory is not None:
            return self._graph_memory
        for state in _states(told):
            value = state.get("decode_cuda_graph_memory_gb")
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return float(value)
        return None

    def _engine(self, name: str) -> _Engine:
        instance = find_instance(self._find, name)
        return _Engine(replace(self._caller, peer=name), instance)


class _Engine:
    """One engine, called with its own key."""

    def __init__(self, caller: Caller, instance: Instance) -> None:
        self._caller = caller
        self._base = instance.url.rstrip("/")
        self._headers = {"authorization": f"Bearer {instance.api_key}"} if instance.api_key else {}

    async def get(self, path: str) -> Answer:
        return await self._caller.call("GET", self._base + path, headers=self._headers)

    async def post(self, path: str, body: Mapping[str, object]) -> Answer:
        headers = {**self._headers, "content-type": "application/json"}
        content = json.dumps(body).encode()
        return await self._caller.call("POST", self._base + path, headers=headers, content=content)

    async def told(self) -> Mapping[str, Any]:
        """Return what the engine tells of itself. Raises ActuationFailed, NoAnswer."""
        answer = await self.get(_TELLING)
        if answer.status == 404:
            answer = await self.get(_TOLD_BEFORE)
        if answer.status in {502, 503, 504}:
            raise NoAnswer(f"{self._caller.peer} does not answer ({answer.status})")
        if not answer.fine:
            why = _refusal(answer, _TELLING)
            raise ActuationFailed(f"{self._caller.peer} does not tell its role: {why}")
        if not _states(answer.document()):
            raise ActuationFailed(
                f"{self._caller.peer} does not tell its role: no `disaggregation_mode` in"
                " `internal_states` (SGLang before 0.5.21?)"
            )
        return answer.document()


def _states(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schedulers that tell their role."""
    states = told.get("internal_states")
    if not isinstance(states, list):
        return []
    return [state for state in states if isinstance(state, dict) and "disaggregation_mode" in state]


def _roles(told: Mapping[str, Any]) -> list[object]:
    return [state["disaggregation_mode"] for state in _states(told)]


def _refusal(answer: Answer, path: str) -> str:
    match answer.status:
        case 401 | 403:
            return f"it does not accept our api_key ({answer.status})"
        case 404 | 405:
            return f"it has no {path}: is it SGLang, 0.5.21 or later?"
        case _:
            return answer.reason()
