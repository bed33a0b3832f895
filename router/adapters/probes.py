"""Health and queue depth of a vLLM engine, from `/health` and `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

from router.domain.errors import UpstreamError
from router.domain.topology import Instance
from router.domain.units import Seconds
from router.ports import EngineClient, EngineRequest, Headers, Timeouts
from router.service.members import EngineReading
from router.service.probing import ProbeOutcome

_SAMPLE = re.compile(
    r"^(?P<name>vllm:[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)", re.MULTILINE
)
_BY_REASON = "vllm:num_requests_waiting_by_reason"
_WANTED = frozenset(
    {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        _BY_REASON,
        "vllm:kv_cache_usage_perc",
        "vllm:nixl_bytes_transferred_sum",
        "vllm:nixl_xfer_time_seconds_sum",
    }
)


class HttpProbe:
    """Implements `EngineProbe`. A large fleet is probed all the time, so that its cost counts."""

    def __init__(self, client: EngineClient, timeout: Seconds) -> None:
        """`client` is closed by its owner; `timeout` bounds each silence of an engine."""
        self._client = client
        self._timeouts = Timeouts(timeout, timeout, timeout)

    async def probe(self, instance: Instance, at: Seconds) -> ProbeOutcome:
        """Ask `/health`, and if that is fine `/metrics`. Without metrics the queue is unknown."""
        try:
            status, _ = await self._get(instance, "/health")
        except (UpstreamError, ValueError):  # the latter for an address that is none
            return ProbeOutcome(healthy=False, answered=False)
        if status != 200:
            return ProbeOutcome(healthy=False)
        try:
            status, metrics = await self._get(instance, "/metrics")
        except UpstreamError:
            return ProbeOutcome(healthy=True)
        if status != 200:
            return ProbeOutcome(healthy=True)
        text = metrics.decode("utf-8", "replace")
        return ProbeOutcome(healthy=True, reading=read_metrics(text, at))

    async def _get(self, instance: Instance, path: str) -> tuple[int, bytes]:
        headers: Headers = ()
        if instance.api_key:
            headers = ((b"authorization", b"Bearer " + instance.api_key.encode()),)
        response = await self._client.send(
            EngineRequest(
                instance=instance.name,
                base_url=instance.url,
                path=path,
                method="GET",
                headers=headers,
                timeouts=self._timeouts,
            )
        )
        try:
            return response.status, await response.read()
        finally:
            await response.aclose()


def read_metrics(text: str, at: Seconds) -> EngineReading | None:
    """Return the queue that vLLM's metrics tell of, None where they tell none.

    Sums over data-parallel engines. Waiting for capacity is what queues; `deferred` requests wait
    for KV from elsewhere and are left out where the engine tells them apart (vLLM 0.33). Transfers
    are counted by whoever reads KV: a decode instance's are what it received.
    """
    sums: dict[str, float] = {}
    for sample in _SAMPLE.finditer(text):
        name = sample["name"]
        deferred = name == _BY_REASON and 'reason="capacity"' not in (sample["labels"] or "")
        if name not in _WANTED or deferred:
            continue
        try:
            value = float(sample["value"])
        except ValueError:
            continue
        if isfinite(value):
            sums[name] = sums.get(name, 0.0) + value
    return _reading(sums, at)


def _reading(sums: Mapping[str, float], at: Seconds) -> EngineReading | None:
    running = sums.get("vllm:num_requests_running")
    waiting = sums.get("vllm:num_requests_waiting_by_reason", sums.get("vllm:num_requests_waiting"))
    if running is None or waiting is None:
        return None
    return EngineReading(
        at=at,
        waiting=int(waiting),
        running=int(running),
        kv_usage=sums.get("vllm:kv_cache_usage_perc"),
        transferred_bytes=sums.get("vllm:nixl_bytes_transferred_sum"),
        transfer_seconds=sums.get("vllm:nixl_xfer_time_seconds_sum"),
    )
