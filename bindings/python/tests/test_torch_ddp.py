"""DistributedDataParallel and ZeRO: what is learnt is what is learnt with gloo."""

from __future__ import annotations

import pytest

from tests import torch_ranks

pytest.importorskip("torch")

#: A model, and its training with a group.
TRAIN = """
from torch.nn.parallel import DistributedDataParallel as DDP
begin()
gloo, ours = dist.new_group(backend="gloo"), dist.group.WORLD

def model(norm=True):
    torch.manual_seed(1)
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    if norm:
        layers.insert(1, nn.BatchNorm1d(512))
    return nn.Sequential(*layers)

def steps(net, optimizer, count=5):
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
    return losses

def calls(group=None):
    counts = xdp_agg.torch.stats(group)["calls"]
    assert not any(name.startswith("gloo") for name in counts), counts
    return counts

def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.1)

def check(train, tolerance=1e-5):
    # Losses with both.
    theirs, ours_ = train(gloo), train(ours)
    assert all(abs(a - b) <= tolerance for a, b in zip(ours_, theirs, strict=True)), (ours_, theirs)

def same_everywhere(net):
    for p in net.parameters():
        every = [torch.empty_like(p) for _ in range(world)]
        dist.all_gather(every, p.detach(), group=gloo)
        assert all(torch.equal(p, q) for q in every)
"""


def test_ddp(daemon: str) -> None:
    script = """
def train(group, **more):
    net = DDP(model(), process_group=group, bucket_cap_mb=0.5, **more)
    losses = steps(net, sgd(net))
    same_everywhere(net)
    return losses
check(train)
counts = calls()
assert counts["all_reduce"] >= 9 and counts["broadcast"] > 5, counts
check(lambda group: train(group, gradient_as_bucket_view=True, static_graph=True))
check(lambda group: train(group, find_unused_parameters=True))
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, TRAIN + script)


def test_ddp_of_three_with_uneven_inputs_and_accumulation(daemon: str) -> None:
    script = """
def join(group):
    net = DDP(model(norm=False), process_group=group, bucket_cap_mb=0.5)
    with net.join():
        return steps(net, sgd(net), 3 + 2 * rank)
check(join)
def accumulate(group):
    net = DDP(model(norm=False), process_group=group)
    optimizer, losses = sgd(net), []
    torch.manual_seed(rank)
    for i in range(6):
        x = torch.randn(16, 64)
        with net.no_sync() if i % 2 == 0 else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(net(x), x.sum(1).abs().long() % 10)
            loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    same_everywhere(net)
    return losses
check(accumulate)
assert "all_reduce" in calls()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, TRAIN + script, 3)


def test_hooks_of_pytorch(daemon: str) -> None:
    script = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
def hooked(hook, state=None, **more):
    def train(group):
        # Its state has the group's hooks; PyTorch's want theirs.
        net = DDP(model(), process_group=group, **more)
        net.register_comm_hook(state(group) if state else group, hook)
        losses = steps(net, sgd(net))
        same_everywhere(net)
        return losses
    return train
check(hooked(default_hooks.allreduce_hook, bucket_cap_mb=0.5))
check(hooked(default_hooks.bf16_compress_hook, bucket_cap_mb=0.5), 2e-2)
check(hooked(default_hooks.fp16_compress_hook, bucket_cap_mb=0.5), 2e-2)
# With several buckets its callbacks call in the order in which they end: PyTorch's own trouble.
def power(group):
    return powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
losses = hooked(powerSGD_hook.powerSGD_hook, power, bucket_cap_mb=25)(ours)
assert losses[-1] < losses[0]
calls()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, TRAIN + script)


def test_zero(daemon: str) -> None:
    script = """
from torch.distributed.optim import ZeroRedundancyOptimizer
def zero(group):
    net = DDP(model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        net.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=1e-3)
    losses = steps(net, optimizer)
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        assert optimizer.state_dict()["state"]
    same_everywhere(net)
    return losses
check(zero, 1e-4)
calls()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, TRAIN + script)


@pytest.mark.skipif(torch_ranks.version() < (2, 14), reason="before, it has no part in groups")
def test_debug_mode(daemon: str) -> None:
    script = """
dist.set_debug_level(dist.DebugLevel.DETAIL)
group = dist.new_group([0, 1])
net = DDP(model(), process_group=group)
losses = steps(net, sgd(net))
assert losses[-1] < losses[0]
assert xdp_agg.torch.stats(group)["calls"]["all_reduce"] >= 5
with raises(RuntimeError) as caught:
    dist.all_reduce(torch.ones(3 + rank), group=group)
assert "mismatch" in str(caught[0]), caught
"""
    torch_ranks.run(daemon, TRAIN + script, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
