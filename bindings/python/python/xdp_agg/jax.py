"""JAX: all-reduce of trees of arrays, inside ``jax.jit`` and outside.

>>> import jax, xdp_agg.jax
>>> @jax.jit
... def step(weights, batch):
...     loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
...     gradients = xdp_agg.jax.all_reduce(gradients, "mean")
...     return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss

The arrays are copied to the host, reduced there, and copied back. Inside ``jit`` that is an ordered
callback, so that all workers make their calls in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from xdp_agg._xdp_agg import Communicator

__all__ = ["all_reduce", "communicator"]

_Tree = TypeVar("_Tree")
_Arrays = list[Any]

_lock = threading.Lock()
_default: Communicator | None = None


def communicator() -> Communicator:
    """The communicator of calls that name none: made from the environment at its first use."""
    global _default
    with _lock:
        if _default is None or _default.state == "closed":
            _default = Communicator()
        return _default


def all_reduce(
    tree: _Tree,
    op: str = "sum",
    communicator: Communicator | None = None,
    *,
    precision: str | None = None,
    deadline: float | None = None,
) -> _Tree:
    """A tree of new arrays: those of all workers, reduced element by element.

    tree: arrays of any shapes, or one; all workers have the same shapes and types. Leaves of one
        type are packed, and go as one call.
    op: "sum", "mean", "min", "max"; for arrays of bool also "and", "or".
    communicator: None: the one of :func:`communicator`.
    precision: "exact" or "gradient"; None: by the size in bytes of all leaves of a type together.
    deadline: seconds, of each call.

    It has no derivative: take gradients first. Outside of ``jit`` an error of a call, such as
    :class:`xdp_agg.MemberLost`, is raised as it is. Inside, JAX raises an error of its own with the
    same text when the result is used.
    """
    leaves, shape = jax.tree.flatten(tree)
    if not leaves:
        return tree
    given = communicator

    def on_host(*packed: Any) -> tuple[Any, ...]:
        comm = _default_of_module() if given is None else given
        # Copies: what JAX hands over is read-only.
        arrays = [np.array(array) for array in packed]
        for array in arrays:
            comm.all_reduce(array, op, precision=precision, deadline=deadline)
        return tuple(arrays)

    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    reduced = _inside(leaves, on_host) if is_traced else _outside(leaves, on_host)
    new: _Tree = jax.tree.unflatten(shape, reduced)
    return new


def _default_of_module() -> Communicator:
    return communicator()


def _inside(leaves: _Arrays, on_host: Callable[..., tuple[Any, ...]]) -> _Arrays:
    """While JAX traces: one callback for all types."""
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    groups = _by_type(arrays)
    packed = [jnp.concatenate([arrays[i].reshape(-1) for i in group]) for group in groups]
    typed: Any = jax.ShapeDtypeStruct
    shapes = tuple(typed(flat.shape, flat.dtype) for flat in packed)
    results = io_callback(on_host, shapes, *packed, ordered=True)
    return _unpack(arrays, groups, results)


def _outside(leaves: _Arrays, on_host: Callable[..., tuple[Any, ...]]) -> _Arrays:
    """Of arrays that are there. Leaves of NumPy's stay so: JAX might not have their types."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    groups = _by_type(arrays)
    packed = [np.concatenate([arrays[i].reshape(-1) for i in group]) for group in groups]
    reduced = _unpack(arrays, groups, on_host(*packed))
    kept = (np.ndarray, np.generic)
    return [
        new if isinstance(old, kept) else jnp.asarray(new)
        for old, new in zip(leaves, reduced, strict=True)
    ]


def _by_type(arrays: _Arrays) -> list[list[int]]:
    """Numbers of the arrays of each type, in the order of the types' first ones."""
    groups: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        groups.setdefault(array.dtype, []).append(number)
    return list(groups.values())


def _unpack(arrays: _Arrays, groups: list[list[int]], packed: Sequence[Any]) -> _Arrays:
    """The parts of packed arrays, in the order and the shapes of what was packed."""
    parts: dict[int, Any] = {}
    for group, flat in zip(groups, packed, strict=True):
        first = 0
        for number in group:
            size = arrays[number].size
            parts[number] = flat[first : first + size].reshape(arrays[number].shape)
            first += size
    return [parts[number] for number in range(len(arrays))]
