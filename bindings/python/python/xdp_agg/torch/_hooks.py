"""Hooks for DistributedDataParallel, beside any backend."""

# Annotations are not postponed here: DDP looks at those of hooks.

import atexit
import os
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, cast

import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

import xdp_agg

from . import _staging
from ._backend import group_of
from ._buckets import Buckets
from ._channel import Channel
from ._engine import Aggregated, Call
from ._hierarchy import Hosts
from ._join import Membership
from ._numbers import NAMES, Precision, checked
from ._work import Work

Compression = Literal["16-bit"]
_TIMEOUT = timedelta(minutes=30)

_alive: "weakref.WeakSet[State]" = weakref.WeakSet()


class State:
    """What the hooks know: over which ranks, how, and how exactly."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        communicator: xdp_agg.Communicator | None = None,
        compression: Compression | None = None,
        precision: Precision = "gradient",
        timeout: timedelta | None = None,
        in_segment: bool | None = None,
    ) -> None:
        """All ranks of the group make theirs, in the same order where there are several.

        Args:
            group: That of the `DistributedDataParallel`; the default group without it. Its backend
                may be any.
            communicator: What sums, with the same ranks. Without it the group's own, if its backend
                is ``xdp-agg``, or one that joins a job of its own with the first bucket.
            compression: ``"16-bit"``: lanes of 16 bits, and so half the bytes, with a communicator
                of its own. With N hosts an average is off by at most N * 2^-15 of the largest
                magnitude in its block of 704 elements (at MTU 1500).
            precision: ``"gradient"``: with N hosts an average is off by at most N * 2^-31 of the
                largest magnitude in its block of 352 elements. ``"exact"``: by at most one unit in
                the last place, for about twice the bytes.
            timeout: Of a call. Without it the group's.
            in_segment: Of `allreduce_hook`, with several processes a host and XDP_AGG_BUFFERS:
                buckets of the CPU are moved into the memory that these share, and are not copied
                any more. None: unless gradients are views of them (``gradient_as_bucket_view``).
                Such a gradient must not be sent through `torch.multiprocessing`, and a forked child
                must not touch it.
        """
        if compression not in (None, "16-bit"):
            raise ValueError(f'compression {compression!r}: expected "16-bit" or None')
        if compression is not None and communicator is not None:
            raise ValueError("a communicator has its lanes already: make it with lanes=16")
        self.group = group if group is not None else dist.group.WORLD
        if self.group is None:
            raise ValueError("there is no process group yet: call init_process_group before")
        self.precision = checked(precision)
        self._lanes = 16 if compression else None
        self._timeout = timeout or _timeout_of(self.group)
        self._given = communicator
        self._pid = os.getpid()
        self._rank, self._size = self.group.rank(), self.group.size()
        # What ranks tell each other, they tell before the first bucket: it may come at any time.
        store = _store_of(self.group)
        made = store.add(f"xdp-agg/states/{self._rank}", 1)
        self._store = c10d.PrefixStore(f"xdp-agg/state/{made}", store)
        self._membership = self._member("all", self._rank, self._size)
        self._flat: Channel | None = None
        self._hosts: Hosts | None = None
        self.buckets = Buckets(in_segment)
        _alive.add(self)

    def _member(self, name: str, rank: int, size: int, slots: int | None = None) -> Membership:
        settings: dict[str, Any] = {}
        if self._lanes is not None:
            settings["lanes"] = self._lanes
        if slots is not None:
            settings["slots"] = slots
        return Membership(
            c10d.PrefixStore(name, self._store),
            rank,
            size,
            name=f"of the hook ({name})",
            is_default=True,
            inner=None,
            settings=settings,
        )

    def channel(self) -> Channel:
        """The way to all ranks."""
        if self._flat is None:
            ours = group_of(self.group) if self._lanes is None else None
            if self._given is not None:
                if self._given.world_size != self._size:
                    raise ValueError(
                        f"the communicator has {self._given.world_size} ranks, and the group "
                        f"{self._size}"
                    )
                engine = Aggregated(self._given, owned=False)
                self._flat = Channel(None, self._timeout.total_seconds(), engine=engine)
            elif ours is not None:
                self._flat = ours.channel
            else:
                self._flat = Channel(self._membership, self._timeout.total_seconds())
        return self._flat

    def hosts(self) -> Hosts:
        """The ways inside this host, and between hosts."""
        if self._hosts is None:
            self._hosts = Hosts(
                cast(dist.ProcessGroup, self.group),
                self._membership,
                self._timeout,
                self._member,
                self.average,
            )
        return self._hosts

    def average(self, channel: Channel, tensor: Tensor) -> Work:
        """Starts to average a vector over the ranks of a channel, in place."""
        kind = NAMES.get(tensor.dtype)
        if kind is None or not tensor.dtype.is_floating_point or tensor.is_sparse:
            raise TypeError(
                f"gradients of {tensor.dtype}, {tensor.layout}: expected dense ones of float32, "
                "float16, bfloat16 or float64"
            )
        call = Call("all_reduce", "average", tensor, tensor.numel(), kind, self.precision)
        call.deadline = self._timeout.total_seconds()
        if tensor.device.type == "cpu":
            return channel.issue(call, tensor)
        call.memory = None
        chunks = _staging.whole(tensor)
        staged = _staging.StagedCall(call, tensor.dtype, chunks, tensor.device)
        return channel.issue_staged(staged, tensor)

    def stats(self) -> dict[str, Any]:
        """What was called, and what carried it out."""
        if self._flat is None:
            return {}
        return self._flat.stats() | {"buckets_in_segment": len(self.buckets)}

    def close(self) -> None:
        """Leaves the jobs that the hooks have joined."""
        if os.getpid() != self._pid:
            return
        if self._hosts is not None:
            self._hosts.close()
        ours = group_of(self.group) if dist.is_initialized() else None
        if self._flat is not None and (ours is None or self._flat is not ours.channel):
            self._flat.close()
        self.buckets.clear()


def allreduce_hook(state: State, bucket: c10d.GradBucket) -> Future[Tensor]:
    """Averages a bucket in place, over all ranks, while the backward pass goes on.

    ``ddp.register_comm_hook(xdp_agg.torch.State(), xdp_agg.torch.allreduce_hook)``. The precision
    is the state's: ``"gradient"`` by default, with the bound that `State` names. All ranks get the
    same bits. A lost rank raises `xdp_agg.MemberLost` from ``backward()``.
    """
    channel = state.channel()
    placed = state.buckets.place(channel.engine, bucket)
    work = state.average(channel, bucket.buffer())
    if placed is not None:
        # The call has the memory, whatever becomes of the state.
        work.when_over(lambda: _keep(placed))
    future: Future[Tensor] = work.get_future()
    return future


def _keep(held: object) -> None:
    del held


def hierarchical_hook(state: State, bucket: c10d.GradBucket) -> Future[Tensor]:
    """The same where a host has several processes, such as one for each GPU.

    Inside a host the group's own backend (NCCL, gloo) scatters and gathers; between hosts each
    process averages its share with its fellows there. Shares come back once the last bucket of the
    pass has been handed in. Every host must have equally many of the group's ranks.
    """
    return state.hosts().average(bucket)


def _timeout_of(group: dist.ProcessGroup) -> timedelta:
    for device in group._device_types:
        with suppress(RuntimeError, AttributeError):
            timeout = group._get_backend(device).options._timeout
            return timeout
    return _TIMEOUT


def _store_of(group: dist.ProcessGroup) -> Any:
    return dist.distributed_c10d._get_process_group_store(group)


def _leave() -> None:
    for state in list(_alive):
        with suppress(Exception):
            state.close()


atexit.register(_leave)
