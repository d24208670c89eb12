"""Arrays in the memory that the processes of a host share."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex


def array(
    memory: Callable[[int], Any], shape: SupportsIndex | Iterable[SupportsIndex], dtype: Any
) -> Any:
    """An array of NumPy's, or a tensor if that is what the type is of.

    memory: gives an object with so many bytes, which it keeps as long as it lives itself.
    """
    sizes = (shape,) if isinstance(shape, SupportsIndex) else tuple(shape)
    lengths = tuple(operator.index(size) for size in sizes)
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape {lengths} has a negative length")
    count = math.prod(lengths)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        if count == 0:
            return torch.empty(lengths, dtype=dtype)
        size = torch.empty(0, dtype=dtype).element_size()
        flat = torch.frombuffer(memory(count * size), dtype=dtype, count=count)
        return flat.reshape(lengths)
    import numpy as np

    of = np.dtype("float32" if dtype is None else dtype)
    if of.hasobject:
        raise TypeError(f"elements of type {of} do not lie in memory; choose a type of numbers")
    return np.ndarray(lengths, of, buffer=memory(count * of.itemsize))


def viewer(array: Any) -> Callable[[Any], Any]:
    """Makes read-only arrays of NumPy's, like this array, of memory with as many bytes."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        shape, name = tuple(array.shape), str(array.dtype).removeprefix("torch.")
        try:
            of = np.dtype(name)
        except TypeError:
            raise TypeError(
                f"results are read as NumPy arrays, which have no {name}; use all_reduce"
            ) from None
    else:
        like = np.asarray(array)
        shape, of = like.shape, like.dtype
    return lambda memory: np.ndarray(shape, of, buffer=memory)
