"""Every key that the router keeps in Redis: built here and nowhere else.

`docs/store-schema.md` says what each holds, who owns it and when it ends. Braces are Cluster hash
tags: what one script touches is on one shard. The index has keys of its own
(`kvmeta/backends/keys.py`); both begin with `prfaas:`.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

LEASE_PREFIX = "prfaas:lease:"
"""Begins what `kvmeta.backends.redis_leases` names."""


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """Builds the keys of one deployment."""

    namespace: str = "prfaas"

    # -- two a limited tenant, together on one shard

    def buckets(self, tenant: str) -> str:
        """Hash: rate -> what is owed, and as of when. Ends when every bucket must be full again."""
        return self._of(f"limits:{{{quote(tenant, safe='')}}}:buckets")

    def running(self, tenant: str) -> str:
        """Sorted set: requests that run, by the time at which their process's lease ends."""
        return self._of(f"limits:{{{quote(tenant, safe='')}}}:running")

    # -- what is ordered, together on one shard; lives as long as the deployment

    def document(self, name: str) -> str:
        """Hash: version and text of a document."""
        return self._of(f"{{control}}:{name}")

    @property
    def records(self) -> str:
        """List: the latest records of what was changed, newest first."""
        return self._of("{control}:audit")

    @property
    def leader(self) -> str:
        """Hash: who leads, in which term, and until when. Its number must not be begun anew."""
        return self._of("{control}:leader")

    # -- lives for seconds

    def trial(self, owner: str) -> str:
        """String: what `prfaas doctor` wrote to see whether it is kept; ends after a minute."""
        return self._of(f"{{doctor}}:{owner}")

    # -- what gateways tell each other, together on one shard

    @property
    def loads(self) -> str:
        """Hash: process -> until when its report counts, and the report."""
        return self._of("{fleet}:loads")

    @property
    def slots(self) -> str:
        """Hash: process -> its claims on instances' decode slots, as JSON."""
        return self._of("{fleet}:slots")

    @property
    def places(self) -> str:
        """Hash: process -> its claims on instances' places for a prefill, as JSON."""
        return self._of("{fleet}:places")

    @property
    def bookings(self) -> str:
        """Hash: process -> bytes that it holds of links, as JSON."""
        return self._of("{fleet}:bookings")

    # -- one a stored response

    def response(self, tenant: str, response_id: str) -> str:
        """String: the instance that keeps a response, and its model. Ends after a day."""
        return self._of(f"response:{quote(tenant, safe='')}:{response_id}")

    def _of(self, rest: str) -> str:
        return f"{self.namespace}:{rest}"
