"""What the admin API works with, and who may call it."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fastapi import Request

from router.domain.errors import BadRequest, Forbidden, Unauthenticated
from router.domain.topology import Instance
from router.gateway.rooms import Room
from router.ports import Clock
from router.service.fleet import Fleet
from router.service.journals import Journal
from router.service.links import LinkBoard
from router.service.live_plans import LivePlans
from router.service.membership import Membership
from router.service.models import ModelCatalog
from router.service.operator import Operator
from router.service.order_book import OrderBook
from router.service.routing import Routing
from router.service.state import StateReport
from router.service.tenants import TenantBook

Dependency = Any
"""What `fastapi.Depends` returns: it has no public type."""


class AdminRole(StrEnum):
    """What a key may do: each role may do what the one before may."""

    VIEWER = "viewer"
    TELEMETRY = "telemetry"
    OPERATOR = "operator"


_RANK = {role: rank for rank, role in enumerate(AdminRole)}


@dataclass(frozen=True, slots=True)
class AdminKey:
    """One key, by its digest, and who holds it."""

    name: str
    digest: bytes
    role: AdminRole


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls the admin API."""

    name: str
    role: AdminRole


@dataclass(slots=True)
class AdminRoom(Room):
    """Everything that the admin API works with. `parse_instance` reads a configuration entry."""

    keys: tuple[AdminKey, ...]
    fleet: Fleet
    membership: Membership
    links: LinkBoard
    operator: Operator
    orders: OrderBook
    routing: Routing
    tenants: TenantBook
    catalog: ModelCatalog
    journal: Journal
    report: StateReport
    plans: LivePlans
    clock: Clock
    parse_instance: Callable[[Mapping[str, Any]], Instance]
    new_request_id: Callable[[], str]


def identify(room: AdminRoom, request: Request) -> Caller:
    """Return who calls. Without any key configured only loopback is answered (DESIGN 10)."""
    if not room.keys:
        if request.client is not None and _is_loopback(request.client.host):
            return Caller("loopback", AdminRole.OPERATOR)
        raise Forbidden("no admin key is configured, so only loopback is answered")
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        digest = hashlib.sha256(key.strip().encode()).digest()
        for known in room.keys:
            if known.digest == digest:
                return Caller(known.name, known.role)
    raise Unauthenticated("no admin key was given, or it is not known", code="invalid_admin_key")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def demand(room: AdminRoom, role: AdminRole) -> Callable[[Request], Caller]:
    """Return the check that lets callers with at least a role through.

    A query that says a thing twice is refused: of two scopes only one would count.
    """

    def check(request: Request) -> Caller:
        caller = identify(room, request)
        if _RANK[caller.role] < _RANK[role]:
            raise Forbidden(f"{caller.name!r} is a {caller.role}; this needs {role}")
        asked = [name for name, _ in request.query_params.multi_items()]
        for name in asked:
            if asked.count(name) > 1:
                raise BadRequest(f"{name[:100]}: is given twice", param=name[:100])
        return caller

    return check
