"""What a listener serves, as an OpenAPI document: the framework's routes and the relayed paths.

The framework knows its own routes alone; the relayed paths are raw ASGI and are described here.
Bodies of relayed requests say what the gateway itself looks at; everything else in them is the
engine's, whose own document tells of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import JSONResponse

from router.domain.errors import NotFound
from router.gateway.errors import speaks_anthropic
from router.gateway.rooms import Room
from router.service.bodies import BodyKind

Schema = dict[str, Any]
"""A part of an OpenAPI document."""

_CLIENT_KEY: Final = "clientKey"
_ANTHROPIC_KEY: Final = "anthropicKey"
_ADMIN_KEY: Final = "adminKey"

_SCHEMES: Final[Schema] = {
    _CLIENT_KEY: {"type": "http", "scheme": "bearer", "description": "A tenant's key."},
    _ANTHROPIC_KEY: {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "A tenant's key, as Anthropic's clients send it.",
    },
    _ADMIN_KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "An admin key. Without any configured, only loopback is answered.",
    },
}

_REFUSALS: Final[Mapping[int, str]] = {
    400: "The request cannot be read.",
    401: "No key, or a wrong one.",
    403: "The caller may not do this.",
    404: "An unknown path, model or name.",
    408: "The request did not come in time.",
    409: "It contradicts the present state.",
    412: "`If-Match` names what is not there any more.",
    413: "The body is over `server.max_body_bytes`.",
    431: "The head is too large.",
    502: "An engine broke off, or spoke no HTTP.",
    503: "Overloaded, no instance can take the request, or the store is away.",
    504: "An engine did not answer in time.",
}
_BY_EVERYONE: Final = (400, 408, 413, 431, 503)
"""Any request may be malformed, late, too large, or one of too many."""

_BY_RELAY: Final = (408, 431, 502, 503, 504)
"""What the gateway alone says of a relayed request; other refusals may be the engine's."""

_BY_EITHER: Final = ("400", "404", "413", "422", "429", "4XX")

_REFUSAL: Final[Schema] = {
    "description": "A refusal: the gateway's, as an Error, or the engine's own, as it is.",
    "content": {
        "application/json": {"schema": {"anyOf": [{"$ref": "#/components/schemas/Error"}, {}]}},
        "*/*": {"schema": {}},
    },
}

_MODEL: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "description": "A configured model, alias or adapter; see `/v1/models`.",
}
_SALT: Final[Schema] = {
    "type": ["string", "null"],
    "description": "Isolates cached prefixes; a tenant's own salt is mixed in.",
}
_STREAM: Final[Schema] = {"type": ["boolean", "null"]}
_IDS: Final[Schema] = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_PROMPTS: Final[Mapping[BodyKind, Schema]] = {
    BodyKind.CHAT: {"messages": {"type": "array", "items": {"type": "object"}}},
    BodyKind.MESSAGES: {"messages": {"type": "array", "items": {"type": "object"}}},
    BodyKind.COMPLETION: {
        "prompt": {
            "anyOf": [
                {"type": "string"},
                _TEXTS,
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1},
            ]
        }
    },
    BodyKind.RESPONSES: {"input": {"anyOf": [{"type": "string"}, {"type": "array"}]}},
    BodyKind.PASSED: {},
}

_ROUTING_HEADERS: Final[Schema] = {
    "x-request-id": {"schema": {"type": "string"}, "description": "The request, in logs too."},
    "x-prfaas-route": {"schema": {"enum": ["local", "prfaas"]}},
    "x-prfaas-reason": {"schema": {"type": "string"}},
    "x-prfaas-prefill": {"schema": {"type": "string"}},
    "x-prfaas-decode": {"schema": {"type": "string"}},
    "x-prfaas-total-tokens": {"schema": {"type": "integer"}},
    "x-prfaas-uncached-tokens": {"schema": {"type": "integer"}},
    "x-prfaas-cached-tokens": {"schema": {"type": "integer"}},
    "x-prfaas-threshold": {"schema": {"type": "integer"}},
}

_SCHEMAS: Final[Schema] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "type": {"const": "error", "description": "On Anthropic's paths alone."},
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "integer", "null"]},
                },
            },
        },
    }
}


@dataclass(frozen=True, slots=True)
class Keys:
    """Who must show a key."""

    clients: bool
    admins: bool


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the framework does not know of a listener.

    `relayed` are its relayed paths with what their bodies are, `schemas` those that its routes
    name without having them.
    """

    relayed: Mapping[str, BodyKind]
    keys: Keys
    schemas: Schema


@dataclass(slots=True)
class Description(Room):
    """A listener's document: what is around it, None to serve none; made when it is asked for."""

    around: Surroundings | None
    document: Schema | None = None


def add_description(app: FastAPI, description: Description) -> None:
    """Serve `/openapi.json`: everything that `app` and the relayed paths before it answer."""
    routes = APIRouter(tags=["description"])

    @routes.get("/openapi.json")
    async def read_description(request: Request) -> JSONResponse:
        """Return this document."""
        if description.around is None:
            raise NotFound(f"no path {request.url.path!r}")
        if description.document is None:
            description.document = describe(app, description.around)
        return JSONResponse(description.document)

    app.include_router(routes)


def describe(app: FastAPI, around: Surroundings) -> Schema:
    """Return the OpenAPI document of a listener."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    paths: Schema = document["paths"]
    for path, item in paths.items():
        for operation in item.values():
            _complete(operation, path, around.keys)
    for path, kind in around.relayed.items():
        paths[path] = {"post": _relayed_operation(path, kind, around.keys)}
    if BodyKind.RESPONSES in around.relayed.values():
        paths |= _stored_operations(around.keys)
    components = document.setdefault("components", {})
    schemas: Schema = components.get("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["schemas"] = {**around.schemas, **schemas, **_SCHEMAS}
    components["responses"] = {**_error_responses(), "Refusal": _REFUSAL}
    components["securitySchemes"] = _SCHEMES
    return document


def _complete(operation: Schema, path: str, keys: Keys) -> None:
    """Say what the framework does not know of one of its operations: errors and keys."""
    responses: Schema = operation["responses"]
    responses.pop("422", None)  # what is invalid is 400 here
    codes = [*_BY_EVERYONE]
    security: list[str] = []
    if path.startswith("/admin"):
        codes += [403, 404, 409, 412]
        security = [_ADMIN_KEY] if keys.admins else []
    elif path.startswith("/v1/models"):
        codes += [404]
        security = [_CLIENT_KEY, _ANTHROPIC_KEY] if keys.clients else []
    _require(operation, security)
    codes += [401] if security else []
    for code, told in _errors(codes).items():
        responses.setdefault(code, told)


def _relayed_operation(path: str, kind: BodyKind, keys: Keys) -> Schema:
    body: Schema = {"application/json": {"schema": _body_schema(kind)}}
    if kind is BodyKind.PASSED:
        form = {"type": "object", "required": ["model"], "properties": {"model": _MODEL}}
        body["multipart/form-data"] = {"schema": form}
    streams = kind is not BodyKind.PASSED
    operation: Schema = {
        "tags": ["relayed"],
        "summary": _summary(path, kind),
        "operationId": "relay" + path.replace("/", "_"),
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {
                "description": "The engine's answer.",
                "headers": _ROUTING_HEADERS,
                "content": {
                    "application/json": {"schema": {}},
                    **({"text/event-stream": {"schema": {}}} if streams else {}),
                },
            },
            **_relayed_errors(keys),
        },
    }
    named = [_ANTHROPIC_KEY] if speaks_anthropic(path) else []
    _require(operation, [_CLIENT_KEY, *named] if keys.clients else [])
    return operation


def _summary(path: str, kind: BodyKind) -> str:
    if kind is BodyKind.PASSED:
        return f"One instance's {path}"
    return f"{path}, prefilled locally or by a PrfaaS cluster"


def _body_schema(kind: BodyKind) -> Schema:
    prompt = _PROMPTS[kind]
    flags: Schema = {} if kind is BodyKind.PASSED else {"stream": _STREAM}
    return {
        "type": "object",
        "required": ["model", *prompt],
        "properties": {"model": _MODEL, **prompt, **flags, "cache_salt": _SALT},
        "additionalProperties": True,
    }


def _stored_operations(keys: Keys) -> Schema:
    """Return the operations on stored responses, which their engines answer."""
    item: Schema = {}
    parameter = {
        "name": "response_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
    }
    for path, method, summary in (
        ("/v1/responses/{response_id}", "get", "Read a stored response"),
        ("/v1/responses/{response_id}/cancel", "post", "Cancel a response that is being made"),
    ):
        operation: Schema = {
            "tags": ["relayed"],
            "summary": summary,
            "operationId": f"{method}_response",
            "parameters": [parameter],
            "responses": {
                "200": {
                    "description": "The engine's answer.",
                    "headers": _ROUTING_HEADERS,
                    "content": {"application/json": {"schema": {}}},
                },
                **_relayed_errors(keys),
            },
        }
        _require(operation, [_CLIENT_KEY] if keys.clients else [])
        item[path] = {method: operation}
    return item


def _relayed_errors(keys: Keys) -> Schema:
    """Return the errors of a relayed request; an engine's own 4xx passes as it is."""
    refusal = {"$ref": "#/components/responses/Refusal"}
    ours = _errors([*_BY_RELAY, *([401] if keys.clients else [])])
    return {**ours, **dict.fromkeys(_BY_EITHER, refusal)}


def _errors(codes: Iterable[int]) -> Schema:
    return {str(code): {"$ref": f"#/components/responses/Error{code}"} for code in sorted(codes)}


def _error_responses() -> Schema:
    return {
        f"Error{code}": {
            "description": told,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            **(
                {"headers": {"Retry-After": {"schema": {"type": "integer"}}}} if code == 503 else {}
            ),
        }
        for code, told in _REFUSALS.items()
    }


def _require(operation: Schema, schemes: Iterable[str]) -> None:
    operation["security"] = [{scheme: []} for scheme in schemes]
