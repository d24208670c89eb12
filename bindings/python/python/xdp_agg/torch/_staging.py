"""Tensors of accelerators: through pinned memory of the host, chunk by chunk.

While one chunk is summed in the network, the next one comes down and the one before goes up.
Written against `torch.accelerator`, and tested with copies that are only pretended: no GPU was at
hand.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from ._engine import Call, Engine
from ._work import Work

#: Bytes of a chunk.
CHUNK = 8 << 20
#: Buffers of a device: one comes down, one goes up, and two are in the network.
BUFFERS = 4


@dataclass(slots=True)
class Chunk:
    """A part of a call. Places in the buffer are in elements."""

    #: Elements of the part.
    count: int
    #: What comes down before: place in the buffer, and where it is on the device.
    down: list[tuple[int, torch.Tensor]]
    #: What goes up afterwards.
    up: list[tuple[int, torch.Tensor]]


@dataclass(slots=True)
class StagedCall:
    """A call on memory of a device."""

    #: What all parts have in common; their memory and count are their own.
    call: Call
    dtype: torch.dtype
    chunks: list[Chunk]
    device: torch.device


class Mark(Protocol):
    """A place in the order of a device's work: `torch.Event`."""

    def synchronize(self) -> None:
        """Waits until the device has come there."""


class Copies(Protocol):
    """Copies between a device and the host's memory, carried out in their order."""

    def buffer(self) -> torch.Tensor:
        """`CHUNK` bytes of the host that the device copies to and from."""

    def follow(self) -> None:
        """Copies from here on come after what the caller's stream has to do so far."""

    def down(self, host: torch.Tensor, device: torch.Tensor) -> None:
        """Copies to the host."""

    def up(self, device: torch.Tensor, host: torch.Tensor) -> None:
        """Copies to the device."""

    def mark(self, is_down: bool) -> Mark:
        """The end of the copies of one direction so far."""

    def uploads(self) -> AbstractContextManager[object]:
        """What the device is asked to do within comes after the copies up so far."""


class DeviceCopies:
    """Copies of an accelerator on streams of their own, one for each direction."""

    def __init__(self, device: torch.device) -> None:
        self._down = torch.Stream(device=device)
        self._up = torch.Stream(device=device)
        self._device = device

    def buffer(self) -> torch.Tensor:
        return torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True)

    def follow(self) -> None:
        current = torch.accelerator.current_stream(self._device)
        self._down.wait_stream(current)
        self._up.wait_stream(current)

    def down(self, host: torch.Tensor, device: torch.Tensor) -> None:
        with self._down:
            host.copy_(device, non_blocking=True)

    def up(self, device: torch.Tensor, host: torch.Tensor) -> None:
        with self._up:
            device.copy_(host, non_blocking=True)
        # The owner may free the tensor before the copy has ended.
        device.record_stream(self._up)

    def mark(self, is_down: bool) -> torch.Event:
        return (self._down if is_down else self._up).record_event()

    def uploads(self) -> AbstractContextManager[object]:
        return self._up


class PretendedCopies:
    """The same where the host's memory takes the device's place; for tests."""

    class _Now:
        def synchronize(self) -> None:
            pass

    def buffer(self) -> torch.Tensor:
        return torch.empty(CHUNK, dtype=torch.uint8)

    def follow(self) -> None:
        pass

    def down(self, host: torch.Tensor, device: torch.Tensor) -> None:
        host.copy_(device)

    def up(self, device: torch.Tensor, host: torch.Tensor) -> None:
        device.copy_(host)

    def mark(self, is_down: bool) -> Mark:
        del is_down
        return self._Now()

    def uploads(self) -> AbstractContextManager[object]:
        return nullcontext()


def even(total: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of `total` elements, of at most `most` each, and as even as can be.

    So no part is a short one that would be summed in another precision than the rest.
    """
    parts = max(1, -(-total // max(1, most)))
    ends = [total * part // parts for part in range(parts + 1)]
    return itertools.pairwise(ends)


def whole(flat: torch.Tensor, *, down: bool = True, up: bool = True) -> list[Chunk]:
    """Chunks of a vector that is worked on in place."""
    chunks = []
    for start, end in even(flat.numel(), CHUNK // flat.element_size()):
        part = [(0, flat[start:end])]
        chunks.append(Chunk(end - start, part if down else [], part if up else []))
    return chunks


def columns(
    size: int, down: Sequence[tuple[int, torch.Tensor]], up: Sequence[tuple[int, torch.Tensor]]
) -> list[Chunk]:
    """Chunks of rows that lie below each other, one for each rank: each has a part of each row.

    `down` and `up` name rows, and where they are on the device.
    """
    row = (down or up)[0][1]
    chunks = []
    for start, end in even(row.numel(), CHUNK // row.element_size() // size):
        width = end - start
        chunks.append(
            Chunk(
                width * size,
                [(index * width, tensor[start:end]) for index, tensor in down],
                [(index * width, tensor[start:end]) for index, tensor in up],
            )
        )
    return chunks


class _Buffer:
    """Memory of the host, and until when the device copies from it."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.until: Mark | None = None


class Stage:
    """The buffers of a device."""

    def __init__(self, copies: Copies) -> None:
        self.copies = copies
        self._free: list[_Buffer] = []
        self._made = 0
        self._changed = threading.Condition()

    def _take(self) -> _Buffer:
        with self._changed:
            while not self._free and self._made == BUFFERS:
                self._changed.wait()
            if self._free:
                buffer = self._free.pop(0)
            else:
                self._made += 1
                buffer = _Buffer(self.copies.buffer())
        if buffer.until is not None:
            buffer.until.synchronize()
        return buffer

    def _give_back(self, buffer: _Buffer) -> None:
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()

    def carry_out(self, engine: Engine, staged: StagedCall, work: Work) -> None:
        """Starts all chunks, on this thread, which waits for copies and for free buffers."""
        course = _Course(self, staged, work)
        for chunk in staged.chunks:
            if course.has_failed:
                break
            buffer = self._take()
            memory = buffer.memory.view(staged.dtype)
            for place, tensor in chunk.down:
                self.copies.down(memory[place : place + tensor.numel()], tensor)
            if chunk.down:
                self.copies.mark(is_down=True).synchronize()
            call = staged.call
            part = Call(
                call.task,
                call.argument,
                memory[: chunk.count],
                chunk.count,
                call.kind,
                call.precision,
                call.deadline,
            )
            if call.kind == "u8":
                part.count *= memory.element_size()
            own = course.part(chunk, buffer, memory)
            try:
                engine.start(part, own)
            except BaseException as error:
                own.done(error)
        course.all_started()


class _Course:
    """A call whose chunks come and go."""

    def __init__(self, stage: Stage, staged: StagedCall, work: Work) -> None:
        self._stage = stage
        self._device = staged.device
        self._work = work
        self._guard = threading.Lock()
        #: One more than chunks in flight, until all were started.
        self._left = 1
        self._error: BaseException | None = None

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def part(self, chunk: Chunk, buffer: _Buffer, memory: torch.Tensor) -> Work:
        """The work of a chunk: it goes up when it has ended, and gives its buffer back."""
        with self._guard:
            self._left += 1
        part: Work

        def up() -> None:
            for place, tensor in chunk.up:
                self._stage.copies.up(tensor, memory[place : place + tensor.numel()])
            if chunk.up:
                buffer.until = self._stage.copies.mark(is_down=False)

        def over() -> None:
            self._stage._give_back(buffer)
            self._one_less(part.exception())

        part = Work(None, up)
        part.when_over(over)
        return part

    def all_started(self) -> None:
        self._one_less(None)

    def _one_less(self, error: BaseException | None) -> None:
        with self._guard:
            self._error = self._error or error
            self._left -= 1
            if self._left > 0:
                return
        copies = self._stage.copies
        with copies.uploads():
            end = copies.mark(is_down=False)
            if isinstance(end, torch.Event):
                self._work.after(end)
            self._work.done(self._error)
