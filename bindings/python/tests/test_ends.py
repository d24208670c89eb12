"""The ends of processes: without close, by exceptions, and forked ones."""

from __future__ import annotations

import signal

import pytest

from tests.workers import Workers

FORGETFUL = {
    "nothing in flight": "comm.all_reduce(array)",
    "a handle": "handle = comm.start(array)",
    "a callback": "comm.start(array).on_done(lambda handle: time.sleep(0.01))",
    "callbacks that compute": """
for _ in range(20):
    comm.start(np.ones(10)).on_done(lambda handle: sum(range(20_000)))
""",
    "a thread in a call": """
import threading
comm.barrier()
if rank == 0:
    def wait():
        try:
            comm.all_reduce(array)
        except xdp_agg.Error:
            pass
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.05)
""",
    "sys.exit": "comm.start(array).on_done(lambda handle: None); sys.exit(0)",
    "a global in a cycle": "cycle = [comm, comm.start(array)]; cycle.append(cycle)",
}


@pytest.mark.parametrize("what", FORGETFUL)
def test_exit_without_close(workers: Workers, what: str) -> None:
    script = f"""
comm = xdp_agg.Communicator()
array = np.ones(1000)
{FORGETFUL[what]}
"""
    for _ in range(3):
        workers.start(script).check()


def test_exit_without_close_twenty_times(workers: Workers) -> None:
    script = """
comm = xdp_agg.Communicator()
handles = [comm.start(np.ones(1000)) for _ in range(5)]
for handle in handles:
    handle.on_done(lambda handle: time.sleep(0.001))
"""
    for _ in range(10):
        workers.start(script).check()


def test_an_exception_ends_the_process_as_usual(workers: Workers) -> None:
    script = """
comm = xdp_agg.Communicator()
comm.start(np.ones(1000)).on_done(lambda handle: None)
comm.barrier()
raise LookupError("of its own")
"""
    for ended in workers.start(script).finish():
        assert ended.code == 1
        assert ended.err.endswith("LookupError: of its own\n"), ended
        assert ended.err.count("Traceback") == 1, ended


CHILD = """
import multiprocessing as mp

comm = None

def child(told):
    found = []
    for call in (lambda: comm.all_reduce(np.ones(10)), lambda: comm.start(np.ones(10)),
                 lambda: comm.barrier(), lambda: comm.stats(), lambda: comm.members,
                 lambda: handle.wait(), lambda: handle.is_done(), lambda: comm.abort("no")):
        try:
            call()
            found.append("went on")
        except xdp_agg.Forked:
            found.append("Forked")
    comm.close()
    repr(comm)
    told.put(found)
"""


@pytest.mark.parametrize("end", ["return", "sys.exit()", "os._exit(0)"])
def test_a_forked_child_may_not_call_and_harms_nothing(workers: Workers, end: str) -> None:
    script = f"""{CHILD}
comm = xdp_agg.Communicator()
handle = comm.start(np.ones(10))
handle.on_done(lambda handle: None)
handle.wait()
mp.set_start_method("fork")
told = mp.SimpleQueue()
def work():
    child(told)
    {end}
processes = [mp.Process(target=work) for _ in range(3)]
for process in processes:
    process.start()
for _ in processes:
    found = told.get()
    assert set(found) == {{"Forked"}}, found
for process in processes:
    process.join(20)
    assert process.exitcode == 0, process
array = np.ones(10)
comm.all_reduce(array)
assert (array == 2).all(), array
comm.close()
"""
    workers.start(script).check()


def test_the_death_of_a_rank_is_noticed_while_its_children_live(workers: Workers) -> None:
    script = """
import multiprocessing as mp
comm = xdp_agg.Communicator()
comm.barrier()
if rank == 1:
    mp.set_start_method("fork")
    for _ in range(4):
        mp.Process(target=time.sleep, args=(6,)).start()
    comm.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
comm.barrier()
start = time.monotonic()
try:
    comm.barrier()
    sys.exit("it went on")
except xdp_agg.MemberLost as error:
    assert error.rank == 1, error
assert time.monotonic() - start < 3, time.monotonic() - start
comm.close()
"""
    first, second = workers.start(script).finish()
    first.check()
    assert second.code == -signal.SIGKILL, second


def test_a_bare_fork_that_exits_as_python_does(workers: Workers) -> None:
    script = """
comm = xdp_agg.Communicator()
comm.start(np.ones(10)).on_done(lambda handle: None)
comm.barrier()
child = os.fork()
if child == 0:
    del comm
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
array = np.ones(10)
comm.all_reduce(array)
assert (array == 2).all(), array
"""
    workers.start(script).check()


def test_a_forked_child_may_have_a_communicator_of_its_own(workers: Workers) -> None:
    script = """
comm = xdp_agg.Communicator()
comm.start(np.ones(10)).on_done(lambda handle: None)
comm.barrier()
child = os.fork()
if child == 0:
    own = xdp_agg.Communicator(job=comm.job + "-child")
    array = np.ones(10)
    own.start(array).wait()
    own.barrier()
    assert (array == 2).all(), array
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
comm.barrier()
"""
    workers.start(script).check()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing(
    workers: Workers, method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # These import the program anew, so it is a file.
    path = tmp_path_factory.mktemp("spawned") / "program.py"
    path.write_text(f"""
import multiprocessing as mp, os, sys
import numpy as np
import xdp_agg

def work(job):
    with xdp_agg.Communicator(job=job) as comm:
        array = np.ones(10)
        comm.all_reduce(array)
        assert (array == 2).all(), array

if __name__ == "__main__":
    comm = xdp_agg.Communicator()
    try:
        mp.get_context("{method}").Process(target=print, args=(comm,)).start()
        raise AssertionError("a communicator cannot be sent")
    except TypeError:
        pass
    process = mp.get_context("{method}").Process(target=work, args=(comm.job + "-child",))
    process.start()
    process.join(40)
    assert process.exitcode == 0, process
    comm.barrier()
""")
    workers.run([str(path)]).check()


#: How a worker ends, and what the others are told.
DISORDER = {
    "raise LookupError('of its own')": "its program ended with LookupError: of its own",
    "raise KeyboardInterrupt": "its program ended with KeyboardInterrupt",
    "sys.stderr = None; raise LookupError('e' * 9999999)": "LookupError: eeee",
    "comm.start(np.ones(10)); comm.close()": "while calls were in flight",
    "handle = comm.start(np.ones(10)); sys.exit()": "while calls were in flight",
    "handle = comm.start(np.ones(10)); del comm, handle": "while calls were in flight",
    "sys.exit()": "left in good order, and the others make another call",
    "comm.close(); time.sleep(5)": "left in good order, and the others make another call",
}


@pytest.mark.parametrize("in_host", [False, True])
@pytest.mark.parametrize("end", DISORDER)
def test_the_others_are_told_of_an_end_in_disorder(
    workers: Workers, end: str, in_host: bool
) -> None:
    script = f"""
comm = xdp_agg.Communicator(local_rank=rank, local_size=world, in_host={in_host})
if rank == 1:
    comm.barrier()
    {end}
    sys.exit()
began = time.monotonic()
try:
    # A worker that ends at once may end this one, too.
    comm.barrier()
    if rank == 2:
        time.sleep(3)
    comm.all_reduce(np.ones(10))
except (xdp_agg.Aborted, xdp_agg.MemberLost) as error:
    print(error.rank, error, time.monotonic() - began < 10)
"""
    ended = workers.start(script, 3).finish()
    # On a host the processes see by themselves that one left.
    told = "local rank 1 left" if in_host and "start" not in end else DISORDER[end]
    for one in (ended[0], ended[2]):
        assert one.check().out.startswith("1 "), one
        assert told in one.out, one
        assert one.out.endswith("True\n"), one


def test_calls_that_wait_for_their_end_are_not_missed(workers: Workers) -> None:
    # The other worker is late by less than a second: nobody is told of anything.
    script = """
import threading
comm = xdp_agg.Communicator()
comm.barrier()
array = np.ones(10)
if rank == 1:
    time.sleep(0.5)
    comm.all_reduce(array)
    assert array[0] == 2, array
    comm.start(array).wait()
else:
    call = threading.Thread(target=comm.all_reduce, args=(array,))
    call.start()
    while comm.stats()["calls"] < 2:
        time.sleep(0.01)
    handle = comm.start(other := np.ones(10))
    comm.close()
    call.join()
    handle.wait()
    assert array[0] == 2, array
    for refused in (comm.barrier, lambda: comm.start(array)):
        try:
            refused()
            raise AssertionError("a call of a closed communicator")
        except xdp_agg.Closed:
            pass
"""
    workers.start(script).check()
