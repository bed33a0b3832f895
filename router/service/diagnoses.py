"""What would not work, and why: verdicts on what was found of engines, links and the store. Pure.

`prfaas doctor` asks; here is judged. A *fault* is what would fail, a *doubt* what works less well
than it could or cannot be told from outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from router.domain.topology import AUTO_EVENTS, ClusterKind, Instance, Link, Role
from router.domain.units import Seconds, to_gbps
from router.service.models import ServedModel, TokenizerKind


class Verdict(StrEnum):
    """How bad it is."""

    FINE = "fine"
    DOUBT = "doubt"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one thing, and what came of it, in one line."""

    subject: str
    check: str
    verdict: Verdict
    told: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine answered. None is: it did not, or not in a form that is known.

    `failure` says why it could not be asked at all. `cache` are the labels of vLLM's
    `cache_config_info`. `sources` are the endpoints of `/kv_event_sources`. `replays` tells by
    endpoint whether a replay was answered. `tokenizes` is None where nobody has to know.
    """

    failure: str | None = None
    health: int | None = None
    models: tuple[str, ...] | None = None
    version: str | None = None
    tells_queue: bool = False
    cache: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] | None = None
    replays: Mapping[str, bool] = field(default_factory=dict)
    tokenizes: bool | None = None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What the store answered. `policies` are the eviction policies of its servers."""

    failure: str | None = None
    version: str | None = None
    policies: tuple[str, ...] = ()
    writable: bool = False
    round_trip: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Examined:
    """An instance, the models that it is to serve, and what it answered."""

    instance: Instance
    models: tuple[ServedModel, ...]
    facts: EngineFacts


# -- engines


def judge_engine(examined: Examined) -> Iterator[Finding]:
    """Yield what is to be said of one engine."""
    name, facts = examined.instance.name, examined.facts
    if facts.failure is not None:
        yield Finding(name, "reachable", Verdict.FAULT, facts.failure)
        return
    healthy = facts.health == 200
    told = "healthy" if healthy else f"/health answered {facts.health}: no request is sent there"
    yield Finding(name, "health", Verdict.FINE if healthy else Verdict.FAULT, told)
    yield from _judge_models(examined)
    yield from _judge_metrics(examined)
    yield from _judge_events(examined)
    if facts.tokenizes is False:
        told = "it has no /tokenize: prompts that are text cannot be counted by it"
        yield Finding(name, "tokenizer", Verdict.FAULT, told)
    if facts.version is None:
        told = "it does not tell its version: hand-offs need equal ones"
        yield Finding(name, "version", Verdict.DOUBT, told)
    else:
        yield Finding(name, "version", Verdict.FINE, facts.version)


def _judge_models(examined: Examined) -> Iterator[Finding]:
    name, served = examined.instance.name, examined.facts.models
    if served is None:
        yield Finding(name, "models", Verdict.DOUBT, "/v1/models does not tell what it serves")
        return
    missing = [
        wanted
        for model in examined.models
        for wanted in (_engine_name(examined.instance, model), *model.loras.values())
        if wanted not in served
    ]
    if missing:
        told = f"it serves {', '.join(served) or 'nothing'}, not {', '.join(missing)}"
        yield Finding(name, "models", Verdict.FAULT, told)
    else:
        yield Finding(name, "models", Verdict.FINE, f"serves {', '.join(served)}")


def _engine_name(instance: Instance, model: ServedModel) -> str:
    return instance.served_name or model.served_name


def _judge_metrics(examined: Examined) -> Iterator[Finding]:
    name, facts = examined.instance.name, examined.facts
    if facts.tells_queue:
        yield Finding(name, "metrics", Verdict.FINE, "tells what runs and waits")
    else:
        told = "/metrics tells no queue: what others send there is not seen"
        yield Finding(name, "metrics", Verdict.DOUBT, told)
    if facts.cache.get("enable_prefix_caching") == "False":
        told = "prefix caching is off: it announces no blocks, and nothing is ever cached there"
        yield Finding(name, "prefix_caching", Verdict.FAULT, told)
    block = facts.cache.get("block_size", "")
    for model in examined.models:
        configured = model.layout.block_size
        if block.isdigit() and int(block) != configured:
            told = (
                f"it has blocks of {block} tokens, models[{model.name}].cache.block_size is"
                f" {configured}: what is cached would be missed"
            )
            yield Finding(name, "block_size", Verdict.FAULT, told)


def _judge_events(examined: Examined) -> Iterator[Finding]:
    instance, facts = examined.instance, examined.facts
    name = instance.name
    if instance.kv_events is None:
        told = "no kv_events: what is cached there is guessed from what was sent"
        yield Finding(name, "kv_events", Verdict.DOUBT, told)
        return
    if instance.kv_events == AUTO_EVENTS and not facts.sources:
        told = "/kv_event_sources tells no publisher: name kv_events, or have it publish"
        yield Finding(name, "kv_events", Verdict.FAULT, told)
        return
    if not facts.replays:
        told = "no kv_replay: a lost message leaves its index entry partial"
        yield Finding(name, "kv_events", Verdict.DOUBT, told)
    for endpoint, answered in facts.replays.items():
        if answered:
            yield Finding(name, "kv_events", Verdict.FINE, f"{endpoint} replays")
        else:
            told = f"{endpoint} does not replay: its index entry ages out to unknown"
            yield Finding(name, "kv_events", Verdict.FAULT, told)


def judge_pairs(engines: Sequence[Examined]) -> Iterator[Finding]:
    """Yield what engines that hand KV to each other must have in common, and have not.

    vLLM's NIXL hand-off compares versions, among others, and refuses what differs.
    """
    versions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in engines:
        if each.facts.version is not None:
            instance = each.instance
            versions[instance.compatibility][each.facts.version].append(instance.name)
    for compatibility, found in versions.items():
        if len(found) < 2:
            continue
        told = "; ".join(f"{version}: {', '.join(names)}" for version, names in found.items())
        subject = compatibility or "every instance"
        told = f"versions differ where compatibility is equal: {told}"
        yield Finding(subject, "versions", Verdict.FAULT, told)
    decoders = {each.instance.compatibility for each in engines if _decodes(each.instance)}
    for each in engines:
        instance = each.instance
        if instance.role is Role.PREFILL and instance.compatibility not in decoders:
            told = f"no instance decodes what it prefills: compatibility {instance.compatibility!r}"
            yield Finding(instance.name, "partners", Verdict.FAULT, told)


def _decodes(instance: Instance) -> bool:
    return instance.role is Role.DECODE or (instance.role is Role.BOTH and instance.accepts_handoff)


def judge_hashes(engines: Sequence[Examined], *, shares_blocks: bool) -> Iterator[Finding]:
    """Yield what is to be said of block hashes where engines look each other's blocks up.

    The index maps each engine's labels by itself and needs nothing of them. A tier that engines
    share needs equal algorithms and equal seeds; the seed cannot be asked for.
    """
    if not shares_blocks:
        return
    algorithms = {
        algorithm
        for each in engines
        if (algorithm := each.facts.cache.get("prefix_caching_hash_algo")) is not None
    }
    if len(algorithms) > 1:
        told = f"engines name blocks by {', '.join(sorted(algorithms))}: none finds another's"
        yield Finding("every instance", "block_hashes", Verdict.FAULT, told)
        return
    told = (
        "engines find each other's blocks only with one PYTHONHASHSEED for all, unless they name"
        " them by sha256 or sha256_cbor with vLLM's own seed; that cannot be asked"
    )
    seeded = algorithms <= {"sha256", "sha256_cbor"} and bool(algorithms)
    yield Finding("every instance", "block_hashes", Verdict.FINE if seeded else Verdict.DOUBT, told)


# -- links


def judge_link(
    link: Link, models: Iterable[ServedModel], prefills: Mapping[str, int], *, has_agent_key: bool
) -> Iterator[Finding]:
    """Yield what is to be said of one link that leaves a PrfaaS cluster.

    `prefills` are the prefill instances of each cluster. Equation 2 at the longest profiled prompt
    tells what they would send if they were never idle.
    """
    count = prefills.get(link.source, 0)
    if not count:
        told = f"{link.source} has no prefill instance: nothing would cross"
        yield Finding(link.name, "instances", Verdict.FAULT, told)
    for model in models:
        if {ClusterKind.PD, ClusterKind.PRFAAS} - model.profiles.keys():
            told = (
                f"{model.name} is not profiled for both kinds of cluster: bytes are not booked,"
                " and auto has no threshold"
            )
            yield Finding(link.name, "profile", Verdict.DOUBT, told)
            continue
        profile = model.profiles[ClusterKind.PRFAAS]
        rate = model.kv_rate(profile.longest)
        if rate is None or not count:
            continue
        wanted, capacity = to_gbps(rate) * count, to_gbps(link.capacity)
        told = (
            f"{model.name}: {count} busy instances send {wanted:.3g} Gbit/s of KV"
            f" ({profile.source}), the link has {capacity:.3g}"
        )
        fits = wanted <= capacity
        yield Finding(link.name, "bandwidth", Verdict.FINE if fits else Verdict.DOUBT, told)
    if link.telemetry_required and not has_agent_key:
        told = "telemetry is required, and no key of role telemetry or operator may report it"
        yield Finding(link.name, "telemetry", Verdict.FAULT, told)


# -- the store


def judge_store(facts: StoreFacts, *, lookup_timeout: Seconds) -> Iterator[Finding]:
    """Yield what is to be said of the store that processes share. Redis 7.0 is the floor."""
    if facts.failure is not None:
        yield Finding("store", "reachable", Verdict.FAULT, facts.failure)
        return
    if facts.version is None:
        yield Finding("store", "version", Verdict.DOUBT, "it does not tell its version")
    else:
        major = facts.version.partition(".")[0]
        old = major.isdigit() and int(major) < 7
        told = f"{facts.version} is older than 7.0" if old else facts.version
        yield Finding("store", "version", Verdict.FAULT if old else Verdict.FINE, told)
    if facts.writable:
        yield Finding("store", "writable", Verdict.FINE, "reads what it wrote")
    else:
        told = "it does not take or keep a key: read-only, full, or without the right"
        yield Finding("store", "writable", Verdict.FAULT, told)
    evicting = sorted(set(facts.policies) - {"noeviction"})
    if evicting:
        told = f"maxmemory-policy {evicting[0]} may evict orders and leases: set noeviction"
        yield Finding("store", "eviction", Verdict.FAULT, told)
    elif facts.policies:
        yield Finding("store", "eviction", Verdict.FINE, "noeviction")
    slow = facts.round_trip > lookup_timeout / 2
    told = (
        f"a round trip takes {facts.round_trip * 1000:.1f} ms of the {lookup_timeout * 1000:g} ms"
        " that a look-up has (kvmeta.lookup_timeout_ms)"
    )
    yield Finding("store", "round_trip", Verdict.DOUBT if slow else Verdict.FINE, told)


def wants_tokenizer(models: Iterable[ServedModel]) -> bool:
    """Whether an engine is asked to count prompts of some of these models."""
    return any(model.tokenizer is TokenizerKind.ENGINE for model in models)
