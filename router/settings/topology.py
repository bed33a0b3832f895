"""Settings -> the values that the core works with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvmeta.types import CacheLayout, KvGroup
from router.domain.errors import BadRequest
from router.domain.topology import Cluster, ClusterKind, Instance, Link, Role
from router.domain.units import from_gbps
from router.settings.documents import Value
from router.settings.errors import format_path
from router.settings.fields import Name, Section
from router.settings.fleet import ClusterSettings, InstanceSettings, LinkSettings
from router.settings.root import Settings
from router.settings.serving import (
    CacheGroupSettings,
    EngineTokenizerSettings,
    EstimateTokenizerSettings,
    HfTokenizerSettings,
    ModelSettings,
    TokenizerSettings,
)
from router.settings.validation import suggest, validate_value


@dataclass(frozen=True, slots=True)
class Topology:
    """The fleet as configured."""

    clusters: tuple[Cluster, ...]
    instances: tuple[Instance, ...]
    links: tuple[Link, ...]


def build_topology(settings: Settings) -> Topology:
    """Return the fleet of a configuration, in its order."""
    return Topology(
        clusters=tuple(Cluster(item.name, item.kind) for item in settings.clusters),
        instances=tuple(
            build_instance(entry, cluster.name, settings)
            for cluster in settings.clusters
            for entry in cluster.instances
        ),
        links=tuple(build_link(link) for link in settings.links),
    )


def build_instance(entry: InstanceSettings, cluster: str, settings: Settings) -> Instance:
    """Return the instance that an entry describes."""
    return Instance(
        name=entry.name,
        cluster=cluster,
        url=entry.url,
        role=entry.role,
        model=entry.model,
        served_name=entry.served_name,
        api_key=entry.api_key.get_secret_value() if entry.api_key is not None else None,
        accepts_handoff=entry.accepts_handoff,
        ranks=entry.data_parallel_ranks,
        compatibility=entry.compatibility or revision_of(entry, settings) or "",
        revision=entry.revision,
        kv_events=entry.kv_events,
        kv_replay=entry.kv_replay,
        pool_member=entry.pool_member,
        convertible=entry.convertible,
        hardware=entry.hardware,
    )


def build_link(link: LinkSettings) -> Link:
    """Return the link that an entry describes, in bytes per second."""
    return Link(
        name=link.name,
        source=link.source,
        target=link.target,
        capacity=from_gbps(link.capacity_gbps),
        telemetry_required=link.telemetry.required,
        telemetry_max_age=link.telemetry.max_age_seconds,
    )


def revision_of(entry: InstanceSettings, settings: Settings) -> str | None:
    """Return the revision that an instance runs: its own, else that of what it serves."""
    if entry.revision is not None:
        return entry.revision
    served = [model for model in settings.models if entry.model in {None, model.name}]
    revisions = {model.revision for model in served}
    return revisions.pop() if len(revisions) == 1 else None


class _NewInstance(Section):
    """Which cluster an entry of the admin API joins."""

    cluster: Name


def parse_instance(document: Mapping[str, Value], settings: Settings) -> Instance:
    """Read an instance that an operator adds: a configuration entry plus `cluster`.

    Raises BadRequest whose message lists every fault. Names that are taken are the caller's
    concern, since the fleet may have changed since the settings were read.
    """
    entry = {key: value for key, value in document.items() if key != "cluster"}
    target = {key: value for key, value in document.items() if key == "cluster"}
    joined = validate_value(_NewInstance, target, None)
    instance = validate_value(InstanceSettings, entry, None)
    if isinstance(joined, list) or isinstance(instance, list):
        outcomes = (joined, instance)
        complaints = [item for part in outcomes if isinstance(part, list) for item in part]
        said = [f"{format_path(path)}: {text}" if path else text for path, text in complaints]
        raise BadRequest("; ".join(sorted(said)), code="invalid_instance")
    cluster = _find_cluster(settings, joined.cluster)
    if cluster.kind is ClusterKind.PRFAAS and instance.role is not Role.PREFILL:
        raise BadRequest("role: must be prefill in a prfaas cluster", param="role")
    names = [model.name for model in settings.models]
    if instance.model is not None and instance.model not in names:
        hint = suggest(instance.model, names)
        raise BadRequest(f"model: no model is named {instance.model!r}{hint}", param="model")
    return build_instance(instance, cluster.name, settings)


def describe_instance() -> dict[str, Any]:
    """Return the JSON schemas of what `parse_instance` reads, as `InstanceEntry`, by name."""
    schema = InstanceSettings.model_json_schema(
        by_alias=True, ref_template="#/components/schemas/{model}"
    )
    parts: dict[str, Any] = schema.pop("$defs", {})
    target = _NewInstance.model_json_schema()
    schema["properties"] |= target["properties"]
    schema["required"] += target["required"]
    return parts | {"InstanceEntry": schema | {"title": "InstanceEntry"}}


def _find_cluster(settings: Settings, name: str) -> ClusterSettings:
    for cluster in settings.clusters:
        if cluster.name == name:
            return cluster
    hint = suggest(name, [cluster.name for cluster in settings.clusters])
    raise BadRequest(f"cluster: no cluster is named {name!r}{hint}", param="cluster")


def build_layout(
    model: ModelSettings, settings: Settings, *, revision: str | None = None
) -> CacheLayout:
    """Return how a model's blocks are named and reused (DESIGN 6).

    `revision` is an instance's own where it differs from the model's: its blocks are others.
    """
    return CacheLayout(
        fingerprint=fingerprint(model, revision=revision or model.revision),
        block_size=model.cache.block_size,
        groups=tuple(
            KvGroup(group.kind, group.window, group.count, group.block_size)
            for group in model.cache.groups
        ),
        alignment=model.cache.alignment,
        eagle=model.eagle,
        counted_media=frozenset(model.media or settings.kvmeta.counted_media),
    )


def fingerprint(model: ModelSettings, *, revision: str | None) -> str:
    """Return the text that stands for all that two equal blocks must share.

    Canonical JSON, so that no two different layouts can spell the same text.
    """
    parts = {
        "model": model.name,
        "revision": revision,
        "tokenizer": _tokenizer_identity(model.tokenizer),
        "groups": [_group_identity(group) for group in model.cache.groups],
        "kv_dtype": model.kv_dtype,
        "world_size": model.world_size,
    }
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def _tokenizer_identity(tokenizer: TokenizerSettings) -> str | None:
    """The tokenizer's revision. Who runs it does not matter: equal ids are equal tokens."""
    match tokenizer:
        case HfTokenizerSettings():
            return tokenizer.revision
        case EngineTokenizerSettings() | EstimateTokenizerSettings():
            return None


def _group_identity(group: CacheGroupSettings) -> list[str | int | None]:
    return [group.kind.value, group.window, group.count, group.block_size]
