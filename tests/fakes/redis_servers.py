"""Real Redis servers for tests: one, a Cluster of three primaries, or a pair under Sentinel.

Each server has its own directory and free ports of the loopback, and ends by its process id with
the context that started it.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

START_SECONDS = 20.0


class RedisMissing(Exception):
    """The tests need a real Redis."""


@dataclass
class Server:
    """One running process."""

    port: int
    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """A blocking client, for what tests do behind the index's back."""
        return redis.Redis(port=self.port, socket_timeout=5.0, protocol=2)

    def call(self, *command: object) -> object:
        """Run one command on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)


def binary() -> str:
    """The path of `redis-server`; fails clearly where there is none."""
    found = shutil.which("redis-server")
    if found is None:
        raise RedisMissing("tests need a real Redis 7: apt-get install redis-server")
    return found


def free_port(*, below: int = 65_535) -> int:
    """A port that was free a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= below:
            return port


class PortTaken(AssertionError):
    """Somebody else was given a server's port between the look at it and its start."""


def wait_for(condition: object, *, seconds: float = START_SECONDS, what: str) -> None:
    """Poll `condition()` until it is true; connection errors mean not yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.RedisError, OSError):
            if condition():  # type: ignore[operator]
                return
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {seconds} s")


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="redis-") as name:
        yield Path(name)


def _start(
    where: Path, port: int, lines: tuple[str, ...] = (), *, sentinel: bool = False
) -> Server:
    home = where / str(port)
    home.mkdir(exist_ok=True)
    config = home / "redis.conf"
    settings = (
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {home}",
        "daemonize no",
        "protected-mode no",
        *([] if sentinel else ["save ''", "appendonly no", f"unixsocket {home}/redis.sock"]),
        *lines,
    )
    config.write_text("\n".join(settings) + "\n")
    command = [binary(), str(config), *(["--sentinel"] if sentinel else [])]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
    server = Server(port, process, home)

    def answers() -> object:
        assert process.poll() is None, "it ended by itself"
        return server.call("PING")

    try:
        wait_for(answers, what=f"Redis on port {port}")
    except AssertionError:
        server.stop()
        told = (home / "log").read_text()[-2000:]
        raise (PortTaken if "Address already in use" in told else AssertionError)(told) from None
    return server


def _start_anywhere(
    where: Path, lines: tuple[str, ...] = (), *, below: int = 65_535, sentinel: bool = False
) -> Server:
    """Start one on a free port; another is taken where somebody was quicker."""
    for _ in range(9):
        with contextlib.suppress(PortTaken):
            return _start(where, free_port(below=below), lines, sentinel=sentinel)
    return _start(where, free_port(below=below), lines, sentinel=sentinel)


@contextlib.contextmanager
def redis_server(*lines: str, port: int | None = None) -> Iterator[Server]:
    """One server; `lines` are more of its configuration, `port` is where another one was."""
    with directory() as where:
        server = _start(where, port, lines) if port else _start_anywhere(where, lines)
        try:
            yield server
        finally:
            server.thaw()
            server.stop()


@dataclass
class Cluster:
    """Three primaries that share the slots."""

    servers: list[Server]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in self.servers)


@contextlib.contextmanager
def redis_cluster() -> Iterator[Cluster]:
    """A cluster of three, whole before it is yielded."""
    with directory() as where, contextlib.ExitStack() as stack:
        servers: list[Server] = []
        for _ in range(3):
            # The bus listens on port + 10,000.
            lines = ("cluster-enabled yes", "cluster-node-timeout 2000")
            server = _start_anywhere(where, lines, below=55_000)
            stack.callback(server.stop)
            servers.append(server)
        for number, server in enumerate(servers):
            first, last = 16_384 * number // 3, 16_384 * (number + 1) // 3 - 1
            server.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            server.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in servers[:number]:
                server.call("CLUSTER", "MEET", "127.0.0.1", other.port)

        def whole() -> bool:
            return all(
                one.call("CLUSTER INFO")["cluster_state"] == "ok"  # type: ignore[index]
                and len(one.call("CLUSTER SLOTS")) == 3  # type: ignore[arg-type]
                for one in servers
            )

        wait_for(whole, what="whole cluster")
        yield Cluster(servers)


@dataclass
class Watched:
    """A master and its replica under one Sentinel; `primary` changes with a failover."""

    servers: list[Server]
    sentinel: Server

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/main"

    @property
    def primary(self) -> Server:
        _, port = self.sentinel.call("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")  # type: ignore[misc]
        return next(one for one in self.servers if one.port == int(port))

    def fail_over(self) -> None:
        """Let the replica take over; the old master becomes its replica."""
        before = self.primary

        def asked() -> bool:
            self.sentinel.call("SENTINEL FAILOVER", "main")
            return True

        wait_for(asked, what="good replica")
        wait_for(lambda: self.primary is not before, what="new master")
        wait_for(
            lambda: self.primary.call("ROLE")[0] == b"master",  # type: ignore[index]
            what="promotion",
        )


@contextlib.contextmanager
def redis_sentinel() -> Iterator[Watched]:
    """A master, a replica in sync, and the Sentinel that watches them."""
    with directory() as where, contextlib.ExitStack() as stack:
        master = _start_anywhere(where)
        stack.callback(master.stop)
        replica = _start_anywhere(where, (f"replicaof 127.0.0.1 {master.port}",))
        stack.callback(replica.stop)
        wait_for(
            lambda: replica.call("ROLE")[3] == b"connected",  # type: ignore[index]
            what="replica in sync",
        )
        sentinel = _start_anywhere(
            where,
            (
                f"sentinel monitor main 127.0.0.1 {master.port} 1",
                "sentinel down-after-milliseconds main 1000",
                "sentinel failover-timeout main 2000",
            ),
            sentinel=True,
        )
        stack.callback(sentinel.stop)
        wait_for(
            lambda: len(sentinel.call("SENTINEL REPLICAS", "main")) == 1,  # type: ignore[arg-type]
            what="replica known to Sentinel",
        )
        yield Watched([master, replica], sentinel)
