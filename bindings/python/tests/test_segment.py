"""Arrays in the memory that the processes of a host share."""

from __future__ import annotations

import json

import pytest

from tests.workers import Workers

ROOM = {"XDP_AGG_BUFFERS": str(32 << 20)}

SUMS = """
import gc
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
found = []
for name in ["float32", "float64", "float16", "int32", "int64"]:
    for count in [1, 1000, 100_000]:
        one = comm.empty((count, 2), name)
        assert one.shape == (count, 2) and one.dtype == name and not one.any()
        one[:] = (np.arange(count * 2).reshape(count, 2) % 7 + rank).astype(name)
        # Half of the processes copy.
        mine = one if rank % 2 == 0 else one.copy()
        copied = one.copy()
        comm.all_reduce(mine, "sum")
        comm.all_reduce(copied, "sum")
        assert (mine == copied).all(), (name, count)
        handles = [comm.start(part, "max") for part in (mine[: count // 2], mine[count // 2 :])]
        for handle in handles:
            handle.wait()
        assert (mine == copied).all(), (name, count)
# A block with a NaN keeps its other numbers, and is summed again where it lies.
one = comm.empty(200_000)
one[:] = rank + 1
one[1234 + rank] = np.nan
one[77] = np.inf
report = comm.all_reduce(one, precision="gradient")
assert report.redone > 0, report
assert np.isnan(one[1234 : 1234 + world]).all() and np.isinf(one[77])
rest = np.delete(one, [77, *range(1234, 1234 + world)])
assert (rest == world * (world + 1) / 2).all()
# Views keep the memory when the communicator and the array are gone; then it is free again.
part = one[500:600]
del one
for _ in range(200):
    comm.empty(1_000_000)
    gc.collect()
comm.close()
part[:] = 3
assert part.sum() == 300
"""


@pytest.mark.parametrize("world", [1, 2, 4])
def test_arrays_in_the_segment_are_summed(workers: Workers, world: int) -> None:
    workers.start(SUMS, world, env=ROOM).check()


def test_tensors_in_the_segment_are_summed(workers: Workers) -> None:
    pytest.importorskip("torch")
    script = """
import torch
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
for dtype in [torch.float32, torch.bfloat16, torch.int64]:
    one = comm.empty((100, 30), dtype)
    assert one.dtype == dtype and one.shape == (100, 30) and one.sum() == 0
    one += rank + 1
    comm.all_reduce(one, "sum")
    assert (one == world * (world + 1) // 2).all()
assert comm.empty(0, torch.float32).numel() == 0
parameter = torch.nn.Parameter(torch.zeros(300_000))
parameter.grad = comm.empty(300_000, torch.float32)
(parameter * (rank + 1)).sum().backward()
comm.all_reduce(parameter.grad, "mean")
assert (parameter.grad == (world + 1) / 2).all()
comm.close()
"""
    workers.start(script, 2, env=ROOM).check()


VIEWS = """
import gc
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
total = world * (world + 1) / 2
for name in ["float32", "float64", "float16"]:
    for count in [50_000, 300_000]:
        for array in [comm.empty(count, name), np.empty(count, name)]:
            array[:] = rank + 1
            result, report = comm.all_reduce_view(array, precision="gradient")
            assert result.dtype == name and result.shape == (count,)
            assert (result == total).all() and (array == rank + 1).all()
            assert world == 1 or result.base.is_shared, name
            assert report.contributors == tuple(range(world)), report.contributors
            # A result stays what it is, and nobody can write to it.
            comm.all_reduce(array, "max")
            mean, _ = comm.all_reduce_view(array, "mean", precision="gradient")
            assert (result == total).all() and (mean == world).all()
            assert not result.flags.writeable
            try:
                result[0] = 1
                raise AssertionError("it was written")
            except ValueError:
                pass
            # It may be the input of another call.
            again, _ = comm.all_reduce_view(result, "mean", precision="gradient")
            assert (again == total).all()
# Exact sums and integers are the process's own.
for array in [np.full((3, 4), rank + 1, "int64"), np.full((3, 4), rank + 1.0)]:
    result, _ = comm.all_reduce_view(array)
    assert (result == total).all() and result.shape == (3, 4) and (array == rank + 1).all()
    assert not result.base.is_shared
# A block with a NaN keeps its other numbers, and the input stays.
array = comm.empty(200_000)
array[:] = rank + 1
array[1234 + rank] = np.nan
array[77] = np.inf
before = array.copy()
for part in [array, before]:
    result, report = comm.all_reduce_view(part, precision="gradient")
    assert report.redone > 0 and not result.base.is_shared, report
    assert np.isnan(result[1234 : 1234 + world]).all() and np.isinf(result[77])
    rest = np.delete(result, [77, *range(1234, 1234 + world)])
    assert (rest == total).all()
    assert (array[:1234] == before[:1234]).all() and np.isnan(array[1234 + rank])
# As many as there may be, then one more, and then again.
del result, mean, again, rest
gc.collect()
views = [comm.all_reduce_view(np.full(50_000, i, "float32"))[0] for i in range(8)]
if world > 1:
    try:
        comm.all_reduce_view(np.ones(50_000, "float32"))
        raise AssertionError("a ninth")
    except xdp_agg.Config as error:
        assert "8" in str(error), error
assert all((view == i * world).all() for i, view in enumerate(views))
last = views[7][100:200]
del views
gc.collect()
for _ in range(50):
    result, _ = comm.all_reduce_view(np.ones(1_000_000, "float32"))
    assert (result == world).all()
    del result
    gc.collect()
    comm.barrier()
comm.close()
assert (last == 7 * world).all()
"""


@pytest.mark.parametrize("world", [1, 2, 3])
def test_results_are_read_in_place(workers: Workers, world: int) -> None:
    workers.start(VIEWS, world, env=ROOM).check()


STARTED = """
import gc
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
total = world * (world + 1) / 2
for name in ["float32", "float64", "float16"]:
    arrays = [comm.empty(100_000, name), np.empty(100_000, name)]
    for array in arrays:
        array[:] = rank + 1
    handles = [comm.all_reduce_view_async(array, precision="gradient") for array in arrays]
    # Behind them, and waited for before.
    after = np.ones(3)
    comm.all_reduce(after)
    assert (after == world).all()
    for handle in reversed(handles):
        result, report = handle.wait()
        assert handle.is_done() and report.contributors == tuple(range(world))
        assert result.dtype == name and (result == total).all()
        assert world == 1 or result.base.is_shared
        again, _ = handle.wait()
        assert (again == total).all() and not again.flags.writeable
    assert all((array == rank + 1).all() for array in arrays)
# Exact sums, and integers: copies. A mean, a name, and a function that is told.
import queue
told = queue.Queue()
exact = np.full((3, 4), rank + 1.0)
handle = comm.all_reduce_view_async(exact, "mean", precision="exact", name="loss")
handle.on_done(told.put)
assert told.get(timeout=20) is handle
result, report = handle.wait()
assert (result == (world + 1) / 2).all() and result.shape == (3, 4) and not result.base.is_shared
large = np.full(1_000_000, rank + 1)
result, _ = comm.all_reduce_view_async(large, "max").wait()
assert (result == world).all() and (large == rank + 1).all()
# A block with a NaN keeps its other numbers, and the input stays.
array = comm.empty(200_000)
array[:] = rank + 1
array[1234 + rank] = np.nan
before = array.copy()
result, report = comm.all_reduce_view_async(array, precision="gradient").wait()
assert report.redone > 0 and not result.base.is_shared
assert np.isnan(result[1234 : 1234 + world]).all() and (result[:1234] == total).all()
assert np.array_equal(array, before, equal_nan=True)
# As many as there may be, from their start on; dropped handles give their room back.
del handle, handles, result, again
gc.collect()
ones = np.ones(500_000, "float32")

def begin():
    # Calls of dropped handles end a moment later, and then their room comes back.
    until = time.monotonic() + 20
    while True:
        try:
            return comm.all_reduce_view_async(ones)
        except xdp_agg.Config:
            assert time.monotonic() < until, "no room came back"
            time.sleep(0.01)

for round in range(10):
    started = [begin() for _ in range(8)]
    if world > 1:
        try:
            comm.all_reduce_view_async(ones)
            raise AssertionError("a ninth")
        except xdp_agg.Config as error:
            assert "8" in str(error), error
    kept = started[round % 8]
    del started
    result, _ = kept.wait()
    assert (result == world).all()
    del kept
    assert (result == world).all()
    del result
    gc.collect()
comm.barrier()
# In flight, and then closed: the handle says so.
if rank == 0:
    handle = begin()
    comm.close()
    try:
        handle.wait()
        raise AssertionError("nobody else came")
    except xdp_agg.Error:
        pass
else:
    comm.close()
"""


@pytest.mark.parametrize("world", [2, 3])
def test_started_results_are_read_in_place(workers: Workers, world: int) -> None:
    workers.start(STARTED, world, env=ROOM).check()


def test_a_failed_call_has_no_view(workers: Workers) -> None:
    script = """
import os, signal
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
one = comm.empty(500_000)
views = []
for call in range(1000):
    one[:] = 1
    if call == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        handle = comm.all_reduce_view_async(one)
        view, _ = handle.wait()
    except xdp_agg.MemberLost:
        break
    assert (view == world).all()
    views = views[-2:] + [view]
else:
    raise AssertionError("nobody was lost")
try:
    handle.wait()
    raise AssertionError("it failed")
except xdp_agg.MemberLost:
    pass
# What was there before stays.
assert all((view == world).all() for view in views) and (one == 1).all()
comm.close()
"""
    ended = workers.start(script, 3, env=ROOM).finish()
    assert [worker.code for worker in ended] == [0, -9, 0], "\n".join(map(str, ended))


def test_results_of_tensors_are_arrays(workers: Workers) -> None:
    pytest.importorskip("torch")
    script = """
import torch
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
tensor = torch.full((100, 400), rank + 1.0)
result, _ = comm.all_reduce_view(tensor, "sum")
assert result.shape == (100, 400) and (result == 3).all() and (tensor == rank + 1).all()
try:
    comm.all_reduce_view(tensor.bfloat16())
    raise AssertionError("NumPy has no such type")
except TypeError as error:
    assert "bfloat16" in str(error), error
# Nothing has begun.
comm.all_reduce(tensor)
assert (tensor == 3).all()
comm.close()
"""
    workers.start(script, 2, env=ROOM).check()


def test_a_lack_of_room_says_what_to_set(workers: Workers) -> None:
    script = """
import json
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
found = {}
for what, shape, dtype in [("room", 1_000_000, "f4"), ("shape", -1, "f4"), ("type", 2, object)]:
    try:
        comm.empty(shape, dtype)
    except Exception as error:
        found[what] = f"{type(error).__name__}: {error}"
array = np.ones(10)
comm.all_reduce(array)
found["sum"] = array.sum()
if rank == 0:
    print(json.dumps(found), flush=True)
comm.close()
try:
    comm.empty(3)
except xdp_agg.Closed:
    pass
"""
    found = json.loads(workers.start(script, 2).check()[0])
    assert found["sum"] == 20
    assert found["room"].startswith("Config: ")
    assert "XDP_AGG_BUFFERS=4194304" in found["room"]
    assert found["shape"].startswith("ValueError: ")
    assert found["type"].startswith("TypeError: ")


def test_a_killed_process_leaves_the_array_to_the_others(workers: Workers) -> None:
    script = """
import os, signal
comm = xdp_agg.Communicator(local_rank=rank, local_size=world)
one = comm.empty(500_000)
for call in range(1000):
    one[:] = 1
    if call == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_reduce(one, precision="gradient")
    except xdp_agg.MemberLost:
        break
    assert (one == world).all()
else:
    raise AssertionError("nobody was lost")
one[:] = 5
assert one.sum() == 2_500_000
comm.close()
"""
    ended = workers.start(script, 3, env=ROOM).finish()
    assert [worker.code for worker in ended] == [0, -9, 0], "\n".join(map(str, ended))
