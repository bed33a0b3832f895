"""One HTTP call of an actuator: bounded in time and size, its failure in one line.

Redirects are not followed: what moves accelerators goes where it was told. No address, header or
token is in a message, since operators read them where tokens must not be.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from router.domain.errors import ActuationFailed
from router.domain.units import Seconds

MAX_ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Most bytes that are read of an answer. etcd keeps no object over 1.5 MiB, and what SGLang tells
of itself is some ten KB."""

_MAX_REASON: Final = 200


class NoAnswer(ActuationFailed):
    """Nothing usable came back. `late` tells that it took too long, and may still be under way."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    status: int
    body: bytes = field(repr=False)

    @property
    def fine(self) -> bool:
        """Whether it says that what was asked was done or accepted."""
        return 200 <= self.status < 300

    def document(self) -> Mapping[str, Any]:
        """Return the JSON object that it holds, an empty one where it holds none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def reason(self) -> str:
        """Return why it refuses, as one printable line: its `message`, `reason`, or its text."""
        said = self.document()
        nested = said.get("error")
        texts = [said.get("message"), said.get("reason"), nested]
        if isinstance(nested, dict):
            texts.append(nested.get("message"))
        text = next((text for text in texts if isinstance(text, str) and text), None)
        if text is None:
            text = self.body[: 4 * _MAX_REASON].decode("utf-8", "replace")
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return line[:_MAX_REASON] or f"status {self.status}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls one peer. `peer` is what messages call it, `timeout` bounds each call as a whole.

    Each call makes a connection of its own: they are minutes apart, and authorities and tokens are
    renewed meanwhile. `trust` returns what vouches for a peer behind `https`, and may raise
    ActuationFailed; it is asked in a thread, since it reads files.
    """

    peer: str
    timeout: Seconds
    trust: Callable[[], ssl.SSLContext] = ssl.create_default_context

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        """Make one call and read its whole answer, whatever its status. Raises NoAnswer."""
        try:
            async with asyncio.timeout(self.timeout), await self._open(url) as client:
                request = client.build_request(method, url, headers=headers, content=content)
                return await self._exchange(client, request)
        except (TimeoutError, httpx.TimeoutException) as error:
            unreached = isinstance(error, httpx.ConnectTimeout)
            raise NoAnswer(
                f"{self.peer} did not answer within {self.timeout:g} s", late=not unreached
            ) from error
        except httpx.ConnectError as error:
            raise NoAnswer(f"{self.peer} cannot be reached: {_one_line(error)}") from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"{self.peer} broke off: {_one_line(error)}") from error

    async def _open(self, url: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            # Without TLS there is nobody to verify, and no authorities need to be read.
            verify=url.startswith("https:") and await asyncio.to_thread(self.trust),
            trust_env=False,
            follow_redirects=False,
            # What is compressed could grow without bound when it is read.
            headers={"accept-encoding": "identity"},
            # Without a connection it is given up before the call is: nothing was sent then.
            timeout=httpx.Timeout(self.timeout, connect=0.8 * self.timeout),
        )

    async def _exchange(self, client: httpx.AsyncClient, request: httpx.Request) -> Answer:
        response = await client.send(request, stream=True)
        try:
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise NoAnswer(f"{self.peer} answered more than {MAX_ANSWER_BYTES} bytes")
            return Answer(response.status_code, bytes(body))
        finally:
            await response.aclose()


def _one_line(error: httpx.HTTPError) -> str:
    return " ".join(str(error).split()) or type(error).__name__
