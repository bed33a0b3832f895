"""The admin API of a whole gateway: who may do what, what it refuses, what it shows."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.compose.gateway import build_gateway
from router.gateway.dispatch import Application
from router.gateway.requests import Message
from router.settings import load
from router.sim.tokenizer import locate_tokenizer
from tests.deploy.metric_names import HISTOGRAMS, LABELS, PREFIX
from tests.fakes.raw_clients import calling
from tests.fakes.scripted_engine import Until, answer, chunk, stream
from tests.fakes.systems import (
    System,
    describe,
    free_port,
    fresh_ids,
    routing,
    scripted_system,
    standin_system,
    write_configuration,
)

MASTER, SEER, AGENT = "admin-master-1", "admin-seer-2", "admin-agent-3"
ADMIN: dict[str, Any] = {
    "api_key": MASTER,
    "keys": [
        {"name": "seer", "key": SEER, "role": "viewer"},
        {"name": "agent", "key": AGENT, "role": "telemetry"},
    ],
}
LINK = "links/west-east"
TELEMETRY = {"egress_gbps": 0.1}

UNSOLVED = frozenset(
    {
        "threshold_solved_tokens",
        "threshold_at_bound",
        "stage_capacity_requests_per_second",
        "balance_residual_ratio",
    }
)
"""Absent until a hundred prompts of a profiled model were seen (test_auto_threshold has them)."""


async def ask_directly(
    application: Application, path: str, client: str, headers: dict[str, str] | None = None
) -> int:
    """Ask an application as a client from some address; return the status."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
        "client": (client, 40_000),
        "server": ("10.0.0.1", 8000),
    }
    await application(scope, receive, send)
    return statuses[0]


# -- who may do what


@pytest.mark.parametrize(
    ("client", "status"),
    [
        ("127.0.0.1", 200),
        ("127.8.8.8", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("10.0.0.7", 403),
        ("192.168.1.1", 403),
        ("::ffff:10.0.0.7", 403),
        ("2001:db8::1", 403),
        ("testclient", 403),
    ],
)
async def test_without_a_key_only_loopback_is_answered(
    tmp_path: Path, client: str, status: int
) -> None:
    """Operators on the machine need no key; others get in to health and metrics alone."""
    document = describe([{"name": "east", "kind": "pd"}], threshold=1, model={}, links=[])
    gateway = build_gateway(load(write_configuration(tmp_path, document), {}))
    assert await ask_directly(gateway.application, "/admin/v1/state", client) == status
    assert await ask_directly(gateway.application, "/health", client) == 200
    assert await ask_directly(gateway.application, "/metrics", client) == 200
    await gateway.core.engines.aclose()


async def test_with_a_key_loopback_needs_it_too(tmp_path: Path) -> None:
    """Once a key is configured a wrong one or none is 401, from everywhere."""
    async with scripted_system(tmp_path, admin={"api_key": MASTER}) as system:
        for key, status in ((None, 401), ("wrong", 401), (MASTER, 200)):
            response = await system.admin("GET", "state", key=key)
            assert response.status_code == status
        assert response.json()["at"]
        refused = await system.admin("PUT", "threshold", {"mode": "off"}, key="wrong")
        assert refused.json()["error"]["code"] == "invalid_admin_key"
        assert refused.headers["www-authenticate"] == "Bearer"


async def test_a_proxy_does_not_make_its_clients_local(tmp_path: Path) -> None:
    """A client whose address a proxy on this machine forwards is foreign."""
    async with scripted_system(tmp_path) as system:
        headers = {"x-forwarded-for": "203.0.113.9"}
        response = await system.client.get("/admin/v1/state", headers=headers)
        assert response.status_code == 403


async def test_roles(tmp_path: Path) -> None:
    """Viewers read, agents report telemetry as well, operators do everything."""
    calls: list[tuple[str, str, object, int]] = [
        ("GET", "state", None, 0),
        ("GET", "threshold", None, 0),
        ("GET", "policy", None, 0),
        ("GET", "links", None, 0),
        ("GET", LINK, None, 0),
        ("GET", "bandwidth", None, 0),
        ("GET", "override", None, 0),
        ("GET", "instances", None, 0),
        ("GET", "decisions", None, 0),
        ("POST", "decisions:explain", {"total_tokens": 5}, 0),
        ("POST", f"{LINK}/telemetry", TELEMETRY, 1),
        ("PUT", "threshold", {"mode": "config"}, 2),
        ("PUT", "policy", {"policy": "config"}, 2),
        ("PUT", LINK, {"health": "auto"}, 2),
        ("PUT", "bandwidth", {"mode": "auto"}, 2),
        ("PUT", "override", {"route": "local", "ttl_seconds": 60}, 2),
        ("DELETE", "override", None, 2),
        ("PATCH", "instances/p0", {"state": "active"}, 2),
        ("POST", "instances", {}, 2),
        ("DELETE", "instances/none", None, 2),
    ]
    async with scripted_system(tmp_path, admin=ADMIN) as system:
        for method, path, body, needed in calls:
            for rank, key in enumerate((SEER, AGENT, MASTER)):
                response = await system.admin(method, path, body, key=key)
                assert (response.status_code == 403) == (rank < needed), (method, path, key)
        shown = await system.admin("PUT", "threshold", {"mode": "off"}, key=MASTER)
        assert shown.json()["updated_by"] == "admin"


async def test_tenants_keys_are_not_admin_keys(tmp_path: Path) -> None:
    """A tenant's key opens no admin path, and an admin's key asks for no completion."""
    tenants = [{"name": "acme", "api_keys": ["sk-acme"]}]
    async with scripted_system(tmp_path, admin=ADMIN, tenants=tenants) as system:
        assert (await system.admin("GET", "state", key="sk-acme")).status_code == 401
        response = await system.complete(10, headers={"authorization": f"Bearer {MASTER}"})
        assert response.status_code == 401


async def test_an_admin_port_has_its_own_listener(tmp_path: Path) -> None:
    """With admin.port the public listener knows neither admin nor metrics, and the other no API."""
    with free_port() as port:
        admin = {"port": port}
    async with scripted_system(tmp_path, admin=admin) as system:
        assert system.admin_url != system.url
        for path in ("/admin/v1/state", "/metrics"):
            assert (await system.client.get(path)).status_code == 404
            assert (await system.client.get(f"{system.admin_url}{path}")).status_code == 200
        for path in ("/health", "/ready"):
            assert (await system.client.get(f"{system.admin_url}{path}")).status_code == 200
        for path in ("/v1/models", "/v1/completions"):
            response = await system.client.get(f"{system.admin_url}{path}")
            assert response.status_code == 404


# -- what it refuses


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("PUT", "threshold", {"mode": "manual"}, "tokens"),
        ("PUT", "threshold", {"mode": "manual", "tokens": -1}, "tokens"),
        ("PUT", "threshold", {"mode": "manual", "tokens": 1.5}, "tokens"),
        ("PUT", "threshold", {"mode": "off", "tokens": 5}, "tokens"),
        ("PUT", "threshold", {"mode": "manual", "tokens": "5"}, "tokens"),
        ("PUT", "threshold", {"mode": "manual", "tokens": True}, "tokens"),
        ("PUT", "threshold", {"mode": "manual", "tokens": 10**400}, "tokens"),
        ("PUT", "threshold", {"mode": "sometimes"}, "mode"),
        ("PUT", "threshold", {"mode": "off", "token": 5}, "token"),
        ("PUT", "threshold", [], ""),
        ("PUT", "threshold", None, ""),
        ("PUT", LINK, {"health": "sick"}, "health"),
        ("PUT", LINK, {"capacity_gbps": -1}, "capacity_gbps"),
        ("PUT", LINK, {"capacity": 10}, "capacity"),
        ("PUT", LINK, {"capacity_gbps": 1e300}, "capacity_gbps"),
        ("POST", f"{LINK}/telemetry", {"egress_gbps": 1e300}, "egress_gbps"),
        ("POST", f"{LINK}/telemetry", {}, "egress_gbps"),
        ("POST", f"{LINK}/telemetry", {"egress_gbps": -1}, "egress_gbps"),
        ("POST", f"{LINK}/telemetry", {"egress_gbps": 1, "loss_ratio": 2}, "loss_ratio"),
        ("POST", f"{LINK}/telemetry", {"egress_gbps": 1, "observed_at": "noon"}, "observed_at"),
        (
            "POST",
            f"{LINK}/telemetry",
            {"egress_gbps": 1, "observed_at": "2026-01-01T00:00:00"},
            "observed_at",
        ),
        ("PUT", "policy", {"policy": "shortest"}, "policy"),
        ("PUT", "policy", {}, "policy"),
        ("PUT", "bandwidth", {"mode": "plenty"}, "mode"),
        ("PUT", "override", {"route": "remote"}, "route"),
        ("PUT", "override", {"route": "local", "ttl_seconds": 0}, "ttl_seconds"),
        ("PUT", "override", {"route": "local", "ttl": 5}, "ttl"),
        ("PUT", "override", {"route": "local", "ttl_seconds": 1e300}, "ttl_seconds"),
        ("PATCH", "instances/p0", {"state": "gone"}, "state"),
        ("PATCH", "instances/p0", {"url": "http://x"}, "url"),
        ("POST", "instances", {"name": "x"}, "url"),
        ("POST", "instances", {"name": "x", "surprise": 1}, "surprise"),
        (
            "POST",
            "instances",
            {"name": "x", "url": "http://h:1", "role": "prefill", "cluster": "mars"},
            "mars",
        ),
        (
            "POST",
            "instances",
            {"name": "x", "url": "http://h:1", "role": "both", "cluster": "west"},
            "role",
        ),
        ("POST", "instances", [], ""),
        ("POST", "decisions:explain", {}, "total_tokens"),
        ("POST", "decisions:explain", {"total_tokens": 0}, "total_tokens"),
        ("POST", "decisions:explain", {"total_tokens": 10**400}, "total_tokens"),
        ("POST", "decisions:explain", {"total_tokens": 5, "prompt": "x"}, "total_tokens"),
        ("POST", "decisions:explain", {"total_tokens": 5, "threshold": -1}, "threshold"),
        ("POST", "decisions:explain", {"total_tokens": 5, "regime": "rich"}, "regime"),
        ("POST", "decisions:explain", {"prompt": "x", "cached_tokens": {"east": 1}}, "cached"),
        ("POST", "decisions:explain", {"total_tokens": 5, "why": True}, "why"),
        ("GET", "decisions?limit=0", None, "limit"),
        ("GET", "decisions?route=nowhere", None, "route"),
        ("GET", "decisions?reason=none", None, "reason"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_bad_orders_are_400_in_one_line(
    quiet: System, method: str, path: str, body: object, said: str
) -> None:
    """An order that is not understood changes nothing and says in one line what is wrong."""
    before = await quiet.order("GET", "threshold")
    response = await quiet.admin(method, path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    assert await quiet.order("GET", "threshold") == before


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quiet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A gateway for orders that change nothing."""
    directory = tmp_path_factory.mktemp("quiet")
    async with scripted_system(directory, upstream={"probe": {"interval_seconds": 30}}) as system:
        yield system


@pytest.mark.asyncio(loop_scope="module")
async def test_malformed_json_is_400(quiet: System) -> None:
    """A body that is no JSON is told so, whatever its content type says."""
    for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        response = await quiet.client.put(
            "/admin/v1/threshold", content=b"{'mode'", headers={"content-type": content_type}
        )
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "value", ['"\\ud800"', "NaN", "-Infinity", "[" * 10_000 + "]" * 10_000, '"\x01"', "01"]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_json_that_python_alone_would_take_is_400(quiet: System, value: str) -> None:
    """What nothing can write again is refused on the way in, before it is in a document."""
    for path in ("instances", "decisions:explain", "threshold"):
        method = "PUT" if path == "threshold" else "POST"
        body = '{"name":"x","role":"decode","prompt":' + value + "}"
        answer = await quiet.client.request(
            method,
            f"{quiet.admin_url}/admin/v1/{path}",
            content=body.encode("utf-8"),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("content_type", "body", "told"),
    [
        ("application/x-www-form-urlencoded", b'{"mode": "off"}', "content-type: application/json"),
        ("text/plain", b'{"mode": "off"}', "content-type: application/json"),
        ("application/json", b"[]", "a JSON object"),
        ("application/json", b"", "a JSON object"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_of_the_wrong_kind_is_told_what_is_needed(
    quiet: System, content_type: str, body: bytes, told: str
) -> None:
    """What curl sends as a form, or a browser without asking, is refused and the remedy named."""
    for method, path in (("PUT", "threshold"), ("POST", "instances")):
        response = await quiet.client.request(
            method,
            f"{quiet.admin_url}/admin/v1/{path}",
            content=body,
            headers={"content-type": content_type},
        )
        assert response.status_code == 400
        assert told in response.json()["error"]["message"]


async def test_admin_bodies_are_bounded_before_anybody_is_asked(tmp_path: Path) -> None:
    """A body over the limit is 413 on the admin API, whoever sends it, on either listener."""
    with free_port() as port:
        admin = {**ADMIN, "port": port}
    async with scripted_system(tmp_path, admin=admin, server={"max_body_bytes": 1000}) as system:
        for url in (system.admin_url, system.url):
            async with calling(url) as client:
                await client.send_head("/admin/v1/instances", {"transfer-encoding": "chunked"})
                await client.send(chunk(b"x" * 1001).payload)
                assert (await client.read_head())[0] == 413


@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_names_are_404(quiet: System) -> None:
    """A name that nobody has is never taken for success."""
    for method, path, body in (
        ("GET", "threshold?pd=mars", None),
        ("PUT", "threshold?model=gpt-9", {"mode": "off"}),
        ("PUT", "threshold?prfaas=mars", {"mode": "off"}),
        ("GET", "links/none", None),
        ("PUT", "links/none", {"health": "up"}),
        ("POST", "links/none/telemetry", TELEMETRY),
        ("GET", "bandwidth?link=none", None),
        ("PUT", "bandwidth?link=none", {"mode": "scarce"}),
        ("PUT", "override", {"route": "local", "model": "gpt-9"}),
        ("PUT", "override", {"route": "local", "tenant": "nobody"}),
        ("PATCH", "instances/none", {"state": "active"}),
        ("DELETE", "instances/none", None),
        ("POST", "decisions:explain", {"total_tokens": 5, "model": "gpt-9"}),
        ("POST", "decisions:explain", {"total_tokens": 5, "tenant": "nobody"}),
        ("GET", "nothing", None),
    ):
        response = await quiet.admin(method, path, body)
        assert response.status_code == 404, (method, path, response.text)
        assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_misspelt_scope_is_refused(quiet: System) -> None:
    """An order for one pair, link or tenant never becomes one for all by a typo in its query."""
    for method, path, body in (
        ("PUT", "threshold?modle=demo", {"mode": "off"}),
        ("PUT", "bandwidth?lnik=west-east", {"mode": "abundant"}),
        ("DELETE", "override?tennant=acme", None),
        ("GET", "decisions?raeson=override", None),
    ):
        response = await quiet.admin(method, path, body)
        name = path.partition("?")[2].partition("=")[0]
        assert response.status_code == 400, (method, path, response.text)
        assert response.json()["error"]["param"] == name


async def test_orders_may_name_a_model_by_its_alias(tmp_path: Path) -> None:
    """What is ordered for an alias holds for its model, and ends for it."""
    async with scripted_system(tmp_path, model={"aliases": ["short"]}) as system:
        told = await system.order("PUT", "threshold?model=short", {"mode": "manual", "tokens": 7})
        assert [pair["effective_tokens"] for pair in told["pairs"]] == [7]
        await system.order("PUT", "override", {"route": "local", "model": "short"})
        assert (await system.order("DELETE", "override?model=short"))["overrides"] == []


async def test_an_inner_failure_has_the_error_shape(tmp_path: Path) -> None:
    """What the code did not foresee is a 500 in the shape of all errors, and tells nothing."""
    document = describe([{"name": "east", "kind": "pd"}], threshold=1, model={}, links=[])
    gateway = build_gateway(load(write_configuration(tmp_path, document), {}))
    gateway.core.fleet._members["broken"] = None  # type: ignore[assignment]
    bodies: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        bodies.append(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/admin/v1/state",
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 1),
    }
    with pytest.raises(AttributeError):
        await gateway.application(scope, receive, send)
    error = json.loads(b"".join(bodies))["error"]
    assert (error["type"], error["code"]) == ("internal_error", 500)
    assert "NoneType" not in error["message"]
    await gateway.core.engines.aclose()


# -- what it shows


async def test_the_state_document_is_complete(tmp_path: Path) -> None:
    """One document shows models, clusters, instances, links, orders and sources, with ages."""
    async with standin_system(tmp_path) as system:
        await system.order("POST", f"{LINK}/telemetry", TELEMETRY)
        await system.order("PUT", "override", {"route": "local", "ttl_seconds": 60})
        await system.complete(50)
        state = await system.until(
            lambda state: all(i["signal_age_seconds"] is not None for i in state["instances"])
        )
    assert datetime.fromisoformat(state["at"]).tzinfo is not None
    assert state["store"] == {"kind": "memory", "up": True}
    assert [model["name"] for model in state["models"]] == ["tiny"]
    assert {cluster["name"] for cluster in state["clusters"]} == {"east", "west"}
    assert {instance["name"] for instance in state["instances"]} == {"p0", "d0", "f0"}
    for instance in state["instances"]:
        assert instance["alive"] is instance["ready"] is True
        assert 0 <= instance["signal_age_seconds"] < 5
        assert instance["queue_depth"] == 0
    (link,) = state["links"]
    assert 0 <= link["telemetry"]["age_seconds"] < 5
    assert state["thresholds"][0]["effective_tokens"] == 100
    assert 0 < state["overrides"][0]["ttl_seconds"] <= 60
    sources = state["index"]["sources"]
    assert {source["instance"] for source in sources} == {"p0", "d0", "f0"}
    assert all(0 <= source["age_seconds"] < 10 for source in sources)


async def test_no_secret_is_shown_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys, salts and prompts are in no state, decision, metric, error or log line."""
    caplog.set_level(logging.DEBUG)
    secrets = {
        "tenant": "sk-tenant-key",
        "salt": "tenant-salt-value",
        "client_salt": "client-salt-value",
        "engine": "sk-engine-key",
        "prompt": "the eagle lands at midnight",
        "admin": MASTER,
    }
    tenants = [{"name": "acme", "api_keys": [secrets["tenant"]], "cache_salt": secrets["salt"]}]
    entries = {name: {"api_key": secrets["engine"]} for name in ("p0", "d0", "f0")}
    key = {"authorization": f"Bearer {secrets['tenant']}"}
    async with scripted_system(
        tmp_path, tenants=tenants, entries=entries, admin=ADMIN, threshold=3
    ) as system:
        good = await system.complete(
            secrets["prompt"], headers=key, cache_salt=secrets["client_salt"]
        )
        assert good.status_code == 200
        system.engine("f0").reply(answer(500, b"{}"))
        system.engine("d0").reply(stream(b'data: {"choices":[]}\n\n', end=[]))
        system.engine("d0").reply(answer(500, b"{}"))
        bad = await system.complete(secrets["prompt"], headers=key)
        assert bad.status_code == 502
        await system.client.post("/v1/completions", content=b"{", headers=key)
        entry = {
            "name": "p9",
            "url": f"{system.engine('p0').url}/other",
            "role": "prefill",
            "cluster": "east",
            "api_key": secrets["engine"],
        }
        added = await system.admin("POST", "instances", entry, key=MASTER)
        assert added.status_code == 201
        told = [added.text, good.text, bad.text, str(bad.headers)]
        for path in ("state", "decisions", "instances", "links", "threshold", "override"):
            told.append((await system.admin("GET", path, key=MASTER)).text)  # noqa: PERF401
        told.append((await system.client.get("/metrics")).text)
    for name, secret in secrets.items():
        assert not any(secret in text for text in told), name
        # The test's own client logs nothing of its requests but their addresses.
        assert secret not in caplog.text, name


async def test_decisions_can_be_filtered(tmp_path: Path) -> None:
    """The newest come first; limit, route and reason narrow them."""
    async with scripted_system(tmp_path) as system:
        for size in (10, 500, 20, 600):
            await system.complete(size)
        assert [d["total_tokens"] for d in await system.decisions()] == [600, 20, 500, 10]
        assert [d["total_tokens"] for d in await system.decisions("limit=2")] == [600, 20]
        assert [d["total_tokens"] for d in await system.decisions("route=local")] == [20, 10]
        remote = await system.decisions("reason=above_threshold&limit=1")
        assert [d["total_tokens"] for d in remote] == [600]
        assert await system.decisions("reason=link_down") == []


async def test_r60_junk_makes_no_series(tmp_path: Path) -> None:
    """Random models, paths, salts and request ids add no series after the first of a kind."""
    async with scripted_system(tmp_path) as system:

        async def junk(number: int) -> None:
            await system.client.post(
                "/v1/completions", json={"model": f"m-{number}", "prompt": "x"}
            )
            await system.client.get(f"/wp-admin/{number}")
            await system.complete(
                10, cache_salt=f"salt-{number}", headers={"x-request-id": f"id-{number}"}
            )

        await junk(0)
        await system.counted("requests_total", code="404")
        before = len((await system.metrics()).samples)
        await asyncio.gather(*(junk(number) for number in range(1, 20)))
        assert len((await system.metrics()).samples) <= before + 5


async def test_exported_metrics_are_those_promised(tmp_path: Path) -> None:
    """Every exported series is in the table with its labels; those with a source are all there."""
    async with standin_system(tmp_path) as system:
        await system.order("POST", f"{LINK}/telemetry", TELEMETRY)
        prompt = fresh_ids(300)
        for _ in range(2):
            await system.complete(prompt)
        await system.complete(
            50, stream=True, max_tokens=20, stream_options={"include_usage": True}
        )
        system.host("f0").faults.status, system.host("f0").faults.times = 500, 1
        assert routing(await system.complete(300))[1] == "remote_prefill_failed"
        await system.counted("requests_total", reason="remote_prefill_failed")
        metrics = await system.counted("index_truth_total")
    exported: dict[str, frozenset[str]] = {}
    for sample in metrics.samples:
        if not sample.name.startswith(PREFIX):
            continue
        name = sample.name.removeprefix(PREFIX)
        base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        if base in HISTOGRAMS:
            name = base
        labels = frozenset(sample.labels) - {"le"}
        assert name in LABELS, name
        assert labels == LABELS[name], name
        exported[name] = labels
    conditional = {"index_event_errors_total", "refused_connections_total"}
    assert LABELS.keys() - exported.keys() == UNSOLVED | conditional


# -- health


async def test_health_and_readiness(tmp_path: Path) -> None:
    """The process is healthy while it runs; it is ready while somebody can answer."""
    async with scripted_system(tmp_path) as system:
        assert (await system.client.get("/health")).json()["status"] == "ok"
        assert (await system.client.get("/ready")).status_code == 200
        await system.order("PATCH", "instances/d0", {"state": "disabled"})
        gone = await system.client.get("/ready")
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")
        assert (await system.client.get("/health")).status_code == 200
        await system.order("PATCH", "instances/d0", {"state": "active"})
        assert (await system.client.get("/ready")).status_code == 200


async def test_a_draining_gateway_serves_on(tmp_path: Path) -> None:
    """While draining it is not ready and still answers."""
    async with scripted_system(tmp_path) as system:
        system.gateway.start_draining()
        assert (await system.client.get("/ready")).status_code == 503
        assert (await system.client.get("/health")).status_code == 200
        assert (await system.complete(10)).status_code == 200


async def test_r38_a_hanging_count_blocks_nobody(tmp_path: Path) -> None:
    """While prompts wait for a count that hangs, health is answered at once."""
    model = {"tokenizer": {"kind": "engine"}}
    changes = {"decision_timeout_ms": 500}
    async with scripted_system(tmp_path, model=model, scheduler=changes) as system:
        gate = asyncio.Event()
        for engine in system.engines.values():
            engine.on("/tokenize", [Until(gate)])
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(system.complete("long " * 50_000)) for _ in range(4)]
            answered = 0
            while not any(task.done() for task in asked):
                assert (await system.client.get("/health")).status_code == 200
                answered += 1
        assert answered > 1
        assert {routing(task.result())[1] for task in asked} == {"decision_timeout"}


async def test_r38_long_prompts_are_tokenized_beside_everything_else(tmp_path: Path) -> None:
    """While prompts of 500 KB are tokenized in process, health is answered as ever."""
    model = {"tokenizer": {"kind": "hf", "path": str(locate_tokenizer())}}
    text = "some words of a long prompt " * 18_000
    async with scripted_system(
        tmp_path, model=model, scheduler={"decision_timeout_ms": 10_000}
    ) as system:
        asked = [asyncio.create_task(system.complete(text)) for _ in range(4)]
        answers = 0
        while not all(task.done() for task in asked):
            assert (await system.client.get("/health")).status_code == 200
            answers += 1
        assert {task.result().headers["x-prfaas-total-tokens"] for task in asked} == {"144001"}
        # While tokenizing held the interpreter there was an answer or two between the prompts.
        assert answers > 8
