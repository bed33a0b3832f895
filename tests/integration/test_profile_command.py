"""`prfaas profile` against stand-in engines whose profile is known, and against bad ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvmeta.types import GroupKind
from router.commands.app import run
from router.settings.profile_files import ProfileFile, read_profile
from router.sim.engines.specs import CacheSpec, GroupSpec
from tests.fakes.scripted_engine import ScriptedEngine, answer, json_answer
from tests.fakes.standins import MODEL, AffineProfile, TwoClusters, asking, two_clusters, until

PROFILE = AffineProfile(
    base_seconds=0.2, tokens_per_second=2000.0, fixed_bytes=3_000_000, bytes_per_token=2000
)
HYBRID_CACHE = CacheSpec(
    hash_unit=16,
    blocks=8192,
    groups=(GroupSpec(GroupKind.RECURRENT, 3), GroupSpec(GroupKind.FULL_ATTENTION)),
)
WHO = ("--revision", "r1", "--hardware", "8xH20")
PER_TOKEN = ("--kv-bytes-per-token", "2000", "--kv-fixed-bytes", "3000000")
QUICK = ("--repeats", "2", "--warmup", "0", "--lengths", "500,1000,2000")


async def profile(url: str, *words: str) -> int:
    """Run the command beside the event loop that serves its engine."""
    return await asyncio.to_thread(run, ["profile", url, *WHO, *words])


def written(path: Path) -> ProfileFile:
    """Read a profile as the configuration does."""
    return read_profile(path, path.name)


def near(value: float) -> Any:  # noqa: ANN401 - pytest's own comparison object
    return pytest.approx(value, rel=0.05)


@pytest.mark.parametrize("cache", [CacheSpec(hash_unit=16, blocks=4096), HYBRID_CACHE])
async def test_it_recovers_the_engines_profile(cache: CacheSpec, tmp_path: Path) -> None:
    """Times and pulled bytes are within 5 % of what the engines were told to be like."""
    path = tmp_path / "p.yaml"
    async with two_clusters(profile=PROFILE, cache=cache, gbps=100.0) as two:
        code = await profile(two.url("pf"), "--decode-url", two.url("d"), *QUICK, "-o", str(path))
    assert code == 0
    found = written(path)
    assert [point.tokens for point in found.points] == [500, 1000, 2000]
    for point in found.points:
        assert point.prefill_seconds == near(PROFILE.prefill_seconds(point.tokens))
        assert point.kv_bytes == near(PROFILE.kv_bytes(point.tokens))
    assert (found.model, found.revision, found.hardware) == (MODEL, "r1", "8xH20")
    assert (found.engine, found.source) == ("vLLM 0.33.0", "measured")


async def test_the_clients_clock_recovers_it_too(tmp_path: Path) -> None:
    """Over prefills of a second and more, HTTP and a busy machine are within 5 %."""
    path = tmp_path / "p.yaml"
    slow = AffineProfile(base_seconds=1.0, tokens_per_second=2000.0)
    async with two_clusters(profile=slow, time_scale=1.0) as two:
        words = ("--clock", "client", "--repeats", "1", "--warmup", "0", "--lengths", "1000,4000")
        assert await profile(two.url("pf"), *words, *PER_TOKEN, "-o", str(path)) == 0
    for point in written(path).points:
        assert point.prefill_seconds == near(slow.prefill_seconds(point.tokens))


async def test_computed_bytes_make_a_modelled_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a configuration nothing is measured of S_kv, and the file says so."""
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8, "dtype": "float16"}
        )
    )
    async with two_clusters(profile=PROFILE) as two:
        words = ("--model-config", str(config), *QUICK)
        assert await profile(two.url("pf"), *words) == 0
    text = capsys.readouterr().out
    assert "# prefill_seconds: measured, median of 2" in text
    assert "# kv_bytes: modelled" in text
    path = tmp_path / "p.yaml"
    path.write_text(text)
    found = written(path)
    assert found.source == "modelled"
    assert [point.kv_bytes for point in found.points] == [256 * n for n in (500, 1000, 2000)]
    assert found.kv is not None
    assert found.kv.bytes_per_token == 256


async def test_json_tells_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` has the profile and what it rests on; lengths default to what the model takes."""
    async with two_clusters(profile=PROFILE) as two:
        assert await profile(two.url("pf"), "--repeats", "3", *PER_TOKEN, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [point["tokens"] for point in document["profile"]["points"]] == [1024, 2048, 4096]
    assert [len(each["samples_seconds"]) for each in document["measurements"]] == [3, 3, 3]
    assert document["profile"]["kv"] == {"fixed_bytes": 3_000_000.0, "bytes_per_token": 2000.0}


async def refused(two: TwoClusters, path: Path, *words: str, name: str = "pf") -> int:
    """Run a measurement that must not write anything."""
    code = await profile(two.url(name), *QUICK, *words, "-o", str(path))
    assert is_empty(path.parent)
    return code


def is_empty(directory: Path) -> bool:
    """Whether nothing was written, not even the half of a file."""
    return not list(directory.iterdir())


async def test_a_busy_engine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests of others on the engine: nothing is written."""
    async with two_clusters(profile=PROFILE, time_scale=1.0, decode_tokens_per_second=1.0) as two:
        other = asyncio.create_task(
            two.client.post(two.url("pf") + "/v1/completions", json=asking(prompt=[9] * 8))
        )
        await until(lambda: is_running(two, "pf"), seconds=20)
        assert await refused(two, tmp_path / "p.yaml", *PER_TOKEN) == 1
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    assert "the engine is busy: 1 requests run" in capsys.readouterr().err


async def is_running(two: TwoClusters, name: str) -> bool:
    """Whether an engine tells of a request."""
    text = (await two.client.get(two.url(name) + "/metrics")).text
    return f'num_requests_running{{engine="0",model_name="{MODEL}"}} 1' in text


async def test_lengths_over_the_models_limit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before anything is measured: exit code 2."""
    async with two_clusters(profile=PROFILE) as two:
        assert await refused(two, tmp_path / "p.yaml", *PER_TOKEN, "--lengths", "100,8192") == 2
    assert "8192 is over the limit" in capsys.readouterr().err


async def test_a_decode_engine_that_counts_no_bytes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine without a NIXL connector has no bytes to tell."""
    async with ScriptedEngine(json_answer({"usage": None})) as peer:
        script(peer, Scripted())
        async with two_clusters(profile=PROFILE) as two:
            assert await refused(two, tmp_path / "p.yaml", "--decode-url", peer.url) == 1
    assert "no vllm:nixl_bytes_transferred" in capsys.readouterr().err


class Scripted:
    """A vLLM that answers a prefill of any length as it is told, and counts as it is told.

    `seconds` are the prefill times that it claims, one after another.
    """

    def __init__(
        self,
        *,
        cached: int | None = 0,
        output: int = 1,
        seconds: Sequence[float] = (1.0,),
        computed: Callable[[int], int] | None = lambda tokens: tokens,
        others: int = 0,
        has_times: bool = True,
    ) -> None:
        self.cached, self.output, self.computed = cached, output, computed
        self.seconds = list(seconds)
        self.others, self.has_times = others, has_times
        self.sums = {"prompt_tokens_total": 0.0, "generation_tokens_total": 0.0}
        self.kv_computed, self.prefills, self.prefill_seconds = 0.0, 0, 0.0

    def complete(self, tokens: int) -> dict[str, Any]:
        """Count one request and return its answer."""
        self.sums["prompt_tokens_total"] += tokens + self.others
        self.sums["generation_tokens_total"] += self.output
        self.kv_computed += self.computed(tokens) if self.computed else 0
        self.prefill_seconds += self.seconds[self.prefills % len(self.seconds)]
        self.prefills += 1
        details = None if self.cached is None else {"cached_tokens": self.cached}
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": self.output,
            "prompt_tokens_details": details,
        }
        return {"choices": [], "usage": usage}

    def metrics(self) -> bytes:
        """Return the exposition."""
        values = {**self.sums, "num_requests_running": 0, "num_requests_waiting": 0}
        if self.computed is not None:
            values["request_prefill_kv_computed_tokens_sum"] = self.kv_computed
        if self.has_times:
            values["request_prefill_time_seconds_count"] = self.prefills
            values["request_prefill_time_seconds_sum"] = self.prefill_seconds
        return "".join(
            f'vllm:{name}{{engine="0"}} {value}\n' for name, value in values.items()
        ).encode()


def script(engine: ScriptedEngine, fake: Scripted) -> None:
    """Let a scripted engine speak for a fake vLLM."""
    engine.on("/version", json_answer({"version": "0.33.0"}))
    engine.on("/v1/models", json_answer({"data": [{"id": MODEL, "max_model_len": 8192}]}))
    engine.on(
        "/v1/completions",
        lambda request: json_answer(fake.complete(len(request.json()["prompt"]))),
    )
    engine.on("/metrics", lambda _request: answer(200, fake.metrics(), content_type="text/plain"))


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (Scripted(cached=16), "16 of 500 tokens came from a cache"),
        (Scripted(cached=None, computed=lambda tokens: tokens - 64), "computed 436 of 500 tokens"),
        (Scripted(cached=None, computed=None), "--enable-prompt-tokens-details"),
        (Scripted(output=0), "not the end of a prefill"),
        (Scripted(others=100), "served others while it was measured"),
        (Scripted(seconds=(1.0, 1.5)), "a spread of 40% where 10% is allowed"),
        (Scripted(seconds=(1.0, 1.0, 0.5, 0.5)), "1000 tokens took less time"),
        (Scripted(has_times=False), "--clock client"),
    ],
    ids=["cached", "not computed", "no proof", "no token", "others", "spread", "falling", "times"],
)
async def test_what_was_not_measured_is_not_written(
    fake: Scripted, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each doubt ends the command with one line and exit code 1, and no file."""
    async with ScriptedEngine(json_answer({}, status=404)) as engine:
        script(engine, fake)
        path = tmp_path / "p.yaml"
        assert await profile(engine.url, *QUICK, *PER_TOKEN, "-o", str(path)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert said in last
    assert last.endswith("nothing was written")
    assert is_empty(tmp_path)


async def test_an_address_without_an_engine_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Something else that speaks HTTP, or nobody at all: exit code 1."""
    async with ScriptedEngine(json_answer({"detail": "Not Found"}, status=404)) as engine:
        assert await profile(engine.url, *PER_TOKEN) == 1
        assert "/version answered 404" in capsys.readouterr().err
        address = engine.url
    assert await profile(address, *PER_TOKEN) == 1
    assert "cannot reach" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name one source of KV bytes"),
        ((*PER_TOKEN, "--decode-url", "http://h:1"), "name one source of KV bytes"),
        (("--decode-url", "h"), "--decode-url 'h' is no http"),
        (("--decode-url", "http://127.0.0.1:1/"), "must be another engine"),
        (("--kv-bytes-per-token", "1", "--kv-dtype", "fp8"), "belongs to --model-config"),
        (("--decode-url", "http://h:1", "--kv-fixed-bytes", "1"), "belongs to --kv-bytes"),
        (("--model-config", "/nonexistent/config.json"), "cannot be read"),
        ((*PER_TOKEN, "--lengths", "1,x"), "no numbers"),
        ((*PER_TOKEN, "--lengths", "5"), "two different lengths"),
        ((*PER_TOKEN, "--lengths", "0,5"), "must be positive"),
        ((*PER_TOKEN, "--lowest-id", "9", "--highest-id", "8"), "must not exceed"),
        ((*PER_TOKEN, "-o", "/nonexistent/p.yaml"), "there is no /nonexistent"),
        ((*PER_TOKEN, "-o", "/"), "it is a directory"),
        ((*PER_TOKEN, "--hardware", " "), "--hardware must not be empty"),
    ],
)
def test_unusable_arguments_are_told_before_anything_is_asked(
    words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 2, and no connection."""
    assert run(["profile", "http://127.0.0.1:1", *WHO, *words]) == 2
    assert said in capsys.readouterr().err
