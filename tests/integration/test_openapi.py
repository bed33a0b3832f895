"""The OpenAPI document tells the truth: all that is served, nothing else, and who may call it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from router.gateway.dispatch import BoundedBodies, Dispatcher
from tests.fakes.api_explorers import Exploration, explore
from tests.fakes.systems import MODEL, System, scripted_system, standin_system

Operation = tuple[str, str]
NAMES = {
    "model": (MODEL, "nobody"),
    "name": ("west-east", "p0", "f0", MODEL, "nobody"),
    "url": ("http://127.0.0.1:9", "ftp://x"),
    "prfaas": ("west", "x"),
    "pd": ("east", "x"),
    "link": ("west-east", "x"),
    "cluster": ("east", "west", "x"),
    "tenant": ("acme", "x"),
}
ACME = {"name": "acme", "api_keys": ["sk-acme"]}


async def read_document(system: System, url: str | None = None) -> dict[str, Any]:
    document: dict[str, Any] = (await system.client.get(f"{url or system.url}/openapi.json")).json()
    return document


def described(document: dict[str, Any]) -> dict[Operation, dict[str, Any]]:
    """Return every operation of a document by its method and path."""
    return {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def served_by(app: FastAPI) -> set[Operation]:
    """Return every route of the framework, with its path as documents write it."""
    return {
        (method, context.path.replace(":path}", "}"))
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
    }


async def test_every_route_is_described(tmp_path: Path) -> None:
    """All that the framework and the relay serve is in the document, and nothing else is."""
    server = {"passthrough_paths": ["/tokenize", "/v1/audio/transcriptions"]}
    async with scripted_system(tmp_path, server=server) as system:
        front = system.gateway.application.application
        assert isinstance(front, Dispatcher)
        assert isinstance(front._others, BoundedBodies)
        app = front._others._application
        while not isinstance(app, FastAPI):
            app = app.app  # type: ignore[attr-defined]  # a middleware's
        stored = {
            ("GET", "/v1/responses/{response_id}"),
            ("POST", "/v1/responses/{response_id}/cancel"),
        }
        assert list(front._families) == ["/v1/responses/"]
        relayed = {("POST", path) for path in front._relayed}
        operations = described(await read_document(system))
        assert set(operations) == served_by(app) | relayed | stored
        assert ("POST", "/v1/audio/transcriptions") in operations
        identifiers = Counter(each["operationId"] for each in operations.values())
        assert max(identifiers.values()) == 1


async def test_every_described_operation_is_served(tmp_path: Path) -> None:
    """No path of the document is unknown, and no method is refused."""
    async with scripted_system(tmp_path) as system:
        for method, path in described(await read_document(system)):
            real = path.replace("{name}", "nobody").replace("{response_id}", "nobody")
            answer = await system.client.request(method, real, json={})
            assert answer.status_code != 405, path
            if answer.status_code == 404:
                assert "no path" not in answer.json()["error"]["message"]


async def test_the_document_is_well_formed(tmp_path: Path) -> None:
    """It is OpenAPI 3.1: every reference leads somewhere, every schema is one."""
    async with scripted_system(tmp_path) as system:
        document = await read_document(system)
    assert document["openapi"].startswith("3.1")
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for reference in find_references(document):
        here: Any = document
        for part in reference.removeprefix("#/").split("/"):
            here = here[part]


def find_references(part: Any) -> list[str]:  # noqa: ANN401 - any JSON value
    """Return every reference in a document."""
    if isinstance(part, list):
        return [found for item in part for found in find_references(item)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
    return own + [found for item in part.values() for found in find_references(item)]


async def test_decisions_are_described_as_they_are(tmp_path: Path) -> None:
    """Decisions of every kind have exactly the members that the document tells, of their types."""
    async with scripted_system(tmp_path) as system:
        for prompt in (10, 500):
            assert (await system.complete(prompt)).status_code == 200
        latest = await system.order("GET", "decisions")
        supposed = {"total_tokens": 500, "cached_tokens": {"east": 3, "west": None}}
        dry = await system.order("POST", "decisions:explain", supposed)
        document = await read_document(system)
    root = {"components": document["components"]}
    for name, told in (("DecisionList", latest), ("DecisionDocument", dry)):
        schema = {"$ref": f"#/components/schemas/{name}", **root}
        jsonschema.Draft202012Validator(schema).validate(told)
    members = document["components"]["schemas"]["DecisionDocument"]["properties"].keys()
    assert all(each.keys() == members for each in [*latest["decisions"], dry])
    content = document["paths"]["/admin/v1/decisions:explain"]["post"]["responses"]["200"]
    reference = content["content"]["application/json"]["schema"]["$ref"]
    assert reference.endswith("/DecisionDocument")


async def test_listeners_describe_what_is_theirs(tmp_path: Path) -> None:
    """With an admin port of its own the clients' document tells nothing of operators' paths."""
    with_port = {"admin": {"port": 1}}
    async with scripted_system(tmp_path, **with_port) as system:
        public = {path for _, path in described(await read_document(system))}
        private = {path for _, path in described(await read_document(system, system.admin_url))}
    assert not any(path.startswith(("/admin", "/metrics")) for path in public)
    assert "/v1/chat/completions" in public
    assert {"/admin/v1/state", "/metrics", "/health"} <= private
    assert not any(path.startswith("/v1") for path in private)


async def test_the_document_can_be_left_out(tmp_path: Path) -> None:
    """With `server.openapi: false` nobody is told anything."""
    async with scripted_system(tmp_path, server={"openapi": False}) as system:
        assert (await system.client.get("/openapi.json")).status_code == 404


async def test_the_document_says_who_needs_a_key(tmp_path: Path) -> None:
    """What asks for a key refuses those without, and what asks for none does not."""
    admin = {"api_key": "sk-operator"}
    async with scripted_system(tmp_path, tenants=[ACME], admin=admin) as system:
        for (method, path), operation in described(await read_document(system)).items():
            answer = await system.client.request(method, path, json={})
            assert (answer.status_code == 401) == bool(operation["security"]), path
            assert ("401" in operation["responses"]) == bool(operation["security"]), path
    async with scripted_system(tmp_path) as system:
        for operation in described(await read_document(system)).values():
            assert operation["security"] == []


@pytest.mark.parametrize("field", ["authorization", "x-api-key"])
async def test_models_are_listed_for_either_key(tmp_path: Path, field: str) -> None:
    """The list of models takes a key wherever OpenAI's or Anthropic's clients put it."""
    async with scripted_system(tmp_path, tenants=[ACME]) as system:
        value = "Bearer sk-acme" if field == "authorization" else "sk-acme"
        for path in ("/v1/models", f"/v1/models/{MODEL}"):
            assert (await system.client.get(path, headers={field: value})).status_code == 200
            wrong = await system.client.get(path, headers={field: value + "x"})
            assert wrong.status_code == 401


@pytest.mark.parametrize(
    "examples", [4, pytest.param(25, marks=[pytest.mark.long, pytest.mark.timeout(300)])]
)
async def test_nothing_answers_what_is_not_described(tmp_path: Path, examples: int) -> None:
    """Sound and spoilt requests of every operation get answers that the document allows: no 500."""
    async with standin_system(tmp_path, tenants=[ACME]) as system:
        exploration = Exploration(system.url, examples, NAMES, {"authorization": "Bearer sk-acme"})
        # Operators last: they take instances away.
        relayed = await asyncio.to_thread(explore, exploration, "/v1")
        ordered = await asyncio.to_thread(explore, exploration, "/admin")
    codes = Counter(code for _, code in relayed)
    assert codes[200] > 0
    assert codes[400] > 0
    assert Counter(code for _, code in ordered)[200] > 0
    assert len({operation for operation, _ in relayed + ordered}) > 25
