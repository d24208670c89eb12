"""How a call of PyTorch becomes one of the client, or of gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from . import _memory, _numbers, _staging
from ._channel import Channel
from ._engine import Call
from ._memory import Finish
from ._numbers import BYTES, reduction
from ._staging import Chunk, StagedCall
from ._work import Work

#: Calls of two ranks, that have no place in the order of the group's.
_OF_TWO = ("send", "recv", "recv_anysource")

_F = TypeVar("_F", bound=Callable[..., Any])


def eager(method: _F) -> _F:
    """`torch.compile` shall not look into it, nor into what it calls.

    The code is marked, as `torch.compiler.disable` marks what it meets. A wrapper would do, too,
    but costs ten microseconds of every call, and loads all of Dynamo at the first.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(method.__code__, frames._FrameExecStrategy(skip, skip))
    return method


def or_default(options: Any, kind: Callable[[], Any]) -> Any:
    """The options that were given, or those that C++ would take."""
    return kind() if options is None else options


def is_synchronous(options: Any) -> bool:
    """The caller waits at once, so that it may do the work itself. torch 2.7 does not say so."""
    return not getattr(options, "asyncOp", True)


class Calls:
    """The way of a group's calls."""

    _rank: int
    _size: int
    _channel: Channel
    #: The gloo inside.
    _inner: Any
    _sequence: int

    def _reduction(self, tensors: list[Tensor], op: ReduceOp | ReduceOp.RedOpType) -> str | None:
        """The client's name, if it reduces this; None: gloo does, or says why not."""
        if len(tensors) != 1 or tensors[0].layout is not torch.strided:
            return None
        return reduction(tensors[0].dtype, op)

    def _root(self, options: Any) -> int:
        root = int(options.rootRank)
        if not 0 <= root < self._size:
            raise ValueError(f"root {root} in a group of {self._size} ranks")
        return root

    def _call(
        self, task: str, argument: Any, memory: Tensor | None, kind: str, options: Any
    ) -> Call:
        self._sequence += 1
        count = 0
        if memory is not None:
            count = memory.numel() * (memory.element_size() if kind is BYTES else 1)
        deadline = self._deadline(options)
        return Call(task, argument, memory, count, kind, _numbers.asked(), deadline)

    def _deadline(self, options: Any) -> float:
        """Seconds that a call may take."""
        timeout = getattr(options, "timeout", None)
        seconds = 0.0 if timeout is None else timeout.total_seconds()
        # Only a timeout above zero counts.
        return seconds if seconds > 0 else self._channel.timeout

    def _quickly(self, tensors: list[Tensor], opts: Any) -> bool:
        """Sums a tensor on this thread, if that is all there is to do: True.

        Does what `_in_place` does, where it may do so at once. Whatever is asked of PyTorch here
        costs a short call a percent of its time.
        """
        channel = self._channel
        if len(tensors) != 1 or not is_synchronous(opts) or (engine := channel.at_once()) is None:
            return False
        tensor = tensors[0]
        kind = _numbers.NAMES.get(tensor.dtype)
        if (
            kind is None
            or tensor.layout is not torch.strided
            or not tensor.is_cpu
            or not _memory.is_dense(tensor)
            or not (count := tensor.numel())
            or opts.reduceOp != ReduceOp.SUM
        ):
            return False
        self._sequence += 1
        channel.calls["all_reduce"] += 1
        memory, precision, deadline = tensor.data_ptr(), _numbers.asked(), self._deadline(opts)
        try:
            engine.communicator._run("all_reduce", "sum", memory, count, kind, precision, deadline)
        except BaseException as error:
            channel.failed(error)
            raise
        return True

    def _in_place(
        self,
        task: str,
        argument: Any,
        tensor: Tensor,
        kind: str,
        options: Any,
        result: Any,
        now: bool,
    ) -> Work:
        """A call that leaves its result where its input was."""
        # As it is, where that will do: this is the way of small calls, and an alias costs a tenth.
        memory, finish = (tensor, None) if _memory.is_dense(tensor) else _memory.dense(tensor)
        if not memory.numel():
            return Work.ended(result)
        call = self._call(task, argument, memory, kind, options)
        if memory.is_cpu:
            return self._channel.issue(call, result, finish, is_synchronous=now)
        is_broadcast, is_root = task == "broadcast", argument == self._rank
        chunks = _staging.whole(
            memory.detach().view(-1),
            down=not is_broadcast or is_root,
            up=not (is_broadcast and is_root),
        )
        return self._staged(call, memory, chunks, result, finish)

    def _staged(
        self, call: Call, memory: Tensor, chunks: list[Chunk], result: Any, finish: Finish | None
    ) -> Work:
        call.memory = None
        staged = StagedCall(call, memory.dtype, chunks, memory.device)
        return self._channel.issue_staged(staged, result, finish)

    def _by_gloo(self, method: str, *arguments: Any) -> Any:
        self._sequence += method not in _OF_TWO
        self._channel.check()
        self._channel.calls[f"gloo {method}"] += 1
        return getattr(self._inner, method)(*arguments)
