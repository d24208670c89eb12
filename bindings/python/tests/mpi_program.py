"""An MPI program that knows nothing of xdp-agg, for ``test_mpi_preload.py``: its cases."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import mpi4py
import numpy as np

if sys.argv[1] == "single":
    mpi4py.rc.thread_level = "funneled"
if sys.argv[1].startswith("fatal"):
    mpi4py.rc.errors = "fatal"

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
#: Of ``rank + 1`` over all ranks.
TOTAL = size * (size + 1) // 2


def calls() -> None:
    """Every type and operation that is served, and some that are not: the test knows how many."""
    kinds = ["f4", "f8", "i1", "i2", "i4", "i8", "u1"]
    for kind in kinds:
        own = np.full(1000, rank + 1, dtype=kind)
        got = np.empty_like(own)
        for op, expected in ((MPI.SUM, TOTAL), (MPI.MIN, 1), (MPI.MAX, size)):
            comm.Allreduce(own, got, op=op)
            assert (got == expected).all(), (kind, op, got)
    for kind in ("u2", "u4", "u8"):
        top = np.full(3, np.iinfo(kind).max, dtype=kind)
        comm.Allreduce(MPI.IN_PLACE, top)
        assert (top == (np.iinfo(kind).max * size) % (np.iinfo(kind).max + 1)).all(), top
        comm.Allreduce(MPI.IN_PLACE, top, op=MPI.MAX)
    yes = np.array([True, rank == 0, False])
    for op, expected_bools in ((MPI.LAND, [True, False, False]), (MPI.LOR, [True, True, False])):
        result = np.zeros(3, dtype=bool)
        comm.Allreduce([yes, MPI.C_BOOL], [result, MPI.C_BOOL], op=op)
        assert result.tolist() == expected_bools, result
    losses = np.array([2.3456789, 1.25e6, 0.0017], dtype="f4")
    comm.Allreduce(MPI.IN_PLACE, losses)
    exact = np.array([2.3456789, 1.25e6, 0.0017], dtype="f4").astype("f8") * size
    assert (losses == exact.astype("f4")).all(), losses
    large = np.full(1_000_000, 0.5, dtype="f4")
    comm.Allreduce(MPI.IN_PLACE, large)
    assert (large == 0.5 * size).all()
    # Left to MPI: another operation, another communicator, an operation of the program's own.
    product = np.array([2.0])
    comm.Allreduce(MPI.IN_PLACE, product, op=MPI.PROD)
    assert product[0] == 2.0**size
    half = comm.Split(rank % 2)
    half.Allreduce(MPI.IN_PLACE, product)
    assert product[0] == 2.0**size * half.size
    half.Free()

    def take(ours: Any, theirs: Any, _: MPI.Datatype) -> None:
        theirs[:] = ours

    own_op = MPI.Op.Create(take, commute=True)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1), op=own_op)
    own_op.Free()


def window() -> None:
    """Vectors of 800, 8000 and 80000 bytes."""
    for length in (100, 1000, 10000):
        data = np.ones(length)
        comm.Allreduce(MPI.IN_PLACE, data)
        assert (data == size).all()


def flights() -> None:
    """Calls in flight on two communicators, which the ranks start in different orders."""
    comms = [comm, comm.Dup()]
    for one in comms:
        one.Allreduce(MPI.IN_PLACE, np.ones(1))
    for round_ in range(5):
        vectors = [np.full(5000, (rank + 1) * 10.0**i) for i in range(2)]
        results = [np.empty_like(vector) for vector in vectors]
        order = [0, 1] if (rank + round_) % 2 else [1, 0]
        requests = [comms[i].Iallreduce(vectors[i], results[i]) for i in order]
        requests += [comm.Iallreduce(MPI.IN_PLACE, single := np.array([rank], dtype="i4"))]
        MPI.Request.Waitall(requests)
        assert single[0] == TOTAL - size
        for i in range(2):
            assert (results[i] == TOTAL * 10.0**i).all()
    result = np.empty(1)
    request = comm.Iallreduce(np.ones(1), result)
    while not request.Test():
        pass
    assert result[0] == size
    comms[1].Free()


def threads() -> None:
    """Two threads, each with a communicator, whose calls meet in any order."""
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    wrong: list[object] = []

    def work(mine: MPI.Comm, value: float) -> None:
        for _ in range(50):
            data = np.full(100, value)
            mine.Allreduce(MPI.IN_PLACE, data)
            if not (data == value * size).all():
                wrong.append(data)

    comms = [comm.Dup() for _ in range(2)]
    all_of_them = [threading.Thread(target=work, args=(one, 3.0**i)) for i, one in enumerate(comms)]
    for thread in all_of_them if rank % 2 else reversed(all_of_them):
        thread.start()
    for thread in all_of_them:
        thread.join()
    for one in comms:
        one.Free()
    assert not wrong


def single() -> None:
    """No thread but the first may call MPI."""
    assert MPI.Query_thread() < MPI.THREAD_MULTIPLE
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    result = np.empty(1)
    comm.Iallreduce(np.ones(1), result).Wait()
    assert result[0] == size


def progress() -> None:
    """A message goes on while its sender waits in an all-reduce for its receiver."""
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    total = np.array([rank + 1.0])
    if rank == 0:
        request = comm.Isend(np.arange(4_000_000.0), 1)
        comm.Allreduce(MPI.IN_PLACE, total)
        request.Wait()
    else:
        if rank == 1:
            # So that the other one waits by then.
            time.sleep(0.5)
            message = np.empty(4_000_000)
            comm.Recv(message, 0)
            assert message[-1] == 3_999_999
        comm.Allreduce(MPI.IN_PLACE, total)
    assert total[0] == TOTAL


def errors() -> None:
    """One rank comes too late, for calls that wait and for calls in flight (`XDP_AGG_DEADLINE`)."""
    other = comm.Dup()
    for one in (comm, other):
        one.Allreduce(MPI.IN_PLACE, np.ones(1))
    if rank == 1:
        time.sleep(4)
    for what in ("Allreduce", "Wait", "Waitall", "Test"):
        try:
            call(what, other if what == "Allreduce" else comm)
        except MPI.Exception as error:
            text = str(error)
            # Of several requests the error is in the statuses.
            assert what == "Waitall" or "xdp-agg: " in text, text
            assert what != "Allreduce" or "rank 1" in text or rank == 1, text
        else:
            raise AssertionError(f"no error of {what}")


def call(what: str, one: MPI.Comm) -> None:
    """A call that fails, in one of the ways to hear of it."""
    data = np.ones(1000)
    if what == "Allreduce":
        one.Allreduce(MPI.IN_PLACE, data)
        return
    request = one.Iallreduce(MPI.IN_PLACE, data)
    if what == "Wait":
        request.Wait()
    elif what == "Waitall":
        MPI.Request.Waitall([request])
    else:
        while not request.Test():
            pass


def fatal(what: str = "Allreduce") -> None:
    """The same where errors end the program."""
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    if rank == 1:
        time.sleep(4)
    call(what, comm)
    print("goes on", flush=True)


def fatal_in_flight() -> None:
    """The same of a call in flight."""
    fatal("Wait")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done", flush=True)
