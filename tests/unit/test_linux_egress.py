"""The Linux kernel's counters, from a copy of its files and from the kernel itself."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest

from router.adapters.linux_egress import (
    LinuxCounters,
    find_default_interface,
    find_speed,
    parse_segments,
    read_sent,
)
from router.domain.units import from_gbps

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens OutSegs RetransSegs InErrs
Tcp: 1 200 120000 -1 1021 5500 17 0
Udp: InDatagrams
Udp: 4
"""
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
ib0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth7\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's files, with the interface eth7."""
    statistics = tmp_path / "sys/class/net/eth7/statistics"
    statistics.mkdir(parents=True)
    (statistics / "tx_bytes").write_text("18446744073709551000\n")
    (statistics.parent / "speed").write_text("100000\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/snmp").write_text(SNMP)
    (tmp_path / "proc/net/route").write_text(ROUTES)
    return tmp_path


def test_the_files_tell_bytes_segments_speed_and_the_way_out(host: Path) -> None:
    """Counters of 64 bits are read whole."""
    reading = LinuxCounters(["eth7"], root=host).read(4.0)
    assert (reading.at, reading.sent) == (4.0, {"eth7": 2**64 - 616})
    assert (reading.segments, reading.repeated) == (5500, 17)
    assert find_speed(["eth7"], host) == from_gbps(100)
    assert find_default_interface(host) == "eth7"


def test_what_a_host_does_not_tell_is_unknown(host: Path) -> None:
    """Without TCP counters, speed or a default route; an interface that is gone is an error."""
    (host / "proc/net/snmp").write_text("Ip: 1\n")
    (host / "sys/class/net/eth7/speed").write_text("-1\n")
    (host / "proc/net/route").unlink()
    reading = LinuxCounters(["eth7"], root=host).read(0.0)
    assert reading.segments is reading.repeated is None
    assert find_speed(["eth7"], host) is None
    assert find_speed(["gone"], host) is None
    assert find_default_interface(host) is None
    with pytest.raises(FileNotFoundError):
        read_sent("gone", host)
    with pytest.raises(ValueError, match="no TCP counters"):
        parse_segments("Tcp: OutSegs\nTcp: 5\n")


def test_the_kernel_tells_round_trips_of_connections_to_peers(host: Path) -> None:
    """As `ss -ti` would: those of a connection within this host, where that is the peer."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as one,
        listener.accept()[0] as other,
    ):
        for _ in range(3):
            one.sendall(b"ping")
            other.recv(4)
        near = LinuxCounters(["eth7"], [ipaddress.ip_network("127.0.0.0/8")], host).read(0.0)
        far = LinuxCounters(["eth7"], [ipaddress.ip_network("203.0.113.0/24")], host).read(0.0)
    assert near.rtts
    assert all(0 < rtt < 60 for rtt in near.rtts)
    assert far.rtts == ()


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_reading_leaves_no_file_open(host: Path) -> None:
    """An agent runs for months."""
    counters = LinuxCounters(["eth7"], root=host)
    counters.read(0.0)
    before = count_files()
    for _ in range(20):
        counters.read(0.0)
    assert count_files() == before
