"""`prfaas ctl plan`: what the throughput model says of a running gateway, now and supposed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from router.commands.admin_client import Json, KeyOption, UrlOption, call_admin, settle_target
from router.commands.ctl_calls import ModelOption, PdOption
from router.commands.output import AsJson, Unusable, format_cell, print_json, print_table


def plan(
    context: typer.Context,
    *,
    model: ModelOption = None,
    pd: PdOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what the model says of now: stages, Lambda_max, t in force and the best; or solve.

    Examples: prfaas ctl plan · prfaas ctl plan solve --bandwidth west-east=5 --threshold 12000
    """
    target = settle_target(context, url, key, as_json=as_json)
    if context.invoked_subcommand is not None:
        if model or pd:
            raise Unusable(f"write --model and --pd after `{context.invoked_subcommand}`")
        return
    document = call_admin(target, "GET", "plan", query={"model": model, "pd": pd})
    if target.as_json:
        print_json(document)
    else:
        _show_each(document, show_plan)


def plan_solve(
    context: typer.Context,
    *,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK=GBPS", help="A link's bandwidth in Gbit/s; repeatable."),
    ] = None,
    prefill: Annotated[
        list[str] | None, typer.Option(metavar="CLUSTER=N", help="N_p of a PD cluster.")
    ] = None,
    decode: Annotated[
        list[str] | None, typer.Option(metavar="CLUSTER=N", help="N_d of a PD cluster.")
    ] = None,
    prfaas: Annotated[
        list[str] | None, typer.Option(metavar="CLUSTER=N", help="Instances of a PrfaaS cluster.")
    ] = None,
    mean_tokens: Annotated[
        float | None, typer.Option(min=1, help="Scale the lengths seen to this mean.")
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="A file with a JSON array of uncached lengths.")
    ] = None,
    threshold: Annotated[
        int | None, typer.Option(min=0, help="Hold this t instead of the one in force.")
    ] = None,
    model: ModelOption = None,
    pd: PdOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Ask what would be with other links, instances, lengths or another t. Nothing changes.

    Example: prfaas ctl plan solve --bandwidth west-east=5 --prefill pd-east=3 --decode pd-east=5
    """
    target = settle_target(context, url, key, as_json=as_json)
    given: dict[str, Json] = {
        "model": model,
        "pd": pd,
        "bandwidth_gbps": _read_pairs("--bandwidth", bandwidth, float),
        "prefill_instances": _read_pairs("--prefill", prefill, int),
        "decode_instances": _read_pairs("--decode", decode, int),
        "prfaas_instances": _read_pairs("--prfaas", prfaas, int),
        "mean_tokens": mean_tokens,
        "lengths": None if lengths is None else _read_lengths(lengths),
        "threshold": threshold,
    }
    body: Json = {name: value for name, value in given.items() if value is not None}
    document = call_admin(target, "POST", "plan:solve", body=body)
    if target.as_json:
        print_json(document)
    else:
        _show_each(document, show_solved)


def _read_pairs(
    option: str, given: Sequence[str] | None, read: Callable[[str], float]
) -> dict[str, Json] | None:
    """Read NAME=NUMBER options. Raises Unusable."""
    pairs: dict[str, Json] = {}
    for text in given or ():
        name, _, number = text.rpartition("=")
        try:
            pairs[name] = read(number)
        except ValueError:
            name = ""
        if not name:
            raise Unusable(f"{option} {text!r} is no NAME=NUMBER")
    return pairs or None


def _read_lengths(file: Path) -> Json:
    try:
        document: Json = json.loads(file.read_bytes())
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Unusable(f"{file} is not JSON: {error}") from error
    if not isinstance(document, list):
        raise Unusable(f"{file} holds no JSON array")
    return document


# -- views


def _show_each(document: Json, show: Callable[[Mapping[str, Json]], None]) -> None:
    plans = document.get("plans") if isinstance(document, dict) else None
    if not isinstance(plans, list) or not plans:
        print("no PD cluster")
        return
    for place, each in enumerate(plans):
        if place:
            print()
        if isinstance(each, dict):
            show(each)


def show_plan(document: Mapping[str, Json]) -> None:
    """Show one plan: what it was made from, and both thresholds beside each other."""
    title = f"{document.get('model')} in {document.get('pd')}"
    if document.get("lacks") is None:
        inputs = _figures(document, "inputs")
        rows = [_row(key, [figure]) for key, figure in inputs.items()]
        print_table(title, ("figure", "value", "unit", "how known"), rows)
        print()
        columns = {
            f"t in force, {_tokens(document.get('threshold_tokens'))}": document.get("in_force"),
            f"best t, {_tokens(document.get('solved_tokens'))}": document.get("best"),
        }
        _show_points("the model says", columns)
    else:
        print(title)
    _show_proposal(document.get("proposal"))
    _show_notes(document)


def _show_proposal(proposal: Json) -> None:
    if isinstance(proposal, dict):
        rates = [format_cell(proposal.get(name)) for name in ("rate", "next_rate", "best_rate")]
        print(
            f"\nproposed: {proposal.get('instance')} {proposal.get('source')} ->"
            f" {proposal.get('target')}, {rates[0]} -> {rates[1]} requests/s; best {rates[2]} with"
            f" {proposal.get('best_prefill')} prefill and {proposal.get('best_decode')} decode"
        )


def show_solved(document: Mapping[str, Json]) -> None:
    """Show one plan as it is beside one as it is supposed."""
    now, then = document.get("now"), document.get("supposed")
    if not isinstance(now, dict) or not isinstance(then, dict):
        return
    columns: dict[str, Json] = {}
    for when, plan_then in (("now", now), ("supposed", then)):
        if plan_then.get("lacks") is None:
            held, best = plan_then.get("threshold_tokens"), plan_then.get("solved_tokens")
            columns[f"{when}, t {_tokens(held)}"] = plan_then.get("in_force")
            columns[f"{when}, best t {_tokens(best)}"] = plan_then.get("best")
    _show_points(f"{document.get('model')} in {document.get('pd')}", columns)
    _show_notes(then)


def _show_points(title: str, columns: Mapping[str, Json]) -> None:
    points = [point if isinstance(point, dict) else {} for point in columns.values()]
    told = [_figures(point, "figures") for point in points]
    keys = dict.fromkeys(key for figures in told for key in figures)
    rows = [_row(key, [figures.get(key) for figures in told]) for key in keys]
    rows.insert(0, ["binding stage", *(point.get("binding_stage") for point in points), "", ""])
    print_table(title, ("figure", *columns, "unit", "how known"), rows)


def _figures(document: Mapping[str, Json], name: str) -> dict[str, Json]:
    figures = document.get(name)
    return figures if isinstance(figures, dict) else {}


def _row(key: str, figures: Sequence[Json]) -> list[Json]:
    """Return a line: a figure's name, its value in each column, its unit and source."""
    known = [figure if isinstance(figure, dict) else {} for figure in figures]
    first = next((figure for figure in known if figure), {})
    return [
        first.get("label", key),
        *(figure.get("value") for figure in known),
        first.get("unit"),
        first.get("source"),
    ]


def _tokens(value: Json) -> str:
    return f"{value:,}" if isinstance(value, int) else "none"


def _show_notes(document: Mapping[str, Json]) -> None:
    notes = document.get("notes")
    for note in notes if isinstance(notes, list) else ():
        print(f"- {note}")
