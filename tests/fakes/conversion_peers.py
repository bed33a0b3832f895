"""The other ends of actuators, scripted: an SGLang engine and a webhook's receiver."""

from __future__ import annotations

import hashlib
import hmac
from collections import deque

from router.domain.topology import Role
from tests.fakes.scripted_engine import Recorded, Script, ScriptedEngine, json_answer

ENGINE_KEY = "sk-of-the-engine"
WEBHOOK_SECRET = "whsec-shared-with-the-receiver"


class SglangEngine:
    """An engine that was launched to prefill. `switched` counts what it did, not what was asked.

    `refusal` is told instead of switching; `busy` requests find it not idle first; a `loading`
    one is not healthy in its new role yet.
    """

    def __init__(self) -> None:
        self.engine = ScriptedEngine(self._answer)
        self.role = "prefill"
        self.schedulers = 2
        self.graph_memory: float | None = None
        self.refusal: str | None = None
        self.busy = 0
        self.loading = False
        self.switched = 0
        self.info_path = "/server_info"

    def _answer(self, request: Recorded) -> Script:
        if request.header("authorization") != f"Bearer {ENGINE_KEY}":
            return json_answer({"error": "Unauthorized"}, 401)
        match request.method, request.path:
            case "GET", self.info_path:
                state: dict[str, object] = {"disaggregation_mode": self.role}
                if self.graph_memory is not None:
                    state["decode_cuda_graph_memory_gb"] = self.graph_memory
                states = [state] * self.schedulers
                told = {"disaggregation_mode": "prefill", "internal_states": states}
                return json_answer(told)
            case "GET", "/health":
                return json_answer({}, 503 if self.loading else 200)
            case "POST", "/pd_role_switch":
                return self._switch(request.json())
            case _:
                return json_answer({"detail": "Not Found"}, 404)

    def _switch(self, body: dict[str, object]) -> Script:
        refusal = self.refusal
        if self.busy:
            self.busy -= 1
            refusal = "instance is not idle; drain all requests before switching"
        answer = {"old_role": self.role, "new_role": body["new_role"]}
        if refusal is not None:
            return json_answer({"success": False, "message": refusal, **answer}, 400)
        if self.role != body["new_role"]:
            self.switched += 1
        self.role = str(body["new_role"])
        return json_answer({"success": True, "message": "ok", **answer})


class WebhookReceiver:
    """A receiver that carries out one instance's conversions, and checks every signature.

    `refusal` is answered with 409, and so are the phases of `refusals`; `failures` are answered
    first; while it is `working` it answers 202.
    """

    def __init__(self) -> None:
        self.engine = ScriptedEngine(self._answer)
        self.role = "prefill"
        self.refusal: str | None = None
        self.refusals: dict[str, str] = {}
        self.failures: deque[int] = deque()
        self.working = False
        self.switched = 0

    def _answer(self, request: Recorded) -> Script:
        sent = request.header("prfaas-signature") or ""
        fields = dict(part.split("=", 1) for part in sent.split(","))
        signed = fields["t"].encode() + b"." + request.body
        wanted = hmac.new(WEBHOOK_SECRET.encode(), signed, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(wanted, fields["v1"]):
            return json_answer({"message": "wrong signature"}, 401)
        if self.failures:
            return json_answer({}, self.failures.popleft())
        asked = request.json()
        refusal = self.refusals.get(asked["phase"], self.refusal)
        if refusal is not None:
            return json_answer({"reason": refusal}, 409)
        ends = {"act": "target", "undo": "source"}
        if asked["phase"] in ends:
            role = str(Role(asked["conversion"][ends[asked["phase"]]]))
            self.switched += role != self.role
            self.role = role
        return json_answer({}, 202 if self.working else 200)
