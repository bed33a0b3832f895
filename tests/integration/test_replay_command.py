"""`prfaas replay` against a scripted gateway on a real socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from router.commands.app import run
from router.sim.replay.prompts import Vocabulary, make_prompt
from router.sim.replay.traces import TraceRequest
from tests.fakes.scripted_engine import (
    Close,
    Hold,
    Recorded,
    RefusedPort,
    Script,
    ScriptedEngine,
    Send,
    answer,
    head,
    json_answer,
    stream,
)

MODELS = {"object": "list", "data": [{"id": "first"}, {"id": "second"}]}


def write_trace(directory: Path, *requests: tuple[int, int, list[int]], output: int = 3) -> Path:
    """Write requests given as (timestamp in ms, tokens, ids)."""
    path = directory / "trace.jsonl"
    lines = [
        {"timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": ids}
        for at, tokens, ids in requests
    ]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return path


def complete(
    *,
    believed: str | None = "512",
    cached: int | None = 512,
    route: str = "local",
    gap: float = 0.0,
    request_id: str = "r",
) -> Script:
    """A streamed answer of three tokens, with what a gateway and an engine tell."""
    usage: dict[str, Any] = {"prompt_tokens": 700, "completion_tokens": 3, "total_tokens": 703}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    token = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
    end = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    headers = [
        ("x-request-id", request_id),
        ("x-prfaas-route", route),
        ("x-prfaas-reason", "above_threshold" if route == "prfaas" else "below_threshold"),
        ("x-prfaas-prefill", "p0"),
        ("x-prfaas-decode", "d0"),
        ("x-prfaas-total-tokens", "700"),
        ("x-prfaas-uncached-tokens", "188"),
        ("x-prfaas-threshold", "19400"),
    ]
    if believed is not None:
        headers.append(("x-prfaas-cached-tokens", believed))
    return stream(token, token, token, end + b"data: [DONE]\n\n", gap=gap, headers=headers)


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(complete()) as engine:
        engine.on("/v1/models", json_answer(MODELS))
        engine.on("/metrics", answer(200, b"prfaas_store_up 1\n", content_type="text/plain"))
        yield engine


async def replay(gateway: ScriptedEngine, trace: Path, *words: str) -> int:
    """Run the command beside the event loop that serves its gateway."""
    arguments = ["replay", str(trace), "--url", gateway.url, *words]
    return await asyncio.to_thread(run, arguments)


def completions(gateway: ScriptedEngine) -> list[Recorded]:
    return [request for request in gateway.requests if request.path == "/v1/completions"]


def reported(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


async def test_prompts_share_what_the_trace_shares(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request is a streaming completion of its ids' blocks, for the gateway's first model."""
    trace = write_trace(tmp_path, (0, 700, [1, 2]), (0, 600, [1, 3]))
    assert await replay(gateway, trace, "--sequential", "--api-key", "sk", "--json") == 0
    first, second = (request.json() for request in completions(gateway))
    wanted = TraceRequest(0, 0.0, 700, 3, (1, 2))
    assert first["prompt"] == make_prompt(wanted, Vocabulary())
    assert (first["model"], first["max_tokens"], first["stream"]) == ("first", 3, True)
    assert len(second["prompt"]) == 600
    assert first["prompt"][:512] == second["prompt"][:512]
    assert {request.header("authorization") for request in completions(gateway)} == {"Bearer sk"}
    assert reported(capsys)["requests"] == 2


async def test_a_report_tells_routes_tokens_and_agreement(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Belief and engine are compared request by request; unknown is not compared."""
    gateway.then(
        complete(),
        complete(route="prfaas", believed="0", request_id="r2"),
        complete(believed=""),
        complete(believed=None),
        complete(cached=None),
    )
    counted = itertools.count(1000, 500)

    def metrics(_request: Recorded) -> Script:
        text = f'prfaas_kv_bytes_total{{outcome="useful"}} {next(counted)}\n'
        return answer(200, text.encode(), content_type="text/plain")

    gateway.on("/metrics", metrics)
    trace = write_trace(tmp_path, *[(0, 700, [1, 2])] * 5)
    assert await replay(gateway, trace, "--sequential", "--model", "m", "--json") == 0
    report = reported(capsys)
    assert report["reasons"] == {"local/below_threshold": 4, "prfaas/above_threshold": 1}
    assert (report["prompt_tokens"], report["output_tokens"]) == (3500, 15)
    assert (report["believed_cached"], report["believed_known"]) == (1024, 3)
    assert (report["reported_cached"], report["reported_known"]) == (2048, 4)
    assert report["uncached_tokens"] == 5 * 188
    assert report["egress_bytes"] == 500
    assert report["agreement"]["share"] == 0.5
    (difference,) = report["agreement"]["differences"]
    assert difference == {
        "index": 1,
        "request_id": "r2",
        "instance": "p0",
        "believed": 0,
        "reported": 512,
    }


async def test_each_request_leaves_a_record(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--records` writes one JSON line a request, failed ones too."""
    gateway.then(complete(gap=0.02), answer(503, b"{}"))
    trace = write_trace(tmp_path, (0, 700, [1, 2]), (0, 700, [1, 2]))
    records = tmp_path / "records.jsonl"
    words = ["--sequential", "--records", str(records), "--json"]
    assert await replay(gateway, trace, *words) == 1
    assert reported(capsys)["errors"] == {"http_503": 1}
    first, second = map(json.loads, records.read_text("utf-8").splitlines())
    known = {
        "index": 0,
        "status": 200,
        "error": None,
        "request_id": "r",
        "route": "local",
        "reason": "below_threshold",
        "prefill": "p0",
        "decode": "d0",
        "threshold": 19400,
        "total_tokens": 700,
        "uncached_tokens": 188,
        "believed_cached": 512,
        "reported_cached": 512,
        "prompt_tokens": 700,
        "output_tokens": 3,
    }
    assert first.items() >= known.items()
    assert 0 < first["ttft"] < first["duration"]
    assert first["tpot"] == pytest.approx((first["duration"] - first["ttft"]) / 2, rel=1e-6)
    assert (second["index"], second["status"], second["error"]) == (1, 503, "http_503")


ERROR_EVENT = b'data: {"error":{"message":"engine died","code":502}}\n\n'


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (stream(b'data: {"choices":[]}\n\n', ERROR_EVENT, b"data: [DONE]\n\n"), "stream_error"),
        (stream(b'data: {"choices":[]}\n\n'), "cut"),
        ([head(200, [("transfer-encoding", "chunked")]), Send(b"5\r\nda"), Close()], "broken"),
        ([head(200, [("transfer-encoding", "chunked")]), Hold()], "timeout"),
        (answer(429, b"{}"), "http_429"),
    ],
)
async def test_errors_are_counted_by_kind(
    script: Sequence[Any],
    kind: str,
    gateway: ScriptedEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever way an answer is not whole, it is an error of that kind and exit code 1."""
    gateway.reply(list(script))
    trace = write_trace(tmp_path, (0, 700, [1, 2]))
    assert await replay(gateway, trace, "--timeout", "0.3", "--json") == 1
    report = reported(capsys)
    assert report["errors"] == {kind: 1}
    assert report["completed"] == 0


async def test_requests_are_sent_at_the_times_of_the_trace(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--speed` divides the times; answers that are slow do not delay the next request."""
    gateway.reply(complete(gap=0.2))
    trace = write_trace(tmp_path, *[(at, 700, [1, 2]) for at in (5000, 6000, 7000, 9000)])
    assert await replay(gateway, trace, "--speed", "10", "--json") == 0
    times = [request.at for request in completions(gateway)]
    assert [at - times[0] for at in times] == pytest.approx([0.0, 0.1, 0.2, 0.4], abs=0.06)
    assert reported(capsys)["late"] == 0


async def test_a_request_that_waits_for_its_turn_is_late_and_says_so(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With too little concurrency the load is not the trace's, and the report says so."""
    gateway.reply(complete(gap=0.1))
    trace = write_trace(tmp_path, *[(0, 700, [1, 2])] * 3)
    assert await replay(gateway, trace, "--concurrency", "1", "--json") == 0
    report = reported(capsys)
    assert report["late"] == 2
    assert report["lateness"]["maximum"] > 0.5


async def test_the_report_can_be_read(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--json` people get sentences and tables on stdout."""
    gateway.then(complete(believed="0"))
    trace = write_trace(tmp_path, *[(0, 700, [1, 2])] * 4)
    words = ["--sequential", "--limit", "2", "--max-output", "2", "--as", "text"]
    assert await replay(gateway, trace, *words) == 0
    told = capsys.readouterr().out
    assert told.startswith("2 of 2 requests complete in ")
    assert "local/below_threshold" in told
    assert "belief and engines agree in 1 of 2 requests (50.00%)" in told
    body = completions(gateway)[0].json()
    assert body["max_tokens"] == 2
    assert len(body["prompt"].split()) == 700


async def test_metrics_that_cannot_be_read_leave_egress_unknown(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where /metrics is elsewhere or closed, egress is null, not zero."""
    gateway.on("/metrics", answer(404, b""))
    trace = write_trace(tmp_path, (0, 700, [1, 2]))
    assert await replay(gateway, trace, "--json") == 0
    assert reported(capsys)["egress_bytes"] is None


async def test_a_gateway_without_models_is_told(
    gateway: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When no model can be found, one line says to give one."""
    trace = write_trace(tmp_path, (0, 700, [1, 2]))
    for script in (json_answer({"data": []}), answer(401, b"{}")):
        gateway.on("/v1/models", script)
        assert await replay(gateway, trace) == 1
        assert "give --model" in capsys.readouterr().err
    with RefusedPort() as url:
        assert await asyncio.to_thread(run, ["replay", str(trace), "--url", url]) == 1
    assert "is it up?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no requests"),
        ('{"timestamp": 0}\n', "line 1: not a request: Object missing required field"),
    ],
)
def test_unusable_traces_are_named(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty or faulty trace is exit code 2, with file and line."""
    path = tmp_path / "t.jsonl"
    path.write_text(text, "utf-8")
    assert run(["replay", str(path)]) == 2
    assert f"{path}" in (error := capsys.readouterr().err)
    assert told in error
    assert run(["replay", str(tmp_path / "nowhere")]) == 2
    assert run(["replay", str(path), "--lowest-id", "9", "--highest-id", "8"]) == 2
    assert run(["replay", str(path), "--speed", "0"]) == 2


def wait_for_line(path: Path) -> None:
    """Return as soon as a file has a whole line."""
    deadline = time.monotonic() + 10
    while not (path.exists() and path.read_bytes().endswith(b"\n")):
        assert time.monotonic() < deadline, f"{path} stayed empty"
        time.sleep(0.02)


async def test_ctrl_c_reports_what_was_done(gateway: ScriptedEngine, tmp_path: Path) -> None:
    """An interrupted replay cuts what is under way, reports the rest and exits with 130."""
    gateway.then(complete())
    gateway.reply([head(200), Hold()])
    trace = write_trace(tmp_path, *[(at, 700, [1, 2]) for at in (0, 0, 3_600_000)])
    records = tmp_path / "records.jsonl"
    words = ["replay", str(trace), "--url", gateway.url, "--records", str(records), "--json"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        await gateway.received(4, within=30)  # models, metrics, two completions
        await asyncio.to_thread(wait_for_line, records)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            out, error = await process.communicate()
        await gateway.peer_closed(completions(gateway)[1])
    finally:
        if process.returncode is None:
            process.kill()
    report = json.loads(out)
    assert (process.returncode, error) == (130, b"")
    assert (report["interrupted"], report["requests"], report["completed"]) == (True, 1, 1)
