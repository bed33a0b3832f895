"""What operators ordered: thresholds per pair of clusters and overrides of the route.

Orders win over the configuration until they are set back to `config`, and are visible with their
author and time (DESIGN 3, 8).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from router.domain.decision import OverrideView, Route, ThresholdMode, ThresholdView
from router.domain.units import Seconds, Tokens
from router.ports import Clock


@dataclass(frozen=True, slots=True)
class ThresholdRules:
    """The configured threshold. `low` and `high` bound what `auto` may choose, not the operator."""

    mode: ThresholdMode = ThresholdMode.MANUAL
    tokens: Tokens = 19_400
    low: Tokens = 512
    high: Tokens = 131_072


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
    """An operator's threshold. `tokens` None keeps the configured number."""

    mode: ThresholdMode
    tokens: Tokens | None
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class OverrideOrder:
    """An operator's route for a model, a tenant or everybody, until `expires_at` (monotonic)."""

    route: Route
    model: str | None
    tenant: str | None
    expires_at: Seconds | None
    updated_at: datetime
    updated_by: str

    @property
    def specificity(self) -> int:
        """How much of the scope is named."""
        return (self.model is not None) + (self.tenant is not None)


class Operator:
    """The orders in force. Single-threaded: owned by one event loop."""

    def __init__(self, rules: ThresholdRules, *, clock: Clock) -> None:
        self.rules = rules
        self._clock = clock
        self._thresholds: dict[PairScope, ThresholdOrder] = {}
        self._overrides: dict[tuple[str | None, str | None], OverrideOrder] = {}

    @property
    def thresholds(self) -> Iterable[tuple[PairScope, ThresholdOrder]]:
        """The threshold orders in force."""
        return self._thresholds.items()

    def order_threshold(
        self, scope: PairScope, mode: ThresholdMode | None, tokens: Tokens | None, *, by: str
    ) -> None:
        """Set the threshold for a scope; mode None returns the scope to the configuration.

        A general order replaces what was ordered for parts of its scope: the latest word counts.
        """
        kept = {
            other: order for other, order in self._thresholds.items() if not scope.contains(other)
        }
        if mode is not None:
            kept[scope] = ThresholdOrder(mode, tokens, self._clock.now(), by)
        self._thresholds = kept

    def threshold_order(self, asked: PairScope) -> ThresholdOrder | None:
        """Return the most specific order that holds for all of a scope.

        None when the configuration rules.
        """
        covering = [
            (scope.specificity, order)
            for scope, order in self._thresholds.items()
            if scope.contains(asked)
        ]
        return max(covering, key=lambda item: item[0])[1] if covering else None

    def threshold(self, model: str, prfaas: str, pd: str) -> ThresholdView:
        """Return the threshold in force for a pair.

        `auto` that has not solved anything uses the configured number (DESIGN 5).
        """
        order = self.threshold_order(PairScope(model, prfaas, pd))
        if order is None:
            return ThresholdView(self.rules.mode, self.rules.tokens)
        tokens = self.rules.tokens if order.tokens is None else order.tokens
        return ThresholdView(order.mode, tokens)

    def order_override(
        self,
        route: Route,
        *,
        model: str | None,
        tenant: str | None,
        ttl: Seconds | None,
        by: str,
    ) -> OverrideOrder:
        """Force the route of a model, a tenant or everybody, for `ttl` seconds or until cleared."""
        expires = None if ttl is None else self._clock.monotonic() + ttl
        order = OverrideOrder(route, model, tenant, expires, self._clock.now(), by)
        self._overrides[model, tenant] = order
        return order

    def clear_overrides(self, *, model: str | None = None, tenant: str | None = None) -> int:
        """Drop the override of a scope, or all of them without one; return how many went."""
        scopes = list(self._overrides) if model is None and tenant is None else [(model, tenant)]
        return sum(self._overrides.pop(scope, None) is not None for scope in scopes)

    @property
    def overrides(self) -> list[OverrideOrder]:
        """The overrides in force; expired ones are dropped."""
        if not self._overrides:
            return []
        now = self._clock.monotonic()
        self._overrides = {
            scope: order
            for scope, order in self._overrides.items()
            if order.expires_at is None or order.expires_at > now
        }
        return list(self._overrides.values())

    def override(self, model: str, tenant: str) -> OverrideView | None:
        """Return the most specific override for a request, None without one."""
        covering = [
            order
            for order in self.overrides
            if order.model in (None, model) and order.tenant in (None, tenant)
        ]
        if not covering:
            return None
        return OverrideView(max(covering, key=lambda order: order.specificity).route)
