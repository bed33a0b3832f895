"""Store URLs: every form, and a clear word for what cannot be used."""

from __future__ import annotations

import pytest

from kvmeta.backends.redis_urls import StoreUrl, Tls, Topology, parse_store_url
from kvmeta.errors import StoreUrlError

SINGLE, SENTINEL, CLUSTER = Topology.SINGLE, Topology.SENTINEL, Topology.CLUSTER


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://cache", StoreUrl(SINGLE, (("cache", 6379),))),
        ("redis://cache:7000/3", StoreUrl(SINGLE, (("cache", 7000),), db=3)),
        ("redis://[::1]:7000", StoreUrl(SINGLE, (("::1", 7000),))),
        ("redis://[::1]", StoreUrl(SINGLE, (("::1", 6379),))),
        (
            "redis://user:p%40ss@cache",
            StoreUrl(SINGLE, (("cache", 6379),), username="user", password="p@ss"),
        ),
        ("redis://:secret@cache", StoreUrl(SINGLE, (("cache", 6379),), password="secret")),
        ("rediss://cache", StoreUrl(SINGLE, (("cache", 6379),), tls=Tls())),
        (
            "rediss://cache?ca=/c.pem&cert=/a.pem&key=/b.pem&verify=false",
            StoreUrl(SINGLE, (("cache", 6379),), tls=Tls("/c.pem", "/a.pem", "/b.pem", False)),
        ),
        ("unix:///run/redis.sock", StoreUrl(SINGLE, path="/run/redis.sock")),
        (
            "unix://user:pw@/run/redis.sock?db=2",
            StoreUrl(SINGLE, path="/run/redis.sock", db=2, username="user", password="pw"),
        ),
        (
            "redis+sentinel://a,b:7/main/4",
            StoreUrl(SENTINEL, (("a", 26379), ("b", 7)), db=4, service="main"),
        ),
        (
            "redis+sentinel://u:p@a/main?tls=true&sentinel_user=s&sentinel_password=t",
            StoreUrl(
                SENTINEL,
                (("a", 26379),),
                service="main",
                username="u",
                password="p",
                sentinel_username="s",
                sentinel_password="t",
                tls=Tls(),
            ),
        ),
        ("redis+cluster://a,b:7,c/0", StoreUrl(CLUSTER, (("a", 6379), ("b", 7), ("c", 6379)))),
    ],
)
def test_every_form_is_understood(url: str, expected: StoreUrl) -> None:
    """Hosts, ports, databases, credentials and TLS come out as written."""
    assert parse_store_url(url) == expected


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("memory://", "redis://"),
        ("redis:cache", "redis://"),
        ("redis://", "no host"),
        ("redis://:secret@", "no host"),
        ("redis://a,b", "one host"),
        ("redis://a:x", "port"),
        ("redis://a:70000", "port"),
        ("redis://a:0", "port"),
        ("redis://::1", "no host"),
        ("redis://[::1", "bracket"),
        ("redis://a/x", "number"),
        ("redis://a?verify=false", "TLS"),
        ("rediss://a?verify=maybe", "true or false"),
        ("redis://a?colour=red", "colour"),
        ("unix://run/redis.sock", "absolute path"),
        ("redis+sentinel://a", "service"),
        ("redis+cluster://a/1", "database 0"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(url: str, word: str) -> None:
    """The message names the fault."""
    with pytest.raises(StoreUrlError, match=word) as caught:
        parse_store_url(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://u:hunter2@a:x", "redis+sentinel://u:hunter2@a", "x://hunter2"]
)
def test_no_password_is_told(url: str) -> None:
    """Neither in an error nor in the value's representation."""
    with pytest.raises(StoreUrlError) as caught:
        parse_store_url(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(parse_store_url("redis://u:hunter2@a"))
