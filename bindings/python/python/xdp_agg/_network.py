"""What the kernel says of the way to an address: route, interface, and the interface's settings."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
from dataclasses import dataclass

_RTM_NEWROUTE, _RTM_GETROUTE, _NLMSG_ERROR = 24, 26, 2
_NLM_F_REQUEST = 1
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC = 1, 4, 5, 7
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")

_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_ETHTOOL_GDRVINFO, _ETHTOOL_GGRO = 0x3, 0x2B
_IP_MTU = 14
_SO_RCVBUFFORCE = 33


@dataclass(frozen=True)
class Route:
    """The way to an address."""

    #: Name of the interface that packets leave by.
    interface: str
    #: This host's address on it.
    source: str
    #: Address of the router; None: the address is on the interface's own network, or this host's.
    gateway: str | None


def route_to(address: str) -> Route:
    """The way to an IPv4 address. OSError: there is none."""
    attribute = _ATTRIBUTE.pack(8, _RTA_DST) + socket.inet_aton(address)
    body = _ROUTE.pack(socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0) + attribute
    length = _HEADER.size + len(body)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(2)
        netlink.bind((0, 0))
        header = _HEADER.pack(length, _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0)
        netlink.sendto(header + body, (0, 0))
        reply = netlink.recv(65536)
    length, kind, *_ = _HEADER.unpack_from(reply)
    if kind == _NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", reply, _HEADER.size)
        raise OSError(-code, os.strerror(-code))
    if kind != _RTM_NEWROUTE:
        raise OSError(f"the kernel answered with message {kind}")
    found = _attributes(reply[_HEADER.size + _ROUTE.size : length])
    index = struct.unpack("=I", found[_RTA_OIF])[0]
    gateway = found.get(_RTA_GATEWAY)
    source = found.get(_RTA_PREFSRC)
    return Route(
        socket.if_indextoname(index),
        socket.inet_ntoa(source) if source else _source_to(address),
        socket.inet_ntoa(gateway) if gateway else None,
    )


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        found[kind] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return found


def _source_to(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: that only looks up the route.
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def path_mtu(address: str) -> int:
    """Bytes of the largest IP packet on the way to an address, as far as the kernel knows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)


def interface_mtu(interface: str) -> int:
    """Bytes of the largest IP packet of an interface."""
    request = struct.pack("16si12x", interface.encode()[:15], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        reply = fcntl.ioctl(asker, _SIOCGIFMTU, request)
    return int(struct.unpack_from("i", reply, 16)[0])


def has_gro(interface: str) -> bool | None:
    """Whether an interface joins packets that come together; None: it does not say."""
    reply = _ethtool(interface, struct.pack("=II", _ETHTOOL_GGRO, 0))
    return None if reply is None else struct.unpack("=II", reply)[1] != 0


def driver(interface: str) -> str | None:
    """Name of an interface's driver, such as ``veth``; None: it does not say."""
    reply = _ethtool(interface, struct.pack("=I", _ETHTOOL_GDRVINFO) + bytes(192))
    return None if reply is None else reply[4:36].split(b"\0")[0].decode(errors="replace")


def _ethtool(interface: str, command: bytes) -> bytes | None:
    data = array.array("B", command)
    pointer, _ = data.buffer_info()
    request = struct.pack("16sP16x", interface.encode()[:15], pointer)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            fcntl.ioctl(asker, _SIOCETHTOOL, request)
        except OSError:
            return None
    return data.tobytes()


def receive_buffer(wanted: int) -> int:
    """Bytes of the receive buffer that a socket gets where it asks for this number."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        # The kernel doubles what is asked for, and tells the double.
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted // 2)
        with contextlib.suppress(OSError):
            asker.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, wanted // 2)
        return asker.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
