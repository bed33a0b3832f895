"""The whole configuration as one frozen value."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.settings.fields import Section
from router.settings.fleet import ClusterSettings, LinkSettings
from router.settings.front import (
    AdminSettings,
    AdmissionSettings,
    DrainSettings,
    ServerSettings,
    StoreSettings,
    TenantSettings,
)
from router.settings.serving import ModelSettings
from router.settings.tuning import (
    EnginesSettings,
    KvmetaSettings,
    SchedulerSettings,
    TransferSettings,
    UpstreamSettings,
)


class Settings(Section):
    """Everything an operator may set, read once.

    Attribute names are the keys of the file, but for a link's `from` and `to`, which are `source`
    and `target`.
    """

    server: ServerSettings = ServerSettings()
    """The gateway's listener."""
    store: StoreSettings = StoreSettings()
    """Where shared state lives."""
    admin: AdminSettings = AdminSettings()
    """The admin API."""
    models: Annotated[tuple[ModelSettings, ...], Field(min_length=1)]
    """What is served."""
    clusters: Annotated[tuple[ClusterSettings, ...], Field(min_length=1)]
    """Where it runs."""
    links: tuple[LinkSettings, ...] = ()
    """Paths between clusters."""
    transfer: TransferSettings = TransferSettings()
    """How KV moves."""
    kvmeta: KvmetaSettings = KvmetaSettings()
    """The KV-metadata index."""
    scheduler: SchedulerSettings = SchedulerSettings()
    """The rule and its loops."""
    upstream: UpstreamSettings = UpstreamSettings()
    """Calls to engines."""
    admission: AdmissionSettings = AdmissionSettings()
    """The queue before the decode slots."""
    drain: DrainSettings = DrainSettings()
    """The end of a process."""
    tenants: tuple[TenantSettings, ...] = ()
    """Customers. None: the gateway is open and all belong to one tenant `default`."""
    engines: EnginesSettings = EnginesSettings()
    """The stand-in engines."""
