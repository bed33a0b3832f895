"""How a scenario's traffic comes and what goes wrong meanwhile: for the simulator alone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from router.settings.fields import (
    Count,
    Duration,
    LogTokens,
    Name,
    PositiveCount,
    PositiveDuration,
    PositiveNumber,
    PositiveTokens,
    Ratio,
    Section,
    TokenCount,
)

Spell = Annotated[PositiveDuration, Field(ge=0.001)]
"""Times that change faster than any queue could tell cost a simulation steps without end."""


class StepSettings(Section):
    """A truncated log-normal."""

    mu: LogTokens
    """Mean of ln L."""
    sigma: PositiveNumber
    """Standard deviation of ln L."""
    min_tokens: PositiveTokens
    """Fewest tokens."""
    max_tokens: PositiveTokens
    """Most tokens."""


class PoissonSettings(Section):
    """Independent arrivals."""

    kind: Literal["poisson"]
    """Exponential gaps."""


class GammaSettings(Section):
    """Bursts by uneven gaps."""

    kind: Literal["gamma"]
    """Gamma gaps."""
    cv: Annotated[PositiveNumber, Field(le=1000)]
    """Coefficient of variation of the gaps; 1 is Poisson."""


class MmppSettings(Section):
    """Bursts by a rate that changes."""

    kind: Literal["mmpp"]
    """A Markov-modulated Poisson process of two states."""
    surge: Annotated[PositiveNumber, Field(le=1e6)]
    """Rate of the busy state over the calm one's."""
    calm_seconds: Spell
    """Mean length of calm times."""
    busy_seconds: Spell
    """Mean length of busy times."""


class SessionSettings(Section):
    """Agents: prompts that begin with the prompt before. `workload.lengths` are first prompts."""

    turns: Annotated[float, Field(ge=1)]
    """Mean number of turns."""
    step: StepSettings
    """Tokens that a turn adds to the answer before."""
    pause_seconds: PositiveDuration
    """Mean time from one turn to the next."""
    shared_tokens: TokenCount = 0
    """Tokens with which all sessions begin."""
    longest_tokens: PositiveTokens = 128_000
    """Prompt beyond which a session ends."""


class LinkChangeSettings(Section):
    """A link that gets another bandwidth."""

    at_seconds: Duration
    """When, from the beginning."""
    source: Name = Field(alias="from")
    """The PrfaaS cluster whose link it is."""
    gbps: Duration
    """What it carries from then on; 0 is an outage."""


class ConversionSettings(Section):
    """An instance that changes its role."""

    at_seconds: Duration
    """When it begins to drain."""
    instance: Name
    """Which: the cluster's name, `-p` or `-d` as it began, and its number from 0: `pd-east-p0`."""
    role: Literal["prefill", "decode"]
    """What it does afterwards."""
    seconds: Duration = 60
    """How long the change takes once it is drained: a restart that loads weights."""


class LongLoopSettings(Section):
    """The long loop in a simulation; defaults are those of `scheduler.long_loop`."""

    period_seconds: Spell = 60
    """The window over which stages are measured."""
    confirm_windows: PositiveCount = 5
    """Windows for which the predicted gain must hold."""
    min_gain: Ratio = 0.05
    """Least predicted rise of what is sustained."""
    dwell_seconds: Duration = 600
    """Least time from the end of a conversion to the next one."""
    lease_seconds: Duration = 30
    """How long a prefill instance keeps blocks after its last hand-off."""
    changeover_seconds: Duration = 60
    """How long the change takes once an instance is drained: a restart that loads weights."""


class SimulationSettings(Section):
    """What `prfaas simulate` adds to a scenario."""

    arrivals: Annotated[
        PoissonSettings | GammaSettings | MmppSettings, Field(discriminator="kind")
    ] = PoissonSettings(kind="poisson")
    """How requests come, at `workload.requests_per_second`; left out there, at three quarters of
    what can be sustained. A trace brings its own times, sped up to that rate."""
    sessions: SessionSettings | None = None
    """Conversations of agents; left out, prompts share nothing (a trace brings its own)."""
    requests: PositiveCount = 6000
    """Requests of a run; the first tenth and the last twentieth are not counted."""
    cache_tokens: dict[Name, Count] = Field(default_factory=dict)
    """Prefix cache of an instance, by cluster, the baseline's as `baseline`; left out, none."""
    recurrent: bool = True
    """Whether the model has recurrent layers: prefixes are then reusable where prompts ended or
    parted."""
    links: tuple[LinkChangeSettings, ...] = ()
    """Bandwidths that change."""
    conversions: tuple[ConversionSettings, ...] = ()
    """Instances that change their roles."""
    long_loop: LongLoopSettings | None = None
    """Conversions as production's long loop makes them, where contestants have a link; left out,
    none. Contestants with a solved t have it solved for the lengths of late as well."""
    aging_seconds: PositiveDuration = 15
    """Wait after which `slack` lets a prompt go first; more of it is more goodput and a longer
    tail."""
