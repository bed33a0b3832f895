"""Decode slots over a fleet: granted when free, waited for when not, given back once."""

from __future__ import annotations

import pytest

from router.control.admission import Lane
from router.domain.errors import NobodyAlive, Overloaded
from router.domain.topology import Instance, InstanceState, Role
from router.service.members import EngineReading
from router.service.tenants import Tenant
from tests.fakes.decode_slots import Scene, settled


async def test_free_slots_are_had_at_once() -> None:
    """Without contention nobody waits, and the least loaded instance is chosen."""
    scene = Scene(names="d0 d1")
    slots = [await scene.admit() for _ in range(4)]
    assert [slot.instance for slot in slots] == ["d0", "d1", "d0", "d1"]
    assert scene.admission.full("tiny") == {"d0", "d1"}
    assert scene.waits.seen == [("acme", 0.0)] * 4
    for slot in slots:
        slot.release()
        slot.release()
    assert [scene.admission.held(name) for name in ("d0", "d1")] == [0, 0]


async def test_without_a_limit_nobody_waits() -> None:
    """A model without a bound on its decodes is admitted however many there are."""
    scene = Scene(None, names="d0 d1")
    slots = [await scene.admit() for _ in range(1000)]
    assert scene.admission.held("d0") == scene.admission.held("d1") == 500
    assert scene.admission.full("tiny") == frozenset()
    for slot in slots:
        slot.release()


async def test_a_released_slot_goes_to_who_waits() -> None:
    """The first in the queue has it, with the time of its wait told."""
    scene = Scene(1)
    slot = await scene.admit()
    async with scene.waiting(2) as first:
        scene.clock.advance(3.0)
        slot.release()
        assert (await first).instance == "d0"
        assert scene.admission.waiting == 1
        assert scene.waits.seen[-1] == ("acme", 3.0)
        (await first).release()


async def test_a_moved_slot_frees_the_other_instance() -> None:
    """A decision that chose another instance lets somebody in at the first."""
    scene = Scene(1, names="d0 d1")
    slot = await scene.admit()
    async with scene.waiting(1, Lane("tiny", excluded=frozenset({"d1"}))) as first:
        slot.move("d1")
        slot.move("d1")
        assert [scene.admission.held(name) for name in ("d0", "d1")] == [1, 1]
        (await first).release()
        slot.release()
        slot.move("d0")
        assert [scene.admission.held(name) for name in ("d0", "d1")] == [0, 0]


async def test_leaving_the_queue_frees_the_place() -> None:
    """Who leaves is neither waiting nor granted anything afterwards."""
    scene = Scene(1)
    slot = await scene.admit()
    async with scene.waiting() as leaving:
        leaving.cancel()
        await settled()
        assert scene.admission.waiting == 0
    slot.release()
    assert scene.admission.held("d0") == 0


async def test_leaving_just_when_the_turn_comes_loses_no_slot() -> None:
    """A slot that was granted to somebody who is being cancelled goes to the next."""
    scene = Scene(1)
    slot = await scene.admit()
    leaving, staying = scene.ask(), scene.ask()
    await settled()
    slot.release()
    leaving.cancel()
    won = await staying
    assert scene.admission.held("d0") == 1
    assert leaving.cancelled() or leaving.cancelling()
    won.release()
    assert scene.admission.held("d0") == 0


async def test_the_wait_ends_in_overloaded() -> None:
    """After the time-out the client is told to come back, and its place is free."""
    scene = Scene(1, timeout=0.05)
    slot = await scene.admit()
    with pytest.raises(Overloaded) as error:
        await scene.admit()
    assert error.value.retry_after >= 1
    assert scene.admission.waiting == 0
    slot.release()
    assert scene.admission.held("d0") == 0


async def test_a_full_queue_is_overloaded_at_once() -> None:
    """The queue is bounded; another tenant's flood keeps nobody out of it."""
    scene = Scene(1, size=2)
    slot = await scene.admit()
    async with scene.waiting(2):
        with pytest.raises(Overloaded):
            await scene.admit()
        modest = scene.ask(tenant=Tenant("modest"))
        await settled()
        assert not modest.done()
        assert scene.admission.depth("modest") == scene.admission.depth("acme") == 1
        modest.cancel()
    slot.release()


async def test_a_free_instance_passes_a_full_queue() -> None:
    """A queue full of requests for one cluster turns nobody away from another."""
    scene = Scene(1, names="d0 e0", size=1)
    slot = await scene.admit(Lane("tiny", "east"))
    async with scene.waiting(1, Lane("tiny", "east")):
        assert (await scene.admit(Lane("tiny", "far"))).instance == "e0"
    slot.release()


async def test_a_living_home_is_waited_for() -> None:
    """A request with a home waits for it, though another cluster is free, unless it is dead."""
    scene = Scene(1, names="d0 e0")
    slot = await scene.admit(Lane("tiny", "east"))
    async with scene.waiting(1, Lane("tiny", "east")) as homesick:
        scene.die("d0")
        assert (await homesick).instance == "e0"
    slot.release()


async def test_with_nobody_alive_nobody_waits() -> None:
    """Newcomers and those who wait already are told at once, and the queue is empty."""
    scene = Scene(1)
    slot = await scene.admit()
    async with scene.waiting(2) as first:
        scene.die("d0")
        with pytest.raises(NobodyAlive):
            await first
        assert scene.admission.waiting == 0
        with pytest.raises(NobodyAlive):
            await scene.admit()
    slot.release()


async def test_a_draining_instance_takes_nobody_more() -> None:
    """Those who wait go to the others; the slots that it holds are given back as ever."""
    scene = Scene(1, names="d0 d1")
    slots = [await scene.admit(), await scene.admit()]
    async with scene.waiting() as first:
        scene.fleet.set_state("d0", InstanceState.DRAINING)
        slots[0].release()
        await settled()
        assert not first.done()
        slots[1].release()
        assert (await first).instance == "d1"


async def test_an_instance_that_joins_lets_people_in() -> None:
    """A new instance serves those who wait once a probe has found it alive."""
    scene = Scene(1)
    slot = await scene.admit()
    async with scene.waiting() as first:
        scene.fleet.add(Instance(name="d1", url="http://x", role=Role.DECODE, cluster="east"))
        await settled()
        assert not first.done()
        scene.fleet.record_probe("d1", ok=True)
        assert (await first).instance == "d1"
    slot.release()


async def test_a_removed_instance_owns_nothing() -> None:
    """Slots of an instance that left are given back without a trace."""
    scene = Scene(2, names="d0 d1")
    slot = await scene.admit()
    scene.fleet.remove("d0")
    slot.release()
    assert scene.admission.held("d0") == 0
    assert "d0" not in scene.admission._held


async def test_what_engines_report_beyond_ours_takes_slots() -> None:
    """Others' decodes count, ours are not counted twice, and old news not at all."""
    scene = Scene(4)

    def reading(running: int) -> EngineReading:
        return EngineReading(at=scene.clock.monotonic(), waiting=0, running=running)

    slot = await scene.admit()
    with scene.fleet.decode_leg("d0"):
        scene.fleet.record_probe("d0", ok=True, reading=reading(4))
    (member,) = scene.fleet.members
    assert scene.admission.used(member) == 4
    async with scene.waiting() as first:
        scene.fleet.record_probe("d0", ok=True, reading=reading(3))
        (await first).release()
        scene.clock.advance(11.0)
        assert scene.admission.used(member) == 1
    slot.release()


async def test_our_own_that_just_ended_are_nobody_elses() -> None:
    """A scrape that still shows legs of ours that ended since takes no slot of ours."""
    scene = Scene(4)
    with scene.fleet.decode_leg("d0"), scene.fleet.decode_leg("d0"):
        pass
    reading = EngineReading(at=scene.clock.monotonic(), waiting=0, running=2)
    scene.fleet.record_probe("d0", ok=True, reading=reading)
    (member,) = scene.fleet.members
    assert scene.admission.used(member) == 0
