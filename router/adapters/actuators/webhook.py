"""Somebody else carries conversions out: a signed POST, and answers that say how far it is.

The body is JSON: `{"conversion": {"model", "cluster", "instance", "source", "target"}, "phase":
"act" | "confirm" | "undo", "term": N, "idempotency_key": TEXT}`. The header `prfaas-signature` is
`t=SECONDS,v1=HEX`, HEX being the HMAC-SHA256 of `SECONDS.BODY`, as Stripe signs its webhooks: who
receives it compares, and refuses what is minutes old. `term` grows with each change of leader, so
that a leader of yesterday can be told.

| answer | means |
|---|---|
| 2xx | done; of `confirm`: the target role is served |
| 202 | accepted, not done yet; `confirm` or the same `undo` asks again |
| 409, 422 | refused, for the reason in the body |
| other | no answer: the same call is repeated, and then it has failed |

Every attempt of a call carries the same key, which makes its repetition safe where an answer was
lost. A `confirm` is not repeated: it is asked again anyway.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

from router.adapters.actuators.calls import Answer, Caller, NoAnswer
from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed
from router.domain.topology import Instance
from router.domain.units import Seconds
from router.ports import Clock

SIGNATURE: Final = "prfaas-signature"

_ACCEPTED: Final = 202
_REFUSED: Final = frozenset({409, 422})


class Phase(StrEnum):
    """What is asked of the receiver."""

    ACT = "act"
    CONFIRM = "confirm"
    UNDO = "undo"


def sign(secret: bytes, body: bytes, at: int) -> str:
    """Return the signature header of a body that is sent at a time in Unix seconds."""
    digest = hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where conversions are posted to, and how patiently.

    `attempts` bounds how often a call is made, `pause` is the wait before the second one and
    doubles; `undo_timeout` bounds how long an undo may be under way.
    """

    url: str
    secret: bytes = field(repr=False)
    attempts: int = 3
    pause: Seconds = 0.5
    undo_timeout: Seconds = 30.0


class WebhookActuator:
    """Implements `Actuator` by asking a receiver. `make_key` returns a new text each time."""

    def __init__(
        self,
        caller: Caller,
        receiver: Receiver,
        *,
        in_place: bool,
        clock: Clock,
        term: Callable[[], int],
        make_key: Callable[[], str],
    ) -> None:
        self.in_place = in_place
        self._caller = caller
        self._receiver = receiver
        self._clock = clock
        self._term = term
        self._make_key = make_key

    def choose(self, _model: str, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Any of them."""
        return instances

    async def act(self, conversion: Conversion) -> None:
        """Ask for it; 202 leaves the rest to `confirm`."""
        await self._insist(self._form(conversion, Phase.ACT))

    async def confirm(self, conversion: Conversion) -> bool:
        """Ask whether it is done."""
        try:
            answer = await self._ask(self._form(conversion, Phase.CONFIRM))
        except NoAnswer:
            return False
        return answer.status != _ACCEPTED

    async def undo(self, conversion: Conversion) -> None:
        """Ask for the way back, again and again until it was gone."""
        body = self._form(conversion, Phase.UNDO)
        until = self._clock.monotonic() + self._receiver.undo_timeout
        while (await self._insist(body)).status == _ACCEPTED:
            if self._clock.monotonic() >= until:
                took = f"{self._receiver.undo_timeout:g} s"
                raise ActuationFailed(f"the webhook has not undone it within {took}")
            await asyncio.sleep(self._receiver.pause)

    def _form(self, conversion: Conversion, phase: Phase) -> bytes:
        document = {
            "conversion": asdict(conversion),  # its fields are promised in the operations page
            "phase": phase,
            "term": self._term(),
            "idempotency_key": self._make_key(),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    async def _insist(self, body: bytes) -> Answer:
        """Ask, and ask again where nothing usable comes back. Raises NoAnswer of the last time."""
        pause = self._receiver.pause
        for _ in range(self._receiver.attempts - 1):
            try:
                return await self._ask(body)
            except NoAnswer:
                await asyncio.sleep(pause)
                pause *= 2
        return await self._ask(body)

    async def _ask(self, body: bytes) -> Answer:
        """Make one attempt. Raises NoAnswer, and ActuationFailed where it is refused."""
        at = int(self._clock.now().timestamp())
        headers = {
            "content-type": "application/json",
            SIGNATURE: sign(self._receiver.secret, body, at),
        }
        answer = await self._caller.call("POST", self._receiver.url, headers=headers, content=body)
        if answer.status in _REFUSED:
            raise ActuationFailed(f"the webhook refuses: {answer.reason()}")
        if answer.status in {401, 403}:
            raise ActuationFailed(f"the webhook does not accept our signature ({answer.status})")
        if not answer.fine:
            raise NoAnswer(f"the webhook answered {answer.status}")
        return answer
