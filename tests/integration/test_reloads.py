"""A configuration that changes while the gateway serves is in force as a whole, or not at all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router.compose.reloading import ReloadRefused
from router.settings import load
from router.settings.reloads import settle
from tests.fakes.live_engines import DONE, LiveEngine, chat_event
from tests.fakes.processes import prfaas
from tests.fakes.scripted_engine import Step, Until, stream
from tests.fakes.systems import (
    Document,
    System,
    describe,
    merged,
    routing,
    scripted_system,
    write_configuration,
)

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
Change = Callable[[Document], Document]


@dataclass
class Reloading:
    """A gateway in the test's own loop, and the file that it was made from."""

    system: System
    path: Path

    @property
    def document(self) -> Document:
        document: Document = yaml.safe_load(self.path.read_text("utf-8"))
        return document

    async def reload(self, change: Change) -> None:
        """Change the file, and have the gateway go on by it."""
        before = load(self.path, {})
        self.path.write_text(yaml.safe_dump(change(self.document), sort_keys=False), "utf-8")
        await self.system.gateway.reload(settle(before, load(self.path, {})))


def laid_over(**changes: Any) -> Change:  # noqa: ANN401 - sections of any shape
    return lambda document: merged(document, changes)


def without_instance(name: str) -> Change:
    """Take an instance out of its cluster."""

    def change(document: Document) -> Document:
        for cluster in document["clusters"]:
            cluster["instances"] = [each for each in cluster["instances"] if each["name"] != name]
        return document

    return change


def with_instance(cluster: str, entry: Document) -> Change:
    """Add an instance to a cluster."""

    def change(document: Document) -> Document:
        next(c for c in document["clusters"] if c["name"] == cluster)["instances"].append(entry)
        return document

    return change


def exchanged(leaving: str, entry: Document) -> Change:
    """Put one instance in the place of another."""
    return lambda document: with_instance("east", entry)(without_instance(leaving)(document))


def held_stream(gate: asyncio.Event) -> list[Step]:
    """A stream that ends only after `gate`."""
    head, first, *rest = stream(chat_event("tiny", "a"), chat_event("tiny", "b"), DONE)
    return [head, first, Until(gate), *rest]


async def run_stream(system: System, begun: asyncio.Semaphore) -> bool:
    """Run one stream; whether it came to its [DONE]."""
    seen = b""
    body = {**CHAT, "stream": True}
    async with (
        httpx.AsyncClient(base_url=system.url, timeout=None, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        async for piece in answer.aiter_raw():
            if not seen:
                begun.release()
            seen += piece
    return seen.endswith(DONE)


async def begin_streams(
    system: System, engine: LiveEngine, count: int, gate: asyncio.Event
) -> list[asyncio.Task[bool]]:
    """Begin streams that end with `gate`; return once all have begun."""
    begun, tasks = asyncio.Semaphore(0), []
    for _ in range(count):
        engine.then(held_stream(gate))
        tasks.append(asyncio.create_task(run_stream(system, begun)))
        await begun.acquire()
    return tasks


# -- what changes, and what stays


async def test_a_removed_instance_ends_its_streams_and_gets_nothing_new(tmp_path: Path) -> None:
    """Its streams come to their end; whatever comes after goes to those that are left."""
    async with scripted_system(tmp_path, names="b0 b1") as system:
        reloading = Reloading(system, tmp_path / "prfaas.yaml")
        gate = asyncio.Event()
        await system.order("PATCH", "instances/b1", {"state": "draining"})
        streams = await begin_streams(system, system.engine("b0"), 3, gate)
        await system.order("PATCH", "instances/b1", {"state": "active"})
        await reloading.reload(without_instance("b0"))
        before = len(system.engine("b0").calls)
        for _ in range(6):
            answer = await system.complete(20)
            assert answer.status_code == 200
            assert answer.headers["x-prfaas-decode"] == "b1"
        gate.set()
        assert await asyncio.gather(*streams) == [True] * 3
        assert len(system.engine("b0").calls) == before
        assert [each["name"] for each in (await system.order("GET", "state"))["instances"]] == [
            "b1"
        ]


async def test_an_added_instance_is_used_at_once(tmp_path: Path) -> None:
    """It was probed before it joined, so that it may even replace the only one there was."""
    async with scripted_system(tmp_path, names="b0") as system, LiveEngine("b9") as engine:
        reloading = Reloading(system, tmp_path / "prfaas.yaml")
        entry = {"name": "b9", "url": engine.url, "role": "both"}
        await reloading.reload(exchanged("b0", entry))
        answer = await system.complete(20)
        assert (answer.status_code, answer.headers["x-prfaas-decode"]) == (200, "b9")


async def test_an_instance_at_another_url_is_another_engine(tmp_path: Path) -> None:
    """Under the same name requests go to the new place at once; the old one's streams end there."""
    async with scripted_system(tmp_path, names="b0") as system, LiveEngine("new") as engine:
        reloading = Reloading(system, tmp_path / "prfaas.yaml")
        gate = asyncio.Event()
        streams = await begin_streams(system, system.engine("b0"), 2, gate)
        entry = {"name": "b0", "url": engine.url, "role": "both"}
        await reloading.reload(exchanged("b0", entry))
        assert (await system.complete(20)).status_code == 200
        assert len(engine.calls) == 1
        gate.set()
        assert await asyncio.gather(*streams) == [True] * 2


async def test_what_is_known_of_those_who_stay_is_kept(tmp_path: Path) -> None:
    """Breakers, counts in flight, telemetry and bookings outlive a reload of everything else."""
    async with scripted_system(tmp_path) as system:
        reloading = Reloading(system, tmp_path / "prfaas.yaml")
        report = {"egress_gbps": 0.5, "observed_at": "2026-01-01T00:00:00Z"}
        report["observed_at"] = (await system.order("GET", "state"))["at"]
        await system.order("POST", "links/west-east/telemetry", report)
        system.gateway.core.fleet.member("d0").transitions = 7
        await reloading.reload(laid_over(links=[{**LINK, "capacity_gbps": 2}]))
        state = await system.order("GET", "state")
        (link,) = state["links"]
        assert (link["telemetry"]["egress_gbps"], link["capacity_gbps"]) == (0.5, 2)
        assert {each["name"]: each["transitions"] for each in state["instances"]}["d0"] == 7
        assert all(each["alive"] for each in state["instances"])


LINK = {"name": "west-east", "from": "west", "to": "east"}


async def test_thresholds_tenants_keys_and_limits_act_at_once(tmp_path: Path) -> None:
    """The very next request is decided, authenticated and limited by the new file."""
    async with scripted_system(tmp_path, threshold=100) as system:
        reloading = Reloading(system, tmp_path / "prfaas.yaml")
        assert routing(await system.complete(200)) == ("prfaas", "above_threshold")
        await reloading.reload(laid_over(scheduler={"threshold": {"tokens": 500}}))
        assert routing(await system.complete(200)) == ("local", "below_threshold")
        tenant = {"name": "a", "api_keys": ["sk-first"], "requests_per_minute": 2}
        await reloading.reload(laid_over(tenants=[tenant]))
        assert (await system.complete(20)).status_code == 401
        key = {"authorization": "Bearer sk-first"}
        statuses = [(await system.complete(20, headers=key)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        # What was used of a limit is not forgotten with the file that set it.
        await reloading.reload(laid_over(tenants=[{**tenant, "api_keys": ["sk-second"]}]))
        assert (await system.complete(20, headers=key)).status_code == 401
        key = {"authorization": "Bearer sk-second"}
        assert (await system.complete(20, headers=key)).status_code == 429


async def test_what_operators_ordered_wins_over_the_new_file(tmp_path: Path) -> None:
    """Orders stay in force over a reload, and give way to the new file when taken back."""
    async with scripted_system(tmp_path, threshold=100) as system:
        reloading = Reloading(system, tmp_path / "prfaas.yaml")
        await system.order("PUT", "threshold", {"mode": "manual", "tokens": 1000})
        await system.order("PATCH", "instances/f0", {"state": "draining"})
        await system.order("PUT", "links/west-east", {"health": "down"})
        await reloading.reload(
            laid_over(
                scheduler={"threshold": {"tokens": 300}, "bandwidth": {"mode": "abundant"}},
            )
        )
        state = await system.order("GET", "state")
        assert {each["name"]: each["state"] for each in state["instances"]}["f0"] == "draining"
        assert not state["links"][0]["up"]
        assert (await system.complete(400)).headers["x-prfaas-threshold"] == "1000"
        await system.order("PUT", "threshold", {"mode": "config"})
        assert (await system.complete(200)).headers["x-prfaas-threshold"] == "300"


async def test_a_configuration_that_cannot_run_changes_nothing(tmp_path: Path) -> None:
    """A tokenizer that is none is refused, and the old file is in force as a whole."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    async with scripted_system(tmp_path, threshold=100) as system:
        reloading = Reloading(system, tmp_path / "prfaas.yaml")
        model = {"name": "tiny", "tokenizer": {"kind": "hf", "path": "./broken"}}
        bad = laid_over(models=[model], scheduler={"threshold": {"tokens": 9999}})
        with pytest.raises(ReloadRefused, match="tokenizer"):
            await reloading.reload(bad)
        assert routing(await system.complete(200)) == ("prfaas", "above_threshold")


async def reload_under_load(directory: Path, *, streams: int, reloads: int) -> None:
    """Reload again and again under streams and steady requests: not one may fail."""
    async with scripted_system(directory, names="b0 b9") as system, LiveEngine("b1") as third:
        reloading = Reloading(system, directory / "prfaas.yaml")
        gate, done = asyncio.Event(), asyncio.Event()
        await system.order("PATCH", "instances/b0", {"state": "draining"})
        running = await begin_streams(system, system.engine("b9"), streams, gate)
        await system.order("PATCH", "instances/b0", {"state": "active"})
        statuses: list[int] = []

        async def ask() -> None:
            async with httpx.AsyncClient(base_url=system.url, trust_env=False) as client:
                body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4}
                while not done.is_set():
                    answer = await client.post("/v1/completions", json=body, timeout=30)
                    statuses.append(answer.status_code)

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        urls = {"b0": system.engine("b0").url, "b1": third.url}
        for number in range(reloads):
            leaving, joining = ("b0", "b1") if number % 2 == 0 else ("b1", "b0")
            entry = {"name": joining, "url": urls[joining], "role": "both"}
            await reloading.reload(exchanged(leaving, entry))
            await reloading.reload(laid_over(scheduler={"threshold": {"tokens": 100 + number}}))
        done.set()
        await asyncio.gather(*asking)
        gate.set()
        assert set(statuses) == {200}
        assert len(statuses) >= reloads
        assert await asyncio.gather(*running) == [True] * streams
        assert third.calls, "the instance that came and went was never used"
        await system.settled()


async def test_reloads_under_load_drop_nothing(tmp_path: Path) -> None:
    """30 streams and steady requests over 10 reloads: zero failures."""
    await reload_under_load(tmp_path, streams=30, reloads=5)


@pytest.mark.long
async def test_many_reloads_under_load_drop_nothing(tmp_path: Path) -> None:
    """200 streams and steady requests over 40 reloads: zero failures."""
    await reload_under_load(tmp_path, streams=200, reloads=20)


# -- the process: files and signals


@contextmanager
def rewritten(path: Path) -> Iterator[Document]:
    """Change a configuration in place, by another file under its name as editors do."""
    document = yaml.safe_load(path.read_text("utf-8"))
    yield document
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    fresh.replace(path)


async def test_a_changed_file_and_sighup_reload(tmp_path: Path) -> None:
    """A change is taken over by itself and on SIGHUP; a bad one is told once and counted."""
    async with LiveEngine("b0") as engine:
        instance = {"name": "b0", "url": engine.url, "role": "both"}
        clusters = [{"name": "east", "kind": "pd", "instances": [instance]}]
        model = {"tokenizer": {"kind": "none"}}
        path = write_configuration(
            tmp_path, describe(clusters, threshold=100, model=model, links=[])
        )
        arguments = ["serve", "--config", str(path), "--port", "0"]
        async with prfaas(*arguments, directory=tmp_path) as command:
            url = (await command.said(r"prfaas gateway on (http://\S+)"))[1]
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                with rewritten(path) as document:
                    document["models"][0]["aliases"] = ["small"]
                    document["server"] = {"port": 1}
                told = await command.said("configuration (.*) is in force; (.*)")
                assert told[2] == "only a restart changes server.port"
                assert (await client.get("/v1/models/small")).status_code == 200
                with rewritten(path) as document:
                    document["models"] = []
                await command.said("the old configuration stays in force: .*models")
                assert (await client.get("/v1/models/small")).status_code == 200
                state = (await client.get("/admin/v1/state")).json()["config"]
                assert state["hash"] == told[1]
                assert state["restart_needed"] == ["server.port"]
                assert "models" in state["last_error"]["message"]
                with rewritten(path) as document:
                    document["models"] = [{"name": "tiny", "tokenizer": {"kind": "none"}}]
                    del document["server"]
                command.send(signal.SIGHUP)
                await command.said("is in force$")
                assert (await client.get("/v1/models/small")).status_code == 404
                text = (await client.get("/metrics")).text
                assert 'prfaas_config_reloads_total{outcome="applied"} 2.0' in text
                assert 'prfaas_config_reloads_total{outcome="refused"} 1.0' in text
            refusals = [line for line in command.stderr if "stays in force" in line]
            assert len(refusals) == 1
