"""Communicators of the processes of an MPI communicator, by mpi4py.

>>> from mpi4py import MPI
>>> comm = xdp_agg.Communicator.from_mpi(MPI.COMM_WORLD, "10.0.0.100")
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from xdp_agg._xdp_agg import Communicator

__all__ = ["connect"]

_Made = TypeVar("_Made", bound="Communicator")


def connect(comm: Any, class_: type[_Made], settings: dict[str, Any]) -> _Made:
    """What :meth:`xdp_agg.Communicator.from_mpi` does. Collective over ``comm``.

    Rank and size are those of ``comm``; the job gets a name that nobody else has, unless
    ``settings`` names one. Processes of a host sum over shared memory first, as far as successive
    ranks share one.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    # The names of rank 0 and the hosts of all, in one step.
    told: list[tuple[str, str]] = comm.allgather((f"mpi-{secrets.token_hex(8)}", _host()))
    settings = {"job": told[0][0], "rank": rank, "world_size": size} | settings
    local = local_place([host for _, host in told], rank)
    if local is not None and settings.get("in_host", True) and "local_size" not in settings:
        settings |= {"local_rank": local[0], "local_size": local[1]}
    return class_(**settings)


def local_place(hosts: list[str], rank: int) -> tuple[int, int] | None:
    """A rank's number among the processes of its host, and how many these are.

    ``hosts`` has each rank's host. None: it has one process.
    """
    host = hosts[rank]
    size = hosts.count(host)
    return None if size == 1 else (hosts[:rank].count(host), size)


def _host() -> str:
    """Processes that share this can share memory: their kernel, network namespace and user are
    the same."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"
