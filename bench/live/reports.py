"""Outcomes -> the page with plots, the document for the repository, and the series. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bench.live.claims import Claim, Outcome
from bench.live.plants import (
    CAPACITY_GBPS,
    DECODES,
    LOCALS,
    QUEUE_LIMIT,
    REMOTES,
    STARVED_GBPS,
    TOKENS,
)
from bench.live.plots import draw_outcome
from bench.live.programs import Scene
from bench.live.promises import judge

Played = Mapping[Scene, Outcome]

_HEAD: Final = """# Live scenes

Written by `make live`: {where}.

A real Redis, one `prfaas kvmeta` and two `prfaas serve` before two clusters of stand-in engines,
each a process of its own, over loopback. What engines and link take is **modelled**; routes,
thresholds, bookings and times to the first token are **measured** at the gateways and their
clients. [live.html](live.html) has the plots.

The plant is the paper's case study (arXiv 2604.15039, section 4): {remotes} PrfaaS, {locals}
prefill and {decodes} decode instances, {gbps:g} Gbit/s. A token stands for {tokens} of the paper's,
seconds and bytes are as they are. A PrfaaS queue is full at {queue} prompts; the link starves at
{starved:g} Gbit/s.

Times are honest only where nobody waits for a processor: a machine with other work should give all
of this priority over it.

What a t solved anew is worth while the link starves depends on the load and on how much of the link
may be booked; one minute of one load shows little of it. [Simulated](starved-link.md) over many
seeds, it is told for several of both.
"""


@dataclass(frozen=True, slots=True)
class _Section:
    letter: str
    title: str
    outcome: Outcome
    plots: list[tuple[str, Markup]]


def write_reports(played: Played, directory: Path, where: str) -> None:
    """Write `live.md`, `live.html` and the series of every scene; `where` is on what machine."""
    series = directory / "series"
    series.mkdir(parents=True, exist_ok=True)
    for outcome in played.values():
        (series / f"{outcome.scene}.json").write_text(
            json.dumps(asdict(outcome), separators=(",", ":")) + "\n", "utf-8"
        )
    (directory / "live.md").write_text(render_document(played, where), "utf-8")
    (directory / "live.html").write_text(render_page(played, where), "utf-8")


def render_page(played: Played, where: str) -> str:
    """Return the self-contained page with the plots."""
    style = (resources.files("router.commands") / "page_files/style.css").read_text("utf-8")
    template = (Path(__file__).parent / "page.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    scenes = [
        _Section(
            scene.letter,
            scene.title,
            outcome,
            [(title, Markup(svg)) for title, svg in draw_outcome(outcome)],  # noqa: S704 - our own
        )
        for scene, outcome in played.items()
    ]
    return environment.from_string(template).render(
        style=Markup(style),  # noqa: S704 - our own file
        scenes=scenes,
        verdicts=judge(played),
        where=where,
    )


def render_document(played: Played, where: str) -> str:
    """Return the document with the claims and figures of every scene."""
    head = _HEAD.format(
        where=where,
        remotes=len(REMOTES),
        locals=len(LOCALS),
        decodes=len(DECODES),
        gbps=CAPACITY_GBPS,
        tokens=TOKENS,
        queue=QUEUE_LIMIT,
        starved=STARVED_GBPS,
    )
    verdicts = [f"| {promise.what} | {verdict} |" for promise, verdict in judge(played)]
    head += "\n".join(("\n## What was to be shown\n", "| | |", "|---|---|", *verdicts, ""))
    return head + "".join(
        "\n".join(("", f"## {scene.letter}. {scene.title}", "", *_rows(outcome), ""))
        for scene, outcome in played.items()
    )


def summarize(outcome: Outcome) -> Iterator[str]:
    """Yield what came of a scene, for the terminal."""
    yield f"\n{outcome.scene}"
    for claim in outcome.claims:
        yield f"  {'pass' if claim.holds else 'FAIL'}  {claim.what}"
        yield f"        wanted {claim.wanted}; seen {claim.seen}"
    for name, value in outcome.figures:
        yield f"        {name}: {value}"


def _rows(outcome: Outcome) -> Iterator[str]:
    yield "| claim | wanted | seen | |"
    yield "|---|---|---|---|"
    yield from (_row(claim) for claim in outcome.claims)
    yield from (f"| {name} | | {value} | |" for name, value in outcome.figures)


def _row(claim: Claim) -> str:
    verdict = "holds" if claim.holds else "**fails**"
    return f"| {claim.what} | {claim.wanted} | {claim.seen} | {verdict} |"
