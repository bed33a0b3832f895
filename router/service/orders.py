"""What is ordered: thresholds, the rule, overrides, links, instances, a conversion. Pure edits.

Orders win over the configuration until they are taken back, are visible with their author and time,
and are one document, so that they are changed as a whole and kept as a whole (DESIGN 3, 8). What an
order does not say is the configuration's to say. The one thing that the controller orders is the
conversion of an instance, in the same document, so that how far it is and what state the instance
is in are never told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from router.control.conversions import Phase, Progress
from router.control.links import BandwidthMode, LinkHealth
from router.domain.conversions import Conversion
from router.domain.decision import Route, Rule, ThresholdMode
from router.domain.errors import Changed, Conflict, NotFound
from router.domain.topology import (
    Instance,
    InstanceState,
    Role,
    may_share_a_model,
    origin_of,
)
from router.domain.units import BytesPerSecond, Tokens


@dataclass(frozen=True, slots=True)
class PairScope:
    """Which pairs of clusters an order is for; None stands for any."""

    model: str | None = None
    prfaas: str | None = None
    pd: str | None = None

    @property
    def specificity(self) -> int:
        """How many of the three are named: the most specific order wins."""
        return sum(part is not None for part in (self.model, self.prfaas, self.pd))

    def contains(self, other: PairScope) -> bool:
        """Whether every pair of the other scope is one of this."""
        return (
            self.model in (None, other.model)
            and self.prfaas in (None, other.prfaas)
            and self.pd in (None, other.pd)
        )


@dataclass(frozen=True, slots=True)
class ThresholdOrder:
    """An operator's threshold for a scope. `tokens` None keeps the configured number."""

    scope: PairScope
    mode: ThresholdMode
    tokens: Tokens | None
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class PolicyOrder:
    """The rule that an operator wants, whatever the configuration says."""

    rule: Rule
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class OverrideOrder:
    """An operator's route for a model, a tenant or everybody, until `expires_at` if there is one.

    By the wall clock, since it holds in every process and outlives them.
    """

    route: Route
    model: str | None
    tenant: str | None
    expires_at: datetime | None
    updated_at: datetime
    updated_by: str

    @property
    def specificity(self) -> int:
        """How much of the scope is named."""
        return (self.model is not None) + (self.tenant is not None)


@dataclass(frozen=True, slots=True)
class LinkOrder:
    """What an operator says of a link; None leaves it to the configuration."""

    health: LinkHealth | None = None
    capacity: BytesPerSecond | None = None
    mode: BandwidthMode | None = None


@dataclass(frozen=True, slots=True)
class InstanceOrder:
    """What an operator says of an instance; None leaves it active, and in its configured role."""

    state: InstanceState | None = None
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Orders:
    """All orders in force. `added` and `removed` are instances beyond the configured ones.

    `conversion` is the one that is under way, else the latest.
    """

    thresholds: tuple[ThresholdOrder, ...] = ()
    overrides: tuple[OverrideOrder, ...] = ()
    links: Mapping[str, LinkOrder] = field(default_factory=dict)
    instances: Mapping[str, InstanceOrder] = field(default_factory=dict)
    added: Mapping[str, Instance] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    policy: PolicyOrder | None = None
    conversion: Progress | None = None


_DECODER = msgspec.json.Decoder(Orders)


def encode_orders(orders: Orders) -> bytes:
    """Return orders as they are kept."""
    return msgspec.json.encode(orders, order="deterministic")


def decode_orders(document: bytes) -> Orders:
    """Return orders as they were kept; fields that are not known yet are left out.

    Raises msgspec.DecodeError for what is no such document.
    """
    return _DECODER.decode(document) if document else Orders()


def tag(part: object) -> str:
    """Return the entity tag of a part of the orders: it changes with its content alone."""
    text = msgspec.json.encode(part, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]


# -- thresholds


def with_threshold(orders: Orders, order: ThresholdOrder) -> Orders:
    """Return the orders with a threshold for a scope.

    A general order replaces what was ordered for parts of its scope: the latest word counts.
    """
    kept = without_threshold(orders, order.scope).thresholds
    return replace(orders, thresholds=(*kept, order))


def without_threshold(orders: Orders, scope: PairScope) -> Orders:
    """Return the orders with a scope given back to the configuration."""
    kept = tuple(each for each in orders.thresholds if not scope.contains(each.scope))
    return replace(orders, thresholds=kept)


# -- the rule


def with_policy(orders: Orders, order: PolicyOrder | None) -> Orders:
    """Return the orders with a rule; None gives the choice back to the configuration."""
    return replace(orders, policy=order)


# -- overrides


def with_override(orders: Orders, order: OverrideOrder) -> Orders:
    """Return the orders with one more override, in place of one of the same scope."""
    kept = tuple(
        each
        for each in live_overrides(orders, order.updated_at)
        if (each.model, each.tenant) != (order.model, order.tenant)
    )
    return replace(orders, overrides=(*kept, order))


def without_overrides(orders: Orders, model: str | None, tenant: str | None) -> Orders:
    """Return the orders without the override of a scope; without any where no scope is named."""
    if model is None and tenant is None:
        return replace(orders, overrides=())
    kept = tuple(each for each in orders.overrides if (each.model, each.tenant) != (model, tenant))
    return replace(orders, overrides=kept)


def live_overrides(orders: Orders, now: datetime) -> tuple[OverrideOrder, ...]:
    """Return the overrides whose time is not over."""
    return tuple(
        each for each in orders.overrides if each.expires_at is None or each.expires_at > now
    )


# -- links


def with_link(orders: Orders, name: str, order: LinkOrder) -> Orders:
    """Return the orders with what is said of a link, in place of what was."""
    links = {**orders.links, name: order}
    if order == LinkOrder():
        del links[name]
    return replace(orders, links=links)


def with_modes(orders: Orders, names: Iterable[str], mode: BandwidthMode | None) -> Orders:
    """Return the orders with the regime of some links fixed; None gives it back."""
    for name in names:
        orders = with_link(orders, name, replace(orders.links.get(name, LinkOrder()), mode=mode))
    return orders


# -- instances


def present(configured: Mapping[str, Instance], orders: Orders) -> dict[str, Instance]:
    """Return the instances that there shall be: the configured ones and the operators'."""
    kept = {name: each for name, each in configured.items() if name not in orders.removed}
    return kept | dict(orders.added)


def with_instance(
    orders: Orders, configured: Mapping[str, Instance], name: str, order: InstanceOrder
) -> Orders:
    """Return the orders with an instance's state and role. Raises NotFound.

    What is as it would be without an order is no order.
    """
    base = present(configured, orders).get(name)
    if base is None:
        raise NotFound(f"no instance {name!r}")
    state = None if order.state is InstanceState.ACTIVE else order.state
    role = None if order.role is base.role else order.role
    instances = {**orders.instances, name: InstanceOrder(state, role)}
    if state is None and role is None:
        del instances[name]
    return replace(orders, instances=instances)


def with_added(orders: Orders, configured: Mapping[str, Instance], instance: Instance) -> Orders:
    """Return the orders with one more instance. Raises Conflict for a name or an engine in use.

    One that was removed and is as configured is the configured one again. One engine under two
    names would be promised twice what it has.
    """
    name = instance.name
    others = present(configured, orders)
    if name in others:
        raise Conflict(f"instance {name!r} exists already")
    for other in others.values():
        same = origin_of(other.url) == origin_of(instance.url)
        if same and may_share_a_model(other.model, instance.model):
            raise Conflict(f"its engine is instance {other.name!r} already", param="url")
    if configured.get(name) == instance:
        return replace(orders, removed=tuple(each for each in orders.removed if each != name))
    return replace(orders, added={**orders.added, name: instance})


def without_instance(orders: Orders, configured: Mapping[str, Instance], name: str) -> Orders:
    """Return the orders with an instance gone, and all that was said of it. Raises NotFound."""
    if name not in present(configured, orders):
        raise NotFound(f"no instance {name!r}")
    removed = set(orders.removed) | ({name} & configured.keys())
    return replace(
        orders,
        added={key: each for key, each in orders.added.items() if key != name},
        instances={key: each for key, each in orders.instances.items() if key != name},
        removed=tuple(sorted(removed)),
    )


# -- the conversion


def is_held(orders: Orders, configured: Mapping[str, Instance], conversion: Conversion) -> bool:
    """Whether an instance is as its conversion left it: there, draining, in its old role."""
    base = present(configured, orders).get(conversion.instance)
    order = orders.instances.get(conversion.instance)
    return (
        base is not None
        and order is not None
        and order.state is InstanceState.DRAINING
        and (order.role or base.role) is conversion.source
    )


def with_progress(
    orders: Orders, configured: Mapping[str, Instance], before: Progress | None, after: Progress
) -> Orders:
    """Return the orders with the conversion so far, and its instance in the state of that phase.

    Raises Changed where the conversion is not as it was `before`, by the word of another leader or
    of an operator, or where its instance is not; Conflict and NotFound where it cannot begin.
    """
    if orders.conversion != before:
        raise Changed("the conversion went on by another word")
    orders, conversion = replace(orders, conversion=after), after.conversion
    if before is None or before.phase.is_over:
        return _with_drained(orders, configured, conversion)
    held = is_held(orders, configured, conversion)
    match after.phase:
        case Phase.SETTLED:
            if not held:
                raise Changed(f"{conversion.instance} was changed by somebody else")
            role = conversion.target if conversion.in_place else conversion.source
            return with_instance(orders, configured, conversion.instance, InstanceOrder(role=role))
        case Phase.ROLLED_BACK if held:
            return with_instance(
                orders, configured, conversion.instance, InstanceOrder(role=conversion.source)
            )
        case _:
            return orders


def with_abort(orders: Orders, by: str) -> Orders:
    """Return the orders with the conversion under way aborted. Raises NotFound, Conflict."""
    progress = orders.conversion
    if progress is None or progress.phase.is_over:
        raise NotFound("no conversion is under way")
    if progress.phase is Phase.UNDOING:
        raise Conflict("the conversion is being put back already")
    return replace(orders, conversion=replace(progress, aborted_by=by))


def _with_drained(
    orders: Orders, configured: Mapping[str, Instance], conversion: Conversion
) -> Orders:
    order = orders.instances.get(conversion.instance, InstanceOrder())
    if order.state is not None:
        raise Conflict(f"{conversion.instance} is {order.state} by an operator's word")
    drained = InstanceOrder(InstanceState.DRAINING, conversion.source)
    return with_instance(orders, configured, conversion.instance, drained)
