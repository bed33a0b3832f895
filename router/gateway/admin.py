"""The admin API (DESIGN 10): what operators see and order. Effective at the next request."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from router.control.links import Telemetry
from router.domain.units import from_gbps
from router.gateway.admin_decisions import add_decisions
from router.gateway.admin_models import (
    AuditParameters,
    PlanBody,
    PlanParameters,
    TelemetryBody,
    observed_age,
)
from router.gateway.admin_orders import Rights, add_orders
from router.gateway.admin_room import AdminRoom, Dependency
from router.planning.live_plans import Suppositions
from router.service.decisions import Document


def build_admin(room: AdminRoom) -> APIRouter:
    """Return the routes of the admin API over one gateway's live state."""
    rights = Rights.of(room)
    routes = APIRouter(prefix="/admin/v1", tags=["admin"])
    _add_state(routes, room, rights.viewer)
    _add_telemetry(routes, room, rights.agent)
    add_orders(routes, room, rights)
    add_decisions(routes, room, rights.viewer)
    _add_plans(routes, room, rights.viewer)
    return routes


def _add_state(routes: APIRouter, room: AdminRoom, viewer: Dependency) -> None:
    @routes.get("/state", dependencies=[viewer])
    async def read_state() -> Document:
        """Return everything, in one document, with ages."""
        return await room.report.whole()

    @routes.get("/audit", dependencies=[viewer])
    async def read_audit(which: Annotated[AuditParameters, Query()]) -> Document:
        """Return who changed what, when, from what to what; newest first."""
        return {"audit": await room.orders.audit(which.limit)}


def _add_telemetry(routes: APIRouter, room: AdminRoom, agent: Dependency) -> None:
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


def _add_plans(routes: APIRouter, room: AdminRoom, viewer: Dependency) -> None:
    @routes.get("/plan", dependencies=[viewer])
    async def read_plan(which: Annotated[PlanParameters, Query()]) -> Document:
        """Return the model's view of now, and what is proposed, for each model and PD cluster."""
        plans = await room.plans.now(model=which.model, pd=which.pd)
        return {
            "plans": [
                plan | {"proposal": room.report.proposal(str(plan["model"]), str(plan["pd"]))}
                for plan in plans
            ]
        }

    @routes.post("/plan:solve", dependencies=[viewer])
    async def solve_plan(body: PlanBody) -> Document:
        """Return the model's view of now beside that of what is supposed; nothing changes."""
        plans = await room.plans.solve(_suppositions(body), model=body.model, pd=body.pd)
        return {"plans": plans}


def _suppositions(body: PlanBody) -> Suppositions:
    return Suppositions(
        egress={name: from_gbps(gbps) for name, gbps in body.bandwidth_gbps.items()},
        prefill=body.prefill_instances,
        decode=body.decode_instances,
        remote=body.prfaas_instances,
        mean=body.mean_tokens,
        lengths=tuple(body.lengths),
        threshold=body.threshold,
    )
