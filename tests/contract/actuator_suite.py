"""What anything that carries conversions out must do: one suite, held against each of them."""

from __future__ import annotations

from typing import Protocol

import pytest

from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed
from router.domain.topology import Instance, Role
from router.ports import Actuator
from tests.fakes.scripted_engine import (
    Close,
    Hold,
    Reset,
    Script,
    ScriptedEngine,
    Send,
    answer,
    head,
    json_answer,
)

CONVERSION = Conversion("m", "east", "p1", Role.PREFILL, Role.DECODE)

PATIENT = 20.0
"""Seconds that no test waits for."""

IMPATIENT = 0.15
"""Seconds that a test waits for what never comes."""


class World(Protocol):
    """One actuator with the peer that it calls."""

    engine: ScriptedEngine
    secrets: tuple[str, ...]

    def actuator(self, timeout: float) -> Actuator:
        """Return an actuator that waits so long for an answer."""
        ...

    def roles(self) -> object:
        """Return what the world is like: equal before and after what changes nothing."""
        ...

    def hold_back(self) -> None:
        """Let the target role not be served until `finish`."""
        ...

    def finish(self) -> None:
        """Let what was asked for be served."""
        ...

    def refuse(self, reason: str) -> None:
        """Refuse from now on."""
        ...


HALF_DEAD: dict[str, Script] = {
    "a reset": [Reset()],
    "a head and a reset": [head(200, [("content-length", "100")]), Send(b"{"), Reset()],
    "a close without an answer": [Close()],
    "no HTTP": [Send(b"\x15\x03\x01\x00\x02\x02\x46"), Close()],
    "an endless body": [
        head(200, [("content-length", str(4 << 20))]),
        Send(b" " * (3 << 20)),
        Hold(),
    ],
    "a server error": json_answer({"message": "no leader"}, 503),
    "a redirect": answer(307, headers=[("location", "http://127.0.0.1:1/elsewhere")]),
}


class ActuatorSuite:
    """Every claim that an actuator is held to; give the fixture `world`."""

    async def test_it_chooses_among_those_that_it_is_given(self, world: World) -> None:
        """Without asking anybody, and never somebody else."""
        host = "http://prefill-1.prefill.engines:8000"
        live = [Instance("p1", "east", host, Role.PREFILL)]
        assert list(world.actuator(PATIENT).choose("m", live)) == live
        assert list(world.actuator(PATIENT).choose("m", [])) == []
        assert world.engine.requests == []

    async def test_the_target_role_is_confirmed_once_it_is_served(self, world: World) -> None:
        """Asked for is not served: `confirm` says no until it is."""
        actuator = world.actuator(PATIENT)
        before = world.roles()
        world.hold_back()
        await actuator.act(CONVERSION)
        assert world.roles() != before
        assert await actuator.confirm(CONVERSION) is False
        world.finish()
        assert await actuator.confirm(CONVERSION) is True
        assert await actuator.confirm(CONVERSION) is True

    async def test_another_leader_changes_nothing_more(self, world: World) -> None:
        """Who does not know how far the last one came may do it all again."""
        await world.actuator(PATIENT).act(CONVERSION)
        once = world.roles()
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.roles() == once
        world.finish()
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True

    async def test_an_undo_brings_back_what_was_before(self, world: World) -> None:
        """Whoever does it, however often, and where nothing was done."""
        before = world.roles()
        await world.actuator(PATIENT).undo(CONVERSION)
        assert world.roles() == before
        world.hold_back()
        await world.actuator(PATIENT).act(CONVERSION)
        world.finish()
        await world.actuator(PATIENT).undo(CONVERSION)
        assert world.roles() == before
        await world.actuator(PATIENT).undo(CONVERSION)
        assert world.roles() == before

    async def test_a_refusal_is_told_in_one_line(self, world: World) -> None:
        """With the peer's reason, made printable, and without what is secret."""
        before = world.roles()
        world.refuse("nothing\nto spare\x1b[31m")
        with pytest.raises(ActuationFailed) as caught:
            await world.actuator(PATIENT).act(CONVERSION)
        said = str(caught.value)
        assert "nothing to spare" in said
        assert said.isprintable()
        assert not [each for each in (*world.secrets, world.engine.url) if each in said]
        assert world.roles() == before

    @pytest.mark.parametrize("script", HALF_DEAD.values(), ids=HALF_DEAD.keys())
    async def test_a_half_dead_peer_has_done_nothing(self, world: World, script: Script) -> None:
        """What is no answer is a failure of `act` and `undo`; of `confirm`, not yet."""
        actuator = world.actuator(PATIENT)
        await actuator.act(CONVERSION)
        world.engine.reply(script)
        assert await _confirmed(actuator) is False
        for call in (actuator.act, actuator.undo):
            with pytest.raises(ActuationFailed) as caught:
                await call(CONVERSION)
            assert str(caught.value).isprintable()

    async def test_a_silent_peer_is_not_waited_for(self, world: World) -> None:
        """Each call ends by itself."""
        await world.actuator(PATIENT).act(CONVERSION)
        world.engine.reply([Hold()])
        actuator = world.actuator(IMPATIENT)
        assert await _confirmed(actuator) is False
        with pytest.raises(ActuationFailed, match=r"within 0\.15 s"):
            await actuator.undo(CONVERSION)

    async def test_a_peer_that_is_away_is_told(self, world: World) -> None:
        """Nobody listens: failed, and not confirmed."""
        await world.actuator(PATIENT).act(CONVERSION)
        await world.engine.stop()
        actuator = world.actuator(PATIENT)
        assert await _confirmed(actuator) is False
        with pytest.raises(ActuationFailed, match="cannot be reached"):
            await actuator.undo(CONVERSION)


async def _confirmed(actuator: Actuator) -> bool:
    """Whether it is confirmed; that it never will be is no confirmation either."""
    try:
        return await actuator.confirm(CONVERSION)
    except ActuationFailed:
        return False
