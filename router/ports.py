"""What the use cases need from outside, as small Protocols. Adapters implement them."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from router.domain.conversions import Conversion
from router.domain.topology import Instance
from router.domain.units import Seconds

Headers = Sequence[tuple[bytes, bytes]]
"""Raw header fields in order; names in lower case."""


class Clock(Protocol):
    """Time as an argument."""

    def monotonic(self) -> Seconds:
        """Seconds on a clock that never goes back."""
        ...

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds of one upstream call. 0 switches a bound off, as in the configuration.

    `connect` bounds making the connection, `first_byte` the silence before the response head (a
    long prefill is silent for minutes), `idle` the silence between two reads after it.
    """

    connect: Seconds = 2.0
    first_byte: Seconds = 0.0
    idle: Seconds = 300.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A document as a store keeps it. Version 0 was never written; each write adds one."""

    version: int
    document: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fence:
    """A leader's right to write: in the store, for as long as `owner` leads there in `term`."""

    owner: str
    term: int


class StateStore(Protocol):
    """Keeps small documents that must outlive a process. Held to `tests/contract/state_suite.py`.

    A write says which version it follows, so nobody undoes what he has not seen. Each call is one
    round trip where processes share the store, and raises StoreAway when it does not answer in
    time; of a write nothing is known then.
    """

    async def read(self, name: str) -> Kept:
        """Return a document; version 0 where there is none."""
        ...

    async def write(
        self,
        name: str,
        document: bytes,
        *,
        after: int,
        record: bytes | None = None,
        fence: Fence | None = None,
    ) -> Kept | None:
        """Write a document as the version after `after`, and a record of why beside it.

        None, and nothing is written, where that is not the version that is kept. With a fence
        raises NotLeading, and nothing is written, unless its owner leads now in its term; where
        there is one process alone nobody else can.
        """
        ...

    async def restore(self, name: str, kept: Kept) -> Kept:
        """Write a version back that the store has lost; return what it keeps then.

        What it keeps is left alone where it is as new.
        """
        ...

    async def records(self, limit: int) -> list[bytes]:
        """Return the latest records, newest first; older ones than a bound are forgotten."""
        ...


class Upload(Protocol):
    """A request body on its way through: read once, in pieces, never held."""

    @property
    def length(self) -> int | None:
        """Its size in bytes; None where the sender did not say."""
        ...

    @property
    def started(self) -> bool:
        """Whether a piece was read, so that it cannot be sent again."""
        ...

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Iterate over it. Raises what its source raises: ClientGone, BodyTooLarge."""
        ...


class EngineRequest(Struct, frozen=True):
    """One HTTP call to one engine. `path` starts with a slash and may carry a query.

    The body is `upload` where there is one, else `body`.
    """

    instance: str
    base_url: str
    path: str
    body: bytes = b""
    method: str = "POST"
    headers: Headers = ()
    timeouts: Timeouts = Timeouts()
    upload: Upload | None = None

    def __repr__(self) -> str:
        return f"<EngineRequest {self.method} {self.path} to {self.instance}>"


class EngineResponse(Protocol):
    """A response whose head has arrived; the body is read by the caller, once."""

    @property
    def status(self) -> int:
        """The HTTP status code."""
        ...

    @property
    def headers(self) -> Headers:
        """The response's header fields, hop-by-hop ones removed."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield body bytes as they arrive, undecoded, never held back.

        Raises UpstreamBroken when the body ends before HTTP says it may, UpstreamTimeout after
        `idle` seconds of silence.
        """
        ...

    def take_whole(self) -> bytes | None:
        """Return the rest of the body if all of it is here, else None: then nothing was read."""
        ...

    async def read(self) -> bytes:
        """Read the rest of the body whole. Raises as `chunks`."""
        ...

    async def pour(
        self, take: Callable[[bytes, bytes | None], bool], drain: Callable[[], Awaitable[None]]
    ) -> None:
        """Give `take` the rest of the body as it arrives, in the turn in which it does.

        It gets a piece of the body, and the whole chunks of HTTP's chunked coding in which that
        came, None where that is not at hand. Where it answers False no more is given until `drain`
        has returned, and the engine is held back. `take` must not raise. Raises as `chunks`.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back, or cut it when the body was not read to its end. Idempotent."""
        ...


class EngineClient(Protocol):
    """Talks HTTP/1.1 to engines. Held to `tests/contract/engine_client_suite.py`.

    Never follows redirects, never retries what may have been processed, never decodes bodies,
    sends exactly the given headers besides `host`, `content-length` and `connection`. A call that
    is cancelled cuts its connection at once.
    """

    async def send(self, request: EngineRequest) -> EngineResponse:
        """Send and wait for the response head.

        Raises UpstreamUnreachable (no connection: nothing was processed), UpstreamTimeout,
        UpstreamBroken, and what an upload raises. A connection found dead before any response byte
        is replaced once where the engine cannot have seen the request; an upload, which cannot be
        sent twice, gets a new connection at once.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


class EngineLines(Protocol):
    """The calls that are under way, by the address of their engine. Costs O(its connections)."""

    def silence(self, url: str) -> Seconds | None:
        """Return how long ago the last byte came from there; None where none ever did."""
        ...

    def cut(self, url: str, *, begun: bool) -> int:
        """Fail the calls there whose answer's body has not begun, all of them with `begun`.

        Returns how many. A call of which the engine's host has acknowledged not one byte fails
        with UpstreamUnreachable, any other with UpstreamLost.
        """
        ...


class Actuator(Protocol):
    """Carries conversions out at the engines.

    Called by one controller at a time, for instances that are drained. Each call bounds its own
    waits to some seconds. `act` and `undo` may be called again with the same conversion, by a
    controller that does not know how far the one before it came, and then change nothing more.
    """

    @property
    def in_place(self) -> bool:
        """Whether the instance itself takes the role; else another one does, and it ends."""
        ...

    def choose(self, model: str, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Return those of a model's live instances that it could convert next; no I/O."""
        ...

    async def act(self, conversion: Conversion) -> None:
        """Have the engine take the target role. Raises ActuationFailed: nothing is known then."""
        ...

    async def confirm(self, conversion: Conversion) -> bool:
        """Return whether the target role is served by now; asked again and again after `act`.

        Raises ActuationFailed where it never will be.
        """
        ...

    async def undo(self, conversion: Conversion) -> None:
        """Have the engine be in the source role, whatever `act` did. Raises ActuationFailed."""
        ...


@dataclass(frozen=True, slots=True)
class CountedPrompt:
    """A prompt's token ids, or only their number. `ids` None where nobody could list them."""

    total: int
    ids: Sequence[int] | None


class Tokenizer(Protocol):
    """An in-process tokenizer with the model's chat template.

    CPU-bound and safe to share between threads: call it off the event loop.
    """

    def encode(
        self, text: str, *, add_special_tokens: bool = True, scope: str = ""
    ) -> Sequence[int]:
        """Return the token ids of `text`.

        What may be remembered of it serves later texts of the same scope alone.
        """
        ...

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> str:
        """Return the prompt text that the model's chat template makes of a conversation.

        Raises ValueError where the template refuses it.
        """
        ...
