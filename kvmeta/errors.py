"""The index's error tree: what a caller gave or an engine sent that cannot be taken."""

from __future__ import annotations


class KvMetaError(Exception):
    """Root of everything that `kvmeta` raises on purpose."""


class TokenRangeError(KvMetaError, ValueError):
    """A token id that is no unsigned 32-bit integer: no engine could have cached it."""


class PayloadError(KvMetaError, ValueError):
    """An event payload that is no batch at all; nothing of it can be applied."""


class FrameError(KvMetaError, ValueError):
    """A ZeroMQ message whose frames are not those of a KV-event publisher."""


class StoreUrlError(KvMetaError, ValueError):
    """A store URL that cannot be used; the message says why."""


class StoreError(KvMetaError):
    """The store did not do what it was asked: away, too slow, full, or no longer ours to write."""


class DiscoveryError(KvMetaError, ValueError):
    """What an engine tells of its publishers cannot be read."""


class LeaseLost(KvMetaError):
    """A write for a source that another process may own by now."""


class DirectoryError(KvMetaError, ValueError):
    """What a pool's directory answers cannot be used."""
