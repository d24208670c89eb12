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
#: Seconds that a call may take: a rank that is stopped is missed then.
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

#: Of `torch.distributed`: how calls are made, and loops that it alone has.
TORCH = """
warnings.simplefilter("ignore")
ours = lambda n, i: torch.full((n,), rank + 1.0 + i % 7)
join = lambda: begin(timeout=deadline)
leave = dist.destroy_process_group
reduce = dist.all_reduce
start = lambda t: dist.all_reduce(t, async_op=True)
tell = lambda work, listener: work.get_future().then(listener)

def is_any(here):
    dist.all_reduce(anywhere := torch.tensor([here]), dist.ReduceOp.MAX)
    return bool(anywhere)

MISMATCHES = [
    lambda: dist.all_reduce(torch.ones(77)),
    lambda: dist.all_reduce(torch.ones(77, dtype=torch.int32), dist.ReduceOp.MAX),
    lambda: dist.all_reduce(torch.ones(99_999).half(), async_op=True).wait(),
    lambda: dist.reduce_scatter_tensor(torch.ones(19), torch.ones(19 * world)),
]

def futures(i):
    works = [start(ours(n, i)) for n in SIZES]
    do()
    for future in [tell(work, lambda f: f.value()[0] * 2) for work in works]:
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

OWN = [futures, backward, others]
"""

#: The same of a bare communicator.
NUMPY = """
ours = lambda n, i: np.full(n, rank + 1.0 + i % 7, np.float32)
leave = lambda: comm.close()
reduce = lambda t: comm.all_reduce(t)
start = lambda t: comm.start(t)
tell = lambda handle, listener: handle.on_done(listener)

def join():
    global comm
    comm = xdp_agg.Communicator(deadline=deadline)

def is_any(here):
    comm.all_reduce(anywhere := np.array([here]), "max")
    return bool(anywhere[0])

MISMATCHES = [
    lambda: comm.all_reduce(np.ones(77, np.float32)),
    lambda: comm.all_reduce(np.ones(77, np.int32), "max"),
    lambda: comm.start(np.ones(123_456, np.float16)).wait(),
    lambda: comm.all_gather(np.ones(19)),
]

def callbacks(i):
    told = []
    handles = [start(ours(n, i)) for n in SIZES]
    for handle in handles:
        tell(handle, told.append)
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

OWN = [callbacks, others]
"""

#: What both have: loops, and the run of one of them.
LOOPS = """
SIZES = [1, 9, 1000, 20_000]
LARGE = 300_000
total = lambda i: world * (world + 1) / 2 + world * (i % 7)

def do():
    act(lambda: MISMATCHES[way % len(MISMATCHES)](), lambda: start(ours(way * way + 1, 0)))

def small(i):
    do()
    reduce(t := ours(SIZES[i % 3], i))
    check(t, total(i), "a small sum")

def large(i):
    do()
    reduce(t := ours(LARGE, i))
    check(t, total(i), "a large sum")

def in_flight(i):
    vectors = [ours(SIZES[(i + j) % 4] if j != 3 else LARGE, i + j) for j in range(5)]
    flying = []
    for t in vectors:
        flying.append(start(t))
        do()
    for j, (one, t) in enumerate(zip(flying, vectors)):
        one.wait()
        check(t, total(i + j), "a sum in flight")

ALL = [small, large, in_flight, *OWN]
step = ALL[kind % len(ALL)]
join()
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
        is_over = is_any(time.monotonic() - began > (delay if fault == "forgotten" else last))
if fault == "forgotten":
    if way % 3 == 1:
        start(ours(LARGE, 0))
    if way % 3 == 2:
        tell(start(ours(9, 0)), lambda _: time.sleep(0.1))
else:
    leave()
print("a clean end")
"""


def script(calls: str) -> str:
    """What a rank runs after the preamble."""
    return f"deadline = {DEADLINE}\n{STRIKE}{calls}{LOOPS}"


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
            assert (one.code, _without_chatter(one.out)) == (0, "a clean end"), story
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
    """What is no word of PyTorch's logger or of gloo's, and without its marks."""
    chatter = re.compile(r"\[([WI]\d{4} |Gloo\])")
    lines = [line for line in text.splitlines() if not chatter.match(line)]
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
        # A rank that has started something before it leaves made another call than the others.
        "left": "Aborted|MemberLost|CallMismatch",
    }
    # Of several the last is what the program ended with. C++ makes a RuntimeError of it.
    last = said[said.rfind("Traceback (most recent call last)") :]
    if not re.search(rf"\b({kinds[fault]}): ", last):
        return False
    # What differs is in the text, whichever rank it was.
    return "CallMismatch: " in last or bool(re.search(rf"\branks? \[?(\d+, )*{culprit}\b", last))
