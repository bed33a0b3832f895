"""`prfaas doctor` against engines that run, engines that do not, and a real Redis."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.commands.app import run
from tests.fakes.redis_servers import redis_server
from tests.fakes.systems import Document, standin_system


async def doctor(config: Path, *words: str) -> int:
    """Run the command beside the event loop that serves the engines."""
    arguments = ["doctor", "--config", str(config), "--timeout", "20", *words]
    return await asyncio.to_thread(run, arguments)


def write(directory: Path, document: Document) -> Path:
    path = directory / "examined.yaml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path


def bad(shown: str, verdict: str = "fault") -> set[tuple[str, str]]:
    """The subjects and checks of a JSON answer with a verdict."""
    return {
        (each["subject"], each["check"])
        for each in json.loads(shown)["findings"]
        if each["verdict"] == verdict
    }


async def test_it_says_what_would_not_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sound engines pass, with their events and their store; each spoilt part is named. Exit 1.

    The store is asked and left as it was.
    """
    with redis_server() as redis:
        async with standin_system(tmp_path, names="p0 d0 f0") as system:
            document: dict[str, Any] = yaml.safe_load((tmp_path / "prfaas.yaml").read_text("utf-8"))
            document["store"] = {"url": redis.url}
            document["kvmeta"]["lookup_timeout_ms"] = 5000
            redis.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
            assert await doctor(write(tmp_path, document)) == 0
            assert "0 faults" in capsys.readouterr().out
            assert await doctor(write(tmp_path, document), "--json") == 0
            fine = bad(capsys.readouterr().out, "fine")
            for name in ("p0", "d0", "f0"):
                assert {(name, "health"), (name, "models"), (name, "kv_events")} <= fine
            assert {("store", "writable"), ("store", "eviction"), ("store", "version")} <= fine
            assert redis.call("KEYS", "*") == []

            # One part after the other, all at once.
            redis.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            entries = {each["name"]: each for c in document["clusters"] for each in c["instances"]}
            entries["p0"]["kv_replay"] = "tcp://127.0.0.1:1"
            entries["d0"]["served_name"] = "another"
            entries["f0"]["url"] = "http://127.0.0.1:1"
            assert await doctor(write(tmp_path, document), "--timeout", "2", "--json") == 1
            assert bad(capsys.readouterr().out) == {
                ("p0", "kv_events"),
                ("d0", "models"),
                ("d0", "tokenizer"),
                ("f0", "reachable"),
                ("store", "eviction"),
            }
            assert system.host("p0")  # they serve until here

            assert await doctor(write(tmp_path, document), "--timeout", "2") == 1
            shown = capsys.readouterr().out
            assert "http://127.0.0.1:1 cannot be reached" in shown
            assert "set noeviction" in shown


async def test_a_store_that_is_away_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody at the store's address is one finding, told without its password."""
    document: Document = {
        "models": [{"name": "m", "tokenizer": {"kind": "none"}, "cache": {"block_size": 16}}],
        "clusters": [{"name": "east", "kind": "pd"}],
        "store": {"url": "redis://:secret@127.0.0.1:1"},
    }
    assert await doctor(write(tmp_path, document), "--json") == 1
    shown = capsys.readouterr()
    assert bad(shown.out) == {("store", "reachable")}
    assert "secret" not in shown.out + shown.err


async def test_a_configuration_that_is_none_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read is told as by every command."""
    assert await doctor(write(tmp_path, {"models": []})) == 2
    assert "Traceback" not in capsys.readouterr().err
