"""Entity tags and the audit of the admin API, over a whole gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.fakes.systems import System, scripted_system

ENTRY = {
    "name": "d9",
    "cluster": "east",
    "url": "http://127.0.0.1:9",
    "role": "decode",
    "api_key": "sk-upstream-9",
}


@pytest_asyncio.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with scripted_system(tmp_path) as running:
        yield running


async def call(
    system: System, method: str, path: str, body: object = None, *, match: str | None = None
) -> httpx.Response:
    headers = {} if match is None else {"if-match": match}
    url = f"{system.admin_url}/admin/v1/{path}"
    return await system.client.request(method, url, json=body, headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "body", "shown"),
    [
        ("PUT", "threshold", {"mode": "off"}, "threshold"),
        ("PUT", "links/west-east", {"health": "down"}, "links/west-east"),
        ("PUT", "policy", {"policy": "expected"}, "policy"),
        ("PUT", "bandwidth", {"mode": "scarce"}, "bandwidth"),
        ("PUT", "override", {"route": "local"}, "override"),
        ("DELETE", "override", None, "override"),
        ("PATCH", "instances/p0", {"state": "draining"}, "instances/p0"),
        ("DELETE", "instances/p0", None, "instances/p0"),
    ],
)
async def test_a_change_may_demand_what_was_seen(
    system: System, method: str, path: str, body: object, shown: str
) -> None:
    """A stale tag is 412 and changes nothing, the right one and `*` pass."""
    await call(system, "PUT", "override", {"route": "prfaas", "tenant": "default"})
    tag = (await call(system, "GET", shown)).headers["etag"]
    before = (await call(system, "GET", "audit")).json()
    refused = await call(system, method, path, body, match='"stale", "older"')
    assert refused.status_code == 412
    assert refused.json()["error"]["type"] == "precondition_failed_error"
    assert (await call(system, "GET", "audit")).json() == before
    changed = await call(system, method, path, body, match=f'"other", W/{tag}')
    assert changed.is_success
    assert changed.headers["etag"] != tag
    again = await call(system, "PUT", "threshold", {"mode": "auto"}, match="*")
    assert again.is_success


async def test_tags_are_of_parts(system: System) -> None:
    """What others changed elsewhere does not stand in the way."""
    tag = (await call(system, "GET", "links/west-east")).headers["etag"]
    await call(system, "PUT", "threshold", {"mode": "off"})
    closed = await call(system, "PUT", "links/west-east", {"health": "down"}, match=tag)
    assert closed.is_success


async def test_every_change_is_in_the_audit_and_no_key_is(system: System) -> None:
    """Who, what, before and after, newest first; refusals and repetitions are no changes."""
    await call(system, "POST", "instances", ENTRY)
    assert (await call(system, "POST", "instances", ENTRY)).status_code == 409
    twin = await call(system, "POST", "instances", ENTRY | {"name": "twin"})
    assert twin.status_code == 409
    assert twin.json()["error"]["param"] == "url"
    for _ in range(2):
        await call(system, "PATCH", "instances/d9", {"state": "draining"})
    await call(system, "PATCH", "instances/d9", {"state": "active"})
    await call(system, "DELETE", "instances/d9")
    answer = await call(system, "GET", "audit")
    changes = answer.json()["audit"]
    assert [(each["action"], each["subject"]) for each in changes] == [
        ("instance.remove", "d9"),
        ("instance.set", "d9"),
        ("instance.set", "d9"),
        ("instance.add", "d9"),
    ]
    assert {each["by"] for each in changes} == {"loopback"}
    assert changes[-1]["after"]["added"]["url"] == ENTRY["url"]
    assert changes[2]["after"]["order"]["state"] == "draining"
    assert "sk-upstream-9" not in answer.text
    latest = (await call(system, "GET", "audit?limit=1")).json()["audit"]
    assert latest == changes[:1]
    assert (await call(system, "GET", "audit?limit=0")).status_code == 400


async def test_a_removed_instance_may_join_again(system: System) -> None:
    """The configured one by its own entry, or another one in its place."""
    entry = {"name": "d0", "cluster": "east", "url": system.engine("d0").url, "role": "decode"}
    for joining in (entry, entry | {"url": "http://127.0.0.1:9"}):
        assert (await call(system, "DELETE", "instances/d0")).is_success
        assert (await call(system, "GET", "instances/d0")).status_code == 404
        added = await call(system, "POST", "instances", joining)
        assert added.status_code == 201
        assert added.json()["url"] == joining["url"]
