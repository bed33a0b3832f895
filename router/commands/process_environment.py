"""What a process takes from its environment besides the configuration itself.

Names with `__` override settings and are read by `router.settings`; these have none. Arguments of a
command win over them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from router.commands.logs import LogLevel
from router.commands.output import Unusable

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration; else PRFAAS_CONFIG."),
]
LogOption = Annotated[
    LogLevel | None, typer.Option("--log-level", help="How much to log; else PRFAAS_LOG_LEVEL.")
]


class ProcessEnvironment(BaseSettings):
    """`PRFAAS_CONFIG` and `PRFAAS_LOG_LEVEL`, so that an image needs no arguments."""

    model_config = SettingsConfigDict(env_prefix="PRFAAS_", extra="ignore", frozen=True)

    config: Path | None = None
    log_level: LogLevel = LogLevel.INFO


def read_process_environment() -> ProcessEnvironment:
    """Return what this process's environment says. Raises Unusable, naming the variable."""
    try:
        return ProcessEnvironment()
    except ValidationError as error:
        first = error.errors()[0]
        variable = f"PRFAAS_{first['loc'][0]}".upper()
        raise Unusable(f"{variable}: {first['msg']}") from error


def choose_config(given: Path | None, environment: ProcessEnvironment) -> Path:
    """Return the configuration to read. Raises Unusable where none is named."""
    chosen = given or environment.config
    if chosen is None:
        raise Unusable("name a configuration: --config FILE, or PRFAAS_CONFIG")
    return chosen
