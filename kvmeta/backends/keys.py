"""The key schema of the Redis back end: the only place where keys are built.

`docs/kvmeta-schema.md` says what each key holds, who owns it and what it costs. Every key starts
with the namespace, so several deployments can share one Redis; on Cluster the braces decide the
shard. No key holds a token, a salt or a tenant: pages are named by chain hashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from kvmeta.types import SourceId

DEFAULT_NAMESPACE = "prfaas:kv"


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds and recognises every key of one deployment."""

    namespace: str = DEFAULT_NAMESPACE

    # -- one of each; together on one shard of a cluster ----------------------------------------

    @property
    def table(self) -> bytes:
        """Hash: source -> what readers need to know of it. Owner: the source's writer."""
        return self._of("{t}:table")

    @property
    def revision(self) -> bytes:
        """String: a random mark, new with every change of the table. Owner: any writer."""
        return self._of("{t}:revision")

    @property
    def seen(self) -> bytes:
        """Hash: source -> when it, and its writer, last gave proof. Owner: the writer."""
        return self._of("{t}:seen")

    @property
    def slots(self) -> bytes:
        """String: the last slot number handed out. Lives as long as the deployment."""
        return self._of("{t}:slots")

    @property
    def secret(self) -> bytes:
        """String: what tenants' salts are derived from. Lives as long as the deployment."""
        return self._of("{t}:secret")

    # -- two a source, together on one shard ----------------------------------------------------

    def record(self, source: SourceId) -> bytes:
        """Hash: version and state of the source's ledger. Owner: the source's writer."""
        return self._of(f"s:{{{field_text(source)}}}:record")

    def labels(self, source: SourceId) -> bytes:
        """Hash: engine label -> name, spot and copies. Owner: the source's writer."""
        return self._of(f"s:{{{field_text(source)}}}:labels")

    # -- two a page, together on one shard ------------------------------------------------------

    def page(self, anchor: bytes) -> bytes:
        """String: who holds which blocks of up to a page of chain that starts at `anchor`."""
        return b"%b:{%b}p" % (self.namespace.encode(), anchor.hex().encode())

    def pages(self, anchors: list[str]) -> list[str]:
        """Return `page` of many hexadecimal anchors; what a look-up spends on keys."""
        prefix = self.namespace + ":{"
        return [prefix + anchor + "}p" for anchor in anchors]

    def overflow(self, anchor: bytes) -> bytes:
        """Hash: entry -> slots, for what does not fit the page."""
        return b"%b:{%b}o" % (self.namespace.encode(), anchor.hex().encode())

    # -- recognising ----------------------------------------------------------------------------

    @property
    def everything(self) -> bytes:
        """The SCAN pattern of the whole namespace."""
        return self._of("*")

    def anchor_of(self, key: bytes) -> bytes | None:
        """Return the anchor if `key` is a page or an overflow."""
        prefix = self._of("{")
        if not key.startswith(prefix) or key[-2:] not in (b"}p", b"}o"):
            return None
        try:
            return bytes.fromhex(key[len(prefix) : -2].decode())
        except ValueError:
            return None

    def source_of(self, key: bytes) -> SourceId | None:
        """Return the source if `key` is one of its two."""
        prefix = self._of("s:{")
        name, closing, _ = key[len(prefix) :].rpartition(b"}:")
        return parse_field(name) if key.startswith(prefix) and closing else None

    def _of(self, rest: str) -> bytes:
        return f"{self.namespace}:{rest}".encode()


def field_text(source: SourceId) -> str:
    """Return the source as it stands in keys and fields: `instance/rank`, percent-encoded."""
    return f"{quote(source.instance, safe='')}/{source.rank}"


def parse_field(field: bytes) -> SourceId | None:
    """Return the source of a `field_text`; None if it is none."""
    instance, _, rank = field.decode("ascii", "replace").rpartition("/")
    return SourceId(unquote(instance), int(rank)) if rank.isdigit() else None
