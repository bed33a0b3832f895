"""Verdicts on what was found of engines, links and the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from kvmeta.types import CacheLayout, GroupKind, KvGroup
from router.adapters.examinations import read_cache_config
from router.domain.topology import ClusterKind, Instance, Link, Role
from router.domain.units import from_gbps
from router.service.diagnoses import (
    EngineFacts,
    Examined,
    Finding,
    StoreFacts,
    Verdict,
    judge_engine,
    judge_hashes,
    judge_link,
    judge_pairs,
    judge_store,
)
from router.service.models import ServedModel
from tests.fakes.model_cases import case_study

MODEL = ServedModel(
    "m",
    CacheLayout("f", 16, (KvGroup(GroupKind.FULL_ATTENTION),)),
    served_name="served",
    loras={"lora": "adapter"},
)
SOUND = EngineFacts(
    health=200,
    models=("served", "adapter"),
    version="0.33.0",
    tells_queue=True,
    cache={"block_size": "16", "enable_prefix_caching": "True"},
    sources=("tcp://h:1",),
    replays={"tcp://h:2": True},
    tokenizes=True,
)
P0 = Instance("p0", "east", "http://h", Role.PREFILL, kv_events="tcp://h:1", kv_replay="tcp://h:2")
D0 = Instance("d0", "east", "http://h2", Role.DECODE, kv_events="tcp://h2:1")


def examined(facts: EngineFacts = SOUND, instance: Instance = P0) -> Examined:
    return Examined(instance, (MODEL,), facts)


def bad(findings: Iterable[Finding]) -> list[tuple[str, Verdict]]:
    """The checks that are not fine."""
    return [(each.check, each.verdict) for each in findings if each.verdict is not Verdict.FINE]


def test_a_sound_engine_has_nothing_to_be_said_of() -> None:
    """Every check is made, and each is fine."""
    findings = list(judge_engine(examined()))
    assert bad(findings) == []
    assert {each.check for each in findings} == {
        "health", "models", "metrics", "kv_events", "version",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "word"),
    [
        ({"failure": "refused"}, "reachable", Verdict.FAULT, "refused"),
        ({"health": 503}, "health", Verdict.FAULT, "503"),
        ({"models": ("other", "adapter")}, "models", Verdict.FAULT, "not served"),
        ({"models": ("served",)}, "models", Verdict.FAULT, "not adapter"),
        ({"models": None}, "models", Verdict.DOUBT, "/v1/models"),
        ({"tells_queue": False}, "metrics", Verdict.DOUBT, "queue"),
        ({"cache": {"block_size": "64"}}, "block_size", Verdict.FAULT, "64 tokens"),
        ({"cache": {"enable_prefix_caching": "False"}}, "prefix_caching", Verdict.FAULT, "off"),
        ({"replays": {"tcp://h:2": False}}, "kv_events", Verdict.FAULT, "tcp://h:2"),
        ({"replays": {}}, "kv_events", Verdict.DOUBT, "kv_replay"),
        ({"tokenizes": False}, "tokenizer", Verdict.FAULT, "/tokenize"),
        ({"version": None}, "version", Verdict.DOUBT, "version"),
    ],
)
def test_each_fault_of_an_engine_is_told(
    changes: dict[str, object], check: str, verdict: Verdict, word: str
) -> None:
    """What fails is a fault, what is worse than it could be a doubt; each says what it found."""
    findings = list(judge_engine(examined(replace(SOUND, **changes))))  # type: ignore[arg-type]
    assert bad(findings) == [(check, verdict)]
    told = next(each.told for each in findings if each.check == check)
    assert word in told


def test_events_that_are_not_there() -> None:
    """Without events there are guesses; an engine that is to be asked must tell."""
    silent = replace(P0, kv_events=None, kv_replay=None)
    nothing = replace(SOUND, sources=(), replays={})
    assert bad(judge_engine(examined(nothing, silent))) == [("kv_events", Verdict.DOUBT)]
    asked = replace(P0, kv_events="auto", kv_replay=None)
    for sources in (None, ()):
        facts = replace(nothing, sources=sources)
        assert bad(judge_engine(examined(facts, asked))) == [("kv_events", Verdict.FAULT)]


def test_versions_differ_only_where_kv_is_handed_on() -> None:
    """Of equal compatibility two versions are a fault; told apart they are none."""
    older = replace(SOUND, version="0.32.0")
    findings = list(judge_pairs([examined(), examined(older, D0)]))
    assert bad(findings) == [("versions", Verdict.FAULT)]
    assert "0.32.0: d0" in findings[0].told
    pair = [replace(each, compatibility="old") for each in (P0, D0)]
    apart = [examined(), examined(instance=D0), *(examined(older, each) for each in pair)]
    assert list(judge_pairs(apart)) == []


def test_a_prefill_that_nobody_decodes_is_told() -> None:
    """Compatibility without a decoder, or a `both` that takes no hand-off, is a fault."""
    both = replace(D0, role=Role.BOTH)
    assert bad(judge_pairs([examined(), examined(instance=both)])) == [("partners", Verdict.FAULT)]
    taking = replace(both, accepts_handoff=True)
    assert list(judge_pairs([examined(), examined(instance=taking)])) == []


@pytest.mark.parametrize(
    ("algorithms", "verdict"),
    [
        (("sha256", "sha256"), Verdict.FINE),
        (("xxhash", "xxhash"), Verdict.DOUBT),
        (("sha256", "xxhash"), Verdict.FAULT),
        ((None, None), Verdict.DOUBT),
    ],
)
def test_hashes_matter_where_blocks_are_shared(
    algorithms: tuple[str | None, ...], verdict: Verdict
) -> None:
    """The index needs nothing of them; a tier that engines share does, and the seed is a trap."""
    engines = [
        examined(replace(SOUND, cache={"prefix_caching_hash_algo": each} if each else {}))
        for each in algorithms
    ]
    assert list(judge_hashes(engines, shares_blocks=False)) == []
    (finding,) = judge_hashes(engines, shares_blocks=True)
    assert finding.verdict is verdict


def test_links_are_held_against_profiles() -> None:
    """What busy instances send is compared with the link; without profiles that cannot be said."""
    case = case_study()
    far, near = case.remotes[0].profile, case.pds[0].profile
    profiled = replace(MODEL, profiles={ClusterKind.PRFAAS: far, ClusterKind.PD: near})
    link = Link("we", "west", "east", from_gbps(100))

    def judge(link: Link, model: ServedModel, count: int, *, key: bool = True) -> list[Finding]:
        return list(judge_link(link, [model], {"west": count}, has_agent_key=key))

    assert bad(judge(link, profiled, 4)) == []
    thin = replace(link, capacity=from_gbps(0.5))
    assert bad(judge(thin, profiled, 4)) == [("bandwidth", Verdict.DOUBT)]
    assert bad(judge(link, MODEL, 4)) == [("profile", Verdict.DOUBT)]
    assert bad(judge(link, profiled, 0)) == [("instances", Verdict.FAULT)]
    deaf = replace(link, telemetry_required=True)
    assert bad(judge(deaf, profiled, 4, key=False)) == [("telemetry", Verdict.FAULT)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"failure": "refused"}, [("reachable", Verdict.FAULT)]),
        ({"version": "6.2.1"}, [("version", Verdict.FAULT)]),
        ({"version": None}, [("version", Verdict.DOUBT)]),
        ({"version": "10.0.0"}, []),
        ({"policies": ("allkeys-lru",)}, [("eviction", Verdict.FAULT)]),
        ({"policies": ("noeviction", "volatile-ttl")}, [("eviction", Verdict.FAULT)]),
        ({"writable": False}, [("writable", Verdict.FAULT)]),
        ({"round_trip": 0.015}, [("round_trip", Verdict.DOUBT)]),
    ],
)
def test_each_fault_of_the_store_is_told(
    changes: dict[str, object], expected: list[tuple[str, Verdict]]
) -> None:
    """A Redis that is old, evicts, takes nothing or is slow."""
    sound = StoreFacts(None, "7.2.4", ("noeviction",), writable=True, round_trip=0.001)
    facts = replace(sound, **changes)  # type: ignore[arg-type]
    assert bad(judge_store(facts, lookup_timeout=0.02)) == expected


def test_the_cache_configuration_is_read_from_metrics() -> None:
    """VLLM tells it as the labels of one sample."""
    text = (
        'vllm:num_requests_running{engine="0"} 0.0\n'
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0"} 1.0\n'
    )
    assert read_cache_config(text)["block_size"] == "16"
    assert read_cache_config("") == {}
