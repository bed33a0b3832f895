"""What a fleet's entries say together: one engine once, no address twice, no part that idles.

A publisher's events belong to one instance: two that followed the same endpoint would both be
believed to hold what only one of them has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from urllib.parse import urlsplit

from router.domain.topology import (
    AUTO_EVENTS,
    ClusterKind,
    Role,
    may_share_a_model,
    origin_of,
)
from router.settings.errors import KeyPath, format_path
from router.settings.fleet import ClusterSettings, InstanceSettings
from router.settings.front import ServerSettings
from router.settings.root import Settings
from router.settings.validation import Complaint

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound


@dataclass(frozen=True, slots=True)
class _Entry:
    """An instance, where it stands, and its cluster."""

    path: KeyPath
    instance: InstanceSettings
    cluster: ClusterSettings


@dataclass(frozen=True, slots=True)
class _Ports:
    """The ports of an endpoint's ranks, first and last; ipc paths have the port 0."""

    host: str
    first: int
    last: int
    place: tuple[str | int, ...]


def _entries(settings: Settings) -> list[_Entry]:
    return [
        _Entry(("clusters", i, "instances", j), instance, cluster)
        for i, cluster in enumerate(settings.clusters)
        for j, instance in enumerate(cluster.instances)
    ]


def check_addresses(settings: Settings) -> Iterator[Complaint]:
    """No two instances share an engine or a publisher, and none is the gateway itself."""
    yield from _check_urls(settings)
    yield from _check_endpoints(settings)


def _check_urls(settings: Settings) -> Iterator[Complaint]:
    seen: dict[tuple[str, str, int, str], list[_Entry]] = {}
    for entry in _entries(settings):
        where = (*entry.path, "url")
        origin = origin_of(entry.instance.url)
        for other in seen.setdefault(origin, []):
            if may_share_a_model(entry.instance.model, other.instance.model):
                earlier = format_path((*other.path, "url"))
                yield where, f"is the engine of {earlier} too: give it one entry"
                break
        seen[origin].append(entry)
        if port := _own_port(settings, origin[1], origin[2]):
            yield where, f"is the gateway's own listener ({port})"


def _own_port(settings: Settings, host: str, port: int) -> str | None:
    """Return the setting of the gateway's port that an address leads to, None for another's."""
    server: ServerSettings = settings.server
    ours = {server.host} | (_LOOPBACK if server.host in _EVERYWHERE | _LOOPBACK else set())
    if host not in ours:
        return None
    if port == server.port:
        return "server.port"
    return "admin.port" if port == settings.admin.port else None


def _check_endpoints(settings: Settings) -> Iterator[Complaint]:
    """Each rank publishes, and replays, on a port of its own."""
    taken = [
        _ports_of(endpoint, entry.instance.data_parallel_ranks, (*entry.path, field))
        for entry in _entries(settings)
        for field, endpoint in (
            ("kv_events", entry.instance.kv_events),
            ("kv_replay", entry.instance.kv_replay),
        )
        if endpoint is not None and endpoint != AUTO_EVENTS
    ]
    widest: _Ports | None = None
    for one, other in pairwise(sorted(taken, key=lambda each: (each.host, each.first))):
        if widest is None or widest.host != one.host or one.last >= widest.last:
            widest = one
        if other.host == widest.host and other.first <= widest.last:
            later, earlier = max(other.place, widest.place), min(other.place, widest.place)
            yield later, f"is the endpoint of {format_path(earlier)} too"


def _ports_of(endpoint: str, ranks: int, place: KeyPath) -> _Ports:
    parts = urlsplit(endpoint)
    if parts.port is None:
        return _Ports(endpoint, 0, 0, tuple(place))
    return _Ports(parts.hostname or "", parts.port, parts.port + ranks - 1, tuple(place))


def note_idle_parts(settings: Settings) -> Iterator[str]:
    """Yield what of a fleet will never be used as it is configured."""
    entries = _entries(settings)
    for cluster in settings.clusters:
        decodes = any(instance.role is not Role.PREFILL for instance in cluster.instances)
        if cluster.kind is ClusterKind.PD and cluster.instances and not decodes:
            yield f"no instance of {cluster.name} decodes: until one joins nothing is served there"
    for model in settings.models:
        serving = [each for each in entries if each.instance.model in (None, model.name)]
        if entries and not serving:
            yield f"no instance serves {model.name}"
    for entry in entries:
        if entry.cluster.kind is ClusterKind.PRFAAS and not _has_partner(settings, entry, entries):
            yield (
                f"{entry.instance.name} fits no decode instance at the end of a link"
                " (revision or compatibility): it will never be used"
            )


def _has_partner(settings: Settings, prefill: _Entry, entries: list[_Entry]) -> bool:
    """Whether somebody may decode what an instance prefills; no link is another note's."""
    targets = {link.target for link in settings.links if link.source == prefill.cluster.name}
    decoding = [
        each
        for each in entries
        if each.cluster.name in targets and each.instance.role is not Role.PREFILL
    ]
    return not decoding or any(
        _compatibilities(settings, each.instance) & _compatibilities(settings, prefill.instance)
        for each in decoding
    )


def _compatibilities(settings: Settings, instance: InstanceSettings) -> set[tuple[str, str | None]]:
    """Return every model that an instance serves, with what its KV must match."""
    own = instance.compatibility or instance.revision
    return {
        (model.name, own or model.revision)
        for model in settings.models
        if instance.model in (None, model.name)
    }
