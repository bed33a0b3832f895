"""The operators' word on thresholds, routes and the rule itself, as decisions ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from router.domain.decision import OverrideView, Rule, ThresholdMode, ThresholdView
from router.domain.units import Tokens
from router.ports import Clock
from router.service.orders import (
    Orders,
    OverrideOrder,
    PairScope,
    PolicyOrder,
    ThresholdOrder,
    live_overrides,
)
from router.service.thresholds import SolvedThresholds


@dataclass(frozen=True, slots=True)
class ThresholdRules:
    """The configured threshold. `low` and `high` bound what `auto` may choose, not the operator."""

    mode: ThresholdMode = ThresholdMode.MANUAL
    tokens: Tokens = 19_400
    low: Tokens = 512
    high: Tokens = 131_072


class Operator:
    """Answers from the orders in force. Single-threaded: owned by one event loop."""

    def __init__(
        self,
        rules: ThresholdRules,
        *,
        clock: Clock,
        solved: SolvedThresholds | None = None,
        policy: Rule = Rule.PAPER,
    ) -> None:
        """`policy` is the configured rule."""
        self.rules = rules
        self.configured_policy = policy
        self.solved = solved or SolvedThresholds()
        self._clock = clock
        self._orders = Orders()

    def follow(self, orders: Orders) -> None:
        """Answer from these orders."""
        self._orders = orders

    def threshold_order(self, asked: PairScope) -> ThresholdOrder | None:
        """Return the most specific order that holds for all of a scope.

        None when the configuration rules.
        """
        covering = [order for order in self._orders.thresholds if order.scope.contains(asked)]
        return max(covering, key=lambda order: order.scope.specificity, default=None)

    def threshold(self, model: str, prfaas: str, pd: str) -> ThresholdView:
        """Return the threshold in force for a pair.

        `auto` that has not solved anything uses the configured number (DESIGN 5). What it solved is
        held to the bounds of now: a reload may have narrowed them since.
        """
        orders = self._orders.thresholds
        order = self.threshold_order(PairScope(model, prfaas, pd)) if orders else None
        mode = self.rules.mode if order is None else order.mode
        if mode is ThresholdMode.AUTO:
            solved = self.solved.of(model, pd)
            if solved is not None:
                bounded = max(self.rules.low, min(solved.tokens, self.rules.high))
                return ThresholdView(mode, bounded)
        given = None if order is None else order.tokens
        return ThresholdView(mode, self.rules.tokens if given is None else given)

    @property
    def policy(self) -> Rule:
        """The rule in force: as ordered, else as configured."""
        order = self._orders.policy
        return self.configured_policy if order is None else order.rule

    @property
    def policy_order(self) -> PolicyOrder | None:
        """The order of a rule; None while the configuration chooses."""
        return self._orders.policy

    @property
    def overrides(self) -> tuple[OverrideOrder, ...]:
        """The overrides in force."""
        if not self._orders.overrides:
            return ()
        return live_overrides(self._orders, self._clock.now())

    def override(self, model: str, tenant: str) -> OverrideView | None:
        """Return the most specific override for a request, None without one."""
        if not self._orders.overrides:
            return None
        covering = [
            order
            for order in self.overrides
            if order.model in (None, model) and order.tenant in (None, tenant)
        ]
        if not covering:
            return None
        return OverrideView(max(covering, key=lambda order: order.specificity).route)
