"""What is claimed of live scenes, and how it is told."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from bench.live.claims import Outcome, claim_all_served, claim_routed, mean_ttft, p90_ttft
from bench.live.clients import Visit
from bench.live.programs import SCENES
from bench.live.reports import render_page, write_reports
from bench.live.watching import Look, View

VISIT = Visit(
    1.0, 100, 0, 200, whole=True, ttft=0.5, seconds=1.0, route="local", reason="link_down"
)
VIEW = View(1940, None, 10, 0, 100.0, None, "scarce", up=True, inflight=1)


def judged(outcome: Outcome) -> list[bool]:
    return [claim.holds for claim in outcome.claims]


def test_one_failed_request_fails_the_claim_and_is_told() -> None:
    """A stream that broke off has failed, whatever its status; a scene without any is none."""
    whole = Outcome("s", visits=[VISIT])
    broken = Outcome("s", visits=[VISIT, replace(VISIT, whole=False)])
    refused = Outcome("s", visits=[replace(VISIT, status=503, error="busy")])
    for outcome in (whole, broken, refused, empty := Outcome("s")):
        claim_all_served(outcome)
    assert judged(whole) == [True]
    assert judged(broken) == judged(refused) == judged(empty) == [False]
    assert "503 busy" in refused.claims[0].seen


def test_visits_must_agree_on_route_and_reason() -> None:
    """Another route, another reason and no visit at all each fail."""
    outcome = Outcome("s")
    for visits in ([VISIT, VISIT], [VISIT, replace(VISIT, route="prfaas")], []):
        claim_routed(outcome, "what", visits, "local", "link_down")
    claim_routed(outcome, "what", [VISIT], "local", "link_stale")
    assert judged(outcome) == [True, False, False, False]


def test_latencies_leave_out_who_got_no_token() -> None:
    """Means and deciles are of those that were answered."""
    visits = [replace(VISIT, ttft=float(each)) for each in range(1, 10)]
    visits.append(replace(VISIT, ttft=None))
    assert mean_ttft(visits) == 5
    assert p90_ttft(visits) == 9


def test_reports_tell_every_claim_and_keep_the_series(tmp_path: Path) -> None:
    """The document, the page and the series of a scene; a gateway that is gone leaves a gap."""
    outcome = Outcome("scene", visits=[VISIT], marks=[(1.0, "link down")])
    outcome.looks = [Look(at, 100.0, 5, 50, (VIEW, None)) for at in (0.0, 1.0, 2.0)]
    claim_all_served(outcome)
    outcome.claim("t <= 5", "yes", "no", holds=False)
    played = {SCENES[0]: outcome}
    write_reports(played, tmp_path, "here")
    document = (tmp_path / "live.md").read_text("utf-8")
    assert "| t <= 5 | yes | no | **fails** |" in document
    series = json.loads((tmp_path / "series/scene.json").read_text("utf-8"))
    assert series["looks"][0]["views"] == [asdict(VIEW), None]
    page = render_page(played, "here")
    assert page.count("<svg") == 3
    assert "t &lt;= 5" in page
