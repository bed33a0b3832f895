"""Where a Redis is: `redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://`.

    redis://[user:password@]host[:6379][/db]            rediss:// for TLS
    unix://[user:password@]/path/to.sock[?db=0]
    redis+sentinel://[user:password@]host[:26379],host…/service[/db]
    redis+cluster://[user:password@]host[:6379],host…

Options after `?`: `tls=true` (Sentinel, Cluster), `ca`, `cert`, `key` (files), `verify=false`;
Sentinel's own credentials are `sentinel_user` and `sentinel_password`. No message of an error
shows a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, unquote

from kvmeta.errors import StoreUrlError

REDIS_PORT = 6379
SENTINEL_PORT = 26379

_OPTIONS = frozenset(
    {"db", "tls", "ca", "cert", "key", "verify", "sentinel_user", "sentinel_password"}
)


class Topology(StrEnum):
    """How the servers behind a URL stand to each other."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    "redis": Topology.SINGLE,
    "rediss": Topology.SINGLE,
    "unix": Topology.SINGLE,
    "redis+sentinel": Topology.SENTINEL,
    "redis+cluster": Topology.CLUSTER,
}


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS; files in PEM. Without `ca` the system's authorities count."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store URL. `hosts` is empty for a Unix socket, whose path is `path`."""

    topology: Topology
    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    db: int = 0
    service: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: Tls | None = None


def parse_store_url(url: str) -> StoreUrl:
    """Return what `url` says.

    Raises:
        StoreUrlError: it cannot be used; the message says why and shows no password.
    """
    scheme, found, rest = url.partition("://")
    topology = _SCHEMES.get(scheme)
    if not found or topology is None:
        raise StoreUrlError(
            "a store URL starts with redis://, rediss://, unix://, redis+sentinel:// or "
            "redis+cluster://"
        )
    rest, _, query = rest.partition("?")
    options = _read_options(query)
    credentials, _, place = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    username = unquote(user) or None
    secret = unquote(password) or None
    tls = _read_tls(scheme, options)
    if scheme == "unix":
        if not place.startswith("/"):
            raise StoreUrlError("unix:// needs an absolute path, as in unix:///run/redis.sock")
        db = _read_db(options.get("db", ""))
        return StoreUrl(topology, path=unquote(place), db=db, username=username, password=secret)
    hosts_part, _, path = place.partition("/")
    default_port = SENTINEL_PORT if topology is Topology.SENTINEL else REDIS_PORT
    hosts = tuple(_read_host(host, default_port) for host in hosts_part.split(","))
    if topology is Topology.SINGLE and len(hosts) > 1:
        raise StoreUrlError(f"{scheme}:// takes one host; several are redis+cluster:// or sentinel")
    service, db = _read_path(topology, path, options)
    return StoreUrl(
        topology,
        hosts=hosts,
        db=db,
        service=service,
        username=username,
        password=secret,
        sentinel_username=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
        tls=tls,
    )


def _read_options(query: str) -> Mapping[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise StoreUrlError(f"unknown option of the store URL: {', '.join(unknown)}")
    return options


def _read_tls(scheme: str, options: Mapping[str, str]) -> Tls | None:
    wanted = scheme == "rediss" or _read_switch("tls", options.get("tls", "false"))
    if not wanted:
        if options.keys() & {"ca", "cert", "key", "verify"}:
            raise StoreUrlError("TLS options need rediss:// or tls=true")
        return None
    return Tls(
        ca=options.get("ca"),
        cert=options.get("cert"),
        key=options.get("key"),
        verify=_read_switch("verify", options.get("verify", "true")),
    )


def _read_switch(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise StoreUrlError(f"{name} of the store URL is true or false")
    return value == "true"


def _read_host(text: str, default_port: int) -> tuple[str, int]:
    host, port = text, ""
    if text.startswith("["):  # an IPv6 address
        host, closing, port = text[1:].partition("]")
        if not closing or (port and not port.startswith(":")):
            raise StoreUrlError("an IPv6 address in the store URL needs its closing bracket")
        port = port[1:]
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if not host or (":" in host and not text.startswith("[")):
        raise StoreUrlError("the store URL names no host")
    if not port:
        return host, default_port
    if not port.isdigit() or not 0 < int(port) < 65_536:
        raise StoreUrlError("a port of the store URL is a number up to 65535")
    return host, int(port)


def _read_path(topology: Topology, path: str, options: Mapping[str, str]) -> tuple[str | None, int]:
    match topology:
        case Topology.SENTINEL:
            service, _, db = path.partition("/")
            if not service:
                raise StoreUrlError("redis+sentinel:// needs the service: …/service or …/service/0")
            return unquote(service), _read_db(db or options.get("db", ""))
        case Topology.CLUSTER:
            if path not in ("", "0") or options.get("db", "0") != "0":
                raise StoreUrlError("a Redis Cluster has database 0 only")
            return None, 0
        case Topology.SINGLE:
            return None, _read_db(path or options.get("db", ""))


def _read_db(text: str) -> int:
    if text and not text.isdigit():
        raise StoreUrlError("the database of the store URL is a number")
    return int(text or 0)
