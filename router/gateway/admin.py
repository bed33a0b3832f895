"""The admin API (DESIGN 10): what operators see and order. Effective at the next request."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Body, Depends, Query, Request, status
from fastapi.responses import JSONResponse

from router.control.links import BandwidthMode, Telemetry
from router.domain.decision import ThresholdMode
from router.domain.errors import BadRequest, Forbidden, NotFound, Unauthenticated
from router.domain.topology import Instance
from router.domain.units import from_gbps
from router.gateway.admin_models import (
    BandwidthBody,
    DecisionParameters,
    ExplainBody,
    InstancePatch,
    LinkBody,
    LinkParameters,
    OverrideBody,
    OverrideParameters,
    PairParameters,
    TelemetryBody,
    ThresholdBody,
    observed_age,
)
from router.ports import Clock
from router.service.bodies import BodyKind, read_body
from router.service.decisions import DecisionLog, Document
from router.service.fleet import Fleet
from router.service.links import LinkBoard
from router.service.membership import Membership
from router.service.models import ModelCatalog
from router.service.operator import Operator, PairScope
from router.service.routing import Ask, Routing, Supposition
from router.service.snapshots import WhatIf
from router.service.state import StateReport
from router.service.tenants import TenantBook


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


@dataclass(frozen=True, slots=True)
class AdminRoom:
    """Everything that the admin API works with. `parse_instance` reads a configuration entry."""

    keys: tuple[AdminKey, ...]
    fleet: Fleet
    membership: Membership
    links: LinkBoard
    operator: Operator
    routing: Routing
    tenants: TenantBook
    catalog: ModelCatalog
    log: DecisionLog
    report: StateReport
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


Pairs = Annotated[PairParameters, Query()]

_INSTANCE_BODY: Final = {
    "requestBody": {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/InstanceEntry"}}}
    }
}
"""How the settings describe a body that they read."""


def build_admin(room: AdminRoom) -> APIRouter:
    """Return the routes of the admin API over one gateway's live state."""

    def caller_with(role: AdminRole) -> Callable[[Request], Caller]:
        def check(request: Request) -> Caller:
            caller = identify(room, request)
            if _RANK[caller.role] < _RANK[role]:
                raise Forbidden(f"{caller.name!r} is a {caller.role}; this needs {role}")
            return caller

        return check

    viewer = Depends(caller_with(AdminRole.VIEWER))
    agent = Depends(caller_with(AdminRole.TELEMETRY))
    operator = Depends(caller_with(AdminRole.OPERATOR))
    routes = APIRouter(prefix="/admin/v1", tags=["admin"])
    _add_state(routes, room, viewer)
    _add_thresholds(routes, room, viewer, operator)
    _add_links(routes, room, viewer, agent, operator)
    _add_overrides(routes, room, viewer, operator)
    _add_instances(routes, room, viewer, operator)
    _add_decisions(routes, room, viewer)
    return routes


def _add_state(routes: APIRouter, room: AdminRoom, viewer: Any) -> None:  # noqa: ANN401 - FastAPI's Depends has no public type
    @routes.get("/state", dependencies=[viewer])
    async def read_state() -> Document:
        """Return everything, in one document, with ages."""
        return await room.report.whole()


def _add_thresholds(routes: APIRouter, room: AdminRoom, viewer: Any, operator: Any) -> None:  # noqa: ANN401 - as above
    @routes.get("/threshold", dependencies=[viewer])
    async def read_threshold(pairs: Pairs) -> Document:
        """Return t: as ordered for the scope, else as configured, and what is in force a pair."""
        return room.report.threshold(_find_scope(room, pairs))

    @routes.put("/threshold")
    async def write_threshold(
        pairs: Pairs, body: ThresholdBody, caller: Caller = operator
    ) -> Document:
        """Set t for every pair or for a scope; `config` returns to the file."""
        scope = _find_scope(room, pairs)
        mode = None if body.mode == "config" else ThresholdMode(body.mode)
        room.operator.order_threshold(scope, mode, body.tokens, by=caller.name)
        return room.report.threshold(scope)


def _find_scope(room: AdminRoom, pairs: PairParameters) -> PairScope:
    """Return the scope that is meant; one that names nothing is refused, as a typo would be.

    A model may be named by an alias.
    """
    model = None if pairs.model is None else room.catalog.resolve(pairs.model).model.name
    clusters = {cluster.name for cluster in room.fleet.clusters}
    for name in (pairs.prfaas, pairs.pd):
        if name is not None and name not in clusters:
            raise NotFound(f"no cluster {name!r}")
    return PairScope(model, pairs.prfaas, pairs.pd)


def _add_links(
    routes: APIRouter,
    room: AdminRoom,
    viewer: Any,  # noqa: ANN401 - as above
    agent: Any,  # noqa: ANN401 - as above
    operator: Any,  # noqa: ANN401 - as above
) -> None:
    @routes.get("/links", dependencies=[viewer])
    async def read_links() -> Document:
        """Return every link."""
        return {"links": room.report.links()}

    @routes.get("/links/{name}", dependencies=[viewer])
    async def read_link(name: str) -> Document:
        """Return one link."""
        return room.report.link(room.links.state(name))

    @routes.put("/links/{name}", dependencies=[operator])
    async def write_link(name: str, body: LinkBody) -> Document:
        """Take a link up or down, believe its telemetry again, set its capacity."""
        room.links.state(name)
        if body.health is not None:
            room.links.set_health(name, body.health)
        if "capacity_gbps" in body.model_fields_set:
            gbps = body.capacity_gbps
            room.links.set_capacity(name, None if gbps is None else from_gbps(gbps))
        return room.report.link(room.links.state(name))

    @routes.post("/links/{name}/telemetry", dependencies=[agent])
    async def report_telemetry(name: str, body: TelemetryBody) -> Document:
        """Take one measurement of a link's egress."""
        age = observed_age(body, room.clock.now())
        telemetry = Telemetry(
            egress=from_gbps(body.egress_gbps),
            observed_at=room.clock.monotonic() - age,
            available=None if body.available_gbps is None else from_gbps(body.available_gbps),
            loss_ratio=body.loss_ratio,
            retransmit_ratio=body.retransmit_ratio,
            rtt=None if body.rtt_ms is None else body.rtt_ms / 1000,
        )
        return room.report.link(room.links.report(name, telemetry))

    @routes.get("/bandwidth", dependencies=[viewer])
    async def read_bandwidth(which: Annotated[LinkParameters, Query()]) -> Document:
        """Return the regimes."""
        return room.report.bandwidth(which.link)

    @routes.put("/bandwidth", dependencies=[operator])
    async def write_bandwidth(
        body: BandwidthBody, which: Annotated[LinkParameters, Query()]
    ) -> Document:
        """Fix the regime of all links or of one, or let it follow the utilisation."""
        mode = None if body.mode == "config" else BandwidthMode(body.mode)
        room.links.set_mode(mode, which.link)
        return room.report.bandwidth(which.link)


def _add_overrides(routes: APIRouter, room: AdminRoom, viewer: Any, operator: Any) -> None:  # noqa: ANN401 - as above
    def shown() -> Document:
        return {"overrides": [room.report.override(item) for item in room.operator.overrides]}

    @routes.get("/override", dependencies=[viewer])
    async def read_overrides() -> Document:
        """Return the overrides in force."""
        return shown()

    @routes.put("/override")
    async def write_override(body: OverrideBody, caller: Caller = operator) -> Document:
        """Force a route for a model, a tenant or everybody, for a time or until cleared."""
        model, tenant = _find_override(room, body)
        room.operator.order_override(
            body.route, model=model, tenant=tenant, ttl=body.ttl_seconds, by=caller.name
        )
        return shown()

    @routes.delete("/override", dependencies=[operator])
    async def clear_overrides(whose: Annotated[OverrideParameters, Query()]) -> Document:
        """Drop the override of a scope; without a scope, all."""
        model, tenant = _find_override(room, whose)
        room.operator.clear_overrides(model=model, tenant=tenant)
        return shown()


def _find_override(
    room: AdminRoom, whose: OverrideBody | OverrideParameters
) -> tuple[str | None, str | None]:
    """Return the model and the tenant that are meant. Raises NotFound for a name nobody has."""
    model = None if whose.model is None else room.catalog.resolve(whose.model).model.name
    tenant = None if whose.tenant is None else room.tenants.find(whose.tenant).name
    return model, tenant


def _add_instances(routes: APIRouter, room: AdminRoom, viewer: Any, operator: Any) -> None:  # noqa: ANN401 - as above
    @routes.get("/instances", dependencies=[viewer])
    async def read_instances() -> Document:
        """Return every instance."""
        return {"instances": room.report.instances()}

    @routes.post(
        "/instances",
        dependencies=[operator],
        status_code=status.HTTP_201_CREATED,
        openapi_extra=_INSTANCE_BODY,
    )
    async def add_instance(body: Annotated[dict[str, Any], Body()]) -> Document:
        """Let an instance join: a configuration entry plus its `cluster`."""
        member = await room.membership.add(room.parse_instance(body))
        return room.report.instance(member)

    @routes.patch("/instances/{name}", dependencies=[operator])
    async def change_instance(name: str, body: InstancePatch) -> Document:
        """Drain, disable or activate an instance; change its role."""
        member = room.fleet.member(name)
        if body.role is not None:
            room.fleet.set_role(name, body.role)
        if body.state is not None:
            room.fleet.set_state(name, body.state)
        return room.report.instance(member)

    @routes.delete("/instances/{name}", dependencies=[operator])
    async def remove_instance(name: str) -> Document:
        """Let an instance go; legs that run there run to their end."""
        removed = await room.membership.remove(name)
        return {"removed": removed.name}


def _add_decisions(routes: APIRouter, room: AdminRoom, viewer: Any) -> None:  # noqa: ANN401 - as above
    @routes.get("/decisions", dependencies=[viewer])
    async def read_decisions(which: Annotated[DecisionParameters, Query()]) -> Document:
        """Return the latest decisions, newest first."""
        records = room.log.latest(limit=which.limit, route=which.route, reason=which.reason)
        return {"decisions": [record.document() for record in records]}

    @routes.post("/decisions:explain", dependencies=[viewer])
    async def explain_decision(body: ExplainBody) -> JSONResponse:
        """Decide without sending anything: on live state, or on what is supposed of it."""
        record = await _explain(room, body)
        return JSONResponse(record)


async def _explain(room: AdminRoom, body: ExplainBody) -> Document:
    named = room.catalog.resolve(body.model or room.catalog.models[0].name)
    tenant = room.tenants.find(body.tenant)
    what_if = WhatIf(body.threshold, body.regime)
    request_id = room.new_request_id()
    if body.total_tokens is not None:
        unknown = set(body.cached_tokens) - {cluster.name for cluster in room.fleet.clusters}
        if unknown:
            raise BadRequest(f"cached_tokens: no cluster {min(unknown)!r}")
        supposition = Supposition(named, tenant, body.total_tokens, body.cached_tokens)
        record = room.routing.suppose(supposition, what_if, request_id=request_id)
        return record.document()
    chat = body.messages is not None
    raw = msgspec.json.encode(
        {"model": named.asked, **({"messages": body.messages} if chat else {"prompt": body.prompt})}
    )
    client = read_body(raw, BodyKind.CHAT if chat else BodyKind.COMPLETION)
    salt = room.tenants.cache_salt(tenant, None)
    ask = Ask(request_id, tenant, named, client, salt, tenant.home)
    return (await room.routing.explain(ask, what_if)).document()
