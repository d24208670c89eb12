"""The gloo inside: for what the aggregator does not serve."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from . import _place
from ._join import Membership

#: Threads of a group that carry its calls out, as gloo has them.
_THREADS = 2

_devices: dict[str | None, Any] = {}
#: Those of a process that this one was forked from: to drop them is to wait for their threads.
_lost: list[object] = []


def make(membership: Membership, timeout: timedelta, address: str | None) -> Any:
    """A `ProcessGroupGloo` of the same ranks. All of them make theirs at the same time.

    It is made with the group, not at its first call: that may be a `send` of two ranks, and gloo
    wants all ranks to connect.
    """
    gloo: Any = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [_device(_hostname(membership, address))]
    options._threads = _THREADS
    options._timeout = timeout
    store = c10d.PrefixStore("gloo", membership.store)
    return c10d.ProcessGroupGloo(store, membership.rank, membership.size, options)


def _hostname(membership: Membership, address: str | None) -> str | None:
    """This host's address on the way to the aggregator; None: let gloo choose.

    By itself gloo listens where the host's name leads, which is often the loopback interface.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return None
    way = _place.way_to(address or os.environ.get("XDP_AGG_ADDR") or os.environ.get("MASTER_ADDR"))
    if way is not None and way.startswith("127.") and len(set(membership.hosts())) > 1:
        return None
    return way


def _device(hostname: str | None) -> Any:
    """One for all groups: each has a thread."""
    if hostname not in _devices:
        _devices[hostname] = (
            c10d.ProcessGroupGloo.create_default_device()
            if hostname is None
            else c10d.ProcessGroupGloo.create_device(hostname=hostname)
        )
    return _devices[hostname]


def _forget() -> None:
    global _devices
    _lost.append(_devices)
    _devices = {}


os.register_at_fork(after_in_child=_forget)
