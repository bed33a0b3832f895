"""Commands to a Redis, a Sentinel's master or a Cluster, and their answers or a `StoreError`.

The one module that knows redis-py. A connection on which anything was cancelled, timed out or
failed is dropped by it, so no answer ever reaches another question. Nothing is retried but what
met a connection that had died while idle.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol, TypeVar

import redis.asyncio as aioredis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError

from kvmeta.backends.redis_urls import StoreUrl, Tls, Topology
from kvmeta.errors import StoreError

Command = tuple[bytes | str | int, ...]
Reply = Any
"""What redis-py makes of an answer: bytes, int, list, dict of bytes or None."""

CONNECT_TIMEOUT_SECONDS = 2.0
"""Over a data center's round trip times a hundred; a lost SYN is sent again after one second."""

SOCKET_TIMEOUT_SECONDS = 10.0
"""The last resort where a host vanished; whoever waits for an answer has a time-out of its own."""

MAX_CONNECTIONS = 32
"""Round trips in flight at once in one process, of a millisecond each; more wait for their turn."""

FAILURES = (RedisError, OSError, AttributeError)
"""How redis-py says that a store is away. The last is its own slip: who is about to write on a
connection of a Cluster which another task has just closed, as when its nodes are found anew, meets
None instead of a stream."""

_SCAN_KEYS = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script of this package."""

    text: bytes
    sha: str


def load_script(name: str, *, when_full: bool = False) -> Script:
    """Read `scripts/{name}.lua`; `when_full` lets it run in a Redis that is out of memory."""
    text = resources.files(__package__).joinpath("scripts", f"{name}.lua").read_bytes()
    if when_full:
        text = b"#!lua flags=allow-oom\n" + text
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


PAGES = load_script("pages")
PAGES_WHEN_FULL = load_script("pages", when_full=True)
COMMIT = load_script("commit")
SLOTS = load_script("slots")
_SCRIPTS = (PAGES, PAGES_WHEN_FULL, SLOTS, COMMIT)


class RedisStore(Protocol):
    """What the back end needs of a Redis.

    `pages_per_command` is how many pages one script call may touch, `is_atomic` whether `write`
    is all or nothing for readers. Every method raises `StoreError` and nothing else, and waits as
    long as it takes: callers set the time.
    """

    pages_per_command: int
    is_atomic: bool

    async def fetch(self, key: bytes, pages: Sequence[str]) -> tuple[Reply, Sequence[bytes | None]]:
        """GET `key` and every page, in one round trip (on Cluster one a shard, side by side)."""
        ...

    async def read(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip."""
        ...

    async def write(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip, in order and as one step where `is_atomic`."""
        ...

    async def free(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands that need no memory in a Redis that is out of it; not as one step."""
        ...

    def scan(self, pattern: bytes) -> AsyncIterator[Sequence[bytes]]:
        """Yield the keys that match, in bounded steps."""
        ...

    async def mark(self) -> str:
        """Return what changes when another server takes over or one starts empty."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def open_store(url: StoreUrl) -> RedisStore:
    """Return the store behind `url`; connects on first use."""
    client = open_client(url)
    if isinstance(client, aioredis.RedisCluster):
        return ClusterStore(client)
    return SingleStore(client)


def open_client(url: StoreUrl) -> aioredis.Redis | aioredis.RedisCluster:
    """Return a client for `url`, of the one server that writes or of the whole Cluster."""
    match url.topology:
        case Topology.SINGLE:
            return _single_client(url)
        case Topology.SENTINEL:
            sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py leaves it out
                url.hosts,
                sentinel_kwargs={
                    **_common(url),
                    "username": url.sentinel_username,
                    "password": url.sentinel_password,
                },
                **_common(url),
            )
            assert url.service is not None  # noqa: S101  # the parser demands it
            client: aioredis.Redis = sentinel.master_for(
                url.service,
                redis_class=aioredis.Redis,
                db=url.db,
                max_connections=2 * MAX_CONNECTIONS,
            )
            return client
        case Topology.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in url.hosts]
            return aioredis.RedisCluster(
                startup_nodes=nodes,
                max_connections=2 * MAX_CONNECTIONS,
                **_common(url),
            )


async def close_client(client: aioredis.Redis | aioredis.RedisCluster) -> None:
    """Close a client's connections, and those to the sentinels that told of its server."""
    await client.aclose()
    pool = getattr(client, "connection_pool", None)
    if isinstance(pool, SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


async def stay_cancellable(call: Awaitable[T]) -> T:
    """Await a call of redis-py; raises CancelledError where its task was cancelled meanwhile.

    Python 3.11's `wait_for`, with which redis-py reads and writes, loses a cancellation that comes
    just as it is done; a loop that nobody can cancel would never end.
    """
    task = asyncio.current_task()
    cancelled = task.cancelling() if task else 0
    try:
        return await call
    finally:
        if task and task.cancelling() > cancelled:
            raise asyncio.CancelledError


def _common(url: StoreUrl) -> dict[str, Any]:
    return {
        "username": url.username,
        "password": url.password,
        "protocol": 2,
        "driver_info": None,  # two commands less at the start of a connection
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "socket_timeout": SOCKET_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 1),
        **_tls_options(url.tls),
    }


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl": True,
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.cert,
        "ssl_keyfile": tls.key,
        "ssl_cert_reqs": "required" if tls.verify else "none",
        "ssl_check_hostname": tls.verify,
    }


def _single_client(url: StoreUrl) -> aioredis.Redis:
    options = {**_common(url), "db": url.db, "max_connections": 2 * MAX_CONNECTIONS}
    if url.path is not None:
        return aioredis.Redis(unix_socket_path=url.path, **options)
    ((host, port),) = url.hosts
    return aioredis.Redis(host=host, port=port, **options)


class SingleStore:
    """One server, fixed or found by Sentinel."""

    pages_per_command = 128
    is_atomic = True

    def __init__(self, client: aioredis.Redis) -> None:
        self._client = client
        # redis-py fails where a connection too many is asked for, so its own bound is twice ours.
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)

    async def fetch(self, key: bytes, pages: Sequence[str]) -> tuple[Reply, Sequence[bytes | None]]:
        """GET and MGET in one pipeline."""
        commands: list[Command] = [("GET", key)]
        if pages:
            commands.append(("MGET", *pages))
        replies = await self.read(commands)
        return replies[0], replies[1] if pages else ()

    async def read(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one pipeline."""
        return await self._run(commands, atomic=False)

    async def write(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one MULTI."""
        return await self._run_with_scripts(commands, atomic=True)

    async def free(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands one by one: a full Redis takes nothing into a MULTI."""
        return await self._run_with_scripts(commands, atomic=False)

    async def _run_with_scripts(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """Run commands; where the server has lost the scripts, once more with them."""
        try:
            return await self._run(commands, atomic=atomic)
        except StoreError as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
        await self._run([("SCRIPT LOAD", script.text) for script in _SCRIPTS], atomic=False)
        return await self._run(commands, atomic=atomic)

    async def _run(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        try:
            async with self._turns, self._client.pipeline(transaction=atomic) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return await stay_cancellable(pipeline.execute())
        except ReadOnlyError as error:
            # The server was demoted: its name may lead to another one by now.
            await self._client.connection_pool.disconnect(inuse_connections=False)
            raise StoreError("the store is read-only") from error
        except FAILURES as error:
            raise StoreError(f"the store failed: {type(error).__name__}") from error

    async def scan(self, pattern: bytes) -> AsyncIterator[Sequence[bytes]]:
        """SCAN through the server."""
        cursor: int = 0
        while True:
            command: Command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_KEYS)
            ((cursor, keys),) = await self.read([command])
            yield keys
            if not cursor:
                return

    async def mark(self) -> str:
        """The replication id: new on promotion and on an empty start."""
        (told,) = await self.read([("INFO", "replication")])
        return _mark_of(told)

    async def close(self) -> None:
        """Close every connection, the sentinels' too."""
        await close_client(self._client)


class ClusterStore:
    """A Redis Cluster: commands travel to their shards side by side."""

    pages_per_command = 1
    is_atomic = False

    def __init__(self, client: aioredis.RedisCluster) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)

    async def fetch(self, key: bytes, pages: Sequence[str]) -> tuple[Reply, Sequence[bytes | None]]:
        """One pipelined round trip a shard, all at once."""
        first, *rest = await self.read([("GET", key), *(("GET", page) for page in pages)])
        return first, rest

    async def read(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands, one pipeline a shard."""
        try:
            async with self._turns:
                pipeline = self._client.pipeline()
                for command in commands:
                    pipeline.execute_command(*command)
                return await stay_cancellable(pipeline.execute())
        except FAILURES as error:
            # A failover moves shards: look at the map anew with the next command.
            raise StoreError(f"the store failed: {type(error).__name__}") from error

    async def write(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands; where a shard has lost the scripts, once more with them."""
        try:
            return await self.read(commands)
        except StoreError as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
        try:
            for script in _SCRIPTS:
                await stay_cancellable(self._client.script_load(script.text))
        except FAILURES as error:
            raise StoreError(f"the store failed: {type(error).__name__}") from error
        return await self.read(commands)

    async def free(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands as ever: on a cluster nothing is one step."""
        return await self.write(commands)

    async def scan(self, pattern: bytes) -> AsyncIterator[Sequence[bytes]]:
        """SCAN through each primary in turn."""
        keys: list[bytes] = []
        try:
            async for key in self._client.scan_iter(match=pattern, count=_SCAN_KEYS):
                keys.append(key)
                if len(keys) == _SCAN_KEYS:
                    yield keys
                    keys = []
        except FAILURES as error:
            raise StoreError(f"the store failed: {type(error).__name__}") from error
        if keys:
            yield keys

    async def mark(self) -> str:
        """The primaries' replication ids."""
        try:
            primaries = aioredis.RedisCluster.PRIMARIES
            told = await stay_cancellable(self._client.info("replication", target_nodes=primaries))
        except FAILURES as error:
            raise StoreError(f"the store failed: {type(error).__name__}") from error
        if "master_replid" in told:
            return _mark_of(told)
        return " ".join(sorted(_mark_of(one) for one in told.values()))

    async def close(self) -> None:
        """Close every connection."""
        await close_client(self._client)


def _mark_of(told: Mapping[str, Any]) -> str:
    return f"{told['role']}:{told['master_replid']}"
