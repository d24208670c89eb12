"""The way of an accelerator's tensors, with memory of the host in the device's place.

No GPU was at hand: streams and pinned memory are pretended. What is tested is the order of copies
and calls, and that every element comes to its place.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext

import pytest

pytest.importorskip("torch")

import torch
from xdp_agg.torch import _staging
from xdp_agg.torch._channel import Channel
from xdp_agg.torch._engine import Call, Engine
from xdp_agg.torch._work import Work

from tests import torch_ranks


class Mark:
    """The end of what a slow device was asked for so far."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def synchronize(self) -> None:
        assert self.reached.wait(10)


class SlowCopies:
    """A device that copies in its own time, in order, one direction beside the other."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.buffers = 0
        #: Where to, and from where; or a mark.
        self._queues: dict[bool, list[tuple[torch.Tensor, torch.Tensor] | Mark]] = {}
        self._changed = threading.Condition()
        for is_down in (True, False):
            self._queues[is_down] = []
            threading.Thread(target=self._serve, args=(is_down,), daemon=True).start()

    def _serve(self, is_down: bool) -> None:
        queue = self._queues[is_down]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue)
                what = queue.pop(0)
            time.sleep(0.002)
            if isinstance(what, Mark):
                what.reached.set()
            else:
                what[0].copy_(what[1])

    def _put(self, is_down: bool, what: tuple[torch.Tensor, torch.Tensor] | Mark) -> None:
        with self._changed:
            self._queues[is_down].append(what)
            self._changed.notify_all()

    def buffer(self) -> torch.Tensor:
        self.buffers += 1
        return torch.full((_staging.CHUNK,), 77, dtype=torch.uint8)

    def follow(self) -> None:
        self.log.append("follow")

    def down(self, host: torch.Tensor, device: torch.Tensor) -> None:
        self.log.append("down")
        self._put(True, (host, device))

    def up(self, device: torch.Tensor, host: torch.Tensor) -> None:
        self.log.append("up")
        self._put(False, (device, host))

    def mark(self, is_down: bool) -> Mark:
        mark = Mark()
        self._put(is_down, mark)
        return mark

    def uploads(self) -> AbstractContextManager[object]:
        return nullcontext()


class Doubling:
    """An engine that doubles what it is given, on a thread of its own."""

    name = "doubling"

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls: list[Call] = []
        self.most_at_once = 0
        self._at_once = 0
        self._fail_at = fail_at
        self._guard = threading.Lock()

    def run(self, call: Call) -> None:
        raise AssertionError("nobody waits on the caller's thread")

    def start(self, call: Call, work: Work) -> None:
        with self._guard:
            self.calls.append(call)
            number = len(self.calls)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)

        def end() -> None:
            time.sleep(0.005)
            error = RuntimeError("lost") if number == self._fail_at else None
            if error is None:
                assert call.memory is not None
                call.memory.mul_(2)
            with self._guard:
                self._at_once -= 1
            work.done(error)

        threading.Thread(target=end).start()

    def abort(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_staging, "CHUNK", 4096)


def _channel(engine: Engine, copies: SlowCopies) -> Channel:
    return Channel(None, 10, engine=engine, copies=lambda device: copies)


def _all_reduce(channel: Channel, tensor: torch.Tensor) -> Work:
    call = Call("all_reduce", "sum", None, 0, "f32")
    staged = _staging.StagedCall(call, tensor.dtype, _staging.whole(tensor), tensor.device)
    return channel.issue_staged(staged, [tensor])


@pytest.mark.usefixtures("small")
def test_chunks_overlap_and_come_to_their_places() -> None:
    engine, copies = Doubling(), SlowCopies()
    channel = _channel(engine, copies)
    tensors = [torch.arange(n, dtype=torch.float32) for n in (1, 1024, 1025, 30_001)]
    works = [_all_reduce(channel, tensor) for tensor in tensors]
    for work in works:
        assert work.wait()
    channel.close()
    # What goes up last may still be under way: a stream would wait for it.
    copies.mark(is_down=False).synchronize()
    for tensor in tensors:
        assert torch.equal(tensor, 2 * torch.arange(len(tensor), dtype=torch.float32))
    assert [call.count for call in engine.calls[:4]] == [1, 1024, 512, 513]
    assert len(engine.calls) == 4 + 30
    assert engine.most_at_once > 1
    assert copies.buffers <= _staging.BUFFERS
    # One chunk comes down before the one before is up.
    first_up = copies.log.index("up")
    assert copies.log[:first_up].count("down") >= 2


@pytest.mark.usefixtures("small")
def test_calls_of_the_host_come_in_their_turn() -> None:
    engine = Doubling()
    channel = _channel(engine, SlowCopies())
    staged = _all_reduce(channel, torch.ones(5000))
    own = torch.ones(3)
    later = channel.issue(Call("all_reduce", "sum", own, 3, "f32"), [own], is_synchronous=True)
    staged.wait()
    later.wait()
    channel.close()
    assert [call.count for call in engine.calls] == [1000] * 5 + [3]


@pytest.mark.usefixtures("small")
def test_an_error_of_a_chunk_is_the_call_s() -> None:
    engine = Doubling(fail_at=3)
    channel = _channel(engine, SlowCopies())
    work = _all_reduce(channel, torch.ones(100_000))
    with pytest.raises(RuntimeError, match="lost"):
        work.wait()
    with pytest.raises(RuntimeError, match="lost"):
        work.get_future().wait()
    assert str(channel.error) == "lost"
    # All buffers are free again.
    again = _all_reduce(channel, torch.ones(10_000))
    again.wait()
    assert len(engine.calls) < 100
    channel.close()


def test_parts_are_even() -> None:
    assert list(_staging.even(10, 4)) == [(0, 3), (3, 6), (6, 10)]
    assert list(_staging.even(8, 4)) == [(0, 4), (4, 8)]
    assert list(_staging.even(0, 4)) == [(0, 0)]
    assert list(_staging.even(3, 0)) == [(0, 1), (1, 2), (2, 3)]


def test_all_collectives_through_the_stage(daemon: str) -> None:
    """The real thing, with tensors that say that they are elsewhere."""
    script = """
from xdp_agg.torch import _staging
_staging.CHUNK = 8192
group = begin()
ours = xdp_agg.torch._backend.group_of(group)
ours.channel._copies = lambda device: _staging.PretendedCopies()

class Elsewhere(torch.Tensor):
    # Only where it is is another matter.
    @property
    def device(self):
        return torch.device("meta")

def away(t):
    return t.as_subclass(Elsewhere)

A, R = torch._C._distributed_c10d, dist.ReduceOp
def options(kind, **values):
    o = kind()
    for name, value in values.items():
        setattr(o, name, value)
    return o

for n in (1, 500, 10_001):
    t = torch.arange(float(n)) + rank
    total = torch.arange(float(n)) * world + sum(range(world))
    ours.allreduce([away(x := t.clone())], options(A.AllreduceOptions)).wait()
    assert torch.equal(x, total), n
    gaps = torch.zeros(n, 2)
    gaps[:, 1] = t
    ours.allreduce([away(gaps[:, 1])], options(A.AllreduceOptions, reduceOp=R.AVG)).wait()
    assert torch.allclose(gaps[:, 1], total / world) and not gaps[:, 0].any(), n
    for root in range(world):
        ours.broadcast([away(x := t.clone())], options(A.BroadcastOptions, rootRank=root)).wait()
        assert torch.equal(x, torch.arange(float(n)) + root), n
    ours.reduce([away(x := t.clone())], options(A.ReduceOptions, rootRank=1)).wait()
    assert rank != 1 or torch.equal(x, total), n
    ours.all_gather_single(away(x := torch.zeros(world * n)), away(t)).wait()
    assert torch.equal(x, torch.cat([torch.arange(float(n)) + r for r in range(world)])), n
    parts = [torch.zeros(n) for _ in range(world)]
    ours.allgather([[away(p) for p in parts]], [away(t)]).wait()
    assert torch.equal(torch.cat(parts), x), n
    ours.reduce_scatter_single(away(x := torch.zeros(n)), away(t.repeat(world))).wait()
    assert torch.equal(x, total), n
    ours.reduce_scatter([away(x := torch.zeros(n))],
                        [[away(t * (r + 1)) for r in range(world)]]).wait()
    assert torch.equal(x, total * (rank + 1)), n
    half = torch.full((n,), rank + 0.5, dtype=torch.bfloat16)
    ours.broadcast([away(half)], options(A.BroadcastOptions, rootRank=0)).wait()
    assert (half == 0.5).all(), n
assert not any(name.startswith("gloo") for name in ours.channel.calls), ours.channel.calls
assert len(ours.channel._stages) == 1
dist.destroy_process_group()
"""
    torch_ranks.run(daemon, script, 3)
