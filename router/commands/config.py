"""`prfaas config`: is a configuration sound, what is in force, and what may be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from router.commands.output import UNUSABLE, AsJson, print_fault, print_json
from router.domain.topology import ClusterKind
from router.settings import Fault, Loaded, Settings, SettingsError, load
from router.settings.checks import note_oddities
from router.settings.errors import FilePlace, Place, VariablePlace, format_path
from router.settings.fields import Section
from router.settings.origins import EffectiveValue, format_origin, list_effective
from router.settings.reference import render_reference, render_table
from router.settings.scenarios import ScenarioSettings

ForScenarios = Annotated[
    bool, typer.Option("--scenario", help="Of scenarios of `prfaas plan` instead.")
]

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, in YAML.")]


def register(app: typer.Typer) -> None:
    """Add `config` and its commands."""
    group = typer.Typer(
        no_args_is_help=True, help="Check a configuration, show its values, print its schema."
    )
    group.command("check")(check)
    group.command("schema")(schema)
    group.command("show")(show)
    group.command("reference", hidden=True)(reference)
    app.add_typer(group, name="config")


def check(file: ConfigFile, *, as_json: AsJson = False) -> None:
    """Say whether a configuration can be used; every fault with file, line and column.

    Reads what the file names too: profiles, tokenizers, secrets. Exit code 2 on faults.

    Example: prfaas config check examples/two-clusters.yaml
    """
    try:
        loaded = load(file, os.environ)
    except SettingsError as error:
        if as_json:
            print_json({"ok": False, "faults": [_fault_document(item) for item in error.faults]})
        for fault in () if as_json else error.faults:
            print_fault(str(fault))
        raise typer.Exit(UNUSABLE) from error
    notes = list(note_oddities(loaded.settings))
    if as_json:
        print_json({"ok": True, "faults": [], "notes": notes})
        return
    print(f"ok: {summarise(loaded)}")
    for note in notes:
        print(f"note: {note}")


def schema(
    *,
    scenario: ForScenarios = False,
    as_json: AsJson = True,  # noqa: ARG001  # it is JSON either way
) -> None:
    """Print the JSON Schema of a configuration, for editors and pipelines.

    It describes the file after `${VAR}` references were replaced.

    Examples: prfaas config schema > prfaas.schema.json · prfaas config schema --scenario
    """
    print_json(build_scenario_schema() if scenario else build_schema())


def show(file: ConfigFile, *, as_json: AsJson = False) -> None:
    """Show every value in force and where it came from. Secrets are masked.

    Example: prfaas config show examples/two-clusters.yaml | grep threshold
    """
    loaded = load(file, os.environ)
    values = list(list_effective(loaded.settings, loaded.origins))
    if as_json:
        print_json([_value_document(value) for value in values])
        return
    lines = [(f"{format_path(item.path)}: {_plain(item.value)}", item.origin) for item in values]
    width = min(72, max(len(text) for text, _ in lines))
    for text, origin in lines:
        print(f"{text:<{width}}  # {format_origin(origin)}")


def reference(*, scenario: ForScenarios = False) -> None:
    """Print the tables of docs/configuration.md, or the one of docs/scenarios.md."""
    print(render_table(ScenarioSettings) if scenario else render_reference(Settings), end="")


def build_schema() -> dict[str, object]:
    """Return the JSON Schema of a configuration file."""
    return _titled("PrfaaS router configuration", Settings)


def build_scenario_schema() -> dict[str, object]:
    """Return the JSON Schema of a scenario of `prfaas plan`."""
    return _titled("PrfaaS planner scenario", ScenarioSettings)


def _titled(title: str, model: type[Section]) -> dict[str, object]:
    document = model.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document, "title": title}


def summarise(loaded: Loaded) -> str:
    """Say in one line what a configuration describes."""
    settings = loaded.settings
    instances = sum(len(cluster.instances) for cluster in settings.clusters)
    kinds = [
        f"{sum(cluster.kind is kind for cluster in settings.clusters)} {kind.value}"
        for kind in ClusterKind
    ]
    threshold = settings.scheduler.threshold
    return (
        f"{_counted(len(settings.models), 'model')}, {' and '.join(kinds)} cluster(s) with "
        f"{_counted(instances, 'instance')}, {_counted(len(settings.links), 'link')}, "
        f"{_counted(len(settings.tenants), 'tenant')}, "
        f"threshold {threshold.mode.value} {threshold.tokens}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _plain(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}" if abs(value) < 1e6 else repr(value)
        case _:
            return str(value)


def _value_document(value: EffectiveValue) -> dict[str, object]:
    return {
        "setting": format_path(value.path),
        "value": value.value,
        "origin": format_origin(value.origin),
    }


def _fault_document(fault: Fault) -> dict[str, object]:
    return {
        **_place_document(fault.place),
        "setting": format_path(fault.path),
        "message": fault.message,
    }


def _place_document(place: Place) -> dict[str, object]:
    match place:
        case FilePlace(file, line, column):
            return {"file": file, "line": line, "column": column}
        case VariablePlace(variable):
            return {"variable": variable}
