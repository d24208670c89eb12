"""The collectives of a group, under the names of all versions of PyTorch.

A call is native or not by its operation, its types and its sizes, never by where one rank's memory
lies: the others would wait elsewhere. So memory with gaps is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from . import _memory, _staging
from ._calls import Calls, eager, is_synchronous, or_default
from ._memory import Finish
from ._numbers import BYTES, NAMES
from ._work import Work, all_of


class Collectives(Calls):
    """What `Backend` and `ProcessGroup` have in common. Both look their methods up by name."""

    # --- all-reduce and what is done in place as it is

    @eager
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        if self._quickly(tensors, opts):
            return Work.ended(tensors)
        opts = or_default(opts, c10d.AllreduceOptions)
        name = self._reduction(tensors, getattr(opts, "reduceOp", opts))
        if name is None:
            return self._by_gloo("allreduce", tensors, opts)
        tensor = tensors[0]
        kind, now = NAMES[tensor.dtype], is_synchronous(opts)
        return self._in_place("all_reduce", name, tensor, kind, opts, tensors, now)

    @eager
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = or_default(opts, c10d.AllreduceCoalescedOptions)
        names = [self._reduction([tensor], opts.reduceOp) for tensor in tensors]
        if None in names:
            return self._by_gloo("allreduce_coalesced", tensors, opts)
        works = [
            self._in_place("all_reduce", name, tensor, NAMES[tensor.dtype], opts, [tensor], False)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        return all_of(works, tensors)

    def allreduce_sparse(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._by_gloo("allreduce", tensors, or_default(opts, c10d.AllreduceOptions))

    @eager
    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = or_default(opts, c10d.ReduceOptions)
        name = self._reduction(tensors, opts.reduceOp)
        if name is None:
            return self._by_gloo("reduce", tensors, opts)
        tensor = tensors[0]
        what, kind = (name, self._root(opts)), NAMES[tensor.dtype]
        return self._in_place("reduce", what, tensor, kind, opts, tensors, is_synchronous(opts))

    @eager
    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = or_default(opts, c10d.BroadcastOptions)
        if len(tensors) != 1 or tensors[0].layout is not torch.strided:
            return self._by_gloo("broadcast", tensors, opts)
        root, now = self._root(opts), is_synchronous(opts)
        return self._in_place("broadcast", root, tensors[0], BYTES, opts, tensors, now)

    @eager
    def barrier(self, opts: Any = None) -> Any:
        opts = or_default(opts, c10d.BarrierOptions)
        call = self._call("barrier", None, None, BYTES, opts)
        return self._channel.issue(call, [], is_synchronous=is_synchronous(opts))

    # --- all-gather

    @eager
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = or_default(opts, c10d.AllgatherOptions)
        return self._gather_single(output, input, opts, is_synchronous(opts))

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single(output, input, opts)

    @eager
    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        opts = or_default(opts, c10d.AllgatherOptions)
        pairs = zip(outputs, inputs, strict=True)
        return all_of([self._gather_single(*pair, opts, False) for pair in pairs], outputs)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        return self.all_gather_single_coalesced(outputs, inputs, opts)

    @eager
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        opts = or_default(opts, c10d.AllgatherOptions)
        if not _memory.are_alike(outputs, inputs, self._size):
            return self._by_gloo("allgather", outputs, inputs, opts)
        return self._gather_list(outputs[0], inputs[0], opts, is_synchronous(opts))

    @eager
    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """`outputs` has a list for each rank."""
        opts = or_default(opts, c10d.AllgatherOptions)
        pairs = [(list(parts), input) for *parts, input in zip(*outputs, inputs, strict=True)]
        if not all(_memory.are_alike([parts], [input], self._size) for parts, input in pairs):
            return self._by_gloo("allgather_coalesced", outputs, inputs, opts)
        return all_of([self._gather_list(*pair, opts, False) for pair in pairs], outputs)

    def _gather_single(self, output: Tensor, input: Tensor, opts: Any, now: bool) -> Work:
        _memory.must_have("the output", output, input.numel() * self._size, input.dtype)
        whole, finish = _memory.dense(output)
        return self._gather(whole.view(-1), input, [output], finish, opts, now)

    def _gather_list(self, outputs: list[Tensor], input: Tensor, opts: Any, now: bool) -> Work:
        """Through a tensor of its own, where the outputs are not parts of one."""
        whole = _memory.joined(outputs)
        if whole is not None:
            return self._gather(whole, input, outputs, None, opts, now)
        whole = input.new_empty(input.numel() * self._size)
        rows: Any = whole.view(self._size, -1) if whole.numel() else []

        def spread() -> None:
            for output, row in zip(outputs, rows, strict=False):
                output.detach().copy_(row.view(output.shape))

        return self._gather(whole, input, outputs, spread, opts, now)

    def _gather(
        self, whole: Tensor, input: Tensor, result: Any, finish: Finish | None, opts: Any, now: bool
    ) -> Work:
        """Fills the vector `whole` with all ranks' `input`."""
        if not whole.numel():
            return Work.ended(result)
        call = self._call("all_gather", None, whole, BYTES, opts)
        rows = whole.view(self._size, -1)
        if whole.device.type != "cpu":
            down = [(self._rank, _memory.flat(input))]
            chunks = _staging.columns(self._size, down, list(enumerate(rows.unbind())))
            return self._staged(call, whole, chunks, result, finish)
        own = rows[self._rank]
        if own.data_ptr() != input.data_ptr() or not _memory.is_dense(input):
            own.view(input.shape).copy_(input.detach())
        return self._channel.issue(call, result, finish, is_synchronous=now)

    # --- reduce-scatter

    @eager
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        opts = or_default(opts, c10d.ReduceScatterOptions)
        return self._scatter_single(output, input, opts, is_synchronous(opts))

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single(output, input, opts)

    @eager
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        opts = or_default(opts, c10d.ReduceScatterOptions)
        pairs = zip(outputs, inputs, strict=True)
        works = [Work.of(self._scatter_single(*pair, opts, False)) for pair in pairs]
        return all_of(works, outputs)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        return self.reduce_scatter_single_coalesced(outputs, inputs, opts)

    @eager
    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Any:
        opts = or_default(opts, c10d.ReduceScatterOptions)
        name = self._reduction(outputs, opts.reduceOp)
        if name is None or not _memory.are_alike(inputs, outputs, self._size):
            return self._by_gloo("reduce_scatter", outputs, inputs, opts)
        scratch = torch.stack([part.detach().reshape(-1) for part in inputs[0]]).view(-1)
        return self._scatter(outputs[0], scratch, name, outputs, opts, is_synchronous(opts))

    def _scatter_single(self, output: Tensor, input: Tensor, opts: Any, now: bool) -> Any:
        _memory.must_have("the input", input, output.numel() * self._size, output.dtype)
        name = self._reduction([input], opts.reduceOp)
        if name is None:
            return self._by_gloo("_reduce_scatter_base", output, input, opts)
        # On the host it is summed in place, and the input shall stay as it is.
        input = input.detach()
        if input.device.type == "cpu":
            input = input.clone(memory_format=torch.contiguous_format)
        return self._scatter(output, _memory.flat(input), name, [output], opts, now)

    def _scatter(
        self, output: Tensor, scratch: Tensor, name: str, result: Any, opts: Any, now: bool
    ) -> Work:
        """Fills `output` with this rank's part of the sum of the vectors `scratch`."""
        if not scratch.numel():
            return Work.ended(result)
        out, finish = _memory.dense(output)
        rows = scratch.view(self._size, -1)
        call = self._call("reduce_scatter", name, scratch, NAMES[scratch.dtype], opts)
        if scratch.device.type != "cpu":
            up = [(self._rank, out.view(-1))]
            chunks = _staging.columns(self._size, list(enumerate(rows.unbind())), up)
            return self._staged(call, scratch, chunks, result, finish)

        def take() -> None:
            out.copy_(rows[self._rank].view(out.shape))
            if finish is not None:
                finish()

        return self._channel.issue(call, result, take, is_synchronous=now)

    # --- what gloo does

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        return self._by_gloo("gather", outputs, inputs, or_default(opts, c10d.GatherOptions))

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        return self._by_gloo("scatter", outputs, inputs, or_default(opts, c10d.ScatterOptions))

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        return self._by_gloo("alltoall", outputs, inputs, or_default(opts, c10d.AllToAllOptions))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        opts = or_default(opts, c10d.AllToAllOptions)
        splits = (output_split_sizes, input_split_sizes)
        return self._by_gloo("alltoall_base", output, input, *splits, opts)

    def alltoall_base(self, *arguments: Any) -> Any:
        return self.all_to_all_single(*arguments)

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        return self._by_gloo("send", tensors, destination, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        return self._by_gloo("recv", tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return self._by_gloo("recv_anysource", tensors, tag)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        timeout = getattr(opts, "timeout", None)
        given = {} if timeout is None or timeout.total_seconds() < 0 else {"timeout": timeout}
        self._inner.monitored_barrier(wait_all_ranks=wait_all_ranks, **given)
