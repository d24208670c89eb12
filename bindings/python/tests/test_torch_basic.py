"""The backend's collectives: against gloo in the same processes, bit for bit or within bounds."""

from __future__ import annotations

import pytest

from tests import torch_ranks
from tests.workers import Workers

torch = pytest.importorskip("torch")

#: Gloo beside ours, and what makes both do the same.
BOTH = """
begin()
gloo = dist.new_group(backend="gloo")
dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64,
          torch.uint8, torch.int8, torch.bool]

def values(shape, dtype, seed):
    g = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype is torch.bool:
        return torch.rand(shape, generator=g) < 0.5
    if not dtype.is_floating_point:
        low, high = (0, 256) if dtype is torch.uint8 else (-100, 100)
        return torch.randint(low, high, shape, generator=g).to(dtype)
    return (torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype)

def same(ours, theirs, what=""):
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, what
    if ours.dtype is torch.bool:
        # gloo adds truth up to bytes above 1.
        theirs = theirs.view(torch.uint8) != 0
    assert torch.equal(ours, theirs), (what, ours.flatten()[:5], theirs.flatten()[:5])

def all_of(t):
    every = [torch.empty_like(t.contiguous()) for _ in range(world)]
    dist.all_gather(every, t.contiguous(), group=gloo)
    return every

def native():
    calls = xdp_agg.torch.stats()["calls"]
    return sum(n for name, n in calls.items() if not name.startswith("gloo"))
"""


@pytest.mark.parametrize("world", [2, 3])
def test_reductions_are_those_of_gloo(daemon: str, world: int) -> None:
    script = """
def ulp(t):
    # Of the type's numbers of this size.
    t = t.abs().double()
    info = torch.finfo(dtype)
    return torch.exp2(torch.floor(torch.log2(t.clamp_min(info.tiny)))) * info.eps

R = dist.ReduceOp
calls = 0
for seed, shape in enumerate([(), (7,), (30, 20), (16 * 1024 + 3,), (300_001,)]):
    for dtype in dtypes:
        for op in [R.SUM, R.MIN, R.MAX] + ([R.AVG] if dtype.is_floating_point else []):
            ours = values(shape, dtype, seed)
            given = all_of(ours)
            theirs = ours.clone()
            dist.all_reduce(ours, op)
            calls += 1
            what = (shape, dtype, op)
            if op in (R.MIN, R.MAX) or not dtype.is_floating_point:
                dist.all_reduce(theirs, op, group=gloo)
                same(ours, theirs, what)
                continue
            # Beyond 64 KiB they are gradients: off by a part of the block's largest.
            exact = torch.stack([t.double() for t in given]).sum(0)
            exact = exact / world if op == R.AVG else exact
            if dtype is torch.float64:
                bound = 1e-13
            else:
                is_exact = ours.nbytes <= 65536
                magnitudes = torch.stack([t.abs().double() for t in given])
                # One host: its processes are added as they are, in floats.
                loose = world**2 * 2**-31 * magnitudes.max() + world * 2**-24 * magnitudes.sum(0)
                bound = ulp(exact) * 1.01 + (0 if is_exact else loose)
            error = (ours.double() - exact).abs()
            assert (error <= bound).all(), (what, error.max())
assert native() == calls, (native(), calls)
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, BOTH + script, world)


def test_numbers_of_all_sizes_beside_each_other(daemon: str) -> None:
    script = """
# A loss, a count and a rate.
t = torch.tensor([2.3456789, 1.25e6, 0.0017])
dist.all_reduce(t)
exact = (torch.tensor([2.3456789, 1.25e6, 0.0017]).double() * world).float()
assert torch.equal(t, exact), (t, exact)
for size in (1000, 100_000):
    t = torch.arange(size, dtype=torch.float32) / 7
    t[5], t[900] = float("inf") if rank == 0 else 1.0, float("nan") if rank == 1 else 1.0
    want = t.clone()
    dist.all_reduce(t)
    dist.all_reduce(want, group=gloo)
    assert torch.isinf(t).nonzero().tolist() == [[5]], torch.isinf(t).nonzero()
    assert torch.isnan(t).nonzero().tolist() == [[900]]
    ok = torch.isfinite(want)
    assert torch.allclose(t[ok], want[ok], rtol=1e-4, atol=1e-3 * size / 1000), (t - want).abs()
t = torch.tensor([1_000_000_000, 2_000_000_000], dtype=torch.int32)
want = t.clone()
dist.all_reduce(t)
dist.all_reduce(want, group=gloo)
same(t, want)
"""
    torch_ranks.run(daemon, BOTH + script)


def test_precision_is_chosen_for_calls_groups_and_processes(daemon: str) -> None:
    script = """
from xdp_agg.torch import Options, precision
def counts():
    c = xdp_agg.torch.stats()["communicator"]
    return c["exact_calls"], c["gradient_calls"]
begin()
small, large = torch.ones(10), torch.ones(100_000)
found = []
def call(t):
    before = counts() if native_yet else (0, 0)
    dist.all_reduce(t)
    now = counts()
    return "exact" if now[0] > before[0] else "gradient" if now[1] > before[1] else None
native_yet = False
first = call(small)
native_yet = True
default = os.environ.get("XDP_AGG_PRECISION")
assert first == (default or "exact"), first
assert call(large) == (default or "gradient")
with precision("exact"):
    assert call(large) == "exact"
    with precision("gradient"):
        assert call(small) == "gradient"
    assert call(small) == "exact"
assert call(torch.ones(10, dtype=torch.int32)) is None
with raises(ValueError):
    with precision("rough"):
        pass
dist.destroy_process_group()
# A group's own, and those that it gives on.
begin(pg_options=Options(precision="gradient"))
native_yet = False
assert call(small) == "gradient"
g = dist.new_group([0, 1])
dist.all_reduce(small, group=g)
assert xdp_agg.torch.stats(g)["communicator"]["gradient_calls"] == 1
g = dist.new_group([0, 1], pg_options=Options(precision="exact", slots=256))
dist.all_reduce(large, group=g)
assert xdp_agg.torch.stats(g)["communicator"]["exact_calls"] == 1
with raises(TypeError):
    Options(rank=1)
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)
    torch_ranks.run(daemon, script, env={"XDP_AGG_PRECISION": "exact"})


def test_copies_are_bit_for_bit(daemon: str) -> None:
    script = """
others = [torch.int16, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn]
for dtype in dtypes + others:
    for size in (1, 5, 1000, 40_001):
        bits = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8)
        t = (bits % 2 if dtype is torch.bool else bits).view(dtype)
        every = [torch.empty_like(bits) for _ in range(world)]
        dist.all_gather(every, t.view(torch.uint8), group=gloo)
        for root in range(world):
            b = t.clone()
            dist.broadcast(b, root)
            assert torch.equal(b.view(torch.uint8), every[root]), (dtype, size)
        whole = torch.empty(world * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, t)
        assert torch.equal(whole.view(torch.uint8), torch.cat(every)), (dtype, size)
        parts = [torch.empty_like(t) for _ in range(world)]
        dist.all_gather(parts, t)
        for part, other in zip(parts, every):
            assert torch.equal(part.view(torch.uint8), other), (dtype, size)
assert not any(name.startswith("gloo") for name in xdp_agg.torch.stats()["calls"])
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
assert [o["rank"] for o in objects] == list(range(world))
several = [{"from": rank}, rank]
dist.broadcast_object_list(several, 1)
assert several == [{"from": 1}, 1]
assert not any(name.startswith("gloo") for name in xdp_agg.torch.stats()["calls"])
"""
    torch_ranks.run(daemon, BOTH + script, 3)


def test_reduce_and_reduce_scatter(daemon: str) -> None:
    script = """
for dtype in dtypes:
    for n in (1, 13, 9000):
        t = values((world, n), dtype, n)
        sums = t.clone()
        dist.all_reduce(sums)
        before = t.clone()
        out = torch.empty(n, dtype=dtype)
        dist.reduce_scatter_tensor(out, t)
        same(out, sums[rank], (dtype, n))
        same(t, before)
        out = torch.empty(n, dtype=dtype)
        dist.reduce_scatter(out, list(t.unbind()))
        same(out, sums[rank], (dtype, n))
        same(t, before)
        for root in range(world):
            r = t.clone()
            dist.reduce(r, root)
            if rank == root:
                same(r, sums, (dtype, n, root))
with raises(ValueError):
    dist.reduce_scatter_tensor(torch.empty(3), torch.empty(3 * world + 1))
with raises(ValueError):
    dist.all_gather_into_tensor(torch.empty(3 * world + 1), torch.empty(3))
"""
    torch_ranks.run(daemon, BOTH + script, 3)


def test_no_rank_s_memory_decides(daemon: str) -> None:
    """One rank has gaps, another order, or parts of one tensor: the calls are the same."""
    script = """
def odd(t):
    if rank == 0:
        return t.clone()
    if rank == 1:
        wide = torch.zeros(*t.shape, 3, dtype=t.dtype)
        wide[..., 1] = t
        return wide[..., 1]
    return t.t().contiguous().t() if t.dim() == 2 else t.clone().requires_grad_()
plain = values((40, 50), torch.float32, 3)
want = plain.clone()
dist.all_reduce(want)
t = odd(plain)
assert t.is_contiguous() == (rank == 0)
dist.all_reduce(t)
same(t, want)
t = odd(plain)
work = dist.all_reduce(t, async_op=True)
work.wait()
same(t, want)
t = odd(plain)
dist.broadcast(t, 1)
same(t, all_of(plain)[1])
out, wanted = odd(torch.zeros(world * 40, 50)), torch.cat(all_of(plain))
dist.all_gather_into_tensor(out, odd(plain))
same(out, wanted)
rows = torch.zeros(world, 40, 50)
lists = [list(rows.unbind()), [torch.zeros(40, 50) for _ in range(world)],
         [torch.zeros(50, 40).t() for _ in range(world)]][rank]
dist.all_gather(lists, odd(plain))
same(torch.cat(lists), wanted)
if rank == 0:
    same(rows.view(-1, 50), wanted)
out = odd(torch.zeros(40, 50)) if rank else torch.zeros(40, 50)
dist.reduce_scatter_tensor(out, odd(wanted.clone()))
same(out, (wanted * world).view(world, 40, 50)[rank])
p = nn.Parameter(torch.full((5,), float(rank)))
dist.broadcast(p, 2)
assert p.tolist() == [2.0] * 5
with torch.no_grad():
    dist.all_reduce(p)
assert p.tolist() == [6.0] * 5
assert not any(name.startswith("gloo") for name in xdp_agg.torch.stats()["calls"])
"""
    torch_ranks.run(daemon, BOTH + script, 3)


def test_the_rest_is_gloo_s(daemon: str) -> None:
    script = """
R = dist.ReduceOp
for group in (gloo, None):
    if rank == 0:
        dist.send(torch.arange(3.0), 1, group=group)
        # Whose it is, PyTorch cannot ask of a backend in Python from 2.14 on: docs/pytorch.md.
        any_source = group is gloo or type(dist.group.WORLD) is not dist.ProcessGroup
        dist.recv(t := torch.zeros(3), None if any_source else 1, group=group)
        assert t.tolist() == [7.0] * 3
    else:
        dist.recv(t := torch.zeros(3), 0, group=group)
        assert t.tolist() == [0, 1, 2]
        dist.send(torch.full((3,), 7.0), 0, group=group)
    if rank == 0:
        dist.gather(torch.ones(2), parts := [torch.zeros(2) for _ in range(world)], group=group)
        assert torch.stack(parts).sum() == 2 * world
    else:
        dist.gather(torch.ones(2), group=group)
    dist.scatter(t := torch.zeros(2), [torch.full((2,), float(r)) for r in range(world)]
                 if rank == 0 else None, group=group)
    assert t.tolist() == [rank] * 2
    out = torch.empty(world)
    dist.all_to_all_single(out, torch.arange(world) * 10.0 + rank, group=group)
    assert out.tolist() == [10.0 * rank + r for r in range(world)]
    for op, want in [(R.PRODUCT, 6), (R.BXOR, 1), (R.BAND, 2), (R.BOR, 3)]:
        dist.all_reduce(t := torch.tensor([2 + rank]), op, group=group)
        assert t.item() == want, (op, t)
    dist.all_reduce(t := torch.tensor([1 + 2j]), group=group)
    assert t.item() == 2 + 4j
    dist.all_reduce(t := torch.sparse_coo_tensor([[rank]], [1.0], (world,)), group=group)
    assert t.to_dense().tolist() == [1.0] * world
    with raises(RuntimeError):
        dist.all_reduce(torch.ones(2, dtype=torch.int16), group=group)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 1 - rank, group),
                                    dist.P2POp(dist.irecv, t := torch.zeros(1), 1 - rank, group)])
    for work in works:
        work.wait()
for op, want in [(R.BAND, [False, False]), (R.BOR, [True, False]), (R.PRODUCT, [False, False])]:
    dist.all_reduce(t := torch.tensor([rank == 0, False]), op)
    assert t.tolist() == want, op
calls = xdp_agg.torch.stats()["calls"]
assert calls["gloo send"] == 2, calls
assert calls["all_reduce"] == 3, calls
"""
    torch_ranks.run(daemon, BOTH + script)


def test_calls_in_flight(daemon: str) -> None:
    script = """
group = begin()
ts = [torch.full((1000,), float(rank + i)) for i in range(20)]
works = [dist.all_reduce(t, async_op=True) for t in ts]
for i, (work, t) in enumerate(zip(works, ts)):
    assert work.wait() is True
    assert t[0] == sum(r + i for r in range(world))
work = dist.all_reduce(t := torch.ones(10), async_op=True)
future = work.get_future().then(lambda f: f.value()[0] * 10)
assert future.wait().tolist() == [10.0 * world] * 10
assert torch.equal(work.get_future().value()[0], t)
try:
    raised = work.get_future().then(lambda f: 1 / 0)
    raised.wait()
except RuntimeError as error:
    assert "ZeroDivisionError" in str(error)
# Callbacks that wait for calls of their own.
def again(f):
    dist.all_reduce(t := torch.ones(3), async_op=True).get_future().wait()
    return t
chained = [dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again) for _ in range(8)]
for future in chained:
    assert future.wait().tolist() == [float(world)] * 3
with dist._coalescing_manager(group, async_ops=True) as manager:
    a, b = torch.ones(3), torch.ones(5)
    dist.all_reduce(a)
    dist.all_reduce(b)
manager.wait()
assert a.sum() + b.sum() == 8 * world
with dist._coalescing_manager(group, async_ops=True) as manager:
    outs = [torch.empty(world * n) for n in (2, 3)]
    for out, n in zip(outs, (2, 3)):
        dist.all_gather_into_tensor(out, torch.full((n,), float(rank)))
manager.wait()
assert outs[1].tolist() == [float(r) for r in range(world) for _ in range(3)]
with dist._coalescing_manager(group, async_ops=True) as manager:
    outs = [torch.empty(n) for n in (2, 3)]
    for out, n in zip(outs, (2, 3)):
        dist.reduce_scatter_tensor(out, torch.ones(n * world))
manager.wait()
assert outs[1].tolist() == [float(world)] * 3
dist.barrier()
dist.barrier(async_op=True).wait()
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


def test_a_span_of_the_profiler_ends_before_its_call(daemon: str) -> None:
    """PyTorch frees the memory of spans when its profiler stops: a later end is a crash."""
    script = """
import time
from torch.futures import Future
begin()
set_result = Future.set_result

def late(future, value):
    time.sleep(0.05)
    set_result(future, value)

Future.set_result = late
for many in (1, 3):
    with torch.autograd.profiler.profile() as profiler:
        inputs = [torch.full((9, n + 1), rank + 0.5) for n in range(many)]
        outputs = [[torch.empty_like(part) for part in inputs] for _ in range(world)]
        work = dist.all_gather_coalesced(outputs, inputs, async_op=True)
        sums = [dist.all_reduce(torch.ones(n + 1), async_op=True) for n in range(many)]
        for one in [work, *sums]:
            one.wait()
    names = ("xdp-agg:all_gather", "xdp-agg:all_reduce")
    spans = [one for one in profiler.function_events if one.name in names]
    assert len(spans) == 2 * many, spans
    assert all(one.time_range.elapsed_us() >= 50_000 for one in spans), spans
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


def test_functional_collectives_and_compile(daemon: str) -> None:
    script = """
begin()
import torch.distributed._functional_collectives as fc
W = dist.group.WORLD
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert fc.all_reduce(torch.ones(4), "sum", W).sum() == 4 * world
    t = fc.all_gather_tensor(torch.full((4,), float(rank)), 0, W)
    assert t.view(world, 4)[:, 0].tolist() == list(range(world))
    assert fc.reduce_scatter_tensor(torch.ones(4 * world), "avg", 0, W).sum() == 4
    assert fc.broadcast(torch.full((2,), float(rank)), 1, W).tolist() == [1, 1]
    a, b = fc.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", W)
    assert a.sum() + b.sum() == 5 * world
    a, b = fc.all_gather_into_tensor_coalesced([torch.ones(2), torch.ones(3)], W)
    assert a.sum() + b.sum() == 5 * world
    a, b = fc.reduce_scatter_tensor_coalesced([torch.ones(2 * world), torch.ones(world)], "sum",
                                              [0, 0], W)
    assert a.sum() + b.sum() == 3 * world
    t = fc.all_to_all_single(torch.arange(world) * 1.0, None, None, W)
    assert t.tolist() == [rank] * world

    @torch.compile(backend="eager")
    def step(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1
    for _ in range(3):
        assert step(torch.ones(8)).tolist() == [2.0 * world + 1] * 8
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Shard, Replicate
mesh = init_device_mesh("cpu", (world,))
d = distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
assert d.full_tensor().sum() == 66
assert (d * 2).redistribute(mesh, [Replicate()]).to_local().sum() == 132
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


def test_what_a_group_says_of_itself(daemon: str) -> None:
    script = """
group = begin(timeout=60)
ours = xdp_agg.torch._backend.group_of(group)
assert dist.get_backend() == "xdp-agg" and ours.getBackendName() == "xdp-agg"
assert xdp_agg.torch.stats()["engine"] is None
before = ours._get_sequence_number_for_group()
dist.all_reduce(torch.ones(1))
assert ours._get_sequence_number_for_group() == before + 1
assert xdp_agg.torch.stats()["engine"] == "xdp-agg"
assert ours.options._timeout == timedelta(seconds=60)
assert ours.get_error().name == "SUCCESS"
assert ours.supports_splitting
with raises(ValueError):
    xdp_agg.torch.stats(dist.new_group(backend="gloo"))
dist.all_reduce(torch.ones(0))
dist.barrier()
xdp_agg.torch.register()
dist.destroy_process_group()
# Once more under the same name, in the same store.
begin()
dist.all_reduce(t := torch.ones(1))
assert t.item() == world
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


def test_over_xdp(xdp_network: Workers) -> None:
    """In namespaces, each a host of its own, on the interface that leads to the aggregator."""
    script = """
begin()
dist.all_reduce(t := torch.arange(100_000.0))
assert torch.equal(t, torch.arange(100_000.0) * world)
stats = xdp_agg.torch.stats()
communicator = xdp_agg.torch._backend.group_of(None).channel.engine.communicator
assert communicator.engine.startswith("xdp"), communicator.engine
dist.all_to_all_single(t := torch.empty(world), torch.ones(world))
dist.destroy_process_group()
"""
    torch_ranks.run(
        xdp_network.address, script, 3, prefixes=xdp_network.prefixes, master="10.99.0.1"
    )


@pytest.mark.skipif(
    torch_ranks.version() < (2, 14), reason="torch looks for entry points from 2.14"
)
def test_no_import_is_needed(workers: Workers) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("xdp-agg")
dist.all_reduce(t := torch.ones(3))
assert t.tolist() == [2.0] * 3
assert "xdp_agg.torch" in sys.modules
dist.destroy_process_group()
# The end of a process is another test's.
os._exit(0)
"""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(torch_ranks.free_port())}
    for ended in workers.start(script, 2, env=address).finish():
        assert ended.code == 0, str(ended)
