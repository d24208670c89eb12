"""Times PyTorch's calls over one backend: ``cargo xtask bench torch`` runs it by torchrun.

Each part writes one JSON object to ``--out`` from rank 0. Times are in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

Times = dict[str, float]


def spread(times: list[float]) -> Times:
    """Median, quartiles and the 99th percentile."""
    ordered = sorted(times)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {
        "median": statistics.median(ordered),
        "q1": at(0.25),
        "q3": at(0.75),
        "p99": at(0.99),
        "count": float(len(ordered)),
    }


def timed(call: Any, iters: int, warmup: int) -> list[float]:
    """How long each of ``iters`` calls takes at this rank."""
    times = []
    for turn in range(iters + warmup):
        start = time.perf_counter()
        call()
        if turn >= warmup:
            times.append(time.perf_counter() - start)
    return times


def latency(args: argparse.Namespace) -> dict[str, Any]:
    """``dist.all_reduce`` of short tensors, one after the other."""
    rows = {}
    for size in args.bytes:
        tensor = torch.ones(max(1, size // 4))
        times = timed(lambda tensor=tensor: dist.all_reduce(tensor.fill_(1.0)), args.iters, 50)
        rows[str(size)] = spread(times)
        assert bool((tensor == dist.get_world_size()).all())
    return {"all_reduce": rows}


# Rows of a matrix that is multiplied with itself.
ROWS = 256


class Work(NamedTuple):
    """What a layer's backward does: it sleeps, or it multiplies matrices with torch's threads."""

    seconds: float
    matmuls: int

    def do(self) -> None:
        """Does it."""
        if self.matmuls > 0:
            matrix = torch.full((ROWS, ROWS), 1.0 / ROWS)
            for _ in range(self.matmuls):
                matrix = matrix @ matrix
        elif self.seconds > 0:
            time.sleep(self.seconds)


class Slow(torch.autograd.Function):
    """Passes a number on; its backward takes a while, as a layer's does."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, work: Work) -> torch.Tensor:
        ctx.work = work
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.work.do()
        return grad, None


class Layers(nn.Module):
    """Parameters of equal length, each a bucket of its own; the backward of each takes a while."""

    def __init__(self, layers: int, elements: int, work: Work) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(elements)) for _ in range(layers))
        self.work = work

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            value = Slow.apply(value, self.work) + (layer * value.detach()).sum()
        return value


def ddp(args: argparse.Namespace) -> dict[str, Any]:
    """Steps of a data-parallel model, with and without their communication."""
    work = Work(args.compute / args.layers, args.matmuls)
    elements = args.bytes[0] // 4 // args.layers
    plain = Layers(args.layers, elements, work)
    model = nn.parallel.DistributedDataParallel(
        plain, bucket_cap_mb=elements * 4 / (1 << 20), gradient_as_bucket_view=True
    )
    if args.hook:
        import xdp_agg.torch

        model.register_comm_hook(xdp_agg.torch.State(), xdp_agg.torch.allreduce_hook)
    value = torch.tensor(float(dist.get_rank() + 1))

    def step() -> None:
        model.zero_grad(set_to_none=False)
        model(value).backward()

    def alone() -> None:
        with model.no_sync():
            step()

    local = timed(alone, args.iters, 1)
    dist.barrier()
    whole = timed(step, args.iters, 3)
    world = dist.get_world_size()
    # Each layer's gradient is the rank's own number; the average is that of 1 to N.
    expected = (world + 1) / 2
    grads = [layer.grad for layer in plain.layers]
    wrong = sum(int((grad != expected).sum()) for grad in grads if grad is not None)
    return {
        "step": spread(whole),
        "local": spread(local),
        "wrong": wrong + sum(grad is None for grad in grads),
        "bytes": elements * 4 * args.layers,
    }


def main() -> None:
    """Joins by the launcher's environment, times one part, and leaves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["latency", "ddp"])
    parser.add_argument("--backend", default="xdp-agg")
    parser.add_argument("--bytes", type=lambda text: [int(x) for x in text.split(",")])
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8, help="buckets of a step")
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of a step's backward")
    parser.add_argument("--matmuls", type=int, default=0, help="instead, in each bucket's backward")
    parser.add_argument("--threads", type=int, default=1, help="torch's, which multiply")
    parser.add_argument("--hook", action="store_true", help="xdp-agg's hook beside the backend")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.backend == "xdp-agg":
        import xdp_agg.torch  # noqa: F401
    start = time.process_time()
    dist.init_process_group(args.backend)
    result = latency(args) if args.part == "latency" else ddp(args)
    result["backend"] = args.backend
    result["cpu_seconds"] = time.process_time() - start
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
