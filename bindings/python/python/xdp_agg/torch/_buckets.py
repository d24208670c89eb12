"""DDP's buckets in the memory that the processes of a host share.

DDP makes its buckets itself, and gives no way to place them elsewhere. But `Tensor.share_memory_`
moves what lies below a tensor and all its views into pages of their own. Under these the client
puts pages of the segment. So neither DDP nor PyTorch has to know of it.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch._C import _distributed_c10d as c10d

import xdp_agg

from ._engine import Aggregated, Engine

if TYPE_CHECKING:
    from xdp_agg._xdp_agg import _PlacedMemory

#: Where `Tensor.share_memory_` has its pages, until the segment's take their place.
_SHM = "/dev/shm"


@dataclass(slots=True)
class _Bucket:
    memory: _PlacedMemory
    #: By identity: those whose gradients are in it.
    parameters: set[int]


class Buckets:
    """Those that lie in the segment, until DDP makes others or they are let go."""

    def __init__(self, wanted: bool | None) -> None:
        """`wanted`: None: unless gradients are views of them."""
        self._wanted = wanted
        self._is_off = wanted is False
        #: By address.
        self._buckets: dict[int, _Bucket] = {}
        #: The address of each parameter's bucket.
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def place(self, engine: Engine | None, bucket: c10d.GradBucket) -> object:
        """Puts the segment under a bucket, once. What must be kept until the call on it is over."""
        buffer = bucket.buffer()
        if buffer.device.type != "cpu" or buffer.is_sparse:
            return None
        found = self._buckets.get(buffer.data_ptr())
        if found is not None:
            return found.memory
        if self._is_off or not isinstance(engine, Aggregated) or not buffer.numel():
            return None
        communicator = engine.communicator
        parameters = bucket.parameters()
        if communicator.local_size == 1 or (
            self._wanted is None and any(_is_view(parameter, buffer) for parameter in parameters)
        ):
            self._is_off = True
            return None
        self._forget(parameters)
        try:
            memory = _place(communicator, buffer)
        except (xdp_agg.Config, OSError, RuntimeError) as error:
            if isinstance(error, xdp_agg.Error) and not isinstance(error, xdp_agg.Config):
                raise
            self._is_off = True
            if self._wanted or os.environ.get("XDP_AGG_BUFFERS"):
                warnings.warn(
                    f"buckets are copied into the segment: {error}", RuntimeWarning, stacklevel=3
                )
            return None
        address, own = buffer.data_ptr(), {id(parameter) for parameter in parameters}
        self._buckets[address] = _Bucket(memory, own)
        self._places.update(dict.fromkeys(own, address))
        return memory

    def _forget(self, parameters: list[Tensor]) -> None:
        """DDP has made other buckets for these."""
        for parameter in parameters:
            address = self._places.pop(id(parameter), None)
            if address is None:
                continue
            left = self._buckets[address].parameters
            left.discard(id(parameter))
            if not left:
                del self._buckets[address]

    def clear(self) -> None:
        """Lets all go: no call may have one."""
        self._is_off = True
        self._places.clear()
        self._buckets.clear()


def _is_view(parameter: Tensor, buffer: Tensor) -> bool:
    grad = parameter.grad
    if grad is None or grad.is_sparse:
        return False
    return grad.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def _place(communicator: Any, buffer: Any) -> _PlacedMemory:
    size = buffer.numel() * buffer.element_size()
    if buffer.is_shared():
        raise RuntimeError("a bucket is shared already")
    # Whether there is room: nothing has been moved yet.
    communicator.empty(size, "uint8")
    space = os.statvfs(_SHM)
    if size > space.f_bavail * space.f_frsize:
        # PyTorch would not see it, and the process would be killed by its first access.
        raise OSError(f"{_SHM} has no room for {size} bytes, which they pass through")
    buffer.share_memory_()
    if buffer.untyped_storage().data_ptr() != buffer.data_ptr():
        raise RuntimeError("a bucket does not begin where its storage does")
    memory: _PlacedMemory | None = communicator._place(buffer.data_ptr(), size, buffer)
    if memory is None:
        raise RuntimeError("each process is a worker of its own")
    return memory
