"""Carries one conversion out: what `router.control.conversions` asks for, at engines and in orders.

How far it is stands in the orders, so every phase is audited (by `controller`), survives this
process, and is written only by whoever knows the latest word: a leader of an older term, or one
who missed an operator's abort, is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from router.control.conversions import (
    ConversionRules,
    Done,
    Failed,
    Pending,
    Phase,
    Progress,
    Reply,
    Seen,
    begin_conversion,
    step_conversion,
)
from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed, Changed, Conflict, NotFound, NotLeading
from router.domain.topology import Instance
from router.domain.units import Seconds
from router.ports import Actuator, Clock, Fence
from router.service.fleet import Fleet
from router.service.members import Member
from router.service.order_book import Order, OrderBook
from router.service.orders import is_held, with_progress

_LOG = logging.getLogger(__name__)

CONTROLLER: Final = "controller"
"""The audit's name for who did it."""


class ConversionOutcome(StrEnum):
    """What is counted of conversions."""

    PROPOSED = "proposed"
    SETTLED = "settled"
    ROLLED_BACK = "rolled_back"
    STUCK = "stuck"


_OUTCOMES: Final[Mapping[Phase, ConversionOutcome]] = {
    Phase.SETTLED: ConversionOutcome.SETTLED,
    Phase.ROLLED_BACK: ConversionOutcome.ROLLED_BACK,
    Phase.STUCK: ConversionOutcome.STUCK,
}


class ConversionHook(Protocol):
    """Watches conversions; metrics hang here. Implementations never raise."""

    def converted(self, outcome: ConversionOutcome) -> None:
        """Told of each new proposal and of each conversion that ended."""
        ...


class Command(Protocol):
    """Who may carry conversions out; `router.service.leadership.Leadership` is one."""

    @property
    def leads(self) -> bool:
        """Whether this process controls now."""
        ...

    @property
    def term(self) -> int:
        """The term in which it does; each one is higher than those before."""
        ...

    @property
    def fence(self) -> Fence | None:
        """What its writes go with. Raises NotLeading."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """What conversions are carried out with. `actuator` None: nothing may be converted.

    `configured` are the instances of the configuration, by name.
    """

    actuator: Actuator | None
    rules: ConversionRules
    configured: Mapping[str, Instance]


class Converter:
    """Takes the conversion under way one step at a time. Single-threaded: owned by one loop."""

    def __init__(
        self, fleet: Fleet, *, clock: Clock, hook: ConversionHook, command: Command, means: Means
    ) -> None:
        self.means = means
        self._fleet = fleet
        self._clock = clock
        self._hook = hook
        self._command = command
        self._quiet: tuple[Progress, Seconds] | None = None

    async def begin(self, book: OrderBook, conversion: Conversion) -> None:
        """Let an instance be drained. Raises StoreAway; where it cannot begin it is only told."""
        if self.means.actuator is not None:
            conversion = replace(conversion, in_place=self.means.actuator.in_place)
        now = self._clock.now().timestamp()
        await self._write(
            book,
            book.orders.conversion,
            begin_conversion(conversion, now, self._command.term),
            "proposed",
        )

    async def step(self, book: OrderBook) -> bool:
        """Take the conversion under way one step further; return whether there is one.

        Raises StoreAway: then the same is done again.
        """
        progress = book.orders.conversion
        if progress is None or progress.phase.is_over:
            return False
        term = self._command.term
        if progress.term < term:
            taken = replace(progress, term=term)
            await self._write(book, progress, taken, "taken over")
            return True
        reply: Reply = Pending()
        if progress.phase is Phase.UNDOING or self._interruption(book, progress) is None:
            reply = await self._call(progress)
        latest = book.orders.conversion
        if latest is None or latest.phase is not progress.phase or not self._command.leads:
            return True
        member, quiet = self._watch(latest)
        seen = Seen(self._clock.now().timestamp(), quiet, reply, self._interruption(book, latest))
        after = step_conversion(latest, seen, self.means.rules)
        if after != latest:
            await self._write(book, latest, after, _describe(member, seen))
        return True

    async def _write(
        self, book: OrderBook, before: Progress | None, after: Progress, inputs: str
    ) -> None:
        """Order the next phase, and tell of it with what it follows from."""
        configured, conversion = self.means.configured, after.conversion
        order = Order(
            f"conversion.{after.phase}",
            f"instance={conversion.instance}",
            lambda orders: {
                "conversion": orders.conversion,
                "instance": orders.instances.get(conversion.instance),
            },
            lambda orders: with_progress(orders, configured, before, after),
        )
        try:
            await book.change(order, by=CONTROLLER, fence=self._command.fence)
        except (Changed, Conflict, NotFound, NotLeading) as error:
            _LOG.warning("conversion of %s: not %s: %s", conversion, after.phase, error)
            return
        level = logging.WARNING if after.cause else logging.INFO
        cause = f": {after.cause}" if after.cause else ""
        _LOG.log(level, "conversion of %s: %s%s (%s)", conversion, after.phase, cause, inputs)
        if (outcome := _OUTCOMES.get(after.phase)) is not None:
            self._hook.converted(outcome)

    async def _call(self, progress: Progress) -> Reply:
        """Do what the phase asks of the engine."""
        actuator, rules = self.means.actuator, self.means.rules
        if progress.phase is Phase.DRAINING:
            return Pending()
        if actuator is None:
            return Failed("no actuator is configured")
        limit = rules.verify if progress.phase is Phase.VERIFYING else rules.act
        try:
            async with asyncio.timeout(limit):
                match progress.phase:
                    case Phase.ACTING:
                        await actuator.act(progress.conversion)
                    case Phase.VERIFYING:
                        return Done() if await actuator.confirm(progress.conversion) else Pending()
                    case _:
                        await actuator.undo(progress.conversion)
        except ActuationFailed as error:
            return Failed(str(error))
        except TimeoutError:
            return Failed(f"no answer within {limit:g} s")
        return Done()

    def _interruption(self, book: OrderBook, progress: Progress) -> str | None:
        """Return why a conversion shall not go on, None while nothing speaks against it."""
        if progress.aborted_by is not None:
            return f"aborted by {progress.aborted_by}"
        if self.means.actuator is None:
            return "the configuration has no actuator any more"
        if not is_held(book.orders, self.means.configured, progress.conversion):
            return "the instance was changed or removed by an operator"
        return None

    def _watch(self, progress: Progress) -> tuple[Member | None, Seconds]:
        """Return the instance, and for how long nothing has run, waited or been due there."""
        now = self._clock.monotonic()
        try:
            member = self._fleet.member(progress.conversion.instance)
        except NotFound:
            member = None
        if member is None or not _is_idle(self._fleet, member):
            self._quiet = None
            return member, 0.0
        if self._quiet is None or self._quiet[0] != progress:
            self._quiet = (progress, now)
        return member, now - self._quiet[1]


def _is_idle(fleet: Fleet, member: Member) -> bool:
    """Whether the engine says that nothing runs, and no gateway has or plans anything there.

    An engine whose word is too old may be busy.
    """
    reading = fleet.fresh_reading(member)
    return (
        reading is not None
        and reading.running + reading.waiting == 0
        and member.promised == 0
        and member.peers.promised == 0
    )


def _describe(member: Member | None, seen: Seen) -> str:
    """Return what a step followed from, for the log."""
    if member is None:
        return "the instance is gone"
    reading = member.reading
    engine = "nothing read" if reading is None else f"{reading.running}+{reading.waiting} there"
    ours, theirs = member.promised, member.peers.promised
    return f"quiet {seen.quiet:.1f} s, {engine}, {ours} legs of ours, {theirs} of peers"
