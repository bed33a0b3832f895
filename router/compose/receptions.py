"""What the web framework answers: built once, over rooms whose contents each reload exchanges."""

from __future__ import annotations

from dataclasses import dataclass

from router.gateway.admin import build_admin
from router.gateway.admin_room import AdminRoom
from router.gateway.dispatch import Application
from router.gateway.front import (
    FrontRoom,
    behind_proxies,
    build_application,
    build_health,
    build_metrics,
    build_models,
)
from router.gateway.openapi import Description, add_description


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the framework's routes work with.

    `public` and `private` describe the clients' listener and the operators' own.
    """

    front: FrontRoom
    admin: AdminRoom
    public: Description
    private: Description


class Reception:
    """The framework's applications. `private` is None where operators have no listener."""

    def __init__(self, rooms: Rooms, *, apart: bool) -> None:
        """`apart` gives operators a listener of their own."""
        self._rooms = rooms
        public = private = build_application(title="PrfaaS router")
        public.include_router(build_health(rooms.front))
        public.include_router(build_models(rooms.front))
        if apart:
            private = build_application(title="PrfaaS router, administration")
            private.include_router(build_health(rooms.front))
        private.include_router(build_metrics(rooms.front))
        private.include_router(build_admin(rooms.admin))
        add_description(public, rooms.public)
        if apart:
            add_description(private, rooms.private)
        self.public: Application = behind_proxies(public)
        self.private: Application | None = behind_proxies(private) if apart else None

    def exchange(self, rooms: Rooms) -> None:
        """Answer from other rooms' contents from now on."""
        self._rooms.front.become(rooms.front)
        self._rooms.admin.become(rooms.admin)
        self._rooms.public.become(rooms.public)
        self._rooms.private.become(rooms.private)
