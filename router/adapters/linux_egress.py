"""A Linux host's counters: bytes from sysfs, TCP segments from procfs, round trips from netlink."""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from router.control.egress import HostReading
from router.domain.units import BytesPerSecond, Seconds, from_gbps

_LOG = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2
_ESTABLISHED: Final = 1 << 1
_INFO: Final = 2  # INET_DIAG_INFO
_TIMEOUT_SECONDS: Final = 1.0

# From linux/netlink.h, linux/inet_diag.h and linux/tcp.h, all in the host's byte order, but for
# ports and addresses.
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI48x")
_MESSAGE_BYTES: Final = 72
_REMOTE: Final = slice(24, 40)
_ATTRIBUTE: Final = struct.Struct("=HH")
_RTT: Final = struct.Struct("=I")
_RTT_OFFSET: Final = 68


class LinuxCounters:
    """Implements `HostCounters`.

    `interfaces` are those that the link leaves by; `peers` the networks at its other end, any but
    the host itself if there are none. `root` is where `sys` and `proc` lie.
    """

    def __init__(
        self, interfaces: Sequence[str], peers: Sequence[Network] = (), root: Path = Path("/")
    ) -> None:
        self._interfaces = tuple(interfaces)
        self._peers = tuple(peers)
        self._root = root
        self._asks_kernel = True

    def read(self, at: Seconds) -> HostReading:
        """Return the counters. Raises OSError where an interface is gone."""
        sent = {name: read_sent(name, self._root) for name in self._interfaces}
        segments, repeated = self._read_segments()
        return HostReading(at, sent, segments, repeated, self._read_rtts())

    def _read_segments(self) -> tuple[int | None, int | None]:
        try:
            return parse_segments((self._root / "proc/net/snmp").read_text())
        except (OSError, ValueError):
            return None, None

    def _read_rtts(self) -> tuple[Seconds, ...] | None:
        """Return the round trips to the peers; None, from then on, where the kernel tells none."""
        if not self._asks_kernel:
            return None
        try:
            return tuple(
                rtt
                for family in (socket.AF_INET, socket.AF_INET6)
                for address, rtt in dump_rtts(family)
                if self._is_peer(address)
            )
        except (OSError, struct.error) as error:
            self._asks_kernel = False
            _LOG.warning("the kernel tells no round-trip times: %s", error)
            return None

    def _is_peer(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped or address
        if self._peers:
            return any(address in network for network in self._peers)
        return not address.is_loopback


def read_sent(interface: str, root: Path = Path("/")) -> int:
    """Return the bytes that an interface ever sent. Raises OSError where there is none."""
    path = root / "sys/class/net" / interface / "statistics/tx_bytes"
    try:
        return int(path.read_text())
    except ValueError as error:
        raise OSError(f"{path} holds no number") from error


def find_speed(interfaces: Sequence[str], root: Path = Path("/")) -> BytesPerSecond | None:
    """Return what the interfaces carry together; None where one does not tell."""
    total = 0.0
    for name in interfaces:
        try:
            megabits = int((root / "sys/class/net" / name / "speed").read_text())
        except (OSError, ValueError):
            return None
        if megabits <= 0:
            return None
        total += from_gbps(megabits / 1000)
    return BytesPerSecond(total)


def find_default_interface(root: Path = Path("/")) -> str | None:
    """Return the interface of the default route; None without one."""
    try:
        lines = (root / "proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            return fields[0]
    return None


def parse_segments(text: str) -> tuple[int, int]:
    """Return TCP's segments sent and sent again of `/proc/net/snmp`. Raises ValueError."""
    rows = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(rows) != 2:
        raise ValueError("no TCP counters")
    counters = dict(zip(*rows, strict=False))
    try:
        return int(counters["OutSegs"]), int(counters["RetransSegs"])
    except KeyError as error:
        raise ValueError("no TCP counters") from error


def dump_rtts(
    family: socket.AddressFamily,
) -> Iterator[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, Seconds]]:
    """Yield every established TCP connection's remote address and smoothed round-trip time.

    As `ss -ti` does, over `NETLINK_SOCK_DIAG`; it takes no privilege. Raises OSError.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_SECONDS)
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
        size = _HEADER.size + len(request)
        kernel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            for kind, message in split_messages(kernel.recv(1 << 16)):
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel refuses to list connections")
                rtt = _find_rtt(message[_MESSAGE_BYTES:])
                if rtt is not None:
                    remote = message[_REMOTE]
                    if family == socket.AF_INET:
                        yield ipaddress.IPv4Address(remote[:4]), rtt
                    else:
                        yield ipaddress.IPv6Address(remote), rtt


def split_messages(datagram: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the body of each netlink message."""
    while len(datagram) >= _HEADER.size:
        size, kind, *_ = _HEADER.unpack_from(datagram)
        if size < _HEADER.size:
            return
        yield kind, datagram[_HEADER.size : size]
        datagram = datagram[_aligned(size) :]


def _find_rtt(attributes: bytes) -> Seconds | None:
    while len(attributes) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(attributes)
        if size < _ATTRIBUTE.size:
            return None
        value = attributes[_ATTRIBUTE.size : size]
        if kind == _INFO and len(value) >= _RTT_OFFSET + _RTT.size:
            (microseconds,) = _RTT.unpack_from(value, _RTT_OFFSET)
            return Seconds(microseconds / 1e6) if microseconds else None
        attributes = attributes[_aligned(size) :]
    return None


def _aligned(size: int) -> int:
    return (size + 3) & ~3
