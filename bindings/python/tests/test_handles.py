"""Calls in flight."""

from __future__ import annotations

import pytest
import xdp_agg

from tests.workers import Workers


def test_wait_and_is_done(workers: Workers) -> None:
    script = """
with xdp_agg.Communicator() as comm:
    array = np.full(1000, rank + 1.0)
    if rank == 1:
        time.sleep(1)
    handle = comm.start(array, "mean")
    if rank == 0:
        assert not handle.is_done() and "in flight" in repr(handle)
        for timeout in (0, 0.05, 0.12):
            began = time.monotonic()
            try:
                handle.wait(timeout)
            except TimeoutError as error:
                assert "in flight" in str(error)
                assert timeout <= time.monotonic() - began < timeout + 0.1
            else:
                raise AssertionError("it cannot have ended")
    report = handle.wait()
    assert handle.is_done() and "done" in repr(handle)
    assert (array == 1.5).all() and handle.wait(5).precision == report.precision == "exact"
    for wrong in (-1, float("nan")):
        try:
            handle.wait(wrong)
        except ValueError:
            continue
        raise AssertionError(wrong)
"""
    workers.start(script).check()


def test_several_in_flight_and_nobody_keeps_the_arrays(workers: Workers) -> None:
    script = """
import gc
comm = xdp_agg.Communicator()
for turn in range(5):
    handles = [comm.start(np.full(20_000, number, "float32")) for number in range(20)]
    if turn == 4:
        del handles
        gc.collect()
        break
    for handle in reversed(handles):
        handle.wait()
comm.barrier()
comm.close()
"""
    workers.start(script).check()


def test_arrays_are_kept_while_in_flight_and_given_back_then(workers: Workers) -> None:
    script = """
import gc, weakref
comm = xdp_agg.Communicator()
class Array(np.ndarray):
    pass
array = np.ones(1000).view(Array)
gone = weakref.ref(array)
if rank == 1:
    time.sleep(0.5)
handle = comm.start(array)
del array
gc.collect()
assert rank == 1 or gone() is not None
buffer = bytearray(100)
other = comm.start(buffer)
if rank == 0:
    try:
        buffer.extend(b"no")
        raise AssertionError("its memory would have moved")
    except BufferError:
        pass
handle.wait(), other.wait()
comm.barrier()
gc.collect()
assert gone() is None
buffer.extend(b"yes")
comm.close()
"""
    workers.start(script).check()


def test_on_done_is_called_once_with_the_handle(workers: Workers) -> None:
    script = """
import queue, threading
comm = xdp_agg.Communicator()
told = queue.Queue()
if rank == 1:
    time.sleep(0.3)
handle = comm.start(np.ones(1000))
handle.on_done(lambda ended: told.put((ended, threading.current_thread() is not main)))
main = threading.current_thread()
ended, elsewhere = told.get(timeout=10)
assert ended is handle and elsewhere and handle.is_done()
handle.on_done(lambda ended: told.put((ended, True)))
assert told.get(timeout=10)[0] is handle
assert told.empty()
comm.close()
"""
    workers.start(script).check()


def test_what_on_done_calls_may_wait_for_other_calls(workers: Workers) -> None:
    script = """
import queue
comm = xdp_agg.Communicator()
told = queue.Queue()
arrays = [np.full(100, rank + 1.0) for _ in range(4)]
def next_one(number):
    def done(handle):
        if number < 3:
            later = comm.start(arrays[number + 1])
            later.on_done(next_one(number + 1))
            later.wait(20)
        told.put(number)
    return done
comm.start(arrays[0]).on_done(next_one(0))
assert sorted(told.get(timeout=20) for _ in range(4)) == [0, 1, 2, 3]
assert all((array == 3).all() for array in arrays)
comm.close()
"""
    workers.start(script).check()


def test_close_waits_for_callbacks_and_may_be_called_by_one(workers: Workers) -> None:
    script = """
import threading
comm = xdp_agg.Communicator()
told = []
def slow(handle):
    time.sleep(0.5)
    told.append(1)
handle = comm.start(np.ones(10))
handle.on_done(slow)
handle.wait()
comm.close()
assert told == [1]

comm = xdp_agg.Communicator(job="second-" + comm.job)
closed = threading.Event()
def close(handle):
    comm.close()
    closed.set()
comm.start(np.ones(10)).on_done(close)
assert closed.wait(10)
"""
    workers.start(script).check()


def test_a_callback_that_raises_is_told_of_and_no_more(workers: Workers) -> None:
    script = """
import queue
hooked, told = queue.Queue(), queue.Queue()
sys.unraisablehook = lambda found: hooked.put(found.exc_type)
comm = xdp_agg.Communicator()
def wrong(handle):
    raise LookupError
for call in (wrong, wrong, told.put):
    comm.start(np.ones(10)).on_done(call)
assert told.get(timeout=10).is_done()
assert hooked.get(timeout=10) is hooked.get(timeout=10) is LookupError
try:
    comm.start(np.ones(10)).on_done(7)
except TypeError:
    print("no function")
comm.barrier()
comm.close()
"""
    assert workers.start(script).check() == ["no function\n"] * 2


def test_an_error_of_a_call_is_raised_by_wait_each_time(workers: Workers) -> None:
    script = """
import queue
told = queue.Queue()
comm = xdp_agg.Communicator()
handle = comm.start(np.ones(10 + rank))
handle.on_done(told.put)
for _ in range(2):
    try:
        handle.wait()
    except xdp_agg.CallMismatch:
        print("mismatch")
assert told.get(timeout=10) is handle and handle.is_done()
"""
    assert workers.start(script).check() == ["mismatch\n" * 2] * 2


def test_calls_by_address(workers: Workers) -> None:
    script = """
import ctypes, gc, queue, weakref
told = queue.Queue()
comm = xdp_agg.Communicator()
array = np.full(100, rank + 1, "float32")
where = (array.ctypes.data, 100, "f32")
assert comm._run("all_reduce", "sum", *where).precision == "exact"
assert (array == 3).all()
comm._run("broadcast", 1, *where)
comm._run("reduce", ("max", 0), *where)
comm._run("reduce_scatter", "avg", *where, "gradient", 5.0)
comm._run("all_gather", None, *where)
comm._run("barrier", None, 0, 0, "f32")

class Kept:
    pass
kept = Kept()
gone = weakref.ref(kept)
array[:] = 1
handle = comm._start("all_reduce", "sum", *where, None, None, lambda *told_: told.put(told_), kept)
del kept
error, report = told.get(timeout=10)
assert error is None and report.precision == "exact" and handle.is_done()
gc.collect()
assert gone() is None and (array == 2).all()

comm._start("all_reduce", "sum", array.ctypes.data, 99 + rank, "f32", None, None,
            lambda *told_: told.put(told_), None)
error, report = told.get(timeout=10)
assert isinstance(error, xdp_agg.CallMismatch) and report is None, (error, report)
"""
    workers.start(script).check()


def test_a_handle_keeps_its_communicator(daemon: str) -> None:
    handle = xdp_agg.Communicator(daemon, rank=0, world_size=1, job="kept").start(bytearray(8))
    assert handle.wait(10).contributors == (0,)


@pytest.mark.parametrize("times", range(3))
def test_a_communicator_that_nobody_keeps_leaves(daemon: str, times: int) -> None:
    comm = xdp_agg.Communicator(daemon, rank=0, world_size=1, job="forgotten")
    comm.start(bytearray(8)).on_done(lambda handle: None)
    del comm
