"""The types of single settings: numbers with their bounds, names, addresses, paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from router.domain.topology import AUTO_EVENTS
from router.settings.secrets import SECRET_SCHEMA, read_secret, surroundings_of


class Section(BaseModel):
    """A mapping of the configuration: frozen, closed, each key described below its field."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        validate_default=False,
        protected_namespaces=(),
    )


def incoherent(field: str, message: str) -> PydanticCustomError:
    """Build the error of a field that contradicts its neighbours; it points at that field."""
    return PydanticCustomError("incoherent", "{said}", {"said": message, "field": field})


def _refuse_bool(value: object) -> object:
    """YAML's true is 1 for Python, which no one means."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "must be a number")
    return value


_NoBool: Final = BeforeValidator(_refuse_bool)

Port = Annotated[int, Field(ge=1, le=65535), _NoBool]
ListenPort = Annotated[int, Field(ge=0, le=65535), _NoBool]
"""0 lets the kernel choose, as for every server."""
Count = Annotated[int, Field(ge=0, le=2**63 - 1), _NoBool]
PositiveCount = Annotated[int, Field(gt=0, le=2**63 - 1), _NoBool]
TokenCount = Count
PositiveTokens = PositiveCount

_LARGEST: Final = 1e12
"""Beyond what any time, rate or price means: 30,000 years. Sums and products of such numbers stay
finite, so that arithmetic on them ends."""
_SMALLEST: Final = 1e-9


def _refuse_tiny(value: float) -> float:
    """Numbers whose inverse is beyond the largest are mistakes of units."""
    if value < _SMALLEST:
        raise PydanticCustomError("number", f"must be at least {_SMALLEST:g}")
    return value


Duration = Annotated[float, Field(ge=0, le=_LARGEST), _NoBool]
"""Seconds, or milliseconds where the key says so."""
PositiveDuration = Annotated[float, Field(gt=0, le=_LARGEST), _NoBool, AfterValidator(_refuse_tiny)]
PositiveNumber = PositiveDuration
LogTokens = Annotated[float, Field(ge=-50, le=50), _NoBool]
"""A natural logarithm of tokens: e^50 of them are beyond every context."""
Ratio = Annotated[float, Field(ge=0, le=1), _NoBool]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
"""A name of ours: it appears in headers, metric labels, paths and store keys."""

ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~]+$", max_length=256)]
"""A name as clients and engines write it: printable ASCII without spaces."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _split(value: str) -> SplitResult:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise PydanticCustomError(
            "address", "is no valid address: {reason}", {"reason": str(error)}
        ) from error
    if port == 0:
        raise PydanticCustomError("address", "is no valid address: port 0")
    return parts


def check_http_url(value: str) -> str:
    """Accept `http(s)://host[:port][/path]`; a final slash is dropped."""
    parts = _split(value)
    if parts.scheme not in {"http", "https"}:
        raise PydanticCustomError("address", "must start with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise PydanticCustomError("address", "must hold no credentials: use `api_key`")
    if not parts.hostname or parts.query or parts.fragment or re.search(r"\s", value):
        raise PydanticCustomError("address", "must look like http://host:port or http://host/path")
    return value.rstrip("/")


def check_zmq_endpoint(value: str) -> str:
    """Accept what a subscriber can connect to: `tcp://host:port`, `ipc://path`."""
    parts = _split(value)
    if parts.scheme == "ipc" and (parts.netloc or parts.path):
        return value
    if parts.scheme != "tcp" or not parts.hostname or parts.port is None or parts.path:
        raise PydanticCustomError("address", "must look like tcp://host:port or ipc://path")
    if parts.hostname == "*":
        raise PydanticCustomError("address", "must name the engine's host: `*` is where it listens")
    return value


def check_events_endpoint(value: str) -> str:
    """Accept an endpoint, or `auto`: the engine is asked for it."""
    return value if value == AUTO_EVENTS else check_zmq_endpoint(value)


HttpUrl = Annotated[str, AfterValidator(check_http_url)]
ZmqEndpoint = Annotated[str, AfterValidator(check_zmq_endpoint)]
EventsEndpoint = Annotated[str, AfterValidator(check_events_endpoint)]

STORE_FORMS: Final = (
    "memory://",
    "redis://host:port/db",
    "rediss://host:port/db",
    "unix:///path",
    "redis+sentinel://host1,host2/service",
    "redis+cluster://host1,host2",
)


def check_store_url(value: SecretStr) -> SecretStr:
    """Accept the forms of DESIGN 1. The URL may hold a password, so no message repeats it."""
    text = value.get_secret_value()
    scheme, separator, rest = text.partition("://")
    hosts, _, path = rest.partition("/")
    match scheme:
        case "memory":
            sound = not rest
        case "redis" | "rediss":
            sound = bool(hosts) and "," not in hosts and _ports_are_sound(hosts)
        case "unix":
            sound = bool(path)
        case "redis+sentinel":
            sound = bool(path.partition("?")[0]) and _ports_are_sound(hosts)
        case "redis+cluster":
            sound = _ports_are_sound(hosts)
        case _:
            sound = False
    if not separator or not sound:
        raise PydanticCustomError(
            "address", "must be one of: {forms}", {"forms": ", ".join(STORE_FORMS)}
        )
    return value


def redact_url(url: str) -> str:
    """Return `url` without the credentials and the query that it may hold."""
    scheme, separator, rest = url.partition("://")
    _, at, shown = rest.partition("?")[0].rpartition("@")  # the last one: passwords hold anything
    return f"{scheme}{separator}{'**********@' if at else ''}{shown}"


def _ports_are_sound(hosts: str) -> bool:
    """Whether every `[user:password@]host[:port]` has a host and a port within range."""
    for host in hosts.rpartition("@")[2].split(","):
        try:
            parts = urlsplit(f"//{host.partition('?')[0]}")
            if not parts.hostname or parts.port == 0:
                return False
        except ValueError:
            return False
    return True


def _read_store_url(value: object, context: ValidationInfo) -> object:
    return read_secret(value, context) or ""


StoreUrl = Annotated[
    SecretStr, BeforeValidator(_read_store_url), AfterValidator(check_store_url), SECRET_SCHEMA
]


def _check_http_path(value: str) -> str:
    if not re.fullmatch(r"/[!-~]*", value) or re.search(r"[?#]", value):
        raise PydanticCustomError("address", "must be a path that starts with a slash")
    if value.startswith("/admin"):
        raise PydanticCustomError("address", "is a path of the gateway itself")
    return value


HttpPath = Annotated[str, AfterValidator(_check_http_path)]


def _resolve_path(value: object, context: ValidationInfo) -> object:
    if not isinstance(value, str | Path):
        raise PydanticCustomError("path", "must be a path")
    if not str(value):
        raise PydanticCustomError("path", "must not be empty")
    around = surroundings_of(context)
    return around.resolve(str(value)) if around else value


FilePath = Annotated[
    Path, BeforeValidator(_resolve_path), WithJsonSchema({"type": "string", "format": "path"})
]
"""A path, relative to the configuration file."""

BandwidthMode = Literal["auto", "scarce", "abundant"]
