"""Averages of hosts with several processes: their own backend inside, ours between hosts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

import xdp_agg

from ._channel import Channel
from ._join import GROUP_SLOTS, HOST_SLOTS, Membership
from ._work import Work

#: Makes a membership: name, rank, size, slots.
Member = Callable[[str, int, int, int], Membership]
#: Starts to average a vector over the ranks of a channel.
Average = Callable[[Channel, Tensor], Work]


@dataclass(slots=True)
class _Bucket:
    """A bucket under way."""

    buffer: Tensor
    #: The same with zeros at its end, a multiple of the host's processes long.
    padded: Tensor
    #: This process's share of it.
    share: Tensor
    #: The call inside the host that is under way.
    inside: Any
    work: Work
    between: Work | None = None


class Hosts:
    """The ways of a rank inside its host, and to its fellows on the others.

    Inside a host calls must come in the same order at all processes, and gathers depend on when the
    network is done. So first all of a pass's buckets are scattered, and then all are gathered.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        membership: Membership,
        timeout: timedelta,
        member: Member,
        average: Average,
    ) -> None:
        """All ranks of the group make theirs."""
        self._average = average
        hosts = membership.hosts()
        mine = hosts[membership.rank]
        others = list(dict.fromkeys(hosts))
        inside = [rank for rank, host in enumerate(hosts) if host == mine]
        self._processes = len(inside)
        if len(hosts) != len(others) * self._processes:
            counts = sorted({hosts.count(host) for host in others})
            raise xdp_agg.Config(
                f"hierarchical_hook: hosts have {counts} ranks of the group; all must have equally "
                "many, or use allreduce_hook"
            )
        local = inside.index(membership.rank)
        slots = max(GROUP_SLOTS, 1 << (HOST_SLOTS // self._processes).bit_length() - 1)
        fellows = member(f"share {local}", others.index(mine), len(others), slots)
        self.channel = Channel(fellows, timeout.total_seconds())
        self._inside = self._group_inside(group, inside, timeout)
        self._buckets: queue.SimpleQueue[_Bucket | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="xdp-agg shares", daemon=True)
        self._thread.start()

    def _group_inside(
        self, group: dist.ProcessGroup, inside: list[int], timeout: timedelta
    ) -> dist.ProcessGroup | None:
        if self._processes == 1:
            return None
        backend = dist.get_backend(group)
        if backend == "xdp-agg":
            backend = "nccl" if torch.cuda.is_available() else "gloo"
        made = dist.new_group(
            [dist.get_global_rank(group, rank) for rank in inside],
            timeout=timeout,
            backend=backend,
            use_local_synchronization=True,
        )
        assert isinstance(made, dist.ProcessGroup)
        return made

    def average(self, bucket: c10d.GradBucket) -> Future[Tensor]:
        """Starts to average a bucket; all ranks hand theirs in in the same order."""
        buffer = bucket.buffer()
        padded, share, inside = buffer, buffer, None
        if self._inside is not None:
            if missing := -buffer.numel() % self._processes:
                padded = torch.cat([buffer, buffer.new_zeros(missing)])
            share = padded.new_empty(padded.numel() // self._processes)
            inside = dist.reduce_scatter_tensor(share, padded, group=self._inside, async_op=True)
        devices = None if buffer.device.index is None else [buffer.device]
        work = Work(buffer, None, devices)
        future: Future[Tensor] = work.get_future()
        self._buckets.put(_Bucket(buffer, padded, share, inside, work))
        if bucket.is_last():
            self._buckets.put(None)
        return future

    def _serve(self) -> None:
        under_way: list[_Bucket] = []
        while (bucket := self._buckets.get()) is not _CLOSED:
            try:
                if bucket is not None:
                    under_way.append(bucket)
                    self._between(bucket)
                    continue
                self._gather(under_way)
            except BaseException as error:
                for left in under_way:
                    if not left.work.is_completed():
                        left.work.done(error)
            if bucket is None:
                under_way = []

    def _between(self, bucket: _Bucket) -> None:
        """Averages this process's share with its fellows on other hosts."""
        if bucket.share.device.type != "cpu":
            torch.accelerator.set_device_index(bucket.share.device.index)
        if bucket.inside is not None:
            bucket.inside.wait()
            bucket.share.div_(self._processes)
        bucket.between = self._average(self.channel, bucket.share)

    def _gather(self, buckets: list[_Bucket]) -> None:
        """Brings the shares of all processes of this host together."""
        for bucket in buckets:
            if bucket.work.is_completed():
                raise bucket.work.exception() or RuntimeError("a bucket ended before its time")
            assert bucket.between is not None
            bucket.between.wait()
            if self._inside is not None:
                bucket.inside = dist.all_gather_into_tensor(
                    bucket.padded, bucket.share, group=self._inside, async_op=True
                )
        for bucket in buckets:
            if self._inside is not None:
                bucket.inside.wait()
                if bucket.padded is not bucket.buffer:
                    bucket.buffer.copy_(bucket.padded[: bucket.buffer.numel()])
            bucket.work.done(None)

    def close(self) -> None:
        """Leaves the job."""
        self.channel.close()
        self._buckets.put(_CLOSED)
        self._thread.join(5)


#: Ends the thread.
_CLOSED: Any = object()
