"""Bodies and queries of the admin API, closed: an unknown name is an error, never ignored."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from router.control.links import LinkHealth
from router.domain.decision import Reason, Regime, Route, Rule
from router.domain.topology import InstanceState, Role

_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d")


def _only_rfc_3339(given: object) -> object:
    """Refuse numbers, which a typo makes a moment fifty years ago."""
    if isinstance(given, datetime) or (isinstance(given, str) and _RFC_3339.match(given)):
        return given
    raise ValueError("must be RFC 3339, such as 2026-01-01T00:00:00Z")


Moment = Annotated[AwareDatetime, BeforeValidator(_only_rfc_3339)]

# Bounds far beyond any fleet: what is multiplied with them later must not overflow.
Ratio = Annotated[float, Field(ge=0, le=1, strict=True)]

_LEAST_GBPS: Final = 1e-9


def _refuse_tiny(value: float) -> float:
    """Nothing, or a bit a second: what is divided by less overflows too."""
    if 0 < value < _LEAST_GBPS:
        raise ValueError(f"must be 0 or at least {_LEAST_GBPS:g}")
    return value


Gbps = Annotated[float, Field(ge=0, le=1e9, strict=True), AfterValidator(_refuse_tiny)]
Milliseconds = Annotated[float, Field(ge=0, le=1e9, strict=True)]
Lifetime = Annotated[float, Field(gt=0, le=1e9, strict=True)]
TokenCount = Annotated[int, Field(ge=0, le=1 << 40, strict=True)]
InstanceCount = Annotated[int, Field(ge=0, le=10_000, strict=True)]
MeanLength = Annotated[float, Field(ge=1, le=1 << 40, strict=True)]
PromptLength = Annotated[int, Field(ge=1, le=1 << 40, strict=True)]


class Body(BaseModel):
    """A request body of the admin API."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameters(BaseModel):
    """A query of the admin API. A misspelt scope would make an order one for everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChangeParameters(Parameters):
    """How a change is made: with `dry_run` it is checked and shown, and not made."""

    dry_run: bool = False


class PairParameters(Parameters):
    """Which pairs of clusters a threshold is for; what is left out is any."""

    model: str | None = None
    prfaas: str | None = None
    pd: str | None = None


class PairChange(PairParameters, ChangeParameters):
    """A change for pairs."""


class LinkParameters(Parameters):
    """One link, or all."""

    link: str | None = None


class LinkChange(LinkParameters, ChangeParameters):
    """A change for one link, or all."""


class OverrideChange(ChangeParameters):
    """Whose override; without any name, everybody's."""

    model: str | None = None
    tenant: str | None = None


class DecisionParameters(Parameters):
    """Which of the latest decisions. `cursor` goes on after a page: it is that page's `next`."""

    limit: int = Field(100, ge=1, le=10_000)
    route: Route | None = None
    reason: Reason | None = None
    blocked_by: Reason | None = None
    model: str | None = None
    tenant: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    cursor: str | None = None


class ReplayBody(Body):
    """With what decisions are made again, and which of them; all that are kept by default."""

    threshold: TokenCount | None = None
    regime: Regime | None = None
    policy: Rule | None = None
    model: str | None = None
    tenant: str | None = None
    since: Moment | None = None
    until: Moment | None = None

    @model_validator(mode="after")
    def _supposes_something(self) -> Self:
        if self.threshold is None and self.regime is None and self.policy is None:
            raise ValueError("give threshold, regime or policy")
        return self


class AuditParameters(Parameters):
    """How many of the latest changes."""

    limit: int = Field(100, ge=1, le=1000)


class ThresholdBody(Body):
    """`{"mode": "manual", "tokens": 19400}`, `auto`, `off`, or back to `config`."""

    mode: Literal["manual", "auto", "off", "config"]
    tokens: TokenCount | None = None

    @model_validator(mode="after")
    def _manual_names_a_number(self) -> Self:
        if self.mode == "manual" and self.tokens is None:
            raise ValueError("mode manual needs tokens")
        if self.mode != "manual" and self.tokens is not None:
            raise ValueError(f"mode {self.mode} takes no tokens")
        return self


class PolicyBody(Body):
    """The rule, or back to the configuration."""

    policy: Literal["paper", "expected", "slack", "config"]


class LinkBody(Body):
    """What the operator says of a link; a field that is absent is left as it is."""

    health: LinkHealth | None = None
    capacity_gbps: Gbps | None = None


class TelemetryBody(Body):
    """One report on a link's egress."""

    egress_gbps: Gbps
    available_gbps: Gbps | None = None
    loss_ratio: Ratio = 0.0
    retransmit_ratio: Ratio = 0.0
    rtt_ms: Milliseconds | None = None
    observed_at: Moment | None = None


class BandwidthBody(Body):
    """The regime: by utilisation, fixed, or back to the configuration."""

    mode: Literal["auto", "scarce", "abundant", "config"]


class OverrideBody(Body):
    """A forced route for a model, a tenant or everybody."""

    route: Route
    model: str | None = None
    tenant: str | None = None
    ttl_seconds: Lifetime | None = None


class InstancePatch(Body):
    """What may change about an instance."""

    state: InstanceState | None = None
    role: Role | None = None


class ExplainBody(Body):
    """A dry run: a prompt (messages, text or ids) or only its length, and what is supposed."""

    model: str | None = None
    tenant: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    total_tokens: PromptLength | None = None
    cached_tokens: dict[str, TokenCount | None] = Field(default_factory=dict)
    threshold: TokenCount | None = None
    regime: Regime | None = None

    @model_validator(mode="after")
    def _names_one_prompt(self) -> Self:
        given = [self.messages, self.prompt, self.total_tokens]
        if sum(value is not None for value in given) != 1:
            raise ValueError("give one of messages, prompt, total_tokens")
        if self.cached_tokens and self.total_tokens is None:
            raise ValueError("cached_tokens goes with total_tokens")
        for cluster, tokens in self.cached_tokens.items():
            if tokens is not None and self.total_tokens is not None and tokens >= self.total_tokens:
                raise ValueError(
                    f"cached_tokens[{cluster}] must be at most total_tokens - 1: "
                    "engines recompute the last token"
                )
        return self


class PlanParameters(Parameters):
    """Which plans; what is left out is all."""

    model: str | None = None
    pd: str | None = None


class PlanBody(Body):
    """What is supposed of the running system; what is absent stays as it is.

    Bandwidth is by link, instances are by cluster. `lengths` are uncached tokens of prompts,
    `mean_tokens` scales the lengths that were seen.
    """

    model: str | None = None
    pd: str | None = None
    bandwidth_gbps: dict[str, Gbps] = Field(default_factory=dict)
    prefill_instances: dict[str, InstanceCount] = Field(default_factory=dict)
    decode_instances: dict[str, InstanceCount] = Field(default_factory=dict)
    prfaas_instances: dict[str, InstanceCount] = Field(default_factory=dict)
    mean_tokens: MeanLength | None = None
    lengths: Annotated[list[PromptLength], Field(max_length=4096)] = Field(default_factory=list)
    threshold: TokenCount | None = None

    @model_validator(mode="after")
    def _names_lengths_once(self) -> Self:
        if self.lengths and self.mean_tokens is not None:
            raise ValueError("give mean_tokens or lengths, not both")
        return self


def observed_age(body: TelemetryBody, now: datetime) -> float:
    """Return how old a report is, in seconds; a clock that runs ahead counts as now."""
    if body.observed_at is None:
        return 0.0
    return max(0.0, (now - body.observed_at).total_seconds())
