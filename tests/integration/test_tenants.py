"""Tenants through a whole gateway: who may ask, and whose prefixes are whose."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.live_engines import LiveEngine
from tests.fakes.systems import (
    System,
    describe,
    fresh_ids,
    routing,
    scripted_system,
    serve_gateway,
    standin_system,
    write_configuration,
)

KEYS = {"acme": "sk-acme-1111", "bits": "sk-bits-2222", "corp": "sk-corp-3333"}
SALT = "salt-of-acme"
TENANTS: list[dict[str, Any]] = [
    {"name": "acme", "api_keys": [KEYS["acme"]], "cache_salt": SALT},
    {
        "name": "bits",
        "api_keys": ["sha256:" + hashlib.sha256(KEYS["bits"].encode()).hexdigest()],
        "allow_home_header": True,
    },
    {"name": "corp", "api_keys": ["file:./corp.key"], "home": "east"},
]


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def salted(client_salt: str = "") -> str:
    """The salt that engines get for `acme`."""
    return hmac.new(SALT.encode(), client_salt.encode(), "sha256").hexdigest()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "corp.key").write_text(KEYS["corp"] + "\n")
    return tmp_path


async def test_keys_name_their_tenants(directory: Path) -> None:
    """Plain, hashed and file keys are known; the decision names whose they are."""
    async with scripted_system(directory, tenants=TENANTS) as system:
        for name in KEYS:
            response = await system.complete(10, headers=bearer(name))
            assert response.status_code == 200
            assert (await system.decisions("limit=1"))[0]["tenant"] == name


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer sk-nobody"},
        {"authorization": "Bearer"},
        {"authorization": KEYS["acme"]},
        {"authorization": f"Basic {KEYS['acme']}"},
        {"authorization": f"Bearer {hashlib.sha256(KEYS['bits'].encode()).hexdigest()}"},
    ],
)
async def test_nobody_else_gets_in(directory: Path, headers: dict[str, str]) -> None:
    """No key, a wrong one, another scheme and a key's own hash are 401, before the body counts."""
    async with scripted_system(directory, tenants=TENANTS) as system:
        for response in (
            await system.complete(10, headers=headers),
            await system.client.get("/v1/models", headers=headers),
            await system.client.post("/v1/completions", content=b"{", headers=headers),
        ):
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["type"] == "authentication_error"
        assert not any(engine.calls for engine in system.engines.values())


async def test_a_tenants_salt_reaches_both_legs(directory: Path) -> None:
    """Both legs carry the HMAC, which the client's own salt changes and never replaces."""
    async with scripted_system(directory, tenants=TENANTS) as system:
        for own, expected in ((None, salted()), ("mine", salted("mine")), (SALT, salted(SALT))):
            extra = {} if own is None else {"cache_salt": own}
            await system.complete(500, headers=bearer("acme"), **extra)
            for name in ("f0", "d0"):
                assert system.engine(name).calls[-1].json()["cache_salt"] == expected


async def test_every_tenant_has_a_salt_of_its_own(directory: Path) -> None:
    """A tenant without a configured salt has a derived one, unlike everybody else's."""
    async with scripted_system(directory, tenants=TENANTS) as system:
        salts = []
        for name in [*KEYS, *KEYS]:
            await system.complete(500, headers=bearer(name))
            salts.append(system.engine("d0").calls[-1].json()["cache_salt"])
        assert len(set(salts)) == 3
        assert salts[:3] == salts[3:]


async def test_without_tenants_the_clients_salt_passes(directory: Path) -> None:
    """An open gateway passes the client's salt on, and adds none."""
    async with scripted_system(directory) as system:
        await system.complete(500, cache_salt="mine")
        await system.complete(500)
        first, second = (call.json() for call in system.engine("d0").calls)
        assert first["cache_salt"] == "mine"
        assert "cache_salt" not in second


async def test_r27_keys_stay_where_they_belong(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Engines see their own key or none, never the client's; probes and counts as well."""
    caplog.set_level(logging.DEBUG)
    entries = {"f0": {"api_key": "sk-engine-f0"}, "p0": {"api_key": "sk-engine-p0"}}
    model = {"tokenizer": {"kind": "engine"}}
    async with scripted_system(directory, tenants=TENANTS, entries=entries, model=model) as system:
        await system.complete("some words", headers=bearer("acme"))
        await system.complete(500, headers=bearer("acme"))
        for name, engine in system.engines.items():
            expected = f"Bearer {entries[name]['api_key']}" if name in entries else None
            assert engine.requests
            for request in engine.requests:
                assert request.header("authorization") == expected
                raw = request.body + b"".join(b"%s: %s" % field for field in request.headers)
                assert KEYS["acme"].encode() not in raw
        told = await everything_told(system)
    for secret in (*KEYS.values(), SALT, salted(), "sk-engine-f0", "sk-engine-p0"):
        assert secret not in told
        assert secret not in caplog.text


async def everything_told(system: System) -> str:
    """Return all that operators and Prometheus can read, as one text."""
    texts = [(await system.client.get(f"{system.admin_url}/metrics")).text]
    paths = ("state", "decisions", "instances", "links", "threshold", "bandwidth", "override")
    texts += [(await system.admin("GET", path)).text for path in paths]
    return "\n".join(texts)


async def test_r51_no_tenant_hits_anothers_prefix(directory: Path) -> None:
    """A prompt that one tenant cached is a cold prompt to everybody else, in every respect."""
    prompt = fresh_ids(300)
    async with standin_system(directory, tenants=TENANTS) as system:
        await system.order("PUT", "override", {"route": "local"})
        await system.complete(prompt, headers=bearer("acme"))
        await system.order("DELETE", "override")
        asked = {"prompt": prompt, "tenant": "acme"}
        async with asyncio.timeout(30):
            while True:
                document = await system.order("POST", "decisions:explain", asked)
                if document["cached_tokens"]["east"]:
                    break
                await asyncio.sleep(0.01)
        for stranger in ("bits", "corp", None):
            asked = {"prompt": prompt} | ({} if stranger is None else {"tenant": stranger})
            document = await system.order("POST", "decisions:explain", asked)
            assert document["cached_tokens"] == {"east": 0, "west": 0}
        theirs = await system.complete(prompt, headers=bearer("bits"))
        mixed = await system.complete(prompt, headers=bearer("acme"), cache_salt="other")
        for response in (theirs, mixed):
            assert routing(response) == ("prfaas", "above_threshold")
            assert response.headers["x-prfaas-uncached-tokens"] == "300"
            assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        own = await system.complete(prompt, headers=bearer("acme"))
        assert routing(own) == ("local", "below_threshold")
        assert own.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 288


async def test_r51_salts_of_an_open_gateway(directory: Path) -> None:
    """Without tenants the client's salt parts prefixes: its own hits all, others none."""
    prompt = fresh_ids(300)
    async with standin_system(directory, threshold=10_000) as system:
        await system.complete(prompt, cache_salt="t1")
        for salt in ("t2", None):
            extra = {} if salt is None else {"cache_salt": salt}
            response = await system.complete(prompt, max_tokens=1, **extra)
            assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert response.headers["x-prfaas-uncached-tokens"] == "300"
        again = await system.complete(prompt, cache_salt="t1")
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
        assert again.headers["x-prfaas-uncached-tokens"] == "12"


async def test_the_home_header_counts_only_where_allowed(directory: Path) -> None:
    """A tenant's home is where it is served; only with permission may a request name another."""
    places = {"east": "p0 d0", "far": "p1 d1"}
    tenants = [{**tenant, "home": "far"} for tenant in TENANTS]
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(LiveEngine(name))
            for name in " ".join(places.values()).split()
        ]
        clusters = [
            {
                "name": name,
                "kind": "pd",
                "instances": [
                    {
                        "name": engine.name,
                        "url": engine.url,
                        "role": "prefill" if engine.name[0] == "p" else "decode",
                    }
                    for engine in engines
                    if engine.name in members
                ],
            }
            for name, members in places.items()
        ]
        document = describe(clusters, threshold=100, model={}, links=[], tenants=tenants)
        path = write_configuration(directory, document)
        system = await stack.enter_async_context(serve_gateway(path))
        for name, asked, home in (
            ("acme", None, "far"),
            ("acme", "east", "far"),
            ("bits", None, "far"),
            ("bits", "east", "east"),
            ("bits", "mars", "far"),
        ):
            headers = bearer(name) | ({} if asked is None else {"x-prfaas-home": asked})
            response = await system.complete(10, headers=headers)
            assert response.status_code == 200
            assert (await system.decisions("limit=1"))[0]["home_cluster"] == home
        for engine in engines:
            assert all(call.header("x-prfaas-home") is None for call in engine.calls)


async def test_overrides_of_a_tenant_are_its_own(directory: Path) -> None:
    """An override of one tenant leaves the others' routes alone."""
    async with scripted_system(directory, tenants=TENANTS) as system:
        await system.order("PUT", "override", {"route": "prfaas", "tenant": "acme"})
        for name, route in (("acme", "prfaas"), ("bits", "local")):
            response: httpx.Response = await system.complete(10, headers=bearer(name))
            assert routing(response)[0] == route
        unknown = await system.admin("PUT", "override", {"route": "local", "tenant": "nobody"})
        assert unknown.status_code == 404
