"""`prfaas ctl` and `prfaas explain` against a scripted gateway on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from router.commands.app import run
from router.commands.wording import REASONS, describe_decision
from router.domain.decision import Reason
from tests.fakes.scripted_engine import RefusedPort, Reset, ScriptedEngine, answer, json_answer

DECISION: dict[str, Any] = {
    "request_id": "r-1",
    "at": "2026-04-16T10:00:00+00:00",
    "tenant": "acme",
    "model": "m",
    "total_tokens": 64000,
    "token_source": "client",
    "cached_tokens": {"east": 12000, "west": None},
    "cache_state": {"east": "synced", "west": "unknown"},
    "uncached_tokens": 52000,
    "compute_uncached_tokens": 64000,
    "threshold": 19400,
    "regime": "scarce",
    "route": "prfaas",
    "reason": "above_threshold",
    "blocked_by": None,
    "home_cluster": "east",
    "prefill": {"cluster": "west", "instance": "f0", "cached_tokens": None},
    "decode": {"cluster": "east", "instance": "d0"},
    "prefix_transfer": None,
    "link": {"name": "west-east", "utilization": 0.12, "free_bytes": 10},
    "kv_bytes": 1_300_000_000,
}


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(json_answer({})) as engine:
        yield engine


async def prfaas(*arguments: str) -> int:
    """Run a command line beside the event loop that serves its gateway."""
    return await asyncio.to_thread(run, arguments)


@pytest.mark.parametrize(
    ("arguments", "method", "path", "body"),
    [
        ("threshold", "GET", "threshold", None),
        ("threshold --model m --pd east", "GET", "threshold?model=m&pd=east", None),
        ("threshold set 19400", "PUT", "threshold", {"mode": "manual", "tokens": 19400}),
        ("threshold set 0 --prfaas west", "PUT", "threshold?prfaas=west",
         {"mode": "manual", "tokens": 0}),
        ("threshold auto", "PUT", "threshold", {"mode": "auto"}),
        ("threshold off --dry-run", "PUT", "threshold?dry_run=true", {"mode": "off"}),
        ("conversion abort --dry-run", "DELETE", "conversion?dry_run=true", None),
        ("instances remove d1 --dry-run", "DELETE", "instances/d1?dry_run=true", None),
        ("override clear --tenant t --dry-run", "DELETE", "override?tenant=t&dry_run=true", None),
        ("threshold off", "PUT", "threshold", {"mode": "off"}),
        ("threshold config --model m", "PUT", "threshold?model=m", {"mode": "config"}),
        ("conversion", "GET", "conversion", None),
        ("conversion abort", "DELETE", "conversion", None),
        ("policy", "GET", "policy", None),
        ("policy slack", "PUT", "policy", {"policy": "slack"}),
        ("policy config", "PUT", "policy", {"policy": "config"}),
        ("links", "GET", "links", None),
        ("links set west-east --health down --capacity-gbps 50", "PUT", "links/west-east",
         {"health": "down", "capacity_gbps": 50.0}),
        ("links telemetry west-east --egress-gbps 3 --observed-at 2026-01-01T00:00:00Z", "POST",
         "links/west-east/telemetry",
         {"egress_gbps": 3.0, "observed_at": "2026-01-01T00:00:00Z"}),
        ("bandwidth", "GET", "bandwidth", None),
        ("bandwidth scarce --link west-east", "PUT", "bandwidth?link=west-east",
         {"mode": "scarce"}),
        ("bandwidth auto", "PUT", "bandwidth", {"mode": "auto"}),
        ("override", "GET", "override", None),
        ("override set local --ttl 60 --model m --tenant t", "PUT", "override",
         {"route": "local", "model": "m", "tenant": "t", "ttl_seconds": 60.0}),
        ("override clear --tenant t", "DELETE", "override?tenant=t", None),
        ("instances", "GET", "instances", None),
        ("instances set p0 --state draining", "PATCH", "instances/p0", {"state": "draining"}),
        ("instances set p0 --role decode", "PATCH", "instances/p0", {"role": "decode"}),
        ("instances add d1 --cluster east --endpoint http://h:1 --role decode", "POST",
         "instances", {"name": "d1", "cluster": "east", "url": "http://h:1", "role": "decode"}),
        ("instances remove d1", "DELETE", "instances/d1", None),
        ("decisions --limit 5 --route prfaas --reason link_down", "GET",
         "decisions?limit=5&route=prfaas&reason=link_down", None),
        ("decisions --tenant t --blocked-by link_down --until 2026-01-01T00:00:00Z", "GET",
         "decisions?limit=20&blocked_by=link_down&tenant=t"
         "&until=2026-01-01T00%3A00%3A00%2B00%3A00", None),
        ("decisions --replay-threshold 12000 --replay-policy expected --model m", "POST",
         "decisions:replay", {"threshold": 12000, "policy": "expected", "model": "m"}),
        ("plan --model m", "GET", "plan?model=m", None),
        ("plan solve --bandwidth we=5 --prefill e=2 --decode e=1 --threshold 9", "POST",
         "plan:solve",
         {"bandwidth_gbps": {"we": 5.0}, "prefill_instances": {"e": 2}, "threshold": 9,
          "decode_instances": {"e": 1}}),
        ("plan solve --prfaas w=3 --prfaas v=1", "POST", "plan:solve",
         {"prfaas_instances": {"w": 3, "v": 1}}),
        ("plan solve --mean-tokens 500 --pd e", "POST", "plan:solve",
         {"mean_tokens": 500.0, "pd": "e"}),
        ("audit --limit 7", "GET", "audit?limit=7", None),
        ("state", "GET", "state", None),
    ],
)  # fmt: skip
async def test_each_command_is_one_call(
    arguments: str, method: str, path: str, body: object, gateway: ScriptedEngine
) -> None:
    """Every command asks the admin API exactly once, with the key, and exits 0."""
    words = ["ctl", *arguments.split(), "--url", gateway.url, "--key", "k"]
    assert await prfaas(*words) == 0
    (request,) = gateway.requests
    assert (request.method, request.path) == (method, f"/admin/v1/{path}")
    assert request.header("authorization") == "Bearer k"
    assert (request.json() if request.body else None) == body


async def test_the_target_may_stand_before_the_command_or_in_the_environment(
    gateway: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--url` and `--key` count wherever they stand; the environment is asked last."""
    monkeypatch.setenv("PRFAAS_ADMIN_KEY", "from-environment")
    monkeypatch.setenv("PRFAAS_URL", "http://127.0.0.1:1")
    assert await prfaas("ctl", "--url", gateway.url, "threshold", "--key", "k", "auto") == 0
    assert gateway.requests[0].header("authorization") == "Bearer k"
    monkeypatch.setenv("PRFAAS_URL", gateway.url)
    assert await prfaas("ctl", "state") == 0
    assert gateway.requests[1].header("authorization") == "Bearer from-environment"


async def test_documents_are_printed_whole_for_programs(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints the answer's document and nothing else."""
    gateway.reply(json_answer({"mode": "manual", "tokens": 5}))
    assert await prfaas("ctl", "threshold", "--url", gateway.url, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"mode": "manual", "tokens": 5}


async def test_people_get_tables(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists become one line an element; what is unknown is a dash; new fields are seen too."""
    gateway.reply(
        json_answer(
            {
                "instances": [
                    {"queue": 3, "state": "active", "name": "p0", "cluster": "east", "new": None},
                    {"queue": 0, "state": "draining", "name": "d0", "cluster": "east"},
                ]
            }
        )
    )
    assert await prfaas("ctl", "instances", "--url", gateway.url) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["name", "cluster", "state", "queue", "new"],
        ["p0", "east", "active", "3", "-"],
        ["d0", "east", "draining", "0", "-"],
    ]


async def test_audit_tells_what_became_of_what(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """One change a line, before and after in short; an empty trail says so."""
    change = {
        "at": "2026-04-16T10:00:00+00:00",
        "by": "ops",
        "action": "link.set",
        "subject": "west-east",
        "before": None,
        "after": {"health": "down", "capacity": None},
    }
    gateway.reply(json_answer({"audit": [change]}))
    assert await prfaas("ctl", "audit", "--url", gateway.url) == 0
    shown = capsys.readouterr().out
    for word in ("ops", "link.set", "west-east", '{"health":"down"}'):
        assert word in shown
    gateway.reply(json_answer({"audit": []}))
    assert await prfaas("ctl", "audit", "--url", gateway.url) == 0
    assert "nothing was changed yet" in capsys.readouterr().out


async def test_a_dry_run_shows_before_and_after(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says that nothing was changed, and what would be; what is so already is told so."""
    preview: dict[str, Any] = {
        "dry_run": True,
        "action": "link.set",
        "subject": "west-east",
        "changes": True,
        "before": None,
        "after": {"health": "down", "capacity": None},
    }
    words = ["ctl", "links", "set", "west-east", "--health", "down", "--dry-run"]
    gateway.reply(json_answer(preview))
    assert await prfaas(*words, "--url", gateway.url) == 0
    shown = capsys.readouterr().out
    for word in ("link.set of west-east", "nothing was changed", '{"health":"down"}'):
        assert word in shown
    gateway.reply(json_answer(preview | {"changes": False}))
    assert await prfaas(*words, "--url", gateway.url) == 0
    assert "it is so already" in capsys.readouterr().out


async def test_decisions_are_one_line_each(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log shows what was compared, where the request went and why, uncut when piped."""
    gateway.reply(json_answer({"decisions": [DECISION]}))
    assert await prfaas("ctl", "decisions", "--url", gateway.url) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split()[1:] == [
        *("r-1", "acme", "m", "64,000", "52,000", "19,400"),
        *("scarce", "prfaas", "above_threshold", "f0", "d0"),
    ]


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (None, "ok\n"),
        ({"a": 1, "b": {"c": 2.5, "d": [1, 2]}}, "  a  1\n\nb\n  c  2.5\n  d  1, 2\n"),
        ({"links": {"we": {"up": True}}}, "\nlinks\nname  up\nwe    yes\n"),
        ([{"x": "y"}], "x\ny\n"),
        ({"data": []}, "  data  -\n"),
        (3, "3\n"),
    ],
)
async def test_any_document_can_be_shown(
    document: object,
    shown: str,
    gateway: ScriptedEngine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The state of a newer gateway is shown without knowing its fields."""
    gateway.reply(json_answer(document))
    assert await prfaas("ctl", "state", "--url", gateway.url) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.split("\n"))
    assert printed == shown


def failure(message: str) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid", "param": None, "code": None}}


@pytest.mark.parametrize(
    ("status", "document", "key", "told"),
    [
        (401, failure("no"), "k", "{url} does not accept this admin key"),
        (401, failure("no"), "", "{url} wants an admin key: use --key or PRFAAS_ADMIN_KEY"),
        (403, failure("role viewer may only read"), "k", "not allowed: role viewer may only read"),
        (404, failure("no link 'x'"), "k", "no link 'x'"),
        (404, {"detail": "Not Found"}, "k",
         "{url} has no /admin/v1/links: is it a PrfaaS gateway?"),
        (400, failure("capacity_gbps:\n must be greater than 0"), "k",
         "capacity_gbps: must be greater than 0"),
        (409, failure("d1 exists"), "k", "d1 exists"),
        (503, {}, "k", "{url} answered 503"),
    ],
)  # fmt: skip
async def test_refusals_are_one_line(
    status: int,
    document: object,
    key: str,
    told: str,
    gateway: ScriptedEngine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the gateway refuses is told in one line, in its own words where it has some."""
    gateway.reply(json_answer(document, status))
    assert await prfaas("ctl", "links", "--url", gateway.url, "--key", key) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"prfaas: {told.format(url=gateway.url)}\n")


async def test_an_answer_that_is_no_json_is_told(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Something else behind the address is named as such."""
    gateway.reply(answer(200, b"<html>", content_type="text/html"))
    assert await prfaas("ctl", "state", "--url", gateway.url) == 1
    assert "did not answer in JSON: is it a PrfaaS gateway?" in capsys.readouterr().err


async def test_a_gateway_that_breaks_off_is_told(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A connection that ends without an answer is one line and exit code 1."""
    gateway.reply([Reset()])
    assert await prfaas("ctl", "state", "--url", gateway.url) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"prfaas: cannot reach {gateway.url}: ")
    assert error.count("\n") == 1


async def test_a_refused_connection_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody there: one line that says so, exit code 1."""
    with RefusedPort() as url:
        assert await prfaas("ctl", "state", "--url", url) == 1
    assert capsys.readouterr().err == f"prfaas: cannot reach {url}: connection refused\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "threshold set -1",
        "threshold set many",
        "threshold --model m set 5",
        "links set west-east",
        "links set west-east --health sideways",
        "links set a/b --health up",
        "links telemetry west-east",
        "bandwidth --link l scarce",
        "override set north",
        "override set local --ttl 0",
        "instances set p0",
        "instances add p0",
        "instances add --file nowhere.json",
        "decisions --reason because",
        "nonsense",
        "state --url gateway:8000",
        "state --url http://h:99999",
        "state --key ké\n",
    ],
)
async def test_unusable_arguments_exit_2_in_one_line(
    arguments: str, gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """What makes no sense is told before anybody is asked."""
    words = arguments.split(" ")
    url = [] if "--url" in words else ["--url", gateway.url]
    assert await prfaas("ctl", *words, *url) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("prfaas: ")
    assert printed.err.count("\n") == 1
    assert "Value error" not in printed.err
    assert not gateway.requests


async def test_an_instance_can_be_added_from_a_file(
    gateway: ScriptedEngine, tmp_path: Path
) -> None:
    """A whole entry comes from a file; words of the command line win over it."""
    file = tmp_path / "d1.json"
    file.write_text(
        '{"name": "x", "cluster": "east", "url": "http://h:1", "role": "both",'
        ' "accepts_handoff": true}'
    )
    words = ["ctl", "instances", "add", "d1", "--file", str(file), "--url", gateway.url]
    assert await prfaas(*words) == 0
    assert gateway.requests[0].json() == {
        "name": "d1",
        "cluster": "east",
        "url": "http://h:1",
        "role": "both",
        "accepts_handoff": True,
    }


async def test_explain_tells_a_decision_in_sentences(
    gateway: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A supposed prompt is sent as numbers, and the decision comes back in words."""
    gateway.reply(json_answer(DECISION))
    words = "explain --tokens 64000 --cached east=12000 --cached west=unknown --threshold 19400"
    assert await prfaas(*words.split(), "--regime", "scarce", "--url", gateway.url) == 0
    (request,) = gateway.requests
    assert (request.method, request.path) == ("POST", "/admin/v1/decisions:explain")
    assert request.json() == {
        "total_tokens": 64000,
        "cached_tokens": {"east": 12000, "west": None},
        "threshold": 19400,
        "regime": "scarce",
    }
    assert capsys.readouterr().out.splitlines() == [
        "PrfaaS: more uncached tokens than the threshold (above_threshold).",
        "52,000 of 64,000 prompt tokens are uncached, counted by client;"
        " the threshold is 19,400 (scarce bandwidth).",
        "Prefill on f0 in west, which computes 64,000 tokens; decode on d0 in east.",
        "Cached: east 12,000 tokens (synced), west unknown.",
        "1.3 GB of KV go over west-east (12% used).",
    ]


async def test_explain_sends_a_request_body_as_it_is(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real body is explained whole; `--json` prints the decision document."""
    gateway.reply(json_answer(DECISION))
    file = tmp_path / "body.json"
    file.write_text('{"model": "a", "messages": [{"role": "user", "content": "hi"}], "echo": true}')
    words = ["explain", "--file", str(file), "--model", "m", "--url", gateway.url, "--json"]
    assert await prfaas(*words) == 0
    assert gateway.requests[0].json() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "echo": True,
    }
    assert json.loads(capsys.readouterr().out) == DECISION


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--tokens 5 --file x",
        "--tokens 0",
        "--tokens 5 --cached east",
        "--tokens 5 --cached east=-1",
        "--tokens 5 --threshold -1",
        "--file nowhere.json",
        "--file {body} --cached east=1",
        "--file {list}",
    ],
)
async def test_explain_wants_one_prompt(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither, both or a malformed description is exit code 2 with one line."""
    (tmp_path / "body").write_text("{}")
    (tmp_path / "list").write_text("[]")
    words = arguments.format(body=tmp_path / "body", list=tmp_path / "list").split()
    assert await prfaas("explain", *words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_every_reason_has_words() -> None:
    """A reason that is added without words for people is noticed."""
    assert set(REASONS) == set(Reason)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prefill": None}, "d0 in east computes 64,000 tokens itself and decodes."),
        (
            {"prefill": {"cluster": "east", "instance": "d0"}},
            "d0 in east does everything and computes 64,000 tokens.",
        ),
        (
            {"blocked_by": "link_down"},
            "Otherwise asked for, but the link is down (link_down).",
        ),
        (
            {"prefix_transfer": {"from": "east", "to": "west", "tokens": 9}},
            "A prefix of 9 tokens travels from east to west.",
        ),
        ({"link": None}, "1.3 GB of KV are handed off."),
        ({"route": "local"}, "1.3 GB of KV are handed off."),
        ({"route": "local"}, "Nothing of it goes over west-east (12% used)."),
        ({"kv_bytes": None, "link": {"name": "l"}}, "KV goes over l (load unknown)."),
        ({"reason": "later_invention"}, "PrfaaS: later_invention (later_invention)."),
    ],
)
def test_decisions_of_every_kind_have_their_sentence(
    change: dict[str, object], sentence: str
) -> None:
    """One instance for all, blocked wishes, travelling prefixes and unknown loads are told."""
    assert sentence in list(describe_decision({**DECISION, **change}))


def test_an_empty_document_is_described_without_failing() -> None:
    """An older gateway's missing fields are unknown, not an error."""
    assert list(describe_decision({}))
