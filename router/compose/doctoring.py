"""Examines what a configuration names: engines, links, the store, tokenizers, profiles."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import httpx

from kvmeta.backends.redis_store import open_store
from kvmeta.backends.redis_urls import parse_store_url
from kvmeta.errors import StoreUrlError
from router.adapters.clocks import SystemClock
from router.adapters.examinations import Examiner, examine_store
from router.adapters.store.keys import StoreKeys
from router.compose.actuator_examination import examine_actuator
from router.compose.models import CompositionError, Layouts, build_admin_keys, build_catalog
from router.compose.tokenizers import load_tokenizers
from router.domain.errors import NotFound
from router.domain.topology import ClusterKind, Instance, Role
from router.domain.units import Seconds
from router.gateway.admin_room import AdminRole
from router.service.connectors import find_connector, third_party_connectors
from router.service.diagnoses import (
    Examined,
    Finding,
    StoreFacts,
    Verdict,
    judge_engine,
    judge_hashes,
    judge_link,
    judge_pairs,
    judge_store,
    wants_tokenizer,
)
from router.service.models import ModelCatalog, ServedModel
from router.settings import Loaded, Settings, build_topology
from router.settings.checks import note_oddities

_AT_ONCE: Final = 16
"""Engines that are asked side by side."""


async def examine_configuration(loaded: Loaded, *, timeout: Seconds) -> list[Finding]:
    """Return what is to be said of everything that a configuration names, each call bounded."""
    settings = loaded.settings
    findings = [
        Finding("configuration", "oddity", Verdict.DOUBT, note) for note in note_oddities(settings)
    ]
    try:
        catalog = build_catalog(loaded)
    except CompositionError as error:
        return [*findings, Finding("profiles", "usable", Verdict.FAULT, str(error))]
    findings += await asyncio.to_thread(lambda: list(_judge_tokenizers(settings)))
    engines, store = await asyncio.gather(
        _examine_engines(loaded, catalog, timeout), _examine_store(settings, timeout)
    )
    for each in engines:
        findings += judge_engine(each)
    findings += judge_pairs(engines)
    findings += _judge_connector(settings, engines)
    findings += _judge_links(settings, catalog)
    findings += await examine_actuator(settings, timeout=timeout)
    if store is not None:
        lookup = settings.kvmeta.lookup_timeout_ms / 1000
        findings += judge_store(store, lookup_timeout=lookup)
    return findings


def _judge_connector(settings: Settings, engines: Sequence[Examined]) -> Iterator[Finding]:
    try:
        connector = find_connector(settings.transfer.connector, third_party_connectors())
    except NotFound as error:
        yield Finding("transfer.connector", "known", Verdict.FAULT, str(error))
        return
    yield from judge_hashes(engines, shares_blocks=connector.ships_prefix)


def _judge_tokenizers(settings: Settings) -> Iterator[Finding]:
    try:
        tokenizers = load_tokenizers(settings)
    except CompositionError as error:
        yield Finding("tokenizers", "loadable", Verdict.FAULT, str(error))
        return
    tokenizers.close()
    for name in tokenizers.by_model:
        yield Finding(name, "tokenizer", Verdict.FINE, "loads in process")


async def _examine_engines(
    loaded: Loaded, catalog: ModelCatalog, timeout: Seconds
) -> Sequence[Examined]:
    settings = loaded.settings
    layout_of, turns = Layouts(settings), asyncio.Semaphore(_AT_ONCE)
    async with httpx.AsyncClient(timeout=timeout, trust_env=False) as client:
        examiner = Examiner(client, timeout=timeout)

        async def examine(instance: Instance) -> Examined:
            models = tuple(_models_of(instance, catalog))
            counted = instance.served_name or models[0].served_name if models else None
            model = counted if wants_tokenizer(models) else None
            async with turns:
                facts = await examiner.examine(instance, layout_of(instance), model=model)
            return Examined(instance, models, facts)

        instances = build_topology(settings).instances
        return await asyncio.gather(*(examine(instance) for instance in instances))


def _models_of(instance: Instance, catalog: ModelCatalog) -> Iterator[ServedModel]:
    return (model for model in catalog.models if instance.model in (None, model.name))


def _judge_links(settings: Settings, catalog: ModelCatalog) -> Iterator[Finding]:
    topology = build_topology(settings)
    kinds = {cluster.name: cluster.kind for cluster in topology.clusters}
    prefills = Counter(each.cluster for each in topology.instances if each.role is not Role.DECODE)
    roles = {key.role for key in build_admin_keys(settings)}
    for link in topology.links:
        if kinds.get(link.source) is ClusterKind.PRFAAS:
            yield from judge_link(
                link,
                catalog.models,
                prefills,
                has_agent_key=not roles or bool(roles - {AdminRole.VIEWER}),
            )


async def _examine_store(settings: Settings, timeout: Seconds) -> StoreFacts | None:
    """Ask the store that processes share; None where state lives in the process."""
    if settings.store.embedded:
        return None
    try:
        store = open_store(parse_store_url(settings.store.url.get_secret_value()))
    except StoreUrlError as error:
        return StoreFacts(failure=f"store.url: {error}")
    key = StoreKeys().trial(secrets.token_hex(6)).encode()
    try:
        async with asyncio.timeout(timeout):
            return await examine_store(store, key, SystemClock())
    except TimeoutError:
        return StoreFacts(failure=f"it did not answer in {timeout:g} s")
    finally:
        await store.close()
