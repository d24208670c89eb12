"""What happens to PyTorch's callers when something goes wrong: an exception that names it, in time.

The worst would be a tensor that nobody has summed, and no error.
"""

from __future__ import annotations

import pytest

from tests import torch_ranks

pytest.importorskip("torch")

#: Every way to wait for a call. Each has a group of its own, for the first error ends a job.
WRAPPERS = """
import signal
import torch.distributed._functional_collectives as fc
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
warnings.simplefilter("ignore")

def ones():
    return torch.full((1000,), 1.0)

def plain(group):
    t = ones()
    yield lambda: dist.all_reduce(t, group=group)

def in_flight(group):
    yield lambda: dist.all_reduce(ones(), group=group, async_op=True).wait()

def future(group):
    def call():
        work = dist.all_reduce(ones(), group=group, async_op=True)
        work.get_future().then(lambda f: f.value()[0] * 2).wait()
    yield call

def several(group):
    def call():
        works = [dist.all_reduce(ones(), group=group, async_op=True) for _ in range(10)]
        for work in works:
            work.wait()
    yield call

def coalesced(group):
    def call():
        with dist._coalescing_manager(group, async_ops=True) as manager:
            dist.all_reduce(ones(), group=group)
            dist.all_reduce(ones(), group=group)
        manager.wait()
    yield call

def functional(group):
    yield lambda: fc.all_reduce(ones(), "sum", group).sum()

def functional_shards(group):
    yield lambda: fc.reduce_scatter_tensor(ones(), "sum", 0, group).sum()

def broadcast(group):
    yield lambda: dist.broadcast(ones(), dist.get_global_rank(group, 1), group=group)

def gather(group):
    yield lambda: dist.all_gather_into_tensor(torch.empty(1000 * world), ones(), group=group)

def gather_list(group):
    yield lambda: dist.all_gather([ones() for _ in range(world)], ones(), group=group)

def scatter(group):
    yield lambda: dist.reduce_scatter_tensor(torch.empty(500), ones(), group=group)

def barrier(group):
    yield lambda: dist.barrier(group=group)

def step(net):
    net(torch.ones(4, 100)).sum().backward()

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))

def ddp(group):
    model = DDP(net(), process_group=group, bucket_cap_mb=0.01)
    yield lambda: step(model)

def ddp_with_our_hook(group):
    model = DDP(net(), process_group=group, bucket_cap_mb=0.01)
    model.register_comm_hook(xdp_agg.torch.State(group), xdp_agg.torch.allreduce_hook)
    yield lambda: step(model)

def ddp_with_a_hook(group):
    model = DDP(net(), process_group=group, bucket_cap_mb=0.01)
    model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    yield lambda: step(model)

def fsdp2(group):
    model = net()
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    yield lambda: step(model)

wrappers = [plain, in_flight, future, several, coalesced, functional, functional_shards, broadcast,
            gather, gather_list, scatter, barrier, ddp, ddp_with_our_hook, ddp_with_a_hook, fsdp2]
begin(timeout=20)
groups = [dist.group.WORLD] + [dist.new_group([0, 1], timeout=timedelta(seconds=20))
                               for _ in wrappers[1:]]
calls = []
for wrapper, group in zip(wrappers, groups):
    call = next(wrapper(group))
    # Everything goes well at first.
    call()
    calls.append((wrapper, group, call))
"""


def test_a_killed_rank_is_an_exception_under_every_wrapper(daemon: str) -> None:
    script = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
text = ("future",)
for wrapper, group, call in calls:
    name = wrapper.__name__
    kind = RuntimeError if name in text else xdp_agg.MemberLost
    with raises(kind) as caught:
        call()
    print(name, type(caught[0]).__name__, caught[0])
    assert "MemberLost" in str(caught[0]) or isinstance(caught[0], xdp_agg.MemberLost), caught
    # And so it stays.
    with raises(xdp_agg.MemberLost):
        dist.all_reduce(ones(), group=group)
    ours = xdp_agg.torch._backend.group_of(group)
    assert ours.get_error().name == "REMOTE_ERROR", ours.get_error()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, WRAPPERS + script, lost=[1])


def test_a_rank_that_is_killed_while_others_wait(daemon: str) -> None:
    script = """
dist.barrier(groups[1])
if rank == 1:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
work = dist.all_reduce(ones(), group=groups[2], async_op=True)
later = work.get_future().then(lambda f: f.value()[0] + 1)
with raises(xdp_agg.MemberLost):
    dist.all_reduce(ones())
with raises(xdp_agg.MemberLost):
    work.wait()
with raises(RuntimeError) as caught:
    later.wait()
assert "MemberLost" in str(caught[0]), caught
try:
    later.value()
except RuntimeError:
    pass
else:
    raise AssertionError("a value that is none")
"""
    torch_ranks.run(daemon, WRAPPERS + script, lost=[1])


def test_a_stopped_rank_is_named_at_the_group_s_timeout(daemon: str) -> None:
    script = """
import signal
begin(timeout=3)
apart = dist.new_group([0, 1, 2], timeout=timedelta(seconds=3))
net = nn.parallel.DistributedDataParallel(nn.Linear(10, 10), process_group=apart)
net(torch.ones(1, 10)).sum().backward()
dist.all_reduce(torch.ones(1))
if rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
began = time.monotonic()
# The first whose time is over tells the others.
with raises(xdp_agg.Deadline, xdp_agg.Aborted) as caught:
    net(torch.ones(1, 10)).sum().backward()
assert 2.5 < time.monotonic() - began < 10
error = xdp_agg.torch._backend.group_of(apart).get_error().name
if isinstance(caught[0], xdp_agg.Deadline):
    assert (caught[0].ranks, error) == ((2,), "TIMEOUT"), (caught[0].ranks, error)
else:
    assert "waiting for rank 2" in str(caught[0]), caught
print(type(caught[0]).__name__)
with raises(xdp_agg.Deadline, xdp_agg.Aborted):
    dist.all_reduce(torch.ones(1))
"""
    ended = torch_ranks.run(daemon, script, 3, lost=[2])
    assert any("Deadline" in one.out for one in ended[:2]), "\n".join(map(str, ended))


def test_calls_that_differ(daemon: str) -> None:
    script = """
begin()
def calls(group):
    R = dist.ReduceOp
    yield lambda: dist.all_reduce(torch.ones(10 + rank), group=group)
    yield lambda: dist.all_reduce(torch.ones(10), R.SUM if rank else R.MAX, group=group)
    yield lambda: dist.all_reduce(torch.ones(10).to([torch.double, torch.int][rank]), group=group)
    yield lambda: [dist.barrier, dist.all_reduce][rank](*[[], [torch.ones(1)]][rank], group=group)
    yield lambda: dist.broadcast(torch.ones(3), rank, group=group)
    def in_my_precision():
        with xdp_agg.torch.precision(["exact", "gradient"][rank]):
            dist.all_reduce(torch.ones(1000), group=group)
    yield in_my_precision
for index in range(6):
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    call = next(call for i, call in enumerate(calls(group)) if i == index)
    with raises(xdp_agg.CallMismatch) as caught:
        call()
        # The root of a broadcast has nothing to wait for.
        dist.barrier(group=group)
    print(index, caught[0])
"""
    torch_ranks.run(daemon, script)


def test_who_never_calls_is_named(daemon: str) -> None:
    script = """
begin(timeout=2)
if rank != 1:
    with raises(xdp_agg.Deadline) as caught:
        dist.all_reduce(torch.ones(1))
    assert caught[0].ranks == (1,), caught
    with raises(xdp_agg.Deadline):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
else:
    time.sleep(4)
"""
    torch_ranks.run(daemon, script, 3)


def test_a_wait_may_end_before_the_call(daemon: str) -> None:
    script = """
begin()
dist.all_reduce(torch.ones(1))
if rank:
    time.sleep(1)
work = dist.all_reduce(t := torch.ones(5), async_op=True)
if rank == 0:
    with raises(xdp_agg.Deadline):
        work.wait(timedelta(seconds=0.2))
work.wait(timedelta(seconds=20))
assert t.tolist() == [2.0] * 5
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


def test_abort_ends_calls_of_all_ranks(daemon: str) -> None:
    script = """
import threading
for group in (begin(), dist.new_group([0, 1, 2])):
    dist.all_reduce(torch.ones(1), group=group)
    if rank == 0:
        ours = xdp_agg.torch._backend.group_of(group)
        threading.Timer(0.3, ours.abort).start()
    # One rank is not there: the two others wait.
    if rank == 2:
        time.sleep(1)
    # Closed: that is this rank's own doing.
    for _ in range(2):
        with raises(xdp_agg.Aborted, *[xdp_agg.Closed][rank:]) as caught:
            dist.all_reduce(torch.ones(5), group=group)
        assert "told to abort" in str(caught[0]), caught
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script, 3)


def test_ctrl_c_ends_every_wait(daemon: str) -> None:
    script = """
import signal
begin()
groups = [dist.new_group([0, 1]) for _ in range(2)]
net = nn.parallel.DistributedDataParallel(nn.Linear(10, 10), process_group=groups[1])
for group in (None, *groups):
    dist.all_reduce(torch.ones(1), group=group)
never = dist.new_group([0, 1])
if rank:
    time.sleep(6)
else:
    for call in (lambda: dist.all_reduce(torch.ones(1)),
                 lambda: dist.all_reduce(torch.ones(1), group=groups[0], async_op=True).wait(),
                 lambda: net(torch.ones(1, 10)).sum().backward(),
                 lambda: dist.all_reduce(torch.ones(1), group=never)):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        began = time.monotonic()
        with raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - began < 1.5, time.monotonic() - began
    os._exit(0)
"""
    torch_ranks.run(daemon, script)


@pytest.mark.parametrize(
    "end",
    [
        "dist.all_reduce(torch.ones(9), async_op=True).wait()",
        "work = dist.all_reduce(torch.ones(1 << 20), async_op=True)",
        "dist.all_reduce(torch.ones(9), async_op=True).get_future().then(lambda _: time.sleep(.5))",
        "net = nn.parallel.DistributedDataParallel(nn.Linear(5, 5)); net(torch.ones(1, 5)).sum()"
        ".backward()",
        "sys.exit(0)",
        "xdp_agg.torch.State().channel()",
    ],
)
def test_a_forgotten_destroy_is_no_accident(daemon: str, end: str) -> None:
    script = f"""
begin()
dist.all_reduce(torch.ones(3))
group = dist.new_group([0, 1])
dist.all_reduce(torch.ones(3), group=group)
# The other rank may be gone by now, if it does not wait.
with contextlib.suppress(xdp_agg.Error):
    {end}
"""
    for ended in torch_ranks.run(daemon, script, to_the_end=True):
        words = ended.err.lower()
        assert not any(bad in words for bad in ("terminate called", "panicked", "fatal")), str(
            ended
        )
