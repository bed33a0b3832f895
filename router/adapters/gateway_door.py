"""Where a gateway takes telemetry: `POST links/{name}/telemetry` of its admin API."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import httpx

from router.service.link_agent import NotTold


class HttpDoor:
    """Implements `GatewayDoor` over httpx. `client` carries the time-out; its owner closes it."""

    def __init__(self, client: httpx.AsyncClient, url: str, link: str, key: str | None) -> None:
        self._client = client
        self._url = url
        self._path = f"{url}/admin/v1/links/{quote(link, safe='')}/telemetry"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    @property
    def url(self) -> str:
        """Its address."""
        return self._url

    async def tell(self, document: Mapping[str, object]) -> None:
        """Tell one measurement. Raises NotTold."""
        try:
            answer = await self._client.post(self._path, json=document, headers=self._headers)
        except httpx.TimeoutException as error:
            raise NotTold("it does not answer") from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise NotTold(f"no connection: {type(error).__name__}") from error
        if not answer.is_success:
            raise NotTold(_say(answer))


def _say(answer: httpx.Response) -> str:
    """Return what a gateway objects to, in one line."""
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = "is it a PrfaaS gateway's admin address?"
    return f"{answer.status_code}, {' '.join(str(message).split())}"
