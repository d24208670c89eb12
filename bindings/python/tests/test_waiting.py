"""What other threads and signals may do while calls wait."""

from __future__ import annotations

import signal
import time

import pytest

from tests.workers import Workers


@pytest.mark.parametrize(
    "waiting",
    ["comm.all_reduce(a)", "comm.start(a).wait()", "comm.start(a).wait(30)", "comm.barrier()"],
)
def test_ctrl_c_is_heard(workers: Workers, waiting: str) -> None:
    script = f"""
a = np.ones(1000)
comm = xdp_agg.Communicator()
if rank == 1:
    print("waiting", flush=True)
    time.sleep(3)
    os._exit(0)
print("waiting", flush=True)
try:
    {waiting}
except KeyboardInterrupt:
    print("interrupted", flush=True)
comm.close()
"""
    running = workers.start(script)
    running.lines()
    time.sleep(0.5)
    began = time.monotonic()
    running.signal(0, signal.SIGINT)
    assert running.line() == "interrupted"
    assert time.monotonic() - began < 1
    running.finish()[0].check()


def test_a_handler_that_raises_nothing_lets_the_call_go_on(workers: Workers) -> None:
    script = """
comm = xdp_agg.Communicator()
heard = []
signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
print("waiting", flush=True)
time.sleep(rank)
array = np.ones(10)
comm.all_reduce(array)
assert array[0] == world
print(len(heard))
comm.close()
"""
    running = workers.start(script)
    running.lines()
    time.sleep(0.3)
    running.signal(0, signal.SIGUSR2)
    assert running.check()[0].endswith("\n1\n")


def test_after_ctrl_c_the_communicator_is_of_no_use(workers: Workers) -> None:
    script = """
comm = xdp_agg.Communicator()
if rank == 1:
    time.sleep(2)
    os._exit(0)
signal.setitimer(signal.ITIMER_REAL, 0.2)
class Enough(Exception):
    pass
def ring(*_):
    raise Enough
signal.signal(signal.SIGALRM, ring)
try:
    comm.all_reduce(np.ones(10))
except Enough:
    print("enough")
try:
    comm.all_reduce(np.ones(10))
except xdp_agg.Error as error:
    print(type(error).__name__)
"""
    ended = workers.start(script).finish()[0].check()
    assert ended.out.split() == ["enough", "Closed"]


def test_other_threads_run_while_a_call_waits(workers: Workers) -> None:
    script = """
import threading
comm = xdp_agg.Communicator()
turns, over = 0, False
def count():
    global turns
    while not over:
        turns += 1
thread = threading.Thread(target=count)
for wait in [lambda: comm.all_reduce(np.ones(10)), lambda: comm.start(np.ones(10)).wait()]:
    comm.barrier()
    if rank == 1:
        time.sleep(1)
        wait()
        continue
    turns, over = 0, False
    thread = threading.Thread(target=count)
    thread.start()
    wait()
    over = True
    thread.join()
    print(turns)
comm.close()
"""
    out = workers.start(script).check()[0]
    assert all(int(turns) > 100_000 for turns in out.split()), out


def test_calls_of_several_threads(workers: Workers) -> None:
    script = """
import threading
comm = xdp_agg.Communicator()
arrays = [np.full(1000, rank + number, "float32") for number in range(8)]
def work(number):
    # All workers make their calls in one order.
    with turn:
        turn.wait_for(lambda: numbers[0] == number)
        handles[number] = comm.start(arrays[number])
        numbers[0] += 1
        turn.notify_all()
    handles[number].wait()
turn, numbers, handles = threading.Condition(), [0], {}
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in reversed(threads):
    thread.start()
for thread in threads:
    thread.join()
for number, array in enumerate(arrays):
    assert (array == 1 + 2 * number).all(), (number, array)
comm.close()
"""
    workers.start(script).check()


def test_long_waits_are_told_to_the_logger(workers: Workers) -> None:
    script = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s: %(message)s")
os.environ["XDP_AGG_WARN_AFTER"] = "1.5"
comm = xdp_agg.Communicator()
if rank == 1:
    time.sleep(4)
comm.all_reduce(np.ones(10))
comm.close()
"""
    out = workers.start(script).check()[0]
    assert "xdp_agg WARNING: call 0 has waited 2 s: waiting for rank 1" in out, out
    assert "rank 1 is alive" in out, out
    assert "XDP_AGG_DEADLINE" in out, out
