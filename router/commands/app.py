"""The `prfaas` command: its parts put together, and how every failure becomes an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from router.commands import (
    config,
    ctl,
    demo,
    doctor,
    engines,
    explain,
    kvmeta,
    link_agent,
    plan,
    profile,
    replay,
    serve,
    simulate,
    worker,
)
from router.commands.output import FAILED, INTERRUPTED, UNUSABLE, CommandFailed, print_fault
from router.settings import SettingsError

REGISTRATIONS: Final[tuple[Callable[[typer.Typer], None], ...]] = (
    serve.register,
    worker.register,
    kvmeta.register,
    link_agent.register,
    demo.register,
    engines.register,
    config.register,
    doctor.register,
    ctl.register,
    explain.register,
    plan.register,
    profile.register,
    replay.register,
    simulate.register,
)
"""Every module of this package that adds commands."""


def build_app() -> typer.Typer:
    """Return the whole command."""
    app = typer.Typer(
        name="prfaas",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Route long prefills between clusters: gateway, index, planner and tools.",
    )
    app.callback()(_root)
    for register in REGISTRATIONS:
        register(app)
    return app


def _show_version(wanted: bool) -> None:  # noqa: FBT001  # typer passes the option's value
    if wanted:
        print(f"prfaas {version('prfaas-router')}")
        raise typer.Exit


def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Route long prefills between clusters: gateway, index, planner and tools."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises, never prints a traceback."""
    try:
        outcome = build_app()(args=list(arguments), prog_name="prfaas", standalone_mode=False)
        sys.stdout.flush()
    except SettingsError as error:
        print_fault(str(error))
        return UNUSABLE
    except CommandFailed as error:
        print_fault(f"prfaas: {error}")
        return error.code
    except TyperException as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _leave_quietly()
    return outcome if isinstance(outcome, int) else 0


def _explain_usage(error: TyperException) -> int:
    """Show help where nothing was asked, else one line: what was wrong and where to look."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.message)
        return UNUSABLE
    path = context.command_path if context is not None else "prfaas"
    # Typer lets pydantic read choices, and says so.
    said = " ".join(error.format_message().split()).replace(": Value error, ", ": ")
    print_fault(f"prfaas: {said} (see `{path} --help`)")
    return UNUSABLE


def _leave_quietly() -> int:
    """Nobody reads stdout any more, as after `| head`: what is left in its buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
