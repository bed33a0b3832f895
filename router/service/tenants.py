"""Who asks: API keys to tenants, and the cache salt that keeps tenants' prefixes apart."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from router.control.limits import TenantLimits
from router.domain.errors import NotFound, Unauthenticated

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the fleet.

    `key_digests` are the SHA-256 digests of its API keys: the gateway keeps no key in clear.
    `salt` None means one derived from a secret of this deployment. `home` is the PD cluster that
    serves it, `may_choose_home` whether a request may name another. `weight` is its share of the
    decode slots when requests queue. The lower `priority` goes first; with `may_choose_priority`
    a request may name one that is not before its tenant's.
    """

    name: str
    key_digests: frozenset[bytes] = frozenset()
    salt: str | None = field(default=None, repr=False)
    home: str | None = None
    may_choose_home: bool = False
    weight: float = 1.0
    priority: int = 0
    may_choose_priority: bool = False
    limits: TenantLimits = TenantLimits()


class TenantBook:
    """All tenants; without any the gateway is open and everybody is `default`."""

    def __init__(self, tenants: Iterable[Tenant], *, secret: bytes) -> None:
        """`secret` derives the salts of tenants that have none; it must outlive the process."""
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._by_digest: Mapping[bytes, Tenant] = {
            digest: tenant for tenant in self._tenants.values() for digest in tenant.key_digests
        }
        self._secret = secret
        self._open = Tenant(DEFAULT_TENANT, may_choose_home=True, may_choose_priority=True)

    @property
    def is_open(self) -> bool:
        """Whether anybody may ask without a key."""
        return not self._tenants

    @property
    def names(self) -> frozenset[str]:
        """The tenants' names, for bounded metric labels."""
        return frozenset(self._tenants) or frozenset({DEFAULT_TENANT})

    def find(self, name: str | None) -> Tenant:
        """Return a tenant by name. Raises NotFound.

        None asks for a stranger to all of them: `default`, whose prefixes are nobody's.
        """
        if name is None:
            return self._open if self.is_open else Tenant(DEFAULT_TENANT)
        if self.is_open and name == DEFAULT_TENANT:
            return self._open
        try:
            return self._tenants[name]
        except KeyError:
            raise NotFound(f"no tenant {name!r}", param="tenant") from None

    def authenticate(self, authorization: bytes | None) -> Tenant:
        """Return the tenant of an `Authorization` header's value.

        Keys are compared by digest, so neither timing nor memory tells one. Raises
        Unauthenticated.
        """
        if self.is_open:
            return self._open
        scheme, _, key = (authorization or b"").partition(b" ")
        tenant = None
        if scheme.lower() == b"bearer" and key.strip():
            tenant = self._by_digest.get(hashlib.sha256(key.strip()).digest())
        if tenant is None:
            raise Unauthenticated(
                "no API key was given, or it is not known", code="invalid_api_key"
            )
        return tenant

    def cache_salt(self, tenant: Tenant, asked: str | None) -> str | None:
        """Return the salt that engines get.

        Without tenants the client's own passes. A tenant's is an HMAC over the client's (or
        nothing) under the tenant's salt, so no tenant can name another's prefixes (DESIGN 4).
        """
        if self.is_open:
            return asked
        key = (
            tenant.salt.encode()
            if tenant.salt is not None
            else hmac.digest(self._secret, tenant.name.encode(), "sha256")
        )
        return hmac.new(key, (asked or "").encode(), "sha256").hexdigest()
