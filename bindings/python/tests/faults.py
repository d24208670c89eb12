"""Loops of calls, and what goes wrong in them at random moments: scripts for ranks.

A rank finds `FAULT`, `CULPRIT` (a rank) and `SEED` in its environment. It checks every result; a
wrong one is an `AssertionError`. What ends a loop is not caught: the interpreter ends with it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from tests.workers import Ended

WORLD = 4
#: Seconds that a call may take: who is stopped is missed then.
DEADLINE = 5
#: What goes wrong.
FAULTS = ("killed", "stopped", "mismatch", "interrupted", "left", "forgotten")

#: Before anything else: a child of the culprit's sends the signal, at a moment of its own.
STRIKE = """
import random, signal
fault, culprit = os.environ["FAULT"], int(os.environ["CULPRIT"])
chance = random.Random(int(os.environ["SEED"]))
delay, last = chance.random() ** 2, 8
kind, way = chance.randrange(100), chance.randrange(100)
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "interrupted": signal.SIGINT}

def armed(number):
    told, go = os.pipe()
    target = os.getpid()
    if os.fork() == 0:
        os.close(go)
        # Nothing: the target has ended.
        if os.read(told, 1):
            time.sleep(delay)
            if os.getppid() == target:
                os.kill(target, number)
        os._exit(0)
    return lambda: os.write(go, b"!")

# Whoever runs the tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
strike = armed(SIGNALS[fault]) if rank == culprit and fault in SIGNALS else lambda: None
began = None

def act(mismatch, start):
    # Called wherever a loop may do something else than the others.
    late = began is not None and time.monotonic() - began > delay
    if late and rank == culprit and fault == "mismatch":
        mismatch()
    if late and rank == culprit and fault == "left":
        if way % 2:
            start()
        sys.exit()

def check(found, expected, what):
    assert (abs(found - expected) <= abs(expected) * 1e-3).all(), f"wrong numbers of {what}"
"""

#: Loops of `torch.distributed`.
TORCH = """
warnings.simplefilter("ignore")
SIZES = [1, 9, 1000, 20_000]
LARGE = 300_000
ours = lambda n, i: torch.full((n,), rank + 1.0 + i % 7)
total = lambda i: world * (world + 1) / 2 + world * (i % 7)

def mismatch():
    calls = [lambda: dist.all_reduce(torch.ones(77)),
             lambda: dist.all_reduce(torch.ones(77, dtype=torch.int32), dist.ReduceOp.MAX),
             lambda: dist.all_reduce(torch.ones(99_999).half(), async_op=True).wait(),
             lambda: dist.reduce_scatter_tensor(torch.ones(19), torch.ones(19 * world))]
    calls[way % len(calls)]()

def do():
    act(mismatch, lambda: dist.all_reduce(ours(way * way + 1, 0), async_op=True))

def small(i):
    do()
    dist.all_reduce(t := ours(SIZES[i % 3], i))
    check(t, total(i), "a small sum")

def large(i):
    do()
    dist.all_reduce(t := ours(LARGE, i))
    check(t, total(i), "a large sum")

def in_flight(i):
    tensors = [ours(SIZES[(i + j) % 4] if j != 3 else LARGE, i + j) for j in range(5)]
    works = []
    for t in tensors:
        works.append(dist.all_reduce(t, async_op=True))
        do()
    for j, (work, t) in enumerate(zip(works, tensors)):
        work.wait()
        check(t, total(i + j), "a sum in flight")

def futures(i):
    works = [dist.all_reduce(ours(n, i), async_op=True) for n in SIZES]
    do()
    for future in [work.get_future().then(lambda f: f.value()[0] * 2) for work in works]:
        check(future.wait(), 2 * total(i), "a future")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.ones(n)) for n in (50, 3000, 70_000, 7)])

    def forward(self, x):
        return sum((p * x).sum() for p in self.all)

nets = []

def backward(i):
    if not nets:
        net = nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=0.01)
        if kind % 3 == 1:
            net.register_comm_hook(xdp_agg.torch.State(), xdp_agg.torch.allreduce_hook)
        nets.append(net)
    do()
    nets[0].zero_grad()
    nets[0](torch.tensor(rank + 1.0 + i % 7)).backward()
    for p in nets[0].module.all:
        check(p.grad, total(i) / world, "a gradient")

def others(i):
    do()
    t = torch.full((999,), float(i)) if rank == i % world else torch.zeros(999)
    dist.broadcast(t, i % world)
    check(t, i, "a broadcast")
    dist.all_gather_into_tensor(parts := torch.empty(world * 50), ours(50, i))
    do()
    check(parts.view(world, 50)[:, 3], torch.arange(world) + 1.0 + i % 7, "a gathering")
    dist.reduce_scatter_tensor(part := torch.empty(2000), ours(2000 * world, i))
    check(part, total(i), "a scattered sum")
    if i % 5 == 0:
        dist.barrier()

LOOPS = [small, large, in_flight, futures, backward, others]
step = LOOPS[kind % len(LOOPS)]
begin(timeout=deadline)
step(0)
began = time.monotonic()
strike()
i = 0
is_over = False
while not is_over:
    i += 1
    step(i)
    if i % 5 == 0:
        # All end at the same time: the one whose clock says so first says it.
        spent = time.monotonic() - began
        over = torch.tensor([spent > (delay if fault == "forgotten" else last)])
        dist.all_reduce(over, dist.ReduceOp.MAX)
        is_over = bool(over)
if fault == "forgotten":
    if way % 3 == 1:
        dist.all_reduce(ours(LARGE, 0), async_op=True)
    if way % 3 == 2:
        dist.all_reduce(ours(9, 0), async_op=True).get_future().then(lambda _: time.sleep(0.1))
else:
    dist.destroy_process_group()
print("a clean end")
"""

#: The same of a bare communicator.
NUMPY = """
SIZES = [1, 9, 1000, 20_000]
LARGE = 300_000
ours = lambda n, i: np.full(n, rank + 1.0 + i % 7, np.float32)
total = lambda i: world * (world + 1) / 2 + world * (i % 7)

def mismatch():
    calls = [lambda: comm.all_reduce(np.ones(77, np.float32)),
             lambda: comm.all_reduce(np.ones(77, np.int32), "max"),
             lambda: comm.start(np.ones(123_456, np.float16)).wait(),
             lambda: comm.all_gather(np.ones(19))]
    calls[way % len(calls)]()

def do():
    act(mismatch, lambda: comm.start(ours(way * way + 1, 0)))

def small(i):
    do()
    comm.all_reduce(t := ours(SIZES[i % 3], i))
    check(t, total(i), "a small sum")

def large(i):
    do()
    comm.all_reduce(t := ours(LARGE, i))
    check(t, total(i), "a large sum")

def in_flight(i):
    arrays = [ours(SIZES[(i + j) % 4] if j != 3 else LARGE, i + j) for j in range(5)]
    handles = []
    for t in arrays:
        handles.append(comm.start(t))
        do()
    for j, (handle, t) in enumerate(zip(handles, arrays)):
        handle.wait()
        check(t, total(i + j), "a sum in flight")

def callbacks(i):
    told = []
    handles = [comm.start(ours(n, i)) for n in SIZES]
    for handle in handles:
        handle.on_done(told.append)
    do()
    for handle in handles:
        handle.wait()

def others(i):
    do()
    t = np.full(999, float(i) if rank == i % world else 0.0)
    comm.broadcast(t, i % world)
    check(t, i, "a broadcast")
    own = comm.part(50 * world)
    parts = np.zeros(50 * world)
    parts[own] = rank + 1
    comm.all_gather(parts)
    do()
    check(parts.reshape(world, 50)[:, 3], np.arange(world) + 1, "a gathering")
    t = ours(2000 * world, i)
    check(t[comm.reduce_scatter(t)], total(i), "a scattered sum")
    if i % 5 == 0:
        comm.barrier()

LOOPS = [small, large, in_flight, callbacks, others]
step = LOOPS[kind % len(LOOPS)]
comm = xdp_agg.Communicator(deadline=deadline)
step(0)
began = time.monotonic()
strike()
i = 0
is_over = False
while not is_over:
    i += 1
    step(i)
    if i % 5 == 0:
        # All end at the same time: the one whose clock says so first says it.
        spent = time.monotonic() - began
        over = np.array([spent > (delay if fault == "forgotten" else last)])
        comm.all_reduce(over, "max")
        is_over = bool(over[0])
if fault == "forgotten":
    if way % 3 == 1:
        comm.start(ours(LARGE, 0))
    if way % 3 == 2:
        comm.start(ours(9, 0)).on_done(lambda _: time.sleep(0.1))
else:
    comm.close()
print("a clean end")
"""


def script(loops: str) -> str:
    """What a rank runs after the preamble."""
    return f"deadline = {DEADLINE}\n{STRIKE}{loops}"


def environment(fault: str, where: str, seed: int) -> dict[str, str]:
    """The same at all ranks."""
    chance = random.Random(f"{fault} {where} {seed}")
    number, culprit = chance.getrandbits(40), chance.randrange(WORLD)
    return {"FAULT": fault, "SEED": str(number), "CULPRIT": str(culprit)}


#: What a process says that the C runtime, or Rust, brings down, and what a wrong result is.
ACCIDENTS = ("terminate called", "panicked", "Fatal", "Segmentation", "wrong numbers", "Assert")


def judge(fault: str, given: Mapping[str, str], ended: Sequence[Ended]) -> None:
    """Whether all ranks ended as they should."""
    culprit = int(given["CULPRIT"])
    story = f"{fault} of rank {culprit}, seed {given['SEED']}\n" + "\n".join(map(str, ended))
    all_went_on = fault == "forgotten" or _was_unheard(fault, ended[culprit])
    for one in ended:
        said = _without_chatter(one.err)
        assert not any(word in said for word in ACCIDENTS), story
        assert "still running" not in said, story
        if all_went_on:
            assert (one.code, one.out) == (0, "a clean end\n"), story
            assert not said or one.rank == culprit, story
        elif one.rank != culprit:
            assert one.code == 1, story
            assert _names(fault, culprit, said), story
        else:
            assert _is_own_end(fault, one.code, said), story


def _was_unheard(fault: str, culprit: Ended) -> bool:
    """Python loses exceptions where it can raise none, such as Ctrl-C's in a destructor."""
    return fault == "interrupted" and culprit.code == 0 and "Exception ignored" in culprit.err


def _without_chatter(text: str) -> str:
    """What is no warning of PyTorch's logger, and without its marks."""
    lines = [line for line in text.splitlines() if not re.match(r"\[[WI]\d{4} ", line)]
    return "\n".join(re.sub(r"^\[rank\d\]: ?", "", line) for line in lines).strip()


def _is_own_end(fault: str, code: int, said: str) -> bool:
    """How the culprit ends."""
    match fault:
        case "killed":
            return code == -9 and not said
        case "stopped":
            # It goes on when the others have ended, and finds that out.
            return code == 1 and bool(re.search(r"(Error|Aborted|Deadline|MemberLost): ", said))
        case "mismatch":
            return code == 1 and "CallMismatch: " in said
        case "interrupted":
            return code in (1, -2, 130) and "KeyboardInterrupt" in said
        case _:
            return code == 0 and not said


def _names(fault: str, culprit: int, said: str) -> bool:
    """Whether this is an exception that says what happened, and at whom."""
    kinds = {
        "killed": "MemberLost",
        "stopped": "Deadline|Aborted",
        "mismatch": "CallMismatch",
        "interrupted": "Aborted|MemberLost",
        # Who has started something before it leaves made another call than the others.
        "left": "Aborted|MemberLost|CallMismatch",
    }
    # Of several the last is what the program ended with. C++ makes a RuntimeError of it.
    last = said[said.rfind("Traceback (most recent call last)") :]
    if not re.search(rf"\b({kinds[fault]}): ", last):
        return False
    # What differs is in the text, whoever it was.
    return "CallMismatch: " in last or bool(re.search(rf"\branks? \[?(\d+, )*{culprit}\b", last))
