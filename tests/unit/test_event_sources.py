"""What engines say of their publishers, read into sources."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmeta.errors import DiscoveryError
from kvmeta.ingest.discovery import read_sources
from kvmeta.ingest.subscriber import SourceSpec
from kvmeta.types import CacheLayout, SourceId

LAYOUT = CacheLayout("m@1", 16)


def entry(**changes: object) -> dict[str, Any]:
    """One rank as vLLM describes it."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5558",
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "kv@pod@m",
    } | changes


def read(document: object, host: str = "10.1.2.3") -> list[SourceSpec]:
    return read_sources(document, instance="p0", host=host, layout=LAYOUT)


def test_a_rank_that_binds_is_met_at_the_instances_host() -> None:
    """The wildcard stands for where the instance is reached; topic and replay are taken over."""
    assert read({"0": entry()}) == [
        SourceSpec(
            SourceId("p0", 0),
            LAYOUT,
            "tcp://10.1.2.3:5557",
            "tcp://10.1.2.3:5558",
            bind=False,
            topic="kv@pod@m",
        )
    ]


@pytest.mark.parametrize("wildcard", ["*", "0.0.0.0", "[::]"])
def test_every_wildcard_is_rewritten(wildcard: str) -> None:
    """However the engine writes "everywhere", nobody connects to a wildcard."""
    told = entry(endpoint=f"tcp://{wildcard}:1", replay_endpoint=f"tcp://{wildcard}:2")
    (spec,) = read({"0": told}, host="fd00::7")
    assert spec.events_endpoint == "tcp://[fd00::7]:1"
    assert spec.replay_endpoint == "tcp://[fd00::7]:2"
    assert not spec.bind


def test_a_publisher_that_connects_is_received_by_binding_its_port() -> None:
    """An endpoint that names a host is one that the engine connects to; replays it still serves."""
    (spec,) = read({"0": entry(endpoint="tcp://router.svc:5600")})
    assert (spec.events_endpoint, spec.bind) == ("tcp://*:5600", True)
    assert spec.replay_endpoint == "tcp://10.1.2.3:5558"


def test_ranks_come_in_order_and_count_from_zero() -> None:
    """Each rank is a source of its own; a lone rank of a larger group is its instance's first."""
    told = {str(rank): entry(endpoint=f"tcp://*:{5557 + rank}") for rank in (10, 2, 0)}
    assert [(spec.source.rank, spec.events_endpoint) for spec in read(told)] == [
        (0, "tcp://10.1.2.3:5557"),
        (1, "tcp://10.1.2.3:5559"),
        (2, "tcp://10.1.2.3:5567"),
    ]


@pytest.mark.parametrize(
    "silent",
    [
        entry(enable_kv_cache_events=False),
        entry(publisher="null"),
        entry(endpoint=None),
        entry(endpoint="inproc://events"),
    ],
)
def test_a_rank_without_events_is_no_source(silent: dict[str, Any]) -> None:
    """What cannot be heard is not followed, and is no error."""
    assert read({"0": silent, "1": entry()})[0].source == SourceId("p0", 1)


def test_an_engine_without_replay_is_followed_all_the_same() -> None:
    """Then no gap can be filled; paths of local sockets are taken as they are."""
    (spec,) = read({"0": entry(endpoint="ipc:///run/kv", replay_endpoint=None)})
    assert (spec.events_endpoint, spec.replay_endpoint) == ("ipc:///run/kv", None)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"zero": entry()},
        {"0": None},
        {"0": entry(endpoint=5557)},
        {"0": entry(endpoint="tcp://*")},
        {"0": entry(endpoint="tcp://*:99999")},
        {"0": entry(topic=7)},
    ],
)
def test_what_is_not_of_this_form_is_refused(document: object) -> None:
    """An answer that cannot be read is an error of its own, not a crash."""
    with pytest.raises(DiscoveryError):
        read(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_sources_or_a_discovery_error(document: object) -> None:
    """Nothing that an engine answers raises anything else."""
    try:
        read({"0": document})
    except DiscoveryError:
        return
