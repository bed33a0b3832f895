"""Instances that come and go while the gateway runs: the fleet and the index change together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from router.domain.topology import Instance
from router.service.fleet import Fleet, Member


class EventFeed(Protocol):
    """Keeps the index listening to an instance's KV events."""

    async def follow(self, instance: Instance) -> None:
        """Start to ingest every rank of an instance; does nothing for one without events."""
        ...

    async def forget(self, instance: str) -> None:
        """Stop, and drop all that the index holds of it: a removed instance owns nothing."""
        ...


class Membership:
    """Adds and removes instances everywhere at once."""

    def __init__(self, fleet: Fleet, feed: EventFeed) -> None:
        self._fleet = fleet
        self._feed = feed

    @property
    def instances(self) -> Iterable[Instance]:
        """The instances of the fleet now."""
        return [member.instance for member in self._fleet.members]

    async def add(self, instance: Instance) -> Member:
        """Let an instance join. Raises Conflict, NotFound."""
        member = self._fleet.add(instance)
        await self._feed.follow(instance)
        return member

    async def remove(self, name: str) -> Instance:
        """Let an instance go. Raises NotFound."""
        instance = self._fleet.remove(name)
        await self._feed.forget(name)
        return instance
