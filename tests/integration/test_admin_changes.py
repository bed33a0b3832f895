"""Every operation of the admin API: who may call it, what a dry run shows, what the audit keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes.admin_changes import CHANGES, NOTHING_UNDER_WAY, READS, REPORTS, Change, standing
from tests.fakes.systems import System, scripted_system

MASTER, SEER, AGENT = "admin-master-1", "admin-seer-2", "admin-agent-3"
ADMIN: dict[str, Any] = {
    "api_key": MASTER,
    "keys": [
        {"name": "seer", "key": SEER, "role": "viewer"},
        {"name": "agent", "key": AGENT, "role": "telemetry"},
    ],
}
PREFIX = "/admin/v1/"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A gateway with keys of every role, whose engines are asked seldom."""
    tenants = [{"name": "acme", "api_keys": ["sk-acme"]}]
    async with scripted_system(
        tmp_path_factory.mktemp("system"),
        admin=ADMIN,
        tenants=tenants,
        upstream={"probe": {"interval_seconds": 30}},
    ) as system:
        yield system


async def operations(system: System) -> list[tuple[str, str]]:
    """Return every operation of the admin API, as its own document tells."""
    document = (await system.client.get("/openapi.json")).json()
    return [
        (method.upper(), path.removeprefix(PREFIX))
        for path, item in document["paths"].items()
        if path.startswith(PREFIX)
        for method in item
    ]


def is_change(method: str, path: str) -> bool:
    return method != "GET" and path not in READS | REPORTS


async def test_the_list_of_changes_is_whole(system: System) -> None:
    """What the document has beside reads and measurements is what the tests below know."""
    told = {each for each in await operations(system) if is_change(*each)}
    assert told == {(change.method, change.path) for change in CHANGES} | NOTHING_UNDER_WAY


async def test_each_role_may_do_its_own_and_no_more(system: System) -> None:
    """Without a key 401, without the right 403, for every path and method; and nothing changed."""
    before = standing(system)
    sound = {(change.method, change.path): change for change in CHANGES}
    for method, path in await operations(system):
        change = sound.get((method, path), Change(method, path, path.replace("{name}", "p0"), {}))
        body = None if method in {"GET", "DELETE"} else change.body
        needed = 2 if is_change(method, path) else 1 if path in REPORTS else 0
        for rank, key in ((-1, None), (-1, "sk-acme"), (0, SEER), (1, AGENT)):
            if rank >= needed:
                continue
            answer = await system.admin(method, change.call, body, key=key)
            expected = 401 if rank < 0 else 403
            assert answer.status_code == expected, (method, path, key)
            assert standing(system) == before, (method, path, key)
        if needed == 0:
            answer = await system.admin(method, change.call, body, key=SEER)
            assert answer.status_code not in {401, 403}, (method, path)
            assert standing(system) == before, (method, path)
    audit = (await system.admin("GET", "audit", key=SEER)).json()["audit"]
    assert audit == []


async def test_a_dry_run_shows_what_the_change_then_does(system: System) -> None:
    """It changes nothing, needs the same right, and the audit then says what it said, and who."""
    for change in CHANGES:
        before = standing(system)
        dry = change.call + ("&" if "?" in change.call else "?") + "dry_run=true"
        refused = await system.admin(change.method, dry, change.body, key=SEER)
        assert refused.status_code == 403, change
        answer = await system.admin(change.method, dry, change.body, key=MASTER)
        preview = answer.json()
        assert answer.status_code == 200, (change, preview)
        assert preview["dry_run"]
        assert preview["changes"], change
        assert standing(system) == before, change

        done = await system.admin(change.method, change.call, change.body, key=MASTER)
        assert done.is_success, (change, done.text)
        assert standing(system) != before, change
        (kept,) = (await system.admin("GET", "audit?limit=1", key=SEER)).json()["audit"]
        assert kept["by"] == "admin"
        for part in ("action", "subject", "before", "after"):
            assert timeless(kept[part]) == timeless(preview[part]), (change, part)
        assert timeless(kept["before"]) != timeless(kept["after"]), change

    # What is so already is said to be, and is no change.
    patch = CHANGES[-2]
    again = await system.admin(patch.method, f"{patch.call}?dry_run=1", patch.body, key=MASTER)
    assert again.json()["changes"] is False


def timeless(part: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return JSON without the moments in it: a dry run is a little earlier."""
    match part:
        case dict():
            moments = {"updated_at", "expires_at"}
            return {key: timeless(each) for key, each in part.items() if key not in moments}
        case list():
            return [timeless(each) for each in part]
        case _:
            return part


async def test_a_dry_run_is_refused_as_the_change_would_be(system: System) -> None:
    """A tag that is old, a name that nobody has, a value that cannot be: told before it is done."""
    for method, call, body, match, status in (
        ("PUT", "threshold?dry_run=true", {"mode": "off"}, '"old"', 412),
        ("PUT", "links/none?dry_run=true", {"health": "up"}, None, 404),
        ("PATCH", "instances/none?dry_run=true", {"state": "active"}, None, 404),
        ("DELETE", "instances/none?dry_run=true", None, None, 404),
        ("DELETE", "conversion?dry_run=true", None, None, 404),
        ("DELETE", "conversion?dry_rnu=true", None, None, 400),
        ("PUT", "threshold?dry_run=perhaps", {"mode": "off"}, None, 400),
        ("PUT", "threshold?dry_rnu=true", {"mode": "off"}, None, 400),
        ("PUT", "links/west-east?dry_rnu=true", {"health": "up"}, None, 400),
        ("DELETE", "instances/p0?dry_rnu=true", None, None, 400),
    ):
        before = standing(system)
        headers = {"authorization": f"Bearer {MASTER}"} | ({"if-match": match} if match else {})
        answer = await system.client.request(
            method, f"{system.admin_url}{PREFIX}{call}", json=body, headers=headers
        )
        assert answer.status_code == status, (call, answer.text)
        assert standing(system) == before
