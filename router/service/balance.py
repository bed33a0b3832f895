"""The long loop's shell: samples stages, closes windows, proposes, and has conversions carried out.

Only the leader looks; whoever begins to lead begins to count windows. The others read what it found
(`router.service.findings`). What is under way is in the orders (`router.service.conversions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from router.control.balance import (
    BalanceRules,
    BalanceState,
    Candidate,
    Finding,
    Proposal,
    Sample,
    Situation,
    StageReading,
    ThresholdChoice,
    Verdict,
    step_sample,
    step_window,
)
from router.domain.decision import ThresholdMode
from router.domain.errors import StoreAway
from router.domain.topology import Cluster, ClusterKind, Instance, Role
from router.domain.units import Seconds, Tokens
from router.ports import Clock
from router.service.conversions import (
    Command,
    ConversionHook,
    ConversionOutcome,
    Converter,
    Means,
)
from router.service.findings import Findings, FindingsBook
from router.service.fleet import Fleet
from router.service.members import Member
from router.service.models import ServedModel
from router.service.operator import Operator
from router.service.order_book import OrderBook

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LongLoop:
    """What the loop goes by. Without an actuator among its means it only proposes.

    `interval` is the time between two samples, `period` a window's.
    """

    models: tuple[ServedModel, ...]
    interval: Seconds
    period: Seconds
    rules: BalanceRules
    means: Means


class BalanceLoop:
    """Looks at every profiled model in every PD cluster. Single-threaded: owned by one loop."""

    def __init__(
        self,
        fleet: Fleet,
        operator: Operator,
        *,
        clock: Clock,
        hook: ConversionHook,
        command: Command,
        found: FindingsBook,
        by: LongLoop,
    ) -> None:
        self._fleet = fleet
        self._operator = operator
        self._clock = clock
        self._hook = hook
        self._command = command
        self._found = found
        self._converter = Converter(fleet, clock=clock, hook=hook, command=command, means=by.means)
        self._by = by
        self._states: dict[tuple[str, str], BalanceState] = {}
        self._opened_at: Seconds | None = None

    def reconfigure(self, by: LongLoop) -> None:
        """Go on by other settings; windows begin anew."""
        self._by, self._converter.means = by, by.means
        self._begin()

    @property
    def findings(self) -> Findings:
        """What the last window came to; nothing while a conversion is under way."""
        return self._found.findings

    @property
    def found_at(self) -> datetime | None:
        """When that was; None before the first window."""
        return self._found.at

    def proposal(self, model: str, pd: str) -> Proposal | None:
        """Return the conversion that is proposed for a model in a PD cluster."""
        finding = self.findings.get((model, pd))
        return None if finding is None else finding.proposal

    async def run(self, book: OrderBook) -> None:
        """Look every interval until cancelled."""
        while True:
            try:
                await self.look(book)
            except StoreAway:
                pass  # the same is done again when it is back
            except Exception:  # noqa: BLE001 - a task's root: requests go on without the loop
                _LOG.exception("the long loop failed; it goes on")
            await asyncio.sleep(self._by.interval)

    async def look(self, book: OrderBook) -> None:
        """Take one sample, and whatever step is due. Raises StoreAway."""
        if not self._command.leads:
            self._begin()
            await self._found.refresh()
            return
        if await self._converter.step(book):
            self._begin()  # a stage without one of its instances tells nothing of balance
            await self._found.write({})
            return
        now = self._clock.monotonic()
        if self._opened_at is None:
            self._opened_at = now
        for model, pd in self._pools():
            key = model.name, pd.name
            state = self._states.get(key, BalanceState())
            self._states[key] = step_sample(state, self._sample(model, pd))
        if now - self._opened_at >= self._by.period:
            self._opened_at = now
            await self._close_windows(book)

    def _begin(self) -> None:
        self._states.clear()
        self._opened_at = None

    def _pools(self) -> Iterable[tuple[ServedModel, Cluster]]:
        return (
            (model, cluster)
            for model in self._by.models
            for cluster in self._fleet.clusters
            if cluster.kind is ClusterKind.PD and ClusterKind.PD in model.profiles
        )

    # -- a window

    async def _close_windows(self, book: OrderBook) -> None:
        for model, pd in self._pools():
            key = model.name, pd.name
            situation = self._situation(model, pd, self._rested(book))
            before = self._states.get(key, BalanceState())
            # Some milliseconds for each division: beside the requests, not between them.
            after = await asyncio.to_thread(step_window, before, situation, self._by.rules)
            self._states[key] = after
            self._tell(model, pd, before, after)
        found = {
            key: state.finding for key, state in self._states.items() if state.finding is not None
        }
        await self._found.write(found)
        proposals = [each.proposal for each in found.values() if each.proposal]
        if proposals and self._by.means.actuator is not None and self._command.leads:
            first = max(proposals, key=lambda each: each.gain or float("inf"))
            await self._converter.begin(book, first.conversion)

    def _tell(
        self, model: ServedModel, pd: Cluster, before: BalanceState, after: BalanceState
    ) -> None:
        finding = after.finding
        if finding is None or finding.verdict in {Verdict.UNSOLVED, Verdict.BALANCED}:
            return
        _LOG.log(
            logging.INFO if finding.proposal else logging.DEBUG,
            "balance of %s in %s: %s (%s)",
            model.name,
            pd.name,
            finding.verdict,
            _describe(finding, after.windows),
        )
        known = before.finding.proposal if before.finding else None
        if finding.proposal is not None and known is None:
            self._hook.converted(ConversionOutcome.PROPOSED)

    def _rested(self, book: OrderBook) -> Seconds | None:
        last = book.orders.conversion
        return None if last is None else self._clock.now().timestamp() - last.since

    def _situation(
        self, model: ServedModel, pd: Cluster, rested: Seconds | None
    ) -> Situation | None:
        """Return what the short loop solved for last, and who may be converted."""
        in_force = self._operator.solved.of(model.name, pd.name)
        if in_force is None:
            return None
        solved = in_force.solved
        return Situation(
            model.name,
            pd.name,
            solved.today.deployment,
            solved.table,
            self._choice(model.name, pd.name, solved.today.deployment.remotes[0].name),
            tuple(self._candidates(model, pd)),
            rested,
        )

    def _choice(self, model: str, pd: str, prfaas: str) -> ThresholdChoice:
        rules, view = self._operator.rules, self._operator.threshold(model, prfaas, pd)
        tokens: Tokens = view.tokens
        if view.mode is ThresholdMode.OFF:
            tokens = _ENDLESS
        return ThresholdChoice(tokens, view.mode is not ThresholdMode.AUTO, (rules.low, rules.high))

    def _candidates(self, model: ServedModel, pd: Cluster) -> Iterable[Candidate]:
        """Yield the live instances of the profile's hardware that leave a partner behind.

        Where an actuator would act, only those that the configuration gives free.
        """
        hardware = model.profiles[ClusterKind.PD].hardware
        ready = [
            member
            for member in self._fleet.members_of(pd.name, model.name)
            if self._fleet.is_ready(member)
        ]
        free = self._free(model.name, [member.instance for member in ready])
        for member in ready:
            instance = member.instance
            partner = any(
                other is not member
                and other.instance.role in (instance.role, Role.BOTH)
                and other.instance.compatibility == instance.compatibility
                for other in ready
            )
            if (
                instance.role is not Role.BOTH
                and instance.hardware in (None, hardware)
                and instance.name in free
                and partner
            ):
                yield Candidate(instance.name, instance.role, member.promised)

    def _free(self, model: str, instances: Sequence[Instance]) -> frozenset[str]:
        """Return who may be converted: all, or whom configuration and actuator give free."""
        actuator = self._by.means.actuator
        if actuator is not None:
            convertible = [each for each in instances if each.convertible]
            instances = actuator.choose(model, convertible)
        return frozenset(each.name for each in instances)

    # -- a sample

    def _sample(self, model: ServedModel, pd: Cluster) -> Sample:
        ready = [
            member
            for member in self._fleet.members_of(pd.name, model.name)
            if self._fleet.is_ready(member)
        ]
        slots = model.decode_slots or model.decode_rules.slots
        return Sample(
            _read_stage(self._fleet, ready, Role.PREFILL, 1),
            _read_stage(self._fleet, ready, Role.DECODE, slots),
        )


_ENDLESS: Final[Tokens] = 2**31
"""A threshold over which no prompt is: nothing is offloaded."""


def _read_stage(
    fleet: Fleet, ready: Iterable[Member], role: Role, slots: float
) -> StageReading | None:
    """Return how one stage stands; None where somebody in it has said nothing of late.

    `slots` is how many requests an instance takes at once: one prompt prefills, many decode.
    """
    queued = busy = held = 0.0
    members = [member for member in ready if member.instance.role in (role, Role.BOTH)]
    for member in members:
        reading, depth = fleet.fresh_reading(member), fleet.queue_depth(member)
        if reading is None or depth is None:
            return None
        queued += depth
        busy += min(1.0, reading.running / slots)
        held += min(1.0, (member.promised + member.peers.promised) / slots)
    count = len(members)
    return StageReading(queued / count, busy / count, held / count) if count else None


def _describe(finding: Finding, windows: int) -> str:
    """Return what a window's verdict was made of, for the log."""

    def stage(reading: StageReading | None) -> str:
        if reading is None:
            return "unknown"
        return f"{reading.queued:.2f} waiting, {reading.busy:.0%} busy, {reading.held:.0%} held"

    said = f"prefill {stage(finding.prefill)}; decode {stage(finding.decode)}"
    if finding.residual is not None:
        said += f"; residual of equation 8 {finding.residual:+.3f}"
    if (proposal := finding.proposal) is not None:
        said += (
            f"; {proposal.conversion}, {proposal.rate:.4g} -> {proposal.next_rate:.4g} requests/s,"
            f" best {proposal.best_rate:.4g} with {proposal.best_prefill} prefill and"
            f" {proposal.best_decode} decode; {windows} windows"
        )
    return said
