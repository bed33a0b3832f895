"""Instances that come and go while the gateway runs: the fleet and the index change together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from router.control.health import Health
from router.domain.errors import RouterError
from router.domain.topology import Instance, InstanceState
from router.service.fleet import Fleet
from router.service.orders import InstanceOrder, Orders, present

_LOG = logging.getLogger(__name__)


class EventFeed(Protocol):
    """Keeps the index listening to an instance's KV events."""

    async def follow(self, instance: Instance) -> None:
        """Start to ingest every rank of an instance; does nothing for one without events."""
        ...

    async def forget(self, instance: str) -> None:
        """Stop, and drop all that the index holds of it: a removed instance owns nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Turnover:
    """Who leaves, who joins, and who stays but is described otherwise.

    `reread` are those of the last whose events have to be followed anew: they come from somewhere
    else, or their blocks are named otherwise.
    """

    gone: tuple[str, ...] = ()
    fresh: tuple[Instance, ...] = ()
    changed: tuple[Instance, ...] = ()
    reread: tuple[Instance, ...] = ()


class Followed:
    """Lets an event feed follow the instances that there shall be, and no others.

    `usable` tells whether this process's configuration has the cluster and the model of an
    instance that an operator added.
    """

    def __init__(
        self,
        configured: Iterable[Instance],
        feed: EventFeed,
        *,
        usable: Callable[[Instance], bool],
    ) -> None:
        self._feed = feed
        self._usable = usable
        self._carrying_out = asyncio.Lock()
        self.configured: Mapping[str, Instance] = {each.name: each for each in configured}
        self.instances = dict(self.configured)

    async def begin(self) -> None:
        """Follow the instances that there shall be now."""
        await self.carry_out(Turnover(fresh=tuple(self.instances.values())))

    async def follow(self, orders: Orders) -> None:
        """Follow what is new and forget what is gone."""
        await self.carry_out(self.turn_to(orders))

    def reconfigure(
        self, configured: Iterable[Instance], *, usable: Callable[[Instance], bool]
    ) -> None:
        """Begin at other instances with the next `turn_to`."""
        self.configured = {each.name: each for each in configured}
        self._usable = usable

    def wanted(self, configured: Mapping[str, Instance], orders: Orders) -> dict[str, Instance]:
        """Return the instances that there would be with these configured ones."""
        return {
            name: each
            for name, each in present(configured, orders).items()
            if name in configured or self._is_usable(each)
        }

    def turn_to(self, orders: Orders, *, renamed: frozenset[str] = frozenset()) -> Turnover:
        """Return what changes with these orders; from now on they are what there shall be.

        `renamed` are instances whose blocks are named otherwise from now on.
        """
        old, new = self.instances, self.wanted(self.configured, orders)
        changed = {name: each for name, each in new.items() if name in old and each != old[name]}
        turnover = Turnover(
            gone=tuple(name for name in old if name not in new),
            fresh=tuple(each for name, each in new.items() if name not in old),
            changed=tuple(changed.values()),
            reread=tuple(
                new[name]
                for name in new.keys() & old.keys()
                if name in renamed or _events_of(old[name]) != _events_of(new[name])
            ),
        )
        self.instances = new
        return turnover

    async def carry_out(self, turnover: Turnover) -> None:
        """Forget and follow events; one turnover after the other."""
        async with self._carrying_out:
            for name in (*turnover.gone, *(each.name for each in turnover.reread)):
                await self._feed.forget(name)
            for instance in (*turnover.fresh, *turnover.reread):
                await self._feed.follow(instance)

    def _is_usable(self, instance: Instance) -> bool:
        if self._usable(instance):
            return True
        _LOG.warning("%s was added elsewhere, but fits no cluster or model here", instance.name)
        return False


def _events_of(instance: Instance) -> tuple[object, ...]:
    """Return all of an instance that its events depend on."""
    return (
        instance.url,
        instance.kv_events,
        instance.kv_replay,
        instance.ranks,
        instance.model,
        instance.revision,
    )


class Membership:
    """Lets the fleet and the index be as configured and ordered."""

    def __init__(self, fleet: Fleet, followed: Followed) -> None:
        self._fleet = fleet
        self._followed = followed

    @property
    def configured(self) -> Mapping[str, Instance]:
        """The instances of the configuration, by name."""
        return self._followed.configured

    @property
    def instances(self) -> Iterable[Instance]:
        """The instances of the fleet now."""
        return [member.instance for member in self._fleet.members]

    async def begin(self) -> None:
        """Follow the events of the configured instances, which the fleet has already."""
        await self._followed.begin()

    async def follow(self, orders: Orders) -> None:
        """Let instances join, leave and change as ordered; legs that run run to their end."""
        await self._followed.carry_out(self._turn(self._followed.turn_to(orders), orders, {}))

    def newcomers(self, configured: Iterable[Instance], orders: Orders) -> list[Instance]:
        """Return the engines that nobody knows yet, were these the configured instances."""
        known = {each.name: each.url for each in self._followed.instances.values()}
        wanted = self._followed.wanted({each.name: each for each in configured}, orders)
        return [each for each in wanted.values() if known.get(each.name) != each.url]

    def reconfigure(
        self,
        configured: Iterable[Instance],
        orders: Orders,
        *,
        usable: Callable[[Instance], bool],
        renamed: frozenset[str],
        health: Mapping[str, Health],
    ) -> Turnover:
        """Let the fleet be as configured and ordered, at once; `carry_out` lets the index follow.

        `health` is what is known of newcomers.
        """
        self._followed.reconfigure(configured, usable=usable)
        return self._turn(self._followed.turn_to(orders, renamed=renamed), orders, health)

    async def carry_out(self, turnover: Turnover) -> None:
        """Let the index follow."""
        await self._followed.carry_out(turnover)

    def _turn(self, turnover: Turnover, orders: Orders, health: Mapping[str, Health]) -> Turnover:
        """Let the fleet change: who joins before who leaves, lest a queue finds nobody alive."""
        for instance in turnover.fresh:
            self._fleet.add(instance, health=health.get(instance.name, Health()))
        for instance in turnover.changed:
            self._fleet.exchange(instance, health=health.get(instance.name, Health()))
        for name, base in self._followed.instances.items():
            self._set(base, orders.instances.get(name, InstanceOrder()))
        for name in turnover.gone:
            self._fleet.remove(name)
        return turnover

    def _set(self, base: Instance, order: InstanceOrder) -> None:
        member = self._fleet.member(base.name)
        state, role = order.state or InstanceState.ACTIVE, order.role or base.role
        if member.state is not state:
            self._fleet.set_state(base.name, state)
        if member.instance.role is not role:
            try:
                self._fleet.set_role(base.name, role)
            except RouterError as error:  # its cluster is of another kind here
                _LOG.warning("%s keeps its role: %s", base.name, error)
