"""Hooks for DDP: beside any backend, with lanes of 16 bits, and with several processes a host."""

from __future__ import annotations

import pytest

from tests import networks, torch_ranks
from tests.workers import Workers

pytest.importorskip("torch")

TRAIN = """
from torch.nn.parallel import DistributedDataParallel as DDP
from xdp_agg.torch import State, allreduce_hook, hierarchical_hook

def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 511), nn.ReLU(),
                         nn.Linear(511, 10))

def steps(net, count=5):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(100 + rank)
    losses = []
    for _ in range(count):
        x = torch.randn(32, 64)
        y = x.sum(1).abs().long() % 10
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for p in net.parameters():
        every = [torch.empty_like(p) for _ in range(world)]
        dist.all_gather(every, p.detach())
        assert all(torch.equal(p, q) for q in every)
    return losses

def check(hook, state, tolerance=1e-5, **more):
    theirs = steps(DDP(model(), bucket_cap_mb=0.5))
    net = DDP(model(), bucket_cap_mb=0.5, **more)
    net.register_comm_hook(state, hook)
    ours = steps(net)
    assert all(abs(a - b) <= tolerance for a, b in zip(ours, theirs, strict=True)), (ours, theirs)
    return net
"""


@pytest.mark.parametrize("backend", ["gloo", "xdp-agg"])
def test_the_hook_beside_a_backend(daemon: str, backend: str) -> None:
    script = f"""
backend = "{backend}"
begin(backend)
state = State()
net = check(allreduce_hook, state)
calls = state.stats()["calls"]["all_reduce"]
assert calls >= 9, calls
counts = state.stats()["communicator"]
assert counts["gradient_calls"] >= 9, counts
if backend == "xdp-agg":
    # The group's own: no job more.
    assert state.channel() is xdp_agg.torch._backend.group_of(None).channel
exact = State(precision="exact")
check(allreduce_hook, exact)
assert exact.stats()["communicator"]["exact_calls"] >= 9
half = State(compression="16-bit")
check(allreduce_hook, half, 2e-2)
check(allreduce_hook, State(), gradient_as_bucket_view=True, static_graph=True)
exact.close()
half.close()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, TRAIN + script)


BUCKETS = """
import gc
begin("gloo")
dtype = torch.float32

class Watched(State):
    # Where each bucket of a step was.
    def __init__(self, **more):
        super().__init__(**more)
        self.at = []

def watched(state, bucket):
    future = allreduce_hook(state, bucket)
    place = state.buckets._buckets.get(bucket.buffer().data_ptr())
    state.at.append((bucket.buffer().data_ptr(), place is not None))
    return future

def train(state, hook, **more):
    net = model()
    torch.manual_seed(rank)
    ddp = DDP(net, bucket_cap_mb=0.5, **more)
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    grads = []
    for step in range(8):
        torch.manual_seed(1000 * step + rank)
        loss = ddp(torch.randn(16, 64)).square().mean()
        loss.backward()
        grads.append([p.grad.clone() for p in net.parameters()])
        optimizer.step()
        # Both ways of forgetting gradients, and none: they are added up.
        if step % 3 < 2:
            ddp.zero_grad(set_to_none=step % 3 == 0)
    return ddp, grads

for views in (False, True):
    plain = Watched(in_segment=False)
    _, expected = train(plain, watched, gradient_as_bucket_view=views)
    assert plain.stats()["buckets_in_segment"] == 0
    plain.close()
    state = Watched(in_segment=True if views else None)
    ddp, found = train(state, watched, gradient_as_bucket_view=views)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(ours, theirs, strict=True):
            # The same bits, wherever the bucket is.
            assert torch.equal(one, other), (views, step, (one - other).abs().max())
    # DDP has made its buckets again after the first step; all of the later ones lie there.
    count = state.stats()["buckets_in_segment"]
    late = state.at[-2 * count:]
    assert count >= 2 and all(placed for _, placed in late), (count, state.at)
    assert {at for at, _ in late[:count]} == {at for at, _ in late[count:]}
    if views:
        grad = ddp.module[0].weight.grad
        before = grad.clone()
        state.close()
        assert state.stats()["buckets_in_segment"] == 0
        # The gradient is this process's own again, with what was in it.
        assert torch.equal(grad, before)
        grad += rank
        dist.barrier()
        assert torch.equal(grad, before + rank)
    else:
        state.close()
    del ddp
    gc.collect()
# Gradients that are views stay where they are unless that is asked for.
state = Watched()
train(state, watched, gradient_as_bucket_view=True)
assert state.stats()["buckets_in_segment"] == 0
state.close()
# Two models of one state.
state = Watched()
nets = [train(state, watched)[0] for _ in range(2)]
count = state.stats()["buckets_in_segment"]
assert count >= 4, count
for _ in range(3):
    for net in nets:
        net(torch.randn(16, 64)).square().mean().backward()
assert state.stats()["buckets_in_segment"] == count
state.close()
dist.destroy_process_group()
"""


def test_buckets_lie_in_the_segment(daemon: str) -> None:
    torch_ranks.run(daemon, TRAIN + BUCKETS, env={"XDP_AGG_BUFFERS": str(64 << 20)})


def test_buckets_without_room_are_copied(daemon: str) -> None:
    script = """
begin("gloo")
for wanted, warns in ((None, False), (True, True)):
    state = State(in_segment=wanted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(allreduce_hook, state)
    said = [str(one.message) for one in caught if "segment" in str(one.message)]
    assert bool(said) == warns, (wanted, said)
    assert not warns or "XDP_AGG_BUFFERS=" in said[0] and len(said) == 1, said
    assert state.stats()["buckets_in_segment"] == 0
    state.close()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, TRAIN + script)


def test_a_lost_rank_with_buckets_in_the_segment(daemon: str) -> None:
    script = """
import signal
begin("gloo")
net = DDP(model(), bucket_cap_mb=0.5, gradient_as_bucket_view=True)
state = State(in_segment=True)
net.register_comm_hook(state, allreduce_hook)
steps(net, 3)
assert state.stats()["buckets_in_segment"] >= 2
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
with raises(xdp_agg.MemberLost):
    net(torch.ones(4, 64)).sum().backward()
for parameter in net.parameters():
    parameter.grad.fill_(3)
state.close()
assert all((parameter.grad == 3).all() for parameter in net.parameters())
"""
    torch_ranks.run(daemon, TRAIN + script, 3, lost=[1], env={"XDP_AGG_BUFFERS": str(64 << 20)})


def test_a_communicator_of_one_s_own(daemon: str) -> None:
    script = """
begin("gloo")
own = xdp_agg.Communicator(rank=rank, world_size=world, job=os.environ["MASTER_PORT"])
state = State(communicator=own)
check(allreduce_hook, state)
assert own.stats()["gradient_calls"] >= 9
state.close()
assert own.state == "running"
with raises(ValueError):
    State(communicator=own, compression="16-bit")
with raises(ValueError):
    State(compression="8-bit")
with raises(ValueError):
    State(precision="rough")
own.close()
alone = dist.new_group([rank], use_local_synchronization=True)
with raises(ValueError):
    State(alone, own).channel()
dist.destroy_process_group()
with raises(ValueError):
    State()
"""
    torch_ranks.run(daemon, TRAIN + script)


def test_other_types_of_gradients(daemon: str) -> None:
    script = """
begin("gloo")
state = State()
for dtype in (torch.float64, torch.bfloat16, torch.float16):
    net = DDP(nn.Linear(30, 20).to(dtype))
    net.register_comm_hook(state, allreduce_hook)
    x = torch.full((4, 30), rank + 1.0, dtype=dtype)
    net(x).sum().backward()
    assert net.module.weight.grad.unique().tolist() == [4 * (world + 1) / 2]
sparse = DDP(nn.Embedding(5, 3, sparse=True))
sparse.register_comm_hook(state, allreduce_hook)
with raises(TypeError):
    sparse(torch.tensor([rank])).sum().backward()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, TRAIN + script)


def test_a_lost_rank_under_the_hook_beside_gloo(daemon: str) -> None:
    script = """
import signal
begin("gloo")
net = DDP(model(), bucket_cap_mb=0.5)
net.register_comm_hook(State(), allreduce_hook)
steps(net, 2)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
with raises(xdp_agg.MemberLost):
    net(torch.ones(4, 64)).sum().backward()
"""
    torch_ranks.run(daemon, TRAIN + script, lost=[1])


HIERARCHY = """
begin(backend)
state = State()
check(hierarchical_hook, state, 1e-5)
hosts = state.hosts()
calls = hosts.channel.stats()["calls"].get("all_reduce", 0)
assert hosts._processes == processes, hosts._processes
assert calls >= 9, calls
assert hosts.channel.engine.name == engine, hosts.channel.engine.name
check(hierarchical_hook, State(compression="16-bit"), 2e-2)
"""


def test_the_hierarchical_hook_on_one_host(daemon: str) -> None:
    """There is nobody to ask besides."""
    for backend in ("gloo", "xdp-agg"):
        head = f"backend, processes, engine = {backend!r}, 3, 'none: this rank is alone'\n"
        torch_ranks.run(daemon, head + TRAIN + HIERARCHY, 3)


def test_the_hierarchical_hook_on_two_hosts_over_xdp() -> None:
    if reason := networks.why_not():
        pytest.skip(reason)
    with networks.network(2) as workers:
        prefixes = [workers.prefixes[host] for host in (0, 0, 1, 1)]
        head = "backend, processes, engine = 'gloo', 2, 'xdp-agg'\n"
        lost = """
import signal
net = DDP(model(), bucket_cap_mb=0.5)
net.register_comm_hook(state, hierarchical_hook)
steps(net, 2)
if rank >= 2:
    os.kill(os.getpid(), signal.SIGKILL)
with raises(RuntimeError) as caught:
    net(torch.ones(4, 64)).sum().backward()
assert isinstance(caught[0], xdp_agg.MemberLost), repr(caught[0])
"""
        torch_ranks.run(
            workers.address,
            head + TRAIN + HIERARCHY + lost,
            4,
            prefixes=prefixes,
            master="10.99.0.1",
            env={"GLOO_SOCKET_IFNAME": "eth0"},
            lost=[2, 3],
        )


def test_hosts_with_unequal_numbers_of_ranks(xdp_network: Workers) -> None:
    script = """
begin()
net = DDP(model())
net.register_comm_hook(State(), hierarchical_hook)
with raises(xdp_agg.Config) as caught:
    net(torch.ones(4, 64)).sum().backward()
assert "equally many" in str(caught[0]), caught
# The way without hosts takes any.
net = DDP(model())
net.register_comm_hook(State(), allreduce_hook)
net(torch.ones(4, 64)).sum().backward()
"""
    prefixes = [xdp_network.prefixes[host] for host in (0, 0, 1)]
    torch_ranks.run(xdp_network.address, TRAIN + script, 3, prefixes=prefixes, master="10.99.0.1")
