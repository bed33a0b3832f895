"""The benchmark rig: it builds, it measures our gateway, and it does not believe broken answers."""

import asyncio
import dataclasses
import json
import os
import shutil
import urllib.request
from pathlib import Path

import pytest

from bench.gateway.__main__ import main
from bench.gateway.contestants import CONTESTANTS
from bench.gateway.native import Loaded, Native, build, run_engine, run_load
from bench.gateway.processes import open_url
from bench.gateway.runs import Bench, Running, find_errors
from bench.gateway.workloads import WORKLOADS, Form, Workload, write_bodies
from tests.fakes.scripted_engine import Script, ScriptedEngine, Send, answer, head, stream

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("taskset") is None or (os.cpu_count() or 1) < 2,
    reason="the rig needs gcc, taskset and two processors",
)

PLAIN = Workload("plain", 2, seconds=0.2, warm_up=0.0)
STREAMED = Workload("streamed", 2, streams=True, seconds=0.2, warm_up=0.0)
EVENTS = [b'data: {"text":"word"}\n\n'] * 128 + [b"data: [DONE]\n\n"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the programs and the bodies."""
    directory = tmp_path_factory.mktemp("bench")
    build(directory)
    write_bodies(directory / "bodies", [PLAIN, STREAMED], [Form.IDS])
    return directory


async def load(work: Path, workload: Workload, script: Script) -> Loaded:
    """Load an engine that always plays one script."""
    native = Native(work / "engine", work / "load")
    async with ScriptedEngine() as engine:
        engine.reply(script)
        port = int(engine.url.rpartition(":")[2])
        return await asyncio.to_thread(
            run_load, native, 1, port, workload, Form.IDS, work / "bodies"
        )


def test_a_row_of_our_gateway_comes_out_of_the_rig(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In P/D mode every request is a prefill and a decode, and nothing about the row is void."""
    arguments = ["--quick", "--json", "--work", str(work), "--only", "pd", "ours", "small-1", "ids"]
    assert main(arguments) == 0
    direct, ours = json.loads(capsys.readouterr().out)["rows"]
    assert direct["contestant"] == "direct"
    assert (ours["mode"], ours["contestant"], ours["errors"]) == ("pd", "ours", [])
    assert ours["requests_per_second"] > 0
    assert ours["cpu_us"] > 0
    assert ours["reasons"].keys() == {"below_threshold"}


async def test_whole_answers_are_good(work: Path) -> None:
    """Bodies of any framing, with the bytes that they promise, are counted and nothing else."""
    whole = await load(work, PLAIN, answer(body=b'{"id":1}'))
    chunked = await load(work, PLAIN, stream(b'{"id"', b":1}"))
    events = await load(work, STREAMED, stream(*EVENTS))
    for loaded in (whole, chunked, events):
        assert loaded.answers > 0
        assert (loaded.bad_status, loaded.bad_body, loaded.broken) == (0, 0, 0)
    assert whole.shortest_body == whole.longest_body == chunked.longest_body == 8
    assert events.events >= 129 * events.answers


@pytest.mark.parametrize(
    ("workload", "script", "fault"),
    [
        (PLAIN, answer(500, b'{"error":1}'), "bad_status"),
        (PLAIN, answer(body=b'{"id":'), "bad_body"),
        (PLAIN, answer(), "bad_body"),
        (PLAIN, [Send(head(200, [("content-length", "8")]).payload + b'{"id":1}more')], "bad_body"),
        (STREAMED, stream(*EVENTS[1:]), "bad_body"),
        (STREAMED, stream(*EVENTS[:-1], EVENTS[0]), "bad_body"),
        (STREAMED, stream(*EVENTS, EVENTS[-1]), "bad_body"),
    ],
    ids=["status", "cut", "empty", "surplus", "an event less", "no end", "an event more"],
)
async def test_a_broken_answer_is_no_answer(
    work: Path, workload: Workload, script: Script, fault: str
) -> None:
    """A wrong status, body, end or number of events is counted as such and has no latency."""
    loaded = await load(work, workload, script)
    assert getattr(loaded, fault) > 0
    assert loaded.latency_us is None


def test_a_router_that_leaves_out_the_prefill_is_found_out(work: Path) -> None:
    """Answers alone do not make a row: the engines must have seen both legs of each request."""
    native = Native(work / "engine", work / "load")
    disaggregated = next(each for each in CONTESTANTS if each.mode == "pd")
    workload = dataclasses.replace(WORKLOADS["small-32"], seconds=0.2, warm_up=0.0)
    with run_engine(native, 1, 2) as engine:
        engine.configure(workload)
        loaded = run_load(native, 1, engine.ports[0], workload, Form.IDS, work / "bodies")
        bench = Bench(native, engine, (), work, work, [])
        running = Running(disaggregated, engine.pid, engine.ports[0])
        assert list(find_errors(bench, None, workload, Form.IDS, loaded)) == []
        (first, *_) = find_errors(bench, running, workload, Form.IDS, loaded)
        assert first == f"0 prefills for {loaded.answers} answers"


def test_the_mock_engine_hands_off_what_it_prefilled(work: Path) -> None:
    """A prefill is answered with a hand-off; a call that hands it over counts as a decode."""
    native = Native(work / "engine", work / "load")
    with run_engine(native, 1, 2) as engine:
        engine.configure(PLAIN)
        handoff: object = {"do_remote_decode": True}
        for url in engine.urls:
            body = {"prompt": [1], "kv_transfer_params": handoff}
            request = urllib.request.Request(
                f"{url}/v1/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            handoff = json.loads(open_url(request))["kv_transfer_params"]
        prefill, decode = (engine.counts()[port] for port in engine.ports)
    assert (prefill.calls, prefill.prefills, prefill.decodes) == (1, 1, 0)
    assert (decode.calls, decode.prefills, decode.decodes) == (1, 0, 1)
    assert handoff is None
