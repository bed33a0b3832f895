"""What is neither relayed nor administration: health, readiness, metrics, the list of models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from router import __version__
from router.domain.errors import (
    BadRequest,
    BodyTooLarge,
    ClientFault,
    MethodNotAllowed,
    NotFound,
    RouterError,
)
from router.gateway.dispatch import Application
from router.gateway.errors import error_response, speaks_anthropic
from router.gateway.rooms import Room
from router.service.models import ModelCatalog
from router.service.tenants import TenantBook

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application  # for types alone


class Health(BaseModel):
    """Whether the process lives."""

    status: Literal["ok"] = "ok"
    version: str = __version__


class Readiness(BaseModel):
    """Whether a request could be served."""

    status: Literal["ready", "not ready"]


class ModelCard(BaseModel):
    """A name that clients may use, as OpenAI's clients read it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "prfaas"


class ModelList(BaseModel):
    """Every name that clients may use."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@dataclass(slots=True)
class FrontRoom(Room):
    """What the plain endpoints work with. `is_ready` is whether a request could be served now."""

    catalog: ModelCatalog
    tenants: TenantBook
    is_ready: Callable[[], bool]
    render_metrics: Callable[[], Awaitable[bytes]]
    started_at: int


def build_application(*, title: str) -> FastAPI:
    """Return an empty application in which every error has the one shape of DESIGN 4."""
    # The framework's own description would miss the relayed paths: see `openapi`.
    app = FastAPI(title=title, version=__version__, openapi_url=None)

    async def answer_router_error(request: Request, error: Exception) -> Response:
        named = speaks_anthropic(request.url.path)
        status, headers, body = error_response(error, named=named)
        return Response(body, status, {key.decode(): value.decode() for key, value in headers})

    async def answer_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it alone
        return await answer_router_error(request, _explain_invalid(error))

    async def answer_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for it alone
        response = await answer_router_error(request, _explain_http(request, error))
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(RouterError, answer_router_error)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(Exception, answer_router_error)  # the framework logs what it was
    return app


def behind_proxies(application: FastAPI) -> Application:
    """Return an application that sees a client's own address behind a proxy on this host."""
    wrapped = ProxyHeadersMiddleware(
        cast("ASGI3Application", application), trusted_hosts=["127.0.0.1", "::1"]
    )
    return cast("Application", wrapped)  # the same shape, in uvicorn's words


def _explain_http(request: Request, error: HTTPException) -> ClientFault:
    """Return the framework's own refusal as one of ours."""
    match error.status_code:
        case 404:
            return NotFound(f"no path {request.url.path!r}")
        case 405:
            return MethodNotAllowed(f"{request.method} is not for this path")
        case 413:
            return BodyTooLarge(str(error.detail), code="body_too_large")
        case _:
            return BadRequest(str(error.detail))


def _explain_invalid(error: RequestValidationError) -> BadRequest:
    """Return the first complaint in one line, with its place in the body."""
    first = error.errors()[0]
    if first["loc"] == ("body",) and first["type"] != "value_error":
        return BadRequest(_explain_whole_body(first.get("input")))
    where = ".".join(str(part) for part in first["loc"] if part not in {"body", "query"})
    message = str(first["msg"]).removeprefix("Value error, ")
    return BadRequest(f"{where}: {message}" if where else message, param=where or None)


def _explain_whole_body(given: object) -> str:
    """Return what is wrong with a body as a whole.

    The framework leaves bytes as they are where the content type is not JSON's. They are refused:
    a browser sends other types to any address without asking, a loopback gateway's among them.
    """
    if isinstance(given, bytes):
        return "the body must be sent with content-type: application/json"
    return "the body must be a JSON object"


def build_health(room: FrontRoom) -> APIRouter:
    """Return `/health` and `/ready`."""
    routes = APIRouter(tags=["health"])

    @routes.get("/health")
    async def read_health() -> Health:
        """Whether the process lives."""
        return Health()

    @routes.get("/ready", responses={503: {"model": Readiness}})
    async def read_readiness(response: Response) -> Readiness:
        """Whether a request could be served: 503 while draining or with nobody alive."""
        if room.is_ready():
            return Readiness(status="ready")
        response.status_code = 503
        response.headers["retry-after"] = "1"
        return Readiness(status="not ready")

    return routes


def build_metrics(room: FrontRoom) -> APIRouter:
    """Return `/metrics`, without authentication as Prometheus expects."""
    routes = APIRouter(tags=["metrics"])

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        """Everything counted, in the Prometheus text format."""
        body = await room.render_metrics()
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def build_models(room: FrontRoom) -> APIRouter:
    """Return `/v1/models`: the names that clients may use."""
    routes = APIRouter(tags=["openai"])

    def card(name: str) -> ModelCard:
        return ModelCard(id=name, created=room.started_at)

    def authenticate(request: Request) -> None:
        told = request.headers.get("authorization")
        key = request.headers.get("x-api-key")
        if told is None and key is not None:  # as Anthropic's clients send it
            told = f"Bearer {key}"
        room.tenants.authenticate(None if told is None else told.encode("latin-1"))

    @routes.get("/v1/models")
    async def list_models(request: Request) -> ModelList:
        """Return every configured name."""
        authenticate(request)
        return ModelList(data=[card(name) for name in room.catalog.names])

    @routes.get("/v1/models/{name:path}")
    async def read_model(request: Request, name: str) -> ModelCard:
        """Return one configured name."""
        authenticate(request)
        return card(room.catalog.resolve(name).asked)

    return routes
