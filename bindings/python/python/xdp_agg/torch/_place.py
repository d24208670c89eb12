"""Where the processes of a group are, and which way leads to the aggregator."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence

#: The port of the daemon's control service, if no other is named.
PORT = 9870


def identity() -> str:
    """The same for processes that may share memory through the client, and for no others.

    They meet at an abstract socket named by user and job: this belongs to a network namespace.
    """
    way = os.environ.get("XDP_AGG_IN_HOST", "on").strip()
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespace = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return f"{secrets.token_hex(8)} {way}"
    return f"{boot} {namespace} {os.getuid()} {way}"


def placement(identities: Sequence[str], rank: int) -> tuple[int, int] | None:
    """Local rank and local size, if processes of a host can sum among themselves first.

    That takes ranks numbered host by host, and equally many on each; else None. None as well if
    one of them has `XDP_AGG_IN_HOST=off`.
    """
    if any(identity.endswith(" off") for identity in identities):
        return None
    starts = [
        index
        for index, identity in enumerate(identities)
        if index == 0 or identity != identities[index - 1]
    ]
    if len(starts) != len(set(identities)):
        return None
    size = len(identities) // len(starts)
    if size == 1 or starts != list(range(0, len(identities), size)):
        return None
    return rank % size, size


def most_on_a_host(identities: Sequence[str]) -> int:
    """How many processes the fullest host has."""
    return max(identities.count(identity) for identity in set(identities))


def way_to(address: str | None) -> str | None:
    """This host's address on the interface that leads to the first of these addresses.

    `address` is `host` or `host:port`, several of them separated by commas. None: not known.
    """
    if not address:
        return None
    first = address.split(",")[0].strip()
    host, _, port = first.rpartition(":")
    if not host:
        host, port = first, str(PORT)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Of UDP this sends nothing: the kernel chooses a route.
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None
