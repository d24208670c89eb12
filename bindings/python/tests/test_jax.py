"""JAX: trees of arrays, inside of jit and outside."""

from __future__ import annotations

import pytest

from tests.workers import Workers

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

IMPORTS = """
import jax, jax.numpy as jnp
import xdp_agg.jax
comm = xdp_agg.jax.communicator()
assert xdp_agg.jax.communicator() is comm
"""


def test_trees_outside_of_jit(workers: Workers) -> None:
    script = f"""{IMPORTS}
tree = {{"a": jnp.full((2, 3), rank + 1.0), "b": [np.full(4, rank, "int64"), jnp.zeros((0, 2))],
        "c": jnp.full(3, rank + 1, jnp.bfloat16), "d": jnp.float32(rank), "e": 1.5,
        "f": jnp.ones((2, 2))}}
kept = np.array(tree["a"])
new = xdp_agg.jax.all_reduce(tree, "sum")
assert jax.tree.structure(new) == jax.tree.structure(tree)
assert (new["a"] == 3).all() and new["a"].shape == (2, 3) and isinstance(new["a"], jax.Array)
assert (new["b"][0] == 1).all() and new["b"][0].dtype == "int64"
assert isinstance(new["b"][0], np.ndarray) and new["b"][1].shape == (0, 2)
assert (new["c"] == 3).all() and new["c"].dtype == jnp.bfloat16
assert float(new["d"]) == 1 and float(new["e"]) == 3 and (new["f"] == 2).all()
assert (np.array(tree["a"]) == kept).all(), "arrays of JAX are immutable"
# Two leaves of float32 and more, of bfloat16, int64, and of float64, which Python's numbers are.
assert comm.stats()["exact_calls"] == 3, comm.stats()
assert xdp_agg.jax.all_reduce([]) == []
assert float(xdp_agg.jax.all_reduce(jnp.float32(rank), "mean", comm)) == 0.5
comm.close()
"""
    workers.start(script).check(120)


def test_inside_of_jit(workers: Workers) -> None:
    script = f"""{IMPORTS}
@jax.jit
def twice(tree):
    first = xdp_agg.jax.all_reduce(tree, "mean")
    doubled = jax.tree.map(lambda a: a * 2, tree)
    return first, xdp_agg.jax.all_reduce(doubled, "max", precision="exact")
tree = {{"a": jnp.full((2, 3), rank + 1.0), "b": jnp.arange(4) + rank, "c": jnp.bfloat16(rank)}}
for _ in range(3):
    mean, largest = twice(tree)
    assert (mean["a"] == 1.5).all() and mean["a"].shape == (2, 3)
    assert (mean["b"] == jnp.arange(4)).all() and float(mean["c"]) == 0.5
    assert (largest["a"] == 4).all() and (largest["b"] == (jnp.arange(4) + 1) * 2).all()
flags = jax.jit(lambda a: xdp_agg.jax.all_reduce(a, "or"))(jnp.array([rank == 0, False]))
assert flags.tolist() == [True, False]
comm.close()
"""
    workers.start(script).check(120)


def test_an_error_inside_of_jit_ends_the_step(workers: Workers) -> None:
    script = f"""{IMPORTS}
reduce = jax.jit(lambda a: xdp_agg.jax.all_reduce(a))
reduce(jnp.ones(3)).block_until_ready()
if rank == 1:
    os._exit(0)
try:
    reduce(jnp.ones(3)).block_until_ready()
    jax.effects_barrier()
    raise SystemExit("no error")
except Exception as error:
    print("rank 1 is gone" in str(error))
try:
    xdp_agg.jax.all_reduce(jnp.ones(3))
except xdp_agg.MemberLost as error:
    print(error.rank)
sys.stdout.flush()
os._exit(0)
"""
    first = workers.start(script).finish(120)[0]
    assert first.out == "True\n1\n", first


def test_arrays_of_jax_are_refused_in_place(workers: Workers) -> None:
    script = f"""{IMPORTS}
for wrong in (jnp.ones(3), jnp.float32(3)):
    try:
        comm.all_reduce(wrong)
    except TypeError as error:
        print("xdp_agg.jax.all_reduce" in str(error))
comm.close()
"""
    assert workers.start(script).check(120) == ["True\nTrue\n"] * 2
