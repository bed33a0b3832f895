"""Pulling KV over HTTP: `POST /standin/pull` at the engine that prefilled."""

from __future__ import annotations

import logging

import httpx

from router.sim.engines.errors import PullError, UnknownHandoffError
from router.sim.engines.transfers import PullReceipt, PullTicket

logger = logging.getLogger(__name__)

PULL_PATH = "/standin/pull"
DISCARD_PATH = "/standin/discard"


class HttpPuller:
    """Pulls over kept connections. `timeout_seconds` of wall time bound one transfer."""

    def __init__(self, client: httpx.AsyncClient, timeout_seconds: float) -> None:
        self._client = client
        self._timeout = httpx.Timeout(timeout_seconds, connect=5.0, pool=None)

    async def pull(self, ticket: PullTicket, *, cluster: str, local_tokens: int) -> PullReceipt:
        """Return once the KV has crossed. Raises PullError; cancelling breaks the connection."""
        ask = {
            "engine_id": ticket.engine_id,
            "request_id": ticket.request_id,
            "cluster": cluster,
            "local_tokens": local_tokens,
        }
        try:
            answer = await self._client.post(
                _url(ticket, PULL_PATH), json=ask, timeout=self._timeout
            )
        except httpx.HTTPError as error:
            raise PullError(f"{ticket.host}:{ticket.port}: {error!r}") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise UnknownHandoffError(f"no hand-off of request {ticket.request_id}")
        if answer.status_code != httpx.codes.OK:
            raise PullError(f"{ticket.host}:{ticket.port} answered {answer.status_code}")
        return PullReceipt(int(answer.json()["bytes"]))

    async def discard(self, ticket: PullTicket) -> None:
        """Tell the prefill engine that nobody will pull; its lease ends the matter otherwise."""
        ask = {"engine_id": ticket.engine_id, "request_id": ticket.request_id}
        try:
            await self._client.post(_url(ticket, DISCARD_PATH), json=ask, timeout=5.0)
        except httpx.HTTPError as error:
            logger.info("discard notice for request %s lost: %r", ticket.request_id, error)


def _url(ticket: PullTicket, path: str) -> str:
    return f"http://{ticket.host}:{ticket.port}{path}"
