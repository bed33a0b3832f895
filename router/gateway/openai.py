"""The relayed OpenAI endpoints, as raw ASGI: read, decide, relay; no copy that is not needed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec import Struct

from router.domain.decision import Decision
from router.domain.errors import (
    BadRequest,
    ClientGone,
    MethodNotAllowed,
    NotFound,
    RouterError,
    UpstreamError,
)
from router.domain.units import Tokens
from router.gateway.access import AccessLog, Outcome, RequestHook, form_line
from router.gateway.errors import error_response, speaks_anthropic
from router.gateway.rate_headers import rate_headers
from router.gateway.requests import (
    OUTLET,
    BodyBudget,
    BodyShare,
    Receive,
    Scope,
    Send,
    choose_request_id,
    first_fields,
    read_body,
    unless_gone,
)
from router.gateway.uploads import BodyStream, is_multipart
from router.ports import Clock
from router.service.bodies import BodyKind, ClientBody, passed_body
from router.service.bodies import read_body as parse_body
from router.service.flows import Outlet
from router.service.models import ModelCatalog
from router.service.relay import Relay
from router.service.relay_ports import RelayRequest, Verbatim
from router.service.relayed import RelayedResponse
from router.service.routing import Ask, Routed, Routing
from router.service.stored_responses import (
    IdSpotter,
    Origin,
    StoredResponses,
)
from router.service.tenants import Tenant, TenantBook
from router.service.visits import Visit, Visits

_LOG = logging.getLogger(__name__)

RELAYED_PATHS = {
    "/v1/chat/completions": BodyKind.CHAT,
    "/v1/completions": BodyKind.COMPLETION,
    "/v1/responses": BodyKind.RESPONSES,
    "/v1/messages": BodyKind.MESSAGES,
}
"""What gets the whole of P/D routing."""

PASSED_PATHS = (
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/v1/messages/count_tokens",
)
"""What one instance answers by itself; `server.passthrough_paths` adds to it."""

_STORED_PREFIX = "/v1/responses/"

_QUERY = re.compile(rb"[\x21-\x7e]{0,2048}")
_CLIENT_CLOSED = 499
"""How logs and metrics tell of a client that left (nginx's code); nobody is answered with it."""

_LAST = 100
"""The last priority that counts: more are the same, so that they cannot be without number."""

_LONGEST_INTEGER = 20
"""Characters of a signed integer of 64 bits, which is what vLLM takes for a priority."""


Fields = Mapping[bytes, bytes]
"""A request's header fields, as `first_fields` returns them."""


@dataclass(frozen=True, slots=True)
class OpenAiRules:
    """Bounds of the client's side. `homes` are the PD clusters that a request may name.

    `passed_paths` are engine paths beyond `PASSED_PATHS`.
    """

    max_body_bytes: int = 16 * 1024 * 1024
    expose_routing_headers: bool = True
    homes: frozenset[str] = frozenset()
    passed_paths: tuple[str, ...] = ()


class Call(Struct, frozen=True):
    """What is asked of an engine: its path with the query, and what goes there unread."""

    path: str
    verbatim: Verbatim | None = None


class RelayMaker(Protocol):
    """Makes the relay of one request."""

    def __call__(self, routed: Routed) -> Relay:
        """Return a relay that can plan `routed` again and counts its legs."""
        ...


class OpenAiSurface:
    """What the relayed endpoints share."""

    def __init__(
        self,
        *,
        routing: Routing,
        make_relay: RelayMaker,
        tenants: TenantBook,
        visits: Visits,
        catalog: ModelCatalog,
        stored: StoredResponses,
        budget: BodyBudget,
        hook: RequestHook,
        access: AccessLog,
        clock: Clock,
        new_id: Callable[[], str],
        rules: OpenAiRules,
    ) -> None:
        self.routing = routing
        self.make_relay = make_relay
        self.tenants = tenants
        self.visits = visits
        self.catalog = catalog
        self.stored = stored
        self.budget = budget
        self.hook = hook
        self.access = access
        self.clock = clock
        self.new_id = new_id
        self.rules = rules

    def paths(self) -> dict[str, BodyKind]:
        """Return every path that takes POST, and what its bodies are."""
        passed = dict.fromkeys((*PASSED_PATHS, *self.rules.passed_paths), BodyKind.PASSED)
        return passed | RELAYED_PATHS

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the ASGI application of every path that takes POST."""
        return {path: Endpoint(self, path, kind) for path, kind in self.paths().items()}

    def families(self) -> dict[str, StoredEndpoint]:
        """Return the ASGI application of every path that begins with one of ours."""
        return {_STORED_PREFIX: StoredEndpoint(self, _STORED_PREFIX, BodyKind.RESPONSES)}


class Endpoint:
    """One path: who asks, what becomes of it, and that it is told and counted once."""

    _is_limited = True

    def __init__(self, surface: OpenAiSurface, path: str, kind: BodyKind) -> None:
        self._surface = surface
        self._path = path
        self._kind = kind
        self._named_errors = speaks_anthropic(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        surface = self._surface
        fields = first_fields(scope)
        request_id = choose_request_id(fields.get(b"x-request-id"), surface.new_id)
        outcome = Outcome(request_id, self._path, surface.clock.monotonic())
        answer = Answering(
            send,
            outcome,
            outlet=scope.get("extensions", {}).get(OUTLET),
            expose_routing=surface.rules.expose_routing_headers,
            named_errors=self._named_errors,
        )
        try:
            tenant = surface.tenants.authenticate(self._read_credential(fields))
            outcome.tenant = tenant.name
            answer.visit = surface.visits.open(tenant, limited=self._is_limited)
            with answer.visit as visit, surface.budget.share() as share:
                await self._answer(scope, fields, receive, visit, answer, share)
        except ClientGone:
            outcome.status = outcome.status or _CLIENT_CLOSED
            outcome.error = "client_gone"
        except RouterError as error:
            await answer.fail(error)
        except Exception as error:  # noqa: BLE001 - a request's root: whatever broke, it is told
            _LOG.exception("request %s failed", request_id)
            await answer.fail(error)
        finally:
            elapsed = surface.clock.monotonic() - outcome.started
            surface.hook.request_finished(outcome.decision, outcome.status, elapsed)
            if surface.access.is_on:
                surface.access.write(form_line(outcome, elapsed))

    async def _answer(
        self,
        scope: Scope,
        fields: Fields,
        receive: Receive,
        visit: Visit,
        answer: Answering,
        share: BodyShare,
    ) -> None:
        """Read the request, then serve it for as long as its client stays."""
        limit = self._surface.rules.max_body_bytes
        if self._kind is BodyKind.PASSED and is_multipart(scope):
            upload = BodyStream(scope, receive, limit)
            body = passed_body(await upload.peek_model())
            kind = fields.get(b"content-type", b"")
            call = Call(self._path, Verbatim(content_type=kind, upload=upload))
            receive = upload.receive
        else:
            body = parse_body(await read_body(scope, receive, limit, share), self._kind)
            call = Call(self._path)
        only = None
        if self._kind is BodyKind.RESPONSES:
            only = await self._find_previous(body, visit.tenant)
        ask = self._form_ask(fields, body, visit.tenant, answer.outcome, only=only)
        await unless_gone(scope, receive, self._serve(scope, ask, call, visit, answer))

    async def _serve(
        self, scope: Scope, ask: Ask, call: Call, visit: Visit, answer: Answering
    ) -> None:
        """Decide and relay, and pass the answer on."""
        surface, outcome = self._surface, answer.outcome
        routed = await surface.routing.route(ask, visit)
        outcome.total_tokens = routed.request.total_tokens
        outcome.decision = decided = routed.record.decision
        request = RelayRequest(
            path=call.path,
            body=routed.ask.body,
            headers=scope["headers"],
            request_id=f"{outcome.request_id}-{surface.new_id()[:8]}",
            model=routed.ask.named.asked,
            received_at=outcome.started,
            verbatim=call.verbatim,
        )
        try:
            response = await surface.make_relay(routed).run(request, decided)
        except BaseException:
            outcome.decision = routed.decision
            raise
        try:
            surface.routing.settle(routed, response.decision)
            outcome.decision = response.decision
            await answer.pass_on(response, self._watch_id(ask, response.decision))
        finally:
            await response.aclose()

    def _form_ask(
        self,
        fields: Fields,
        body: ClientBody,
        tenant: Tenant,
        outcome: Outcome,
        *,
        only: str | None,
    ) -> Ask:
        """Turn a body into the question that the rule answers; `only` is who may answer it."""
        surface = self._surface
        named = surface.catalog.resolve(body.model)
        outcome.model = named.model.name
        salt = surface.tenants.cache_salt(tenant, body.cache_salt)
        # What is passed on may be of any shape: its salt is replaced where it has one.
        salted = body.kind is not BodyKind.PASSED or body.cache_salt is not None
        if salted and salt is not None and salt != body.cache_salt:
            body = body.with_salt(salt)
        return Ask(
            request_id=outcome.request_id,
            tenant=tenant,
            named=named,
            body=body,
            salt=salt,
            home=self._choose_home(fields, tenant),
            only=only,
            priority=choose_priority(fields, body, tenant),
        )

    async def _find_previous(self, body: ClientBody, tenant: Tenant) -> str | None:
        """Return the instance that keeps the response which this one continues, if one does.

        Raises NotFound for a tenant that does not own it: an engine would continue anybody's.
        """
        previous = body.decode("previous_response_id")
        if not previous:
            return None
        origin = await self._surface.stored.search(tenant.name, str(previous))
        if origin is not None:
            return origin.instance
        if self._surface.tenants.is_open:
            return None
        raise NotFound(f"no response {previous!r}", param="previous_response_id")

    def _watch_id(self, ask: Ask, decision: Decision) -> IdSpotter | None:
        """Return what remembers the id of a response that is being made."""
        if ask.body.kind is not BodyKind.RESPONSES:
            return None
        origin = Origin(decision.decode.instance, ask.named.asked)
        return IdSpotter(partial(self._surface.stored.note, ask.tenant.name, origin=origin))

    def _read_credential(self, fields: Fields) -> bytes | None:
        """Return the Authorization; Anthropic's clients put their key into `x-api-key`."""
        told = fields.get(b"authorization")
        if told is None and self._named_errors:
            key = fields.get(b"x-api-key")
            return None if key is None else b"Bearer " + key
        return told

    def _choose_home(self, fields: Fields, tenant: Tenant) -> str | None:
        """Return the home that the request names, where its tenant may and it exists."""
        asked = fields.get(b"x-prfaas-home") if tenant.may_choose_home else None
        if asked is None:
            return tenant.home
        name = asked.decode("latin-1")
        return name if name in self._surface.rules.homes else tenant.home


def choose_priority(fields: Fields, body: ClientBody, tenant: Tenant) -> int:
    """Return a request's priority in the queue: lower goes first, as in vLLM.

    `x-prfaas-priority`, else the body's `priority`, counts where the tenant may choose, and never
    puts a request before its tenant's own. What is no integer is not the gateway's to judge.
    """
    if not tenant.may_choose_priority:
        return tenant.priority
    asked = fields.get(b"x-prfaas-priority")
    if asked is None and "priority" in body.fields:
        asked = bytes(body.fields["priority"])
    if asked is None or len(asked) > _LONGEST_INTEGER:
        return tenant.priority
    try:
        return max(tenant.priority, min(int(asked), _LAST))
    except ValueError:
        return tenant.priority


class StoredEndpoint(Endpoint):
    """Reads and cancels stored responses, at the instance that made them.

    No limit keeps a tenant from cancelling what it runs.
    """

    _is_limited = False

    async def _answer(
        self,
        scope: Scope,
        fields: Fields,
        receive: Receive,
        visit: Visit,
        answer: Answering,
        share: BodyShare,  # noqa: ARG002 - a stored response is asked for without a body
    ) -> None:
        response_id, _, order = scope["path"].removeprefix(_STORED_PREFIX).partition("/")
        if order not in {"", "cancel"}:
            raise NotFound(f"no path {scope['path']!r}")
        method = "POST" if order else "GET"
        if scope["method"] != method:
            raise MethodNotAllowed(f"this path takes {method}", allow=method)
        origin = await self._surface.stored.search(visit.tenant.name, response_id)
        if origin is None:
            raise NotFound(f"no response {response_id!r}", param="response_id")
        call = Call(scope["path"] + _read_query(scope), Verbatim(method=method))
        body, outcome = passed_body(origin.model), answer.outcome
        ask = self._form_ask(fields, body, visit.tenant, outcome, only=origin.instance)
        work = self._serve(scope, ask, call, visit, answer)
        await unless_gone(scope, receive, work)


def _read_query(scope: Scope) -> str:
    """Return a request's query with its question mark, empty without one."""
    query = bytes(scope["query_string"])
    if _QUERY.fullmatch(query) is None:
        raise BadRequest("the query has characters that no URL may have")
    return f"?{query.decode('ascii')}" if query else ""


class Answering:
    """Sends one answer, once: the engine's, or an error in our own shape.

    `named_errors` gives errors the `type` at their top that Anthropic's clients look for.
    """

    def __init__(
        self,
        send: Send,
        outcome: Outcome,
        *,
        outlet: Outlet | None,
        expose_routing: bool,
        named_errors: bool = False,
    ) -> None:
        self._send = send
        self._outlet = outlet
        self._expose_routing = expose_routing
        self._named_errors = named_errors
        self._started = False
        self.outcome = outcome
        self.visit: Visit | None = None

    async def pass_on(self, response: RelayedResponse, spotter: IdSpotter | None = None) -> None:
        """Send an engine's answer, its pieces as they arrive; `spotter` looks for its id.

        A body that was cut where nothing in it can say so leaves the response unfinished: the
        server then breaks the client's connection, which is the only honest end.
        """
        headers = list(response.headers)
        if response.body is not None:
            if spotter is not None:
                spotter.read_whole(response.body)
            headers.append((b"content-length", b"%d" % len(response.body)))
            await self._start(response.status, headers)
            await self._send({"type": "http.response.body", "body": response.body})
            return
        await self._start(response.status, headers)
        try:
            await self._stream(response, spotter)
        except UpstreamError as error:
            self.outcome.error = type(error).__name__
            return
        await self._send({"type": "http.response.body", "body": b""})

    async def _stream(self, response: RelayedResponse, spotter: IdSpotter | None) -> None:
        """Send the pieces of a body, at once where the server lets us."""
        if self._outlet is not None:
            outlet = self._outlet if spotter is None else _Spotting(self._outlet, spotter)
            await response.pour(outlet)
            return
        async for chunk in response.chunks():
            if spotter is not None:
                spotter.feed(chunk)
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def fail(self, error: Exception) -> None:
        """Tell the client what went wrong, unless an answer is on its way already."""
        self.outcome.error = type(error).__name__
        if self._started:
            return
        status, headers, body = error_response(error, named=self._named_errors)
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        self.outcome.status = status
        headers.append((b"x-request-id", self.outcome.request_id.encode("ascii")))
        if self.visit is not None and self.visit.standings:
            headers += rate_headers(self.visit.standings)
        if self._expose_routing and self.outcome.decision is not None:
            headers += routing_headers(self.outcome.decision, self.outcome.total_tokens or 0)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class _Spotting:
    """An outlet whose pieces are looked at on their way."""

    def __init__(self, outlet: Outlet, spotter: IdSpotter) -> None:
        self._outlet = outlet
        self._spotter = spotter
        self.drain = outlet.drain

    def write(self, piece: bytes, chunks: bytes | None = None) -> bool:
        self._spotter.feed(piece)
        return self._outlet.write(piece, chunks)


def routing_headers(decision: Decision, total: Tokens) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell where a request ran and why (DESIGN 4).

    `x-prfaas-prefill` is absent where the decode instance computed the prompt itself, and
    `x-prfaas-cached-tokens`, the belief for the computing instance, where it is unknown.
    """
    told = [
        (b"x-prfaas-route", decision.route.encode("latin-1")),
        (b"x-prfaas-reason", decision.reason.encode("latin-1")),
        (b"x-prfaas-decode", decision.decode.instance.encode("latin-1")),
        (b"x-prfaas-total-tokens", b"%d" % total),
        (b"x-prfaas-uncached-tokens", b"%d" % decision.uncached_tokens),
        (b"x-prfaas-threshold", b"%d" % decision.threshold),
    ]
    computing = decision.prefill or decision.decode
    if decision.prefill is not None:
        told.append((b"x-prfaas-prefill", decision.prefill.instance.encode("latin-1")))
    if computing.cached_tokens is not None:
        told.append((b"x-prfaas-cached-tokens", b"%d" % computing.cached_tokens))
    return told
