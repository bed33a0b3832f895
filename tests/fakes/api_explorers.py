"""Explores a live gateway by its own OpenAPI document, with schemathesis."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

_CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]
_STATES = frozenset({502, 503, 504})
"""What a live system may be in; 500 is nothing that it may be."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """How to explore: `examples` of each operation and each of sound and of spoilt requests.

    `names` are the values of parameters and members by their names, so that some requests are
    about things that exist.
    """

    url: str
    examples: int
    names: Mapping[str, tuple[str, ...]]
    headers: Mapping[str, str]


def explore(exploration: Exploration, prefix: str) -> list[tuple[str, int]]:
    """Call every operation whose path begins with `prefix`; return what was called and answered.

    Raises schemathesis' failures, which name the request, for what the document does not allow.
    Blocks: for a thread of its own.
    """
    document: dict[str, Any] = httpx.get(f"{exploration.url}/openapi.json", trust_env=False).json()
    _name_things(document, exploration.names)
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=exploration.url)
    seen: list[tuple[str, int]] = []
    with requests.Session() as session:
        session.trust_env = False
        for operation in (found.ok() for found in schema.get_all_operations()):
            if not operation.path.startswith(prefix):
                continue
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _explore_operation(operation, mode, exploration, session, seen)
    return seen


def _explore_operation(
    operation: Any,  # noqa: ANN401 - schemathesis' operation, of any specification
    mode: GenerationMode,
    exploration: Exploration,
    session: requests.Session,
    seen: list[tuple[str, int]],
) -> None:
    extra = [negative_data_rejection] if operation.path.startswith("/admin") else []

    def check(case: schemathesis.Case) -> None:
        answer = case.call(session=session, headers=dict(exploration.headers), timeout=20)
        seen.append((operation.label, answer.status_code))
        assert answer.status_code < 500 or answer.status_code in _STATES, answer.text
        case.validate_response(answer, checks=[*_CHECKS, *extra])

    cases = operation.as_strategy(generation_mode=mode)
    bounded = settings(
        max_examples=exploration.examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    # What takes no parameter cannot be asked for in a wrong way.
    with contextlib.suppress(Unsatisfiable):
        bounded(given(case=cases)(check))()


def _name_things(document: dict[str, Any], names: Mapping[str, tuple[str, ...]]) -> None:
    """Let what requests are made of have the `names`; what answers are made of stays."""
    schemas = document["components"]["schemas"]
    for item in document["paths"].values():
        for operation in item.values():
            asked = [operation.get("parameters", []), operation.get("requestBody", {})]
            _limit_values(asked, names)
            for content in asked[1].get("content", {}).values():
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                _limit_values(schemas.get(name, {}), names)


def _limit_values(part: Any, names: Mapping[str, tuple[str, ...]]) -> None:  # noqa: ANN401 - JSON
    """Let every parameter and member of one of the `names` have one of its values."""
    if isinstance(part, list):
        for item in part:
            _limit_values(item, names)
    if not isinstance(part, dict):
        return
    if part.get("in") in {"path", "query"} and part["name"] in names:
        part["schema"] = {"type": "string", "enum": list(names[part["name"]])}
    members = part.get("properties", {})
    for name in members.keys() & names.keys():
        members[name] = {"type": "string", "enum": list(names[name])}
    for item in part.values():
        _limit_values(item, names)
