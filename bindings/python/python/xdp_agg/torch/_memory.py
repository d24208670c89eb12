"""Tensors as the client wants them: dense, in the order of their elements, in one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: What is done with the memory once a call has ended well.
Finish = Callable[[], None]


def is_dense(tensor: Tensor) -> bool:
    """Its memory is its elements, one after the other."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def dense(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """The same elements in one piece, and what brings them back; None: they are where they were."""
    tensor = tensor.detach()
    if is_dense(tensor):
        return tensor, None
    copy = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    copy.copy_(tensor)

    def bring_back() -> None:
        tensor.copy_(copy)

    return copy, bring_back


def flat(tensor: Tensor) -> Tensor:
    """Its elements as a vector, to be read."""
    return dense(tensor)[0].view(-1)


def joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """One vector of them all, if they lie one after the other in the memory of one."""
    first = tensors[0]
    storage, step = first.untyped_storage().data_ptr(), first.numel()
    for index, tensor in enumerate(tensors):
        if (
            not is_dense(tensor)
            or tensor.untyped_storage().data_ptr() != storage
            or tensor.storage_offset() != first.storage_offset() + index * step
        ):
            return None
    return first.detach().as_strided((step * len(tensors),), (1,), first.storage_offset())


def must_have(what: str, tensor: Tensor, count: int, dtype: torch.dtype) -> None:
    """Checks a tensor that follows from another one."""
    if tensor.numel() != count or tensor.dtype != dtype:
        raise ValueError(
            f"{what} has {tensor.numel()} elements of {tensor.dtype}; {count} of {dtype} are "
            "expected"
        )


def are_alike(lists: list[list[Tensor]], singles: list[Tensor], size: int) -> bool:
    """One list of `size` dense tensors, all like the single one."""
    if len(lists) != 1 or len(singles) != 1 or len(lists[0]) != size:
        return False
    like = singles[0]
    return like.layout is torch.strided and all(
        part.layout is torch.strided
        and part.numel() == like.numel()
        and part.dtype == like.dtype
        and part.device == like.device
        for part in lists[0]
    )
