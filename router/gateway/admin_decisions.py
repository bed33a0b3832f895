"""The admin API's decisions: those that were made, made again, and dry runs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from router.domain.errors import BadRequest
from router.gateway.admin_documents import DecisionDocument, DecisionList
from router.gateway.admin_models import DecisionParameters, ExplainBody, ReplayBody
from router.gateway.admin_room import AdminRoom, Dependency
from router.service.bodies import BodyKind, read_body
from router.service.decisions import Cursor, DecisionQuery, Document
from router.service.journals import PageOrder, ReplayOrder
from router.service.routing import Ask, Supposition
from router.service.snapshots import WhatIf


def add_decisions(routes: APIRouter, room: AdminRoom, viewer: Dependency) -> None:
    """Add the routes of decisions."""

    @routes.get("/decisions", dependencies=[viewer], responses={200: {"model": DecisionList}})
    async def read_decisions(which: Annotated[DecisionParameters, Query()]) -> Document:
        """Return the latest decisions of all workers, newest first."""
        return await room.journal.page(PageOrder(_query(room, which), which.limit))

    @routes.post("/decisions:replay", dependencies=[viewer])
    async def replay_decisions(body: ReplayBody) -> Document:
        """Make the logged decisions again with what is supposed, from their own inputs."""
        order = ReplayOrder(_query(room, body), body.threshold, body.regime, body.policy)
        return await room.journal.replay(order)

    @routes.post(
        "/decisions:explain", dependencies=[viewer], responses={200: {"model": DecisionDocument}}
    )
    async def explain_decision(body: ExplainBody) -> JSONResponse:
        """Decide without sending anything: on live state, or on what is supposed of it."""
        record = await _explain(room, body)
        return JSONResponse(record)


def _query(room: AdminRoom, which: DecisionParameters | ReplayBody) -> DecisionQuery:
    """Return which decisions are meant. Raises NotFound for a name that nobody has."""
    query = DecisionQuery(
        model=None if which.model is None else room.catalog.resolve(which.model).model.name,
        tenant=None if which.tenant is None else room.tenants.find(which.tenant).name,
        since=which.since,
        until=which.until,
    )
    if isinstance(which, ReplayBody):
        return query
    return msgspec.structs.replace(
        query,
        route=which.route,
        reason=which.reason,
        blocked_by=which.blocked_by,
        before=None if which.cursor is None else _read_cursor(which.cursor),
    )


def _read_cursor(text: str) -> Cursor:
    try:
        return Cursor.parse(text)
    except ValueError:
        raise BadRequest("cursor: is no page's `next`", param="cursor") from None


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
