"""The admin API's orders: thresholds, the rule, links, regimes, overrides, instances.

Each part has an entity tag, sent with what shows it and with what changes it. A change with
`If-Match` is made only while the part is as it was seen, else it is 412: two operators who look at
the same document cannot undo each other's orders unseen. With `dry_run=true` a change is checked in
the same way and shown, before and after, and not made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Header, Query, Response, status

from router.control.links import BandwidthMode, LinkHealth
from router.domain.decision import Rule, ThresholdMode
from router.domain.errors import NotFound
from router.domain.units import from_gbps
from router.gateway.admin_models import (
    BandwidthBody,
    ChangeParameters,
    InstancePatch,
    LinkBody,
    LinkChange,
    LinkParameters,
    OverrideBody,
    OverrideChange,
    PairChange,
    PairParameters,
    PolicyBody,
    ThresholdBody,
)
from router.gateway.admin_room import AdminRole, AdminRoom, Caller, Dependency, demand
from router.service.decisions import Document
from router.service.order_book import Order
from router.service.orders import (
    InstanceOrder,
    LinkOrder,
    Orders,
    OverrideOrder,
    PairScope,
    PolicyOrder,
    ThresholdOrder,
    tag,
    with_abort,
    with_added,
    with_instance,
    with_link,
    with_modes,
    with_override,
    with_policy,
    with_threshold,
    without_instance,
    without_overrides,
    without_threshold,
)

Pairs = Annotated[PairParameters, Query()]
How = Annotated[ChangeParameters, Query()]
Match = Annotated[str | None, Header(alias="If-Match")]


_INSTANCE_BODY: Final = {
    "requestBody": {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/InstanceEntry"}}}
    }
}
"""How the settings describe a body that they read."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What routes depend on: who calls, with at least that role."""

    viewer: Dependency
    agent: Dependency
    operator: Dependency

    @classmethod
    def of(cls, room: AdminRoom) -> Rights:
        """Return the rights of a room's keys."""
        viewer, agent, operator = (
            Depends(demand(room, role))
            for role in (AdminRole.VIEWER, AdminRole.TELEMETRY, AdminRole.OPERATOR)
        )
        return cls(viewer, agent, operator)


@dataclass(frozen=True, slots=True)
class Desk:
    """One operator's call: takes its order, and tells the tag of what it shows or changed."""

    room: AdminRoom
    caller: Caller
    response: Response
    if_match: frozenset[str] | None

    async def change(
        self, order: Order, shown: Callable[[], Document], *, dry_run: bool
    ) -> Document:
        """Change the orders and return what is `shown` then, or what a change would change.

        Raises what `OrderBook.change` raises.
        """
        if dry_run:
            self.response.status_code = status.HTTP_200_OK
            return await self.room.orders.preview(order, unless=self.if_match)
        await self.room.orders.change(order, by=self.caller.name, unless=self.if_match)
        self.show(order.part(self.room.orders.orders))
        return shown()

    def show(self, part: object) -> None:
        """Tell the tag of what is shown."""
        self.response.headers["etag"] = f'"{tag(part)}"'


def add_orders(routes: APIRouter, room: AdminRoom, rights: Rights) -> None:
    """Add the routes of all orders."""

    def desk_of(right: Dependency) -> Dependency:
        def open_desk(response: Response, caller: Caller = right, if_match: Match = None) -> Desk:
            return Desk(room, caller, response, read_tags(if_match))

        return Depends(open_desk)

    viewer, operator = desk_of(rights.viewer), desk_of(rights.operator)
    _add_thresholds(routes, room, viewer, operator)
    _add_policy(routes, room, viewer, operator)
    _add_links(routes, room, viewer, operator)
    _add_bandwidth(routes, room, viewer, operator)
    _add_overrides(routes, room, viewer, operator)
    _add_instances(routes, room, viewer, operator)
    _add_conversion(routes, room, viewer, operator)


def read_tags(if_match: str | None) -> frozenset[str] | None:
    """Return the tags that an `If-Match` names; None where any will do."""
    if if_match is None or if_match.strip() == "*":
        return None
    return frozenset(each.strip().removeprefix("W/").strip('"') for each in if_match.split(","))


# -- thresholds


def _thresholds(orders: Orders) -> object:
    return orders.thresholds


def _add_thresholds(
    routes: APIRouter, room: AdminRoom, viewer: Dependency, operator: Dependency
) -> None:
    @routes.get("/threshold")
    async def read_threshold(pairs: Pairs, desk: Desk = viewer) -> Document:
        """Return t: as ordered for the scope, else as configured, and what is in force a pair."""
        desk.show(_thresholds(room.orders.orders))
        return room.report.threshold(_find_scope(room, pairs))

    @routes.put("/threshold")
    async def write_threshold(
        pairs: Annotated[PairChange, Query()], body: ThresholdBody, desk: Desk = operator
    ) -> Document:
        """Set t for every pair or for a scope; `config` returns to the file."""
        scope = _find_scope(room, pairs)

        def edit(orders: Orders) -> Orders:
            if body.mode == "config":
                return without_threshold(orders, scope)
            mode, now = ThresholdMode(body.mode), room.clock.now()
            order = ThresholdOrder(scope, mode, body.tokens, now, desk.caller.name)
            return with_threshold(orders, order)

        order = Order("threshold.set", _name_scope(scope), _thresholds, edit)
        return await desk.change(order, lambda: room.report.threshold(scope), dry_run=pairs.dry_run)


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


def _name_scope(scope: PairScope) -> str:
    named = {"model": scope.model, "prfaas": scope.prfaas, "pd": scope.pd}
    return _name_parts("every pair", named)


def _name_parts(everything: str, parts: Mapping[str, str | None]) -> str:
    return ", ".join(f"{key} {name}" for key, name in parts.items() if name) or everything


# -- the rule


def _policy(orders: Orders) -> object:
    return orders.policy


def _add_policy(
    routes: APIRouter, room: AdminRoom, viewer: Dependency, operator: Dependency
) -> None:
    @routes.get("/policy")
    async def read_policy(desk: Desk = viewer) -> Document:
        """Return the rule in force, and who chose it."""
        desk.show(_policy(room.orders.orders))
        return room.report.policy()

    @routes.put("/policy")
    async def write_policy(how: How, body: PolicyBody, desk: Desk = operator) -> Document:
        """Choose the rule; `config` returns to the file. Requests under way go on as decided."""

        def edit(orders: Orders) -> Orders:
            if body.policy == "config":
                return with_policy(orders, None)
            order = PolicyOrder(Rule(body.policy), room.clock.now(), desk.caller.name)
            return with_policy(orders, order)

        order = Order("policy.set", "the rule", _policy, edit)
        return await desk.change(order, room.report.policy, dry_run=how.dry_run)


# -- links


def _add_links(
    routes: APIRouter, room: AdminRoom, viewer: Dependency, operator: Dependency
) -> None:
    @routes.get("/links")
    async def read_links(desk: Desk = viewer) -> Document:
        """Return every link."""
        desk.show(room.orders.orders.links)
        return {"links": room.report.links()}

    @routes.get("/links/{name}")
    async def read_link(name: str, desk: Desk = viewer) -> Document:
        """Return one link."""
        desk.show(room.orders.orders.links.get(name))
        return room.report.link(room.links.state(name))

    @routes.put("/links/{name}")
    async def write_link(name: str, how: How, body: LinkBody, desk: Desk = operator) -> Document:
        """Take a link up or down, believe its telemetry again, set its capacity."""
        room.links.state(name)

        def edit(orders: Orders) -> Orders:
            return with_link(orders, name, _change_link(orders.links.get(name), body))

        order = Order("link.set", name, lambda orders: orders.links.get(name), edit)
        return await desk.change(
            order, lambda: room.report.link(room.links.state(name)), dry_run=how.dry_run
        )


def _change_link(before: LinkOrder | None, body: LinkBody) -> LinkOrder:
    """Return what is said of a link now: a field that is absent is left as it is."""
    order = before or LinkOrder()
    if body.health is not None:
        order = replace(order, health=None if body.health is LinkHealth.AUTO else body.health)
    if "capacity_gbps" in body.model_fields_set:
        gbps = body.capacity_gbps
        order = replace(order, capacity=None if gbps is None else from_gbps(gbps))
    return order


# -- regimes


def _modes(orders: Orders) -> object:
    return {name: order.mode for name, order in orders.links.items() if order.mode is not None}


def _add_bandwidth(
    routes: APIRouter, room: AdminRoom, viewer: Dependency, operator: Dependency
) -> None:
    @routes.get("/bandwidth")
    async def read_bandwidth(
        which: Annotated[LinkParameters, Query()], desk: Desk = viewer
    ) -> Document:
        """Return the regimes."""
        desk.show(_modes(room.orders.orders))
        return room.report.bandwidth(which.link)

    @routes.put("/bandwidth")
    async def write_bandwidth(
        body: BandwidthBody, which: Annotated[LinkChange, Query()], desk: Desk = operator
    ) -> Document:
        """Fix the regime of all links or of one, or let it follow the utilisation."""
        mode = None if body.mode == "config" else BandwidthMode(body.mode)
        states = room.links.states if which.link is None else [room.links.state(which.link)]
        names = [state.link.name for state in states]

        def edit(orders: Orders) -> Orders:
            return with_modes(orders, names, mode)

        order = Order("bandwidth.set", which.link or "every link", _modes, edit)
        return await desk.change(
            order, lambda: room.report.bandwidth(which.link), dry_run=which.dry_run
        )


# -- overrides


def _overrides(orders: Orders) -> object:
    return orders.overrides


def _add_overrides(
    routes: APIRouter, room: AdminRoom, viewer: Dependency, operator: Dependency
) -> None:
    def shown() -> Document:
        return {"overrides": [room.report.override(each) for each in room.operator.overrides]}

    @routes.get("/override")
    async def read_overrides(desk: Desk = viewer) -> Document:
        """Return the overrides in force."""
        desk.show(_overrides(room.orders.orders))
        return shown()

    @routes.put("/override")
    async def write_override(how: How, body: OverrideBody, desk: Desk = operator) -> Document:
        """Force a route for a model, a tenant or everybody, for a time or until cleared."""
        model, tenant = _find_override(room, body)

        def edit(orders: Orders) -> Orders:
            now, ttl = room.clock.now(), body.ttl_seconds
            until = None if ttl is None else now + timedelta(seconds=ttl)
            order = OverrideOrder(body.route, model, tenant, until, now, desk.caller.name)
            return with_override(orders, order)

        subject = _name_parts("everybody", {"model": model, "tenant": tenant})
        order = Order("override.set", subject, _overrides, edit)
        return await desk.change(order, shown, dry_run=how.dry_run)

    @routes.delete("/override")
    async def clear_overrides(
        whose: Annotated[OverrideChange, Query()], desk: Desk = operator
    ) -> Document:
        """Drop the override of a scope; without a scope, all."""
        model, tenant = _find_override(room, whose)

        def edit(orders: Orders) -> Orders:
            return without_overrides(orders, model, tenant)

        subject = _name_parts("all", {"model": model, "tenant": tenant})
        order = Order("override.clear", subject, _overrides, edit)
        return await desk.change(order, shown, dry_run=whose.dry_run)


def _find_override(
    room: AdminRoom, whose: OverrideBody | OverrideChange
) -> tuple[str | None, str | None]:
    """Return the model and the tenant that are meant. Raises NotFound for a name nobody has."""
    model = None if whose.model is None else room.catalog.resolve(whose.model).model.name
    tenant = None if whose.tenant is None else room.tenants.find(whose.tenant).name
    return model, tenant


# -- instances


def _fleet_part(orders: Orders) -> object:
    return (orders.added, orders.removed, orders.instances)


@dataclass(frozen=True, slots=True)
class _InstancePart:
    """What is said of one instance."""

    name: str

    def __call__(self, orders: Orders) -> object:
        return {
            "order": orders.instances.get(self.name),
            "added": orders.added.get(self.name),
            "removed": self.name in orders.removed,
        }


def _add_instances(
    routes: APIRouter, room: AdminRoom, viewer: Dependency, operator: Dependency
) -> None:
    def shown(name: str) -> Document:
        return room.report.instance(room.fleet.member(name))

    @routes.get("/instances")
    async def read_instances(desk: Desk = viewer) -> Document:
        """Return every instance."""
        desk.show(_fleet_part(room.orders.orders))
        return {"instances": room.report.instances()}

    @routes.get("/instances/{name}")
    async def read_instance(name: str, desk: Desk = viewer) -> Document:
        """Return one instance."""
        desk.show(_InstancePart(name)(room.orders.orders))
        return room.report.instance(room.fleet.member(name))

    @routes.post("/instances", status_code=status.HTTP_201_CREATED, openapi_extra=_INSTANCE_BODY)
    async def add_instance(
        how: How, body: Annotated[dict[str, Any], Body()], desk: Desk = operator
    ) -> Document:
        """Let an instance join: a configuration entry plus its `cluster`."""
        instance = room.parse_instance(body)

        def edit(orders: Orders) -> Orders:
            return with_added(orders, room.membership.configured, instance)

        order = Order("instance.add", instance.name, _InstancePart(instance.name), edit)
        return await desk.change(order, lambda: shown(instance.name), dry_run=how.dry_run)

    @routes.patch("/instances/{name}")
    async def change_instance(
        name: str, how: How, body: InstancePatch, desk: Desk = operator
    ) -> Document:
        """Drain, disable or activate an instance; change its role."""
        if body.role is not None:
            room.fleet.check_role(name, body.role)

        def edit(orders: Orders) -> Orders:
            before = orders.instances.get(name, InstanceOrder())
            after = InstanceOrder(body.state or before.state, body.role or before.role)
            return with_instance(orders, room.membership.configured, name, after)

        order = Order("instance.set", name, _InstancePart(name), edit)
        return await desk.change(order, lambda: shown(name), dry_run=how.dry_run)

    @routes.delete("/instances/{name}")
    async def remove_instance(name: str, how: How, desk: Desk = operator) -> Document:
        """Let an instance go; legs that run there run to their end."""

        def edit(orders: Orders) -> Orders:
            return without_instance(orders, room.membership.configured, name)

        order = Order("instance.remove", name, _InstancePart(name), edit)
        return await desk.change(order, lambda: {"removed": name}, dry_run=how.dry_run)


# -- the conversion


def _conversion(orders: Orders) -> object:
    return orders.conversion


def _add_conversion(
    routes: APIRouter, room: AdminRoom, viewer: Dependency, operator: Dependency
) -> None:
    @routes.get("/conversion")
    async def read_conversion(desk: Desk = viewer) -> Document:
        """Return the conversion under way, else the latest, and what the long loop found."""
        desk.show(_conversion(room.orders.orders))
        return room.report.conversion()

    @routes.delete("/conversion")
    async def abort_conversion(how: How, desk: Desk = operator) -> Document:
        """Have the conversion under way put back; the leader does it within about a second."""

        def edit(orders: Orders) -> Orders:
            return with_abort(orders, desk.caller.name)

        order = Order("conversion.abort", "conversion", _conversion, edit)
        return await desk.change(order, room.report.conversion, dry_run=how.dry_run)
