"""What carries calls out: the aggregator; gloo, where it refused; nothing for a lone rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp

from xdp_agg import _xdp_agg

from ._numbers import BYTES
from ._work import Work


@dataclass(slots=True)
class Call:
    """A call of the client, in place on memory of the host."""

    #: all_reduce, broadcast, reduce, reduce_scatter, all_gather or barrier.
    task: str
    #: Name of the reduction, or the root, or both.
    argument: str | int | tuple[str, int] | None
    #: The memory, in one piece; None for a barrier.
    memory: torch.Tensor | None
    #: Its elements.
    count: int
    #: Their type, by the client's name.
    kind: str
    precision: str | None = None
    #: Seconds; None: the group's.
    deadline: float | None = None


class Engine(Protocol):
    """Carries calls out, in the order in which they come."""

    @property
    def name(self) -> str:
        """For people."""

    def run(self, call: Call) -> None:
        """On this thread; raises."""

    def start(self, call: Call, work: Work) -> None:
        """Returns at once, and tells the work when it has ended."""

    def abort(self, reason: str) -> None:
        """Ends all calls in flight with an error."""

    def close(self) -> None:
        """Leaves in good order."""


class Aggregated:
    """By the aggregator."""

    name = "xdp-agg"

    def __init__(self, communicator: _xdp_agg.Communicator, *, owned: bool = True) -> None:
        self.communicator = communicator
        self._owned = owned

    def run(self, call: Call) -> None:
        memory = call.memory
        self.communicator._run(
            call.task,
            call.argument,
            0 if memory is None else memory.data_ptr(),
            call.count,
            call.kind,
            call.precision,
            call.deadline,
        )

    def start(self, call: Call, work: Work) -> None:
        memory = call.memory
        self.communicator._start(
            call.task,
            call.argument,
            0 if memory is None else memory.data_ptr(),
            call.count,
            call.kind,
            call.precision,
            call.deadline,
            work.done,
            (work, memory),
        )

    def abort(self, reason: str) -> None:
        self.communicator.abort(reason)

    def close(self) -> None:
        if self._owned:
            self.communicator.close()


class Alone:
    """A world of one: everything that is done in place is done."""

    name = "none: this rank is alone"

    def run(self, call: Call) -> None:
        del call

    def start(self, call: Call, work: Work) -> None:
        del call
        work.done(None)

    def abort(self, reason: str) -> None:
        del reason

    def close(self) -> None:
        pass


_OPERATIONS: dict[str, ReduceOp.RedOpType] = {
    "sum": ReduceOp.SUM,
    # Divided afterwards: gloo of torch 2.7 has no average.
    "average": ReduceOp.SUM,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "and": ReduceOp.BAND,
    "or": ReduceOp.BOR,
}


class Gloo:
    """By gloo, for a group that the aggregator had no room for."""

    name = "gloo"

    def __init__(self, inner: Any, rank: int, size: int) -> None:
        self._inner = inner
        self._rank = rank
        self._size = size

    def run(self, call: Call) -> None:
        work, finish = self._begin(call)
        work.wait()
        if finish is not None:
            finish()

    def start(self, call: Call, work: Work) -> None:
        inner, finish = self._begin(call)

        def ended(future: torch.futures.Future[Any]) -> None:
            try:
                future.value()
                if finish is not None:
                    finish()
            except BaseException as error:
                work.done(error)
            else:
                work.done(None)

        inner.get_future().add_done_callback(ended)

    def _begin(self, call: Call) -> tuple[Any, Callable[[], None] | None]:
        if call.task == "barrier" or call.memory is None:
            return self._inner.barrier(_timed(c10d.BarrierOptions(), call)), None
        # Callers see what happens to these tensors by their memory alone.
        flat = call.memory.detach().view(-1)
        if call.kind == BYTES:
            flat = flat.view(torch.uint8)
        if call.task == "broadcast":
            broadcast = _timed(c10d.BroadcastOptions(), call)
            broadcast.rootRank = call.argument
            return self._inner.broadcast([flat], broadcast), None
        if call.task == "all_gather":
            own = flat.view(self._size, -1)[self._rank].clone()
            gather = _timed(c10d.AllgatherOptions(), call)
            return self._inner.allgather([list(flat.chunk(self._size))], [own], gather), None
        name, root = call.argument if isinstance(call.argument, tuple) else (call.argument, None)
        assert isinstance(name, str)
        finish = (lambda: _divide(flat, self._size)) if name == "average" else None
        # The sum of two truths would be the byte 2.
        operation = ReduceOp.MAX if (call.kind, name) == ("bool", "sum") else _OPERATIONS[name]
        if call.task == "reduce":
            reduce = _timed(c10d.ReduceOptions(), call)
            reduce.rootRank, reduce.reduceOp = root, operation
            return self._inner.reduce([flat], reduce), finish
        # A reduce-scatter leaves the other parts unspecified: reduced they may be.
        options = _timed(c10d.AllreduceOptions(), call)
        options.reduceOp = operation
        return self._inner.allreduce([flat], options), finish

    def abort(self, reason: str) -> None:
        del reason

    def close(self) -> None:
        pass


def _divide(flat: torch.Tensor, size: int) -> None:
    with torch.no_grad():
        flat.div_(size)


def _timed(options: Any, call: Call) -> Any:
    if call.deadline is not None:
        options.timeout = timedelta(seconds=call.deadline)
    return options
