"""The shell of the rule `slack`, one claim a test; its order is `test_slack_queue`'s."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.control.links import LinkHealth, Telemetry
from router.domain.decision import Decision, Reason, Rule, ThresholdMode
from router.domain.errors import Overloaded
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, from_gbps
from router.policy.route import decide_bound
from router.service.late_binding import BindingOutcome, BindingRules
from router.service.operator import ThresholdRules
from tests.fakes.slack_benches import (
    PROFILES,
    SlackBench,
    an_instance,
    instances_of,
    settle,
    with_slack,
)

SHORT, LONG = 500, 4000


async def test_a_free_instance_takes_a_prompt_at_once() -> None:
    """Each side of t gets its own, and nobody waits."""
    bench = SlackBench()
    tasks = [bench.ask(LONG), bench.ask(SHORT)]
    await settle()
    assert instances_of(tasks) == ["f0", "p0"]
    assert bench.hook.outcomes == [BindingOutcome.BOUND] * 2
    assert bench.hook.waits == [0.0, 0.0]


async def test_the_next_is_bound_when_a_prefill_has_ended() -> None:
    """Not when it began: an engine that is given two puts them in its own order."""
    bench = SlackBench(remotes="")
    first, second = bench.ask(SHORT), bench.ask(SHORT)
    await settle()
    bench.begin(first.result())
    await settle()
    assert not second.done()
    assert bench.binding.depths() == {"pd": 1, "prfaas": 0}
    bench.end("p0")
    await settle()
    assert instances_of([second]) == ["p0"]
    assert bench.binding.waiting == 0


async def test_an_instance_may_be_given_more_at_once() -> None:
    """As many as configured, for each of its data-parallel ranks."""
    bench = SlackBench(remotes="", rules=BindingRules(concurrency=2))
    bench.fleet.set_ranks("p0", 2)
    tasks = [bench.ask(SHORT) for _ in range(5)]
    await settle()
    assert [task.done() for task in tasks] == [True] * 4 + [False]
    tasks[-1].cancel()


async def test_other_rules_hold_for_who_waits_already() -> None:
    """A reload that lets engines have more at once gives it to them at once."""
    bench = SlackBench(remotes="")
    tasks = [bench.ask(SHORT) for _ in range(3)]
    await settle()
    assert not tasks[1].done()
    bench.binding.reconfigure(BindingRules(concurrency=3))
    await settle()
    assert instances_of(tasks) == ["p0"] * 3


async def test_who_has_the_least_slack_goes_first() -> None:
    """Whatever the order of arrival: 2000 tokens may take 8 s, 500 tokens 2 s."""
    bench = SlackBench(remotes="", threshold=10_000)
    running, long, short = bench.ask(SHORT), bench.ask(2000), bench.ask(SHORT)
    await settle()
    bench.begin(running.result())
    bench.end("p0")
    await settle()
    assert (long.done(), short.done()) == (False, True)
    long.cancel()


async def test_aging_bounds_the_wait() -> None:
    """Who has waited for long goes first, however many could still be in time."""
    bench = SlackBench(remotes="", threshold=10_000, rules=with_slack(aging=15.0))
    running, long = bench.ask(SHORT), bench.ask(8000)
    await settle()
    bench.begin(running.result())
    bench.clock.advance(15.0)
    short = bench.ask(SHORT)
    bench.end("p0")
    await settle()
    assert (long.done(), short.done()) == (True, False)
    short.cancel()


async def test_idle_pools_steal() -> None:
    """A long prompt is prefilled at home where that is in time, and is said to be stolen."""
    bench = SlackBench()
    first, second = bench.ask(LONG), bench.ask(LONG)
    await settle()
    assert instances_of([first, second]) == ["f0", "p0"]
    assert bench.hook.outcomes == [BindingOutcome.BOUND, BindingOutcome.STOLEN]
    place = second.result()
    assert place is not None
    decision = decide_bound(bench.snapshot(LONG), place.instance)
    assert isinstance(decision, Decision)
    assert decision.reason is Reason.SOONER_LOCAL


async def test_what_would_not_be_stolen_claims_no_place() -> None:
    """An instance that has nothing for which to be held is left to the other gateways."""
    bench = SlackBench(rules=with_slack(stretch=1.5))
    tasks = [bench.ask(LONG) for _ in range(3)]
    await settle()
    assert instances_of(tasks) == ["f0", None, None]
    needs = bench.binding.needs()
    assert {name: (need.held, need.waiting) for name, need in needs.items()} == {
        "f0": (1, 2),
        "p0": (0, 0),
    }
    bench.clock.advance(15.0)  # by now anybody may take them
    assert bench.binding.needs()["p0"].waiting == 1


async def test_a_client_that_leaves_costs_nothing() -> None:
    """Waiting, or bound in the very moment: its place in the queue and at the instance is free."""
    bench = SlackBench(remotes="")
    first, second, third = bench.ask(SHORT), bench.ask(SHORT), bench.ask(SHORT)
    await settle()
    second.cancel()
    await settle()
    assert bench.binding.waiting == 1
    place = first.result()
    assert place is not None
    place.release()
    bench.binding.let_in()  # the third is bound, and has not learnt of it
    assert bench.binding.waiting == 0
    third.cancel()
    fourth = bench.ask(SHORT)
    await settle()
    assert third.cancelled()
    assert instances_of([fourth]) == ["p0"]


async def test_the_queue_is_bounded() -> None:
    """Beyond it 503, with a time to come back."""
    bench = SlackBench(remotes="", rules=with_slack(queue_size=1))
    bench.ask(SHORT)
    await settle()
    waiting, refused = bench.ask(SHORT), bench.ask(SHORT)
    await settle()
    error = refused.exception()
    assert isinstance(error, Overloaded)
    assert error.retry_after >= 1
    waiting.cancel()
    await settle()
    assert bench.hook.outcomes[1:] == [BindingOutcome.REFUSED, BindingOutcome.LEFT]


async def test_the_wait_is_bounded() -> None:
    """Together with the wait for a decode slot; then 503, and nothing is held."""
    bench = SlackBench(remotes="", rules=BindingRules(timeout=60.0))
    bench.ask(SHORT)
    await settle()
    late = bench.ask(SHORT, waited=60.0)
    with pytest.raises(Overloaded, match="in time"):
        await late
    assert bench.binding.waiting == 0


async def test_switching_the_rule_lets_all_go_in_order() -> None:
    """Nobody is lost: each goes by the rule in force, the most urgent first."""
    bench = SlackBench(remotes="", threshold=10_000)
    bench.ask(SHORT)
    await settle()
    gone: list[int] = []

    async def wait(tokens: int) -> None:
        assert await bench.ask(tokens) is None
        gone.append(tokens)

    tasks = [asyncio.create_task(wait(tokens)) for tokens in (4000, 1000, 2000)]
    await settle()
    bench.switch(Rule.PAPER)
    await asyncio.gather(*tasks)
    assert gone == [1000, 2000, 4000]
    assert bench.binding.needs() == {}


async def test_who_nobody_can_take_is_left_to_the_rule() -> None:
    """When the last instance that could prefill is gone, waiting would be for ever."""
    bench = SlackBench()
    bench.ask(LONG)
    bench.ask(SHORT)
    await settle()
    waiting = [bench.ask(SHORT), bench.ask(LONG)]
    await settle()
    bench.lose("p0")
    await settle()
    assert not any(task.done() for task in waiting)
    bench.links.set_health("wire", LinkHealth.DOWN)
    bench.fleet.record_probe("f0", ok=True)
    await settle()
    assert [task.result() for task in waiting] == [None, None]
    assert bench.hook.outcomes[2:] == [BindingOutcome.RELEASED] * 2


async def test_an_instance_that_joins_takes_who_waits() -> None:
    """Capacity that appears is used, though nobody knew of it when the prompt came."""
    bench = SlackBench(remotes="")
    bench.ask(SHORT)
    await settle()
    waiting = bench.ask(SHORT)
    await settle()
    bench.fleet.add(an_instance("p9"))
    bench.fleet.record_probe("p9", ok=True)
    await settle()
    assert instances_of([waiting]) == ["p9"]


async def test_a_starving_link_keeps_short_prompts_served() -> None:
    """Long ones wait for bytes, and take all but one of the home's instances at most."""
    bench = SlackBench(prefills="p0 p1 p2")
    starving = Telemetry(BytesPerSecond(0.0), 0.0, available=from_gbps(0.001))
    bench.links.report("wire", starving)
    longs = [bench.ask(2000) for _ in range(6)]
    await settle()
    assert bench.binding.depths()["prfaas"] >= 4
    assert len([place for place in instances_of(longs) if place]) <= 2
    short = bench.ask(SHORT)
    await settle()
    assert short.done()
    # As soon as the link carries them, they go.
    bench.links.report("wire", Telemetry(BytesPerSecond(0.0), bench.clock.monotonic()))
    await settle()
    assert "f0" in instances_of(longs)
    for task in longs:
        task.cancel()


async def test_bytes_are_booked_from_the_binding_on() -> None:
    """Two that are bound in one moment do not both take what is left of a link."""
    bench = SlackBench(prefills="p0", remotes="f0 f1", capacity=BytesPerSecond(1e6), threshold=10)
    bench.begin(bench.places.take("p0", "pd", None))
    first, second = bench.ask(3000), bench.ask(3000)
    await settle()
    assert instances_of([first, second]) == ["f0", None]
    state = bench.links.state("wire")
    assert state.booked == 3_000_000
    place = first.result()
    assert place is not None
    place.release()
    place.release()
    await settle()
    assert instances_of([second])[0] in {"f0", "f1"}
    assert bench.links.state("wire").booked == 3_000_000


async def test_what_should_not_wait_goes_by_the_rule() -> None:
    """With t off prompts wait at home alone, and the reason says so."""
    bench = SlackBench()
    bench.operator.rules = ThresholdRules(ThresholdMode.OFF)
    berths = bench.look(LONG)
    assert berths is not None
    assert list(berths.by_instance) == ["p0"]
    decision = decide_bound(bench.snapshot(LONG), "p0")
    assert isinstance(decision, Decision)
    assert decision.reason is Reason.DISABLED


async def test_without_profiles_it_is_the_papers_rule(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can say how long a prefill takes: said once, and every prompt goes at once."""
    bench = SlackBench(profiles={ClusterKind.PRFAAS: PROFILES[ClusterKind.PRFAAS]})
    with caplog.at_level(logging.WARNING):
        assert not bench.builder.binds_late(bench.model)
        assert not bench.builder.binds_late(bench.model)
    assert [record.getMessage() for record in caplog.records] == [
        "policy slack: tiny has no profile for pd: its prompts go by `paper`"
    ]
    assert SlackBench().builder.binds_late(bench.model) is False
    assert SlackBench().builder.binds_late(SlackBench().model)
