"""The backend, as PyTorch makes it: in an ordinary group from 2.14 on, the group before."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import xdp_agg
from xdp_agg import _xdp_agg

from . import _inner
from ._channel import Channel
from ._collectives import Collectives
from ._engine import Gloo
from ._join import Membership
from ._options import Options

NAME = "xdp-agg"

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
#: From here on Python can make a `Backend`; before, a `ProcessGroup` alone.
_HAS_BACKENDS = _VERSION >= (2, 14)

#: All groups that are not destroyed. C++ calls methods of objects that it does not keep alive.
_alive: dict[int, _Group] = {}
#: What a child inherits by a fork, and must not drop: gloo would wait for its threads.
_inherited: list[object] = []


class _Group(Collectives):
    """What both kinds of objects have besides their collectives."""

    def _set_up(
        self,
        store: c10d.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        is_default: bool,
        options: Options | None,
        settings: dict[str, Any],
    ) -> None:
        self._rank, self._size, self._sequence = rank, size, 0
        self._timeout = timeout
        self._group_name, self._group_desc = name, "undefined"
        self._is_default = is_default
        self._settings = settings
        self._options = options or Options(timeout=timeout)
        self._pid = os.getpid()
        membership = Membership(
            store,
            rank,
            size,
            name=name,
            is_default=is_default,
            inner=None if is_default else self._gloo,
            settings=settings,
        )
        self._channel = Channel(membership, timeout.total_seconds())
        self._inner = _inner.make(membership, timeout, settings.get("address"))
        _alive[id(self)] = self

    def _gloo(self) -> Gloo:
        return Gloo(self._inner, self._rank, self._size)

    @property
    def xdp_agg_group(self) -> _Group:
        """This object, for a caller that holds PyTorch's wrapper of it."""
        return self

    @property
    def channel(self) -> Channel:
        """The way of its calls."""
        return self._channel

    @property
    def options(self) -> Any:
        return self._options

    # pybind11 looks both names up.

    def name(self) -> str:
        return NAME

    def getBackendName(self) -> str:
        return NAME

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_coalescing(self) -> bool:
        return False

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """With `device_id` all ranks come here when the group is made: it joins its job."""
        del device
        self._channel.join()

    def perform_nocolor_split(self, device: torch.device | None = None) -> None:
        """A rank that is not a member of a new group has nothing to do for it."""

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._options._timeout = timeout
        self._channel.timeout = timeout.total_seconds()
        self._inner._set_default_timeout(timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def get_error(self) -> c10d.ErrorType:
        """Of what kind the error is that ended the group's job."""
        error = self._channel.error
        if error is None:
            return c10d.ErrorType.SUCCESS
        if isinstance(error, xdp_agg.Deadline):
            return c10d.ErrorType.TIMEOUT
        if isinstance(error, xdp_agg.MemberLost):
            return c10d.ErrorType.REMOTE_ERROR
        return c10d.ErrorType.COMM_ERROR

    def abort(self) -> None:
        """Ends all calls in flight, at all ranks, with an error."""
        self._channel.abort("torch.distributed was told to abort this group")

    def shutdown(self) -> None:
        """Leaves the job. In a forked child nothing is done: the group is its parent's."""
        if os.getpid() != self._pid:
            return
        self._channel.close()
        self._inner = None
        _alive.pop(id(self), None)

    def stats(self) -> dict[str, Any]:
        return {"group": self._group_name, **self._channel.stats()}


# Their base classes are pybind11's: what the stubs say of their methods is not what overrides them.


class Backend(_Group, c10d.Backend):
    """A member of a process group, of torch 2.14 and later."""

    def __init__(self, store: c10d.Store, rank: int, size: int, *more: Any) -> None:
        c10d.Backend.__init__(self, rank, size)
        self._set_up(store, rank, size, *more)

    def split(self, store: c10d.Store, ranks: list[int], opts: Any) -> Backend:
        """Of `split_group`: the group of these of this one's ranks."""
        if self._rank not in ranks:
            # What should be None here: torch 2.15 ends with a segmentation fault then.
            raise RuntimeError(
                "split_group: this rank is in none of the parts, which PyTorch cannot take from a "
                "backend in Python; name all ranks, or use new_group"
            )
        ours = opts if isinstance(opts, Options) else None
        return Backend(
            store,
            ranks.index(self._rank),
            len(ranks),
            getattr(opts, "_timeout", self._timeout),
            getattr(opts, "group_name", "") or f"{self._group_name}:split",
            False,
            ours,
            ours.settings if ours else self._options.of_subgroups(),
        )


class ProcessGroup(_Group, dist.ProcessGroup):  # type: ignore[misc]
    """A process group, of torch 2.7 to 2.13."""

    def __init__(self, store: c10d.Store, rank: int, size: int, *more: Any) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self._set_up(store, rank, size, *more)

    @property
    def group_name(self) -> Any:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, description: str) -> None:
        self._group_desc = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in _devices()]

    def _get_backend(self, device: torch.device) -> Any:
        del device
        return self


def _create(opts: Any, backend_options: object) -> Backend | ProcessGroup:
    """Makes a group for PyTorch."""
    is_default = not opts.global_ranks_in_group
    ours = backend_options if isinstance(backend_options, Options) else None
    if ours is not None:
        settings = ours.settings
    else:
        default = next((group for group in _alive.values() if group._is_default), None)
        settings = default._options.of_subgroups() if default and not is_default else {}
    kind = Backend if _HAS_BACKENDS else ProcessGroup
    return kind(
        opts.store,
        opts.group_rank,
        opts.group_size,
        opts.timeout,
        opts.group_id,
        is_default,
        ours,
        settings,
    )


def _devices() -> list[str]:
    """The host, and the accelerator that this PyTorch is made for, if any. Wakes no driver."""
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def register() -> None:
    """Makes the backend ``xdp-agg`` known to `torch.distributed`.

    To import `xdp_agg.torch` does it; from torch 2.14 on nobody needs to, for PyTorch finds it by
    the package's entry point.
    """
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=_devices())


def group_of(group: dist.ProcessGroup | None) -> _Group | None:
    """Our part of a process group; None: it has none."""
    group = group or dist.group.WORLD
    if isinstance(group, _Group):
        return group
    try:
        backend: Any = group._get_backend(torch.device("cpu")) if group is not None else None
    except RuntimeError:
        return None
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL it is within another one.
    backend = getattr(backend, "wrapped_pg", backend)
    found = getattr(backend, "xdp_agg_group", None)
    return found if isinstance(found, _Group) else None


def _leave() -> None:
    """At the end of the process, for a program that forgot `destroy_process_group`."""
    # All jobs at a time: the other ranks are told if it was an exception, before they miss us.
    with suppress(Exception):
        _xdp_agg._close_all()
    for group in list(_alive.values()):
        with suppress(Exception):
            group.shutdown()


def _forget() -> None:
    _inherited.extend(_alive.values())
    _alive.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget)
