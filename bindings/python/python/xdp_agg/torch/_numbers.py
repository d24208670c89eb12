"""What the aggregator serves: decided by operation and type alone, which all ranks know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, cast

import torch
from torch.distributed import ReduceOp

Precision: TypeAlias = Literal["exact", "gradient"]

#: What copies travel as, whatever their type.
BYTES = "u8"

#: Types that are reduced, by the names that the client gives them. Those that gloo has, too: a
#: program shall not depend on the backend.
NAMES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.bool: "bool",
}

_OF_ALL = {
    ReduceOp.SUM: "sum",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}
_OF_FLOATS = {**_OF_ALL, ReduceOp.AVG: "average"}
# A sum of truth values is `or`, as for a program that reads gloo's; its bytes are 0 and 1 here.
_OF_BOOL = {**_OF_ALL, ReduceOp.BAND: "and", ReduceOp.BOR: "or"}

_REDUCTIONS: dict[torch.dtype, dict[ReduceOp.RedOpType, str]] = {
    dtype: _OF_FLOATS if dtype.is_floating_point else _OF_BOOL if dtype is torch.bool else _OF_ALL
    for dtype in NAMES
}


def reduction(dtype: torch.dtype, op: ReduceOp | ReduceOp.RedOpType) -> str | None:
    """The client's name of a reduction; None: it is for the inner gloo."""
    of_type = _REDUCTIONS.get(dtype)
    if of_type is None:
        return None
    # `op.op` is the plain number of the operation, which has a hash.
    return of_type.get(cast(Any, getattr(op, "op", op)))


#: What `precision` asks for now. One for the process, not one for each thread: gradients of
#: accelerators are reduced by threads of autograd, which would not see what the caller's says.
_asked: list[Precision] = []


def asked() -> Precision | None:
    """What `precision` asks for now; None: what the group has."""
    return _asked[-1] if _asked else None


def checked(value: str) -> Precision:
    """The same value, if it is the name of a precision."""
    if value == "exact":
        return "exact"
    if value == "gradient":
        return "gradient"
    raise ValueError(f'precision {value!r}: expected "exact" or "gradient"')


@contextmanager
def precision(value: Precision) -> Iterator[None]:
    """Sums of floats that are called for inside have this precision, in all threads.

    ``"exact"``: each element is the exact sum, rounded, whatever stands beside it: at most one unit
    in the last place off. ``"gradient"``: fixed point by the largest magnitude of each block of 352
    elements, the fast way. Without it sums of up to 64 KiB are exact, and longer ones are
    gradients; ``XDP_AGG_PRECISION`` and ``Options(precision=...)`` change that for all calls. All
    ranks must ask for the same. The hooks keep to what their `State` says.
    """
    _asked.append(checked(value))
    try:
        yield
    finally:
        _asked.pop()
