"""``python -m xdp_agg doctor``: what is wrong with this worker's way to the aggregator, and the
cure."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import xdp_agg
from xdp_agg import _control, _launcher, _network
from xdp_agg._xdp_agg import CONTROL_PORT, CONTROL_VERSION, DATA_PORT

Status = Literal["ok", "warn", "fail"]

#: Bytes of the receive buffer that the worker library asks for.
RECEIVE_BUFFER = 8 << 20
#: Bytes of the smallest IP packet that has room for numbers.
SMALLEST_MTU = 114
#: Bytes of the largest IP packet of an ordinary Ethernet.
ETHERNET_MTU = 1500


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    subject: str
    #: "ok"; "warn": it works, but slower, or could not be seen; "fail": workers cannot run so.
    status: Status
    finding: str
    #: What to do; None: nothing.
    remedy: str | None = None


@dataclass(frozen=True)
class Daemon:
    """Where a daemon is, by the name it was found under."""

    host: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def examine(address: str | None, timeout: float) -> Iterator[Check]:
    """All checks, as they are made.

    address: host or host:port of the daemon; None: ``XDP_AGG_ADDR``. timeout: seconds of each step.
    """
    yield launcher()
    yield receive_buffer()
    daemons: list[Daemon] = []
    yield from find(address, daemons)
    for daemon in daemons:
        yield from _way(daemon, timeout)


def launcher() -> Check:
    """Rank and world size."""
    place = _launcher.place(os.environ)
    status: Status = "ok" if place.remedy is None else "fail" if place.is_wrong else "warn"
    return Check("launcher", status, place.finding, place.remedy)


def receive_buffer() -> Check:
    """What the kernel lets a socket have."""
    granted = _network.receive_buffer(RECEIVE_BUFFER)
    finding = f"{granted / 2**20:.1f} MiB of the {RECEIVE_BUFFER >> 20} MiB that are asked for"
    if granted >= RECEIVE_BUFFER:
        return Check("receive buffer", "ok", finding)
    remedy = f"on this host: sysctl -w net.core.rmem_max={RECEIVE_BUFFER}"
    return Check("receive buffer", "warn", f"{finding}: the window will be smaller", remedy)


def find(given: str | None, daemons: list[Daemon]) -> Iterator[Check]:
    """Which daemons are meant; those that are found are appended to ``daemons``."""
    text = given or os.environ.get("XDP_AGG_ADDR", "")
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        yield _no_address()
    for name in names:
        try:
            daemons.append(_resolve(name))
        except (OSError, ValueError) as error:
            remedy = "expected host or host:port, such as 10.0.0.1:9870; is the name in DNS?"
            yield Check("address", "fail", f"{name!r} cannot be resolved ({error})", remedy)
        else:
            yield Check("address", "ok", f"{name} is {daemons[-1]}")


def _no_address() -> Check:
    if path := os.environ.get("XDP_AGG_TOPOLOGY"):
        finding = f"the aggregators are those of the topology {path}"
        return Check("address", "warn", finding, "--address checks the way to one of them")
    if "MASTER_ADDR" in os.environ:
        finding = "XDP_AGG_ADDR not set: every host's own daemon sums a share"
        return Check("address", "warn", finding, "--address 127.0.0.1 checks this host's")
    remedy = "set it to host:port of the daemon's control service, or use --address"
    return Check("address", "fail", "XDP_AGG_ADDR not set", remedy)


def _resolve(name: str) -> Daemon:
    host, colon, port = name.rpartition(":")
    if not colon:
        host, port = name, str(CONTROL_PORT)
    if not 0 < int(port) < 1 << 16:
        raise ValueError(f"{port} is no port")
    found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    address = found[0][4]
    return Daemon(host, str(address[0]), int(address[1]))


def _way(daemon: Daemon, timeout: float) -> Iterator[Check]:
    """From the route to a sum."""
    try:
        route = _network.route_to(daemon.address)
    except OSError as error:
        remedy = "bring the interface up, or add a route: ip route add"
        yield Check("route", "fail", f"none to {daemon.address} ({error})", remedy)
        return
    by = f", by the router {route.gateway}" if route.gateway else ""
    to = f"to {daemon.address} from {route.source}"
    yield Check("route", "ok", f"{to} over {route.interface}{by}")
    yield mtu(daemon, route)
    yield gro(route)
    reached = False
    for check in control(daemon, timeout):
        reached = reached or (check.subject == "control port" and check.status == "ok")
        yield check
    if reached:
        yield data_path(daemon, timeout)


def mtu(daemon: Daemon, route: _network.Route) -> Check:
    """Largest packets."""
    own, path = _network.interface_mtu(route.interface), _network.path_mtu(daemon.address)
    finding = f"{own} bytes of {route.interface}"
    if path < own:
        finding += f", {path} of the way"
    smallest = min(own, path)
    if limit := os.environ.get("XDP_AGG_MTU", ""):
        finding += f", {limit} by XDP_AGG_MTU"
        smallest = min(smallest, int(limit)) if limit.isdigit() else smallest
    if smallest < SMALLEST_MTU:
        remedy = f"at least {SMALLEST_MTU} are needed: ip link set {route.interface} mtu 1500"
        return Check("MTU", "fail", finding, remedy)
    if smallest < ETHERNET_MTU:
        remedy = (
            f"more is faster: ip link set {route.interface} mtu 1500, on all hosts and switches"
        )
        return Check("MTU", "warn", finding, remedy)
    return Check("MTU", "ok", finding)


def gro(route: _network.Route) -> Check:
    """Whether packets that come together are taken in together."""
    interface = route.interface
    on, driver = _network.has_gro(interface), _network.driver(interface)
    if interface == "lo":
        return Check("GRO", "ok", "the daemon is on this host: packets stay in memory")
    if on is None:
        return Check("GRO", "warn", f"{interface} does not say", f"look: ethtool -k {interface}")
    if on:
        return Check("GRO", "ok", f"on, at {interface}")
    remedy = f"ethtool -K {interface} gro on"
    if driver == "veth":
        finding = f"off, at {interface}: a veth without it drops what an XDP program sends"
        return Check("GRO", "fail", finding, remedy)
    return Check("GRO", "warn", f"off, at {interface}: receiving takes more of the CPU", remedy)


def control(daemon: Daemon, timeout: float) -> Iterator[Check]:
    """Whether a daemon answers, takes this worker, and is of this release."""
    subject = "control port"
    try:
        welcome = _control.greet((daemon.address, daemon.port), daemon.host, timeout)
    except _control.NotUnderstood as error:
        yield Check(subject, "fail", f"{daemon} answers: {error}", _cure_of_refusal(error.code))
        return
    except OSError as error:
        remedy = (
            "start the daemon there (xdp-agg serve), correct XDP_AGG_ADDR, or open the port "
            f"(TCP {daemon.port}) in the firewalls on the way"
        )
        yield Check(subject, "fail", f"nobody answers at {daemon} ({error})", remedy)
        return
    yield Check(subject, "ok", f"{daemon} (TCP) answers; engine {welcome.engine}")
    yield _version(welcome)


def _cure_of_refusal(code: str) -> str:
    match code:
        case "unauthorised":
            return (
                "set XDP_AGG_TOKEN, or XDP_AGG_TOKEN_FILE, to what the daemon's operator gave out"
            )
        case "version":
            return "install the same release on all hosts"
        case "limit":
            return "wait a moment; the daemon limits connections of an address"
    return "is that the daemon's control port? With TLS, set XDP_AGG_TLS_CA"


def _version(welcome: _control.Welcome) -> Check:
    finding = f"{welcome.agent}, control protocol {welcome.version}"
    remedy = f"install the same release on all hosts; here it is {xdp_agg.__version__}"
    if welcome.version != CONTROL_VERSION:
        return Check("daemon's version", "fail", f"{finding}; here {CONTROL_VERSION}", remedy)
    if welcome.agent.split()[-1] != xdp_agg.__version__:
        return Check("daemon's version", "warn", finding, remedy)
    return Check("daemon's version", "ok", finding)


def data_path(daemon: Daemon, timeout: float) -> Check:
    """A job of this worker alone, with a packet of full size: nothing else proves the way."""
    port = f"UDP {DATA_PORT}, unless the daemon was given another --data-port"
    began = time.monotonic()
    try:
        with xdp_agg.Communicator(
            str(daemon),
            rank=0,
            world_size=1,
            in_host=False,
            job=f"doctor-{secrets.token_hex(6)}",
            join_deadline=timeout,
            deadline=timeout,
            slots=64,
        ) as comm:
            numbers = bytearray(comm.block_bytes)
            comm.broadcast(numbers, 0)
            size, engine = comm.block_bytes, comm.engine
    except xdp_agg.Refused as error:
        return Check("data path", "warn", f"not tried: {error}", "end jobs that are not needed")
    except xdp_agg.Error as error:
        remedy = (
            f"open it in the firewalls on the way ({port}); xdp-agg doctor on the daemon's host"
        )
        return Check("data path", "fail", str(error), remedy)
    took = (time.monotonic() - began) * 1000
    finding = f"{size} bytes in a packet went through {engine} and came back; {took:.0f} ms in all"
    return Check("data path", "ok", finding)
