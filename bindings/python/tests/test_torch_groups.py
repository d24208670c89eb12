"""Groups besides the default one: where they are, how they join, and what if there is no room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import torch_ranks
from tests.workers import LOOPBACK, Workers, binary, serving

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def daemon_as_it_comes() -> Iterator[str]:
    """With the slots and jobs that are the default."""
    if not binary().exists():
        pytest.skip(f"no daemon at {binary()}: cargo build, or set XDP_AGG_BIN")
    with serving(LOOPBACK) as address:
        yield address


def test_subgroups(daemon: str) -> None:
    script = """
group = begin()
odd = dist.new_group([1, 2])
same = dist.new_group([0, 1, 2])
mixed = dist.new_group([0, 2], backend="gloo")
own = dist.new_group([rank], use_local_synchronization=True)
for g, ranks in [(odd, [1, 2]), (same, [0, 1, 2]), (mixed, [0, 2]), (None, [0, 1, 2])]:
    if rank in ranks:
        dist.all_reduce(t := torch.full((300,), float(rank + 1)), group=g)
        assert t[0] == sum(r + 1 for r in ranks), (ranks, t[0])
        dist.broadcast(t := torch.tensor([rank]), ranks[-1], group=g)
        assert t.item() == ranks[-1]
        objects = [None] * len(ranks)
        dist.all_gather_object(objects, rank, group=g)
        assert objects == ranks
# Alone: there is nobody to ask.
dist.all_reduce(t := torch.ones(3), group=own)
dist.all_gather_into_tensor(out := torch.empty(3), t, group=own)
dist.reduce_scatter_tensor(again := torch.empty(3), out, group=own)
dist.barrier(group=own)
assert t.tolist() == out.tolist() == again.tolist() == [1.0] * 3
assert xdp_agg.torch.stats(own)["engine"] == "none: this rank is alone"
if rank:
    assert xdp_agg.torch.stats(odd)["group"] != xdp_agg.torch.stats()["group"]
    dist.destroy_process_group(odd)
    with raises(Exception):
        dist.all_reduce(torch.ones(1), group=odd)
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script, 3)


def test_groups_that_are_never_used_cost_the_daemon_nothing(daemon: str) -> None:
    script = """
begin()
groups = [dist.new_group([0, 1]) for _ in range(20)]
assert all(xdp_agg.torch.stats(g)["engine"] is None for g in groups)
assert xdp_agg.torch.stats()["engine"] is None
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


@pytest.mark.skipif(torch_ranks.version() < (2, 14), reason="before, it wants NCCL")
def test_split_group(daemon: str) -> None:
    script = """
begin()
for parts in ([[0, 1], [2]], [[0], [1], [2]], [[2, 0]]):
    mine = next((part for part in parts if rank in part), None)
    if mine is None:
        # PyTorch has no way to take a "not me" from a backend in Python.
        with raises(RuntimeError):
            dist.split_group(split_ranks=parts)
        continue
    child = dist.split_group(split_ranks=parts)
    assert dist.get_process_group_ranks(child) == mine
    dist.all_reduce(t := torch.tensor([2.0**rank]), group=child)
    assert t.item() == sum(2**r for r in mine), (mine, t)
    assert xdp_agg.torch.stats(child)["calls"] == {"all_reduce": 1}
    grandchild = dist.split_group(child, [list(range(len(mine)))[::-1]])
    dist.all_reduce(t := torch.tensor([2.0**rank]), group=grandchild)
    assert t.item() == sum(2**r for r in mine), (mine, t)
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script, 3)


def test_device_mesh(daemon: str) -> None:
    script = """
from torch.distributed.device_mesh import init_device_mesh
begin()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
for name, peers in [("a", [rank % 2, rank % 2 + 2]), ("b", [rank // 2 * 2, rank // 2 * 2 + 1])]:
    dist.all_reduce(t := torch.tensor([2.0**rank]), group=mesh.get_group(name))
    assert t.item() == sum(2**r for r in peers)
whole = mesh["a", "b"]._flatten()
dist.all_reduce(t := torch.ones(1), group=whole.get_group())
assert t.item() == 4
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script, 4)


def test_32_groups_of_meshes_at_a_daemon_as_it_comes(daemon_as_it_comes: str) -> None:
    """And the default group beside them: jobs and slots are enough."""
    script = """
from torch.distributed.device_mesh import init_device_mesh
begin()
dist.all_reduce(torch.ones(1))
meshes = [init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")) for _ in range(8)]
for mesh in meshes:
    for name in "ab":
        group = mesh.get_group(name)
        dist.all_reduce(t := torch.ones(1), group=group)
        stats = xdp_agg.torch.stats(group)
        assert (t.item(), stats["engine"]) == (2, "xdp-agg"), stats
dist.destroy_process_group()
"""
    torch_ranks.run(daemon_as_it_comes, script, 4)


def test_where_there_is_no_room_gloo_takes_over_with_one_warning() -> None:
    script = """
from xdp_agg.torch import Options
group = begin()
warned = []
def note(message, *more):
    warned.append(str(message))
warnings.showwarning = note
dist.all_reduce(t := torch.ones(1))
assert t.item() == world
fits = dist.new_group([0, 1])
dist.all_reduce(t := torch.ones(1), group=fits)
groups = [dist.new_group([0, 1]) for _ in range(3)]
for g in groups:
    R = dist.ReduceOp
    for op, want in [(R.SUM, 3), (R.AVG, 1.5), (R.MAX, 2)]:
        for way in (False, True):
            work = dist.all_reduce(t := torch.full((10, 3), rank + 1.0).t(), op, g, async_op=way)
            if way:
                work.get_future().wait()
            assert t.unique().tolist() == [want], (op, t)
    dist.all_reduce(t := torch.tensor([True, rank == 0]), group=g)
    assert t.view(torch.uint8).tolist() == [1, 1]
    dist.broadcast(t := torch.full((3,), rank + 0.5, dtype=torch.bfloat16), 1, group=g)
    assert t.tolist() == [1.5] * 3
    dist.all_gather_into_tensor(out := torch.empty(4), torch.full((2,), float(rank)), group=g)
    assert out.tolist() == [0, 0, 1, 1]
    dist.reduce_scatter_tensor(out := torch.empty(2), torch.arange(4.0), group=g)
    assert out.tolist() == [4.0 * rank, 4.0 * rank + 2]
    dist.reduce(t := torch.ones(2), 1, group=g)
    assert rank == 0 or t.tolist() == [2, 2]
    dist.barrier(group=g)
    stats = xdp_agg.torch.stats(g)
    assert stats["engine"] == "gloo" and stats["calls"]["all_reduce"] == 7, stats
assert len(warned) == (rank == 0), warned
assert all("gloo" in text and "slots" in text for text in warned), warned
dist.destroy_process_group()
# Of the default group it is an error, at all ranks.
dist.init_process_group("xdp-agg", store=store, rank=rank, world_size=world,
                        pg_options=Options(slots=4096))
with raises(xdp_agg.Refused):
    dist.all_reduce(torch.ones(1))
with raises(xdp_agg.Refused):
    dist.all_reduce(torch.ones(1))
with raises(xdp_agg.Refused):
    dist.all_reduce(torch.ones(1), async_op=True).wait()
dist.destroy_process_group()
"""
    # Room for the default group of two processes a host (512 each), and one other (128). Calls that
    # stay in the host would take two slots.
    with serving([*LOOPBACK, "--slots", "1200"]) as address:
        torch_ranks.run(address, script, env={"XDP_AGG_HOST_COLLECTIVES": "off"})


def test_processes_of_a_host_meet_where_they_are_numbered_so(xdp_network: Workers) -> None:
    script = """
from torch.distributed.device_mesh import init_device_mesh
begin()
pairs, apart = [dist.new_group(r) for r in ([0, 1], [2, 3])], dist.new_group([0, 2])
crossed = dist.new_group([0, 2, 1, 3], sort_ranks=False) if has_order else None
def sizes(group):
    dist.all_reduce(t := torch.ones(1), group=group)
    return xdp_agg.torch._backend.group_of(group).channel.engine.communicator.local_size
assert sizes(None) == 2
# On one host: a job, and not one for each process.
assert sizes(pairs[rank // 2]) == 1
assert sizes(dist.new_group()) == 2
if rank in (0, 2):
    assert sizes(apart) == 1
if crossed is not None:
    assert sizes(crossed) == 1
dist.barrier()
dist.destroy_process_group()
"""
    order = (
        "import inspect\nhas_order = 'sort_ranks' in inspect.signature(dist.new_group).parameters"
    )
    prefixes = [xdp_network.prefixes[host] for host in (0, 0, 1, 1)]
    torch_ranks.run(xdp_network.address, order + script, 4, prefixes=prefixes, master="10.99.0.1")


def test_in_host_sums_can_be_turned_off(daemon: str) -> None:
    script = """
begin()
dist.all_reduce(t := torch.ones(1))
assert t.item() == world
assert xdp_agg.torch._backend.group_of(None).channel.engine.communicator.local_size == 1
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script, env={"XDP_AGG_IN_HOST": "off"})


def test_calls_before_all_ranks_are_there_do_not_wait_for_them(daemon: str) -> None:
    """A rank that has begun a call may have to do something else for the others to make theirs."""
    script = """
begin()
t = torch.full((5,), float(rank))
if rank == 0:
    works = [dist.all_reduce(t, async_op=True), dist.all_reduce(u := torch.ones(2), async_op=True)]
    dist.send(torch.ones(1), 1)
    dist.all_reduce(v := torch.ones(4))
    for work in works:
        work.wait()
else:
    time.sleep(0.3)
    dist.recv(torch.ones(1), 0)
    dist.all_reduce(t)
    dist.all_reduce(u := torch.ones(2))
    dist.all_reduce(v := torch.ones(4))
assert t.tolist() == [1.0] * 5 and u.tolist() == [2.0] * 2 and v.tolist() == [2.0] * 4
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


def test_forked_children_leave_the_group_alone(daemon: str) -> None:
    script = """
import gc, multiprocessing
from torch.utils.data import DataLoader
group = begin()
dist.all_reduce(torch.ones(3))
data = DataLoader([torch.ones(2)] * 40, num_workers=2)
assert sum(x.sum().item() for x in data) == 80

def child(queue):
    try:
        dist.all_reduce(torch.ones(3))
        queue.put("no error")
    except Exception as error:
        queue.put(type(error).__name__)
    dist.destroy_process_group()
    gc.collect()
    queue.put("left")

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
assert queue.get(timeout=20) == "Forked"
assert queue.get(timeout=20) == "left"
process.join(20)
assert process.exitcode == 0, process.exitcode
dist.all_reduce(t := torch.ones(3))
assert t.tolist() == [world] * 3
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script)


def test_placement() -> None:
    from xdp_agg.torch._place import placement

    assert placement(["a", "a", "b", "b"], 3) == (1, 2)
    assert placement(["a", "a", "a"], 1) == (1, 3)
    assert placement(["a", "b"], 0) is None
    assert placement(["a", "b", "a", "b"], 0) is None
    assert placement(["a", "a", "b"], 0) is None
    assert placement(["a", "a", "b", "a", "a", "b"], 0) is None
    assert placement(["a off", "a off"], 0) is None


def test_the_way_to_the_aggregator() -> None:
    from xdp_agg.torch._place import way_to

    assert way_to("127.0.0.1:9870") == "127.0.0.1"
    assert way_to("127.0.0.1,10.0.0.1") == "127.0.0.1"
    assert way_to("no such name.invalid:1") is None
    assert way_to(None) is None
