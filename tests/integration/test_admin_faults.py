"""Bad input to the admin API, of every kind: refused with a reason, and nothing changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Final

import httpx
import pytest
import pytest_asyncio

from tests.fakes.admin_changes import CHANGES, Change, standing
from tests.fakes.systems import System, scripted_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON: Final = {"content-type": "application/json"}

OTHERS: Final = (
    Change(
        "POST",
        "links/{name}/telemetry",
        "links/west-east/telemetry",
        {
            "egress_gbps": 0.5,
            "available_gbps": 1.0,
            "loss_ratio": 0.0,
            "retransmit_ratio": 0.0,
            "rtt_ms": 1.0,
            "observed_at": "2026-01-01T00:00:00Z",
        },
    ),
    Change("POST", "decisions:explain", "decisions:explain", {"total_tokens": 50, "threshold": 3}),
    Change("POST", "decisions:replay", "decisions:replay", {"threshold": 3}),
    Change("POST", "plan:solve", "plan:solve", {"mean_tokens": 50.0, "threshold": 3}),
)
WITH_BODY: Final = tuple(change for change in (*CHANGES, *OTHERS) if change.body is not None)

NEVER: Final = ([], {}, [1], {"a": 1}, True, -1, -1.5, 1e308, 10**30, "", "x" * 5000, "\x00", "é")
"""Values that no field of any body takes: fields are numbers of 0 or more, names, and choices."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A gateway for orders that change nothing."""
    tenants = [{"name": "acme", "api_keys": ["sk-acme"]}]
    async with scripted_system(
        tmp_path_factory.mktemp("system"),
        tenants=tenants,
        upstream={"probe": {"interval_seconds": 30}},
    ) as system:
        yield system


async def send(
    system: System, change: Change, content: bytes | str, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Call with a raw body."""
    return await system.client.request(
        change.method,
        f"{system.admin_url}/admin/v1/{change.call}",
        content=content,
        headers=JSON | (headers or {}),
    )


def check_refused(answer: httpx.Response, where: object) -> None:
    """Check that an answer is a 4xx with a reason in one line."""
    assert 400 <= answer.status_code < 500, (where, answer.status_code, answer.text)
    error = answer.json()["error"]
    assert error["message"].strip(), where
    assert "\n" not in error["message"], where
    assert "Traceback" not in error["message"], where
    assert error["type"] != "internal_error", where


@pytest.mark.parametrize("change", WITH_BODY, ids=lambda change: change.path)
async def test_a_wrong_value_in_any_field_is_refused(system: System, change: Change) -> None:
    """Each field with each value that it cannot have, and each body with one field too many."""
    assert change.body is not None
    before = standing(system)
    bodies = [{**change.body, name: value} for name in change.body for value in NEVER]
    bodies += [{**change.body, "unknown": None}, {**change.body, "Mode": "off"}]
    for body in bodies:
        check_refused(await send(system, change, json.dumps(body)), body)
        assert standing(system) == before, body


def broken_texts(change: Change) -> Iterator[str | bytes]:
    """Yield what is no JSON object, though a body would be one."""
    sound = json.dumps(change.body)
    name, value = next(iter((change.body or {}).items()))
    yield from ("", "null", "[]", "3", '"x"', f"[{sound}]", sound[:-1], sound + sound, "{,}")
    yield "[" * 5000 + "]" * 5000
    yield sound.encode("utf-16")
    yield b"\xff" + sound.encode()
    for word in ("NaN", "Infinity", "-Infinity", "01", "1e999", '"\\ud800"'):
        yield sound.replace(json.dumps(value), word, 1)
    yield f"{{{json.dumps(name)}: {json.dumps(value)}, {sound[1:]}"  # the member twice
    yield sound[:-1] + ', "deep": {"twice": 1, "twice": 1}}'


@pytest.mark.parametrize("change", WITH_BODY, ids=lambda change: change.path)
async def test_what_is_no_json_object_is_refused(system: System, change: Change) -> None:
    """Broken, nested beyond reason, of another encoding, of numbers that are none, said twice."""
    before = standing(system)
    for text in broken_texts(change):
        check_refused(await send(system, change, text), text[:200])
        assert standing(system) == before, text[:200]
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": content_type}
        check_refused(await send(system, change, json.dumps(change.body), headers), content_type)
    assert standing(system) == before


@pytest.mark.parametrize(
    ("method", "call", "body"),
    [
        ("PUT", "override", {"route": "local", "ttl_seconds": 0}),
        ("PUT", "override", {"route": "local", "ttl_seconds": 1e12}),
        ("PUT", "override", {"route": "moon"}),
        ("PUT", "override", {"route": "local", "tenant": "nobody"}),
        ("PUT", "threshold", {"mode": "manual"}),
        ("PUT", "threshold", {"mode": "auto", "tokens": 5}),
        ("PUT", "threshold?model=a&model=b", {"mode": "off"}),
        ("PUT", "threshold?model=nobody", {"mode": "off"}),
        ("PUT", "bandwidth?link=none", {"mode": "auto"}),
        ("PUT", "bandwidth?link=", {"mode": "auto"}),
        ("PUT", "links/none", {"health": "down"}),
        ("PUT", "links/west-east", {"capacity_gbps": 1e10}),
        ("PUT", "links/west-east", {"capacity_gbps": 5e-324}),
        ("DELETE", "override?tenant=nobody", None),
        ("DELETE", "override?tenant=acme&tenant=acme", None),
        ("PATCH", "instances/p0", {"state": "asleep"}),
        ("PATCH", "instances/f0", {"role": "decode"}),
        ("POST", "instances", {"name": "p0", "cluster": "east", "url": "http://h", "role": "both"}),
        ("POST", "instances", {"name": "x", "cluster": "moon", "url": "http://h", "role": "both"}),
        ("POST", "instances", {"name": "x", "cluster": "west", "url": "http://h", "role": "both"}),
        ("POST", "instances", {"name": "x", "cluster": "east", "url": "ftp://h", "role": "both"}),
        ("POST", "instances", {"name": "x/y", "cluster": "east", "url": "http://h",
         "role": "both"}),
        ("POST", "links/west-east/telemetry", {"egress_gbps": 1, "observed_at": "yesterday"}),
        ("POST", "links/west-east/telemetry",
         {"egress_gbps": 1, "observed_at": "2026-01-01T00:00:00"}),
        ("POST", "links/west-east/telemetry", {"loss_ratio": 0.1}),
        ("POST", "links/west-east/telemetry", {"egress_gbps": 1, "observed_at": "1700000000"}),
        ("POST", "decisions:replay", {}),
        ("POST", "decisions:replay", {"threshold": 5, "policy": "luck"}),
        ("POST", "decisions:explain", {"total_tokens": 5, "cached_tokens": {"east": 5}}),
        ("GET", "decisions?limit=0", None),
        ("GET", "decisions?since=yesterday", None),
        ("GET", "decisions?cursor=x", None),
        ("GET", "decisions?model=nobody", None),
        ("GET", "decisions?tenant=nobody", None),
        ("GET", "audit?limit=1e9", None),
        ("GET", "plan?pd=west", None),
    ],
)  # fmt: skip
async def test_what_contradicts_itself_or_names_nobody_is_refused(
    system: System, method: str, call: str, body: object
) -> None:
    """Sound JSON that cannot be meant."""
    before = standing(system)
    check_refused(await system.admin(method, call, body), (method, call, body))
    assert standing(system) == before


@pytest.mark.parametrize("match", ['"0"', "W/", '"', "x" * 3000, '"a","b"'])
async def test_a_tag_that_is_none_changes_nothing(system: System, match: str) -> None:
    """`If-Match` of whatever form that does not name the present part is 412."""
    before = standing(system)
    for change in CHANGES:
        if change.path == "instances/{name}" and change.method == "DELETE":
            change = Change("DELETE", change.path, "instances/p0")  # noqa: PLW2901 - one that is there
        headers = {"if-match": match}
        body = b"" if change.body is None else json.dumps(change.body)
        answer = await send(system, change, body, headers)
        assert answer.status_code == 412, (change, answer.text)
        assert standing(system) == before


def any_json(chance: Random, depth: int = 2) -> object:
    """Draw a JSON value."""
    kind = chance.randrange(9 if depth else 7)
    match kind:
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2:
            return chance.choice([0, 1, -1, 2**31, 2**63, -(2**63), 10**25])
        case 3:
            return chance.choice([0.0, -0.0, 0.5, -1e-9, 1e9, 1.7e308, 5e-324])
        case 4:
            return chance.choice(
                ["", " ", "auto", "off", "west-east", "tiny", "p0", "acme", "../x"]
            )
        case 5:
            return "".join(chr(chance.randrange(0x20, 0xD7FF)) for _ in range(chance.randrange(9)))
        case 6:
            return chance.choice(["2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "-1", "1e3"])
        case 7:
            return [any_json(chance, depth - 1) for _ in range(chance.randrange(3))]
        case _:
            keys = ["a", "east", "west-east", "mode"]
            return {chance.choice(keys): any_json(chance, depth - 1)}


@pytest.mark.parametrize(
    "count", [150, pytest.param(3000, marks=[pytest.mark.long, pytest.mark.timeout(300)])]
)
async def test_whatever_is_sent_is_answered_and_a_refusal_changes_nothing(
    system: System, count: int
) -> None:
    """Any JSON in any field of any body, fields left out: no 5xx, and after a 4xx all is as it was.

    The seed is the count, so that a finding can be found again.
    """
    chance = Random(count)
    refused = 0
    for _ in range(count):
        change = chance.choice(WITH_BODY)
        body: dict[str, object] = dict(change.body or {})
        for name in chance.sample(sorted(body), chance.randrange(1, len(body) + 1)):
            if chance.random() < 0.2:
                del body[name]
            else:
                body[name] = any_json(chance)
        before = standing(system)
        answer = await send(system, change, json.dumps(body))
        assert answer.status_code < 500 or answer.status_code == 503, (change.path, body)
        if answer.status_code >= 400:
            refused += 1
            assert answer.json()["error"]["message"], body
            assert standing(system) == before, (change.path, body)
    assert refused > count / 2
