"""Instances that come and go while the gateway runs: the fleet and the index change together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

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
    """Who leaves and who joins; an instance that is another under the same name does both."""

    gone: tuple[str, ...] = ()
    fresh: tuple[Instance, ...] = ()


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
        self.configured: Mapping[str, Instance] = {each.name: each for each in configured}
        self.instances = dict(self.configured)

    async def begin(self) -> None:
        """Follow the instances that there shall be now."""
        await self.carry_out(Turnover(fresh=tuple(self.instances.values())))

    async def follow(self, orders: Orders) -> None:
        """Follow what is new and forget what is gone."""
        await self.carry_out(self.turn_to(orders))

    def turn_to(self, orders: Orders) -> Turnover:
        """Return what changes with these orders; from now on they are what there shall be."""
        wanted = {
            name: each
            for name, each in present(self.configured, orders).items()
            if name in self.configured or self._is_usable(each)
        }
        turnover = Turnover(
            gone=tuple(name for name, each in self.instances.items() if wanted.get(name) != each),
            fresh=tuple(each for name, each in wanted.items() if self.instances.get(name) != each),
        )
        self.instances = wanted
        return turnover

    async def carry_out(self, turnover: Turnover) -> None:
        """Forget and follow events."""
        for name in turnover.gone:
            await self._feed.forget(name)
        for instance in turnover.fresh:
            await self._feed.follow(instance)

    def _is_usable(self, instance: Instance) -> bool:
        if self._usable(instance):
            return True
        _LOG.warning("%s was added elsewhere, but fits no cluster or model here", instance.name)
        return False


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
        turnover = self._followed.turn_to(orders)
        for name in turnover.gone:
            self._fleet.remove(name)
        for instance in turnover.fresh:
            self._fleet.add(instance)
        for name, base in self._followed.instances.items():
            self._set(base, orders.instances.get(name, InstanceOrder()))
        await self._followed.carry_out(turnover)

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
