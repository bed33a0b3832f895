"""What an engine says of its publishers -> the sources to follow.

vLLM answers `GET /kv_event_sources` with one entry a data-parallel rank, its endpoints resolved
(vllm/entrypoints/serve/instrumentator/basic.py):

    {"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
           "replay_endpoint": "tcp://*:5558", "topic": "", …}, …}

A publisher binds an endpoint with a wildcard, so we connect to its port at the instance's host. An
endpoint that names a host is one to which the publisher connects (`_is_bind_endpoint`): there we
bind the port. Replays are always served by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvmeta.errors import DiscoveryError
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.types import CacheLayout, SourceId

EVENT_SOURCES_PATH: Final = "/kv_event_sources"

_WILDCARDS: Final = frozenset({"*", "0.0.0.0", "::", "[::]"})  # noqa: S104  # read, never bound
_HIGHEST_PORT: Final = 65_535


def read_sources(
    document: object, *, instance: str, host: str, layout: CacheLayout
) -> list[SourceSpec]:
    """Return one source a rank that publishes, in the order of the ranks.

    `document` is the decoded answer; `host` is where the instance is reached. Ranks are counted
    from 0 within the instance: an engine that is one rank of a larger group has one. A rank whose
    events are off or cannot be reached from outside (`inproc://`) is left out.

    Raises:
        DiscoveryError: the answer is not of this form.
    """
    if not isinstance(document, Mapping):
        raise DiscoveryError("the event sources are no map of ranks")
    specs: list[SourceSpec] = []
    for position, rank in enumerate(sorted(document, key=_rank)):
        entry = document[rank]
        if not isinstance(entry, Mapping):
            raise DiscoveryError("an event source is no map")
        found = _read_entry(entry, SourceId(instance, position), _bracketed(host), layout)
        if found is not None:
            specs.append(found)
    return specs


def _rank(key: object) -> int:
    if isinstance(key, str) and key.isdecimal():
        return int(key)
    raise DiscoveryError("a data-parallel rank is no number")


def _read_entry(
    entry: Mapping[object, object], source: SourceId, host: str, layout: CacheLayout
) -> SourceSpec | None:
    endpoint, topic = _text(entry, "endpoint"), _text(entry, "topic")
    replay = _text(entry, "replay_endpoint")
    publishes = entry.get("enable_kv_cache_events") is True
    if not publishes or endpoint is None or entry.get("publisher") not in ("zmq", None):
        return None
    if endpoint.startswith("inproc://"):
        return None
    connects = endpoint.startswith("tcp://") and _split(endpoint)[0] not in _WILDCARDS
    return SourceSpec(
        source=source,
        layout=layout,
        events_endpoint=f"tcp://*:{_split(endpoint)[1]}" if connects else _at(endpoint, host),
        replay_endpoint=None if replay is None else _at(replay, host),
        bind=connects,
        topic=topic or "",
    )


def _at(endpoint: str, host: str) -> str:
    """The endpoint as we reach it: a wildcard stands for the instance's host."""
    if not endpoint.startswith("tcp://"):
        return endpoint
    named, port = _split(endpoint)
    return f"tcp://{host if named in _WILDCARDS else named}:{port}"


def _split(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _HIGHEST_PORT:
        raise DiscoveryError("an endpoint is no tcp://host:port")
    return host, int(port)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _text(entry: Mapping[object, object], field: str) -> str | None:
    value = entry.get(field)
    if value is None or isinstance(value, str):
        return value
    raise DiscoveryError(f"{field} is no text")
