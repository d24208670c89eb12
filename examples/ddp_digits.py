"""Trains a small network on handwritten digits with DDP, over xdp-agg or any other backend.

On each of four hosts, with an aggregator at 10.0.0.100:

    export XDP_AGG_ADDR=10.0.0.100
    torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST0:29400 \\
        examples/ddp_digits.py

`cargo xtask demo --torch` does that on one machine, in network namespaces, and again over gloo.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xdp_agg.torch  # torch 2.14 and later find the backend without it
from torch import nn

DIGITS = Path(__file__).resolve().parent.parent / "lab/demo/data/digits.txt"
#: Images that are kept for testing, as many as the Rust demo keeps.
TEST_IMAGES = 360
BATCH = 64


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 8 x 8 pixels from 0 to 1, [images, 64], and what they show, [images]."""
    labels, images = [], []
    for line in DIGITS.read_text().splitlines():
        label, pixels = line.split(" ")
        labels.append(int(label))
        images.append([int(pixel, 17) / 16 for pixel in pixels])
    return torch.tensor(images), torch.tensor(labels)


def known_sum() -> int:
    """Elements of a sum of known integers that come back wrong: there must be none."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ramp = torch.arange(100_000, dtype=torch.int32) % 1009
    tensor = ramp * (rank + 1)
    dist.all_reduce(tensor)
    return int((tensor != ramp * (world * (world + 1) // 2)).sum())


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> Any:
    """Losses by epoch, averaged over all ranks, and the seconds of each step of this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses, steps = [], []
    for epoch in range(epochs):
        # The same order everywhere; each rank takes its share of each batch.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros(2, dtype=torch.float64)
        for batch in order[: len(order) // BATCH * BATCH].split(BATCH):
            own = batch[rank * len(batch) // world : (rank + 1) * len(batch) // world]
            start = time.perf_counter()
            loss = nn.functional.cross_entropy(model(images[own]), labels[own])
            optimizer.zero_grad()
            loss.backward()  # gradients are averaged over all ranks meanwhile
            optimizer.step()
            steps.append(time.perf_counter() - start)
            total += torch.tensor([loss.item() * len(own), len(own)], dtype=torch.float64)
        # A loss and a count in one tensor: each is summed exactly, whatever stands beside it.
        dist.all_reduce(total)
        losses.append(float(total[0] / total[1]))
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.6f}")
    return losses, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="xdp-agg")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="where rank 0 writes what came of it, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels = load()
    dist.init_process_group(args.backend)
    layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model = nn.parallel.DistributedDataParallel(layers.append(nn.Linear(512, 10)))
    losses, steps = train(model, images[TEST_IMAGES:], labels[TEST_IMAGES:], args.epochs)
    with torch.no_grad():
        shown = model(images[:TEST_IMAGES]).argmax(dim=1)
    accuracy = float((shown == labels[:TEST_IMAGES]).float().mean())
    wrong = known_sum()
    if dist.get_rank() == 0:
        ours = args.backend == "xdp-agg"
        record = {
            "backend": args.backend,
            "world_size": dist.get_world_size(),
            "loss_by_epoch": losses,
            "accuracy": accuracy,
            "step_seconds": dict(
                zip(
                    ("q1", "median", "q3"),
                    statistics.quantiles(steps, n=4),
                    strict=True,
                )
            ),
            "steps": len(steps),
            "wrong": wrong,
            "stats": xdp_agg.torch.stats()["communicator"] if ours else {},
        }
        print(f"accuracy {accuracy:.4f}, {statistics.median(steps) * 1e3:.1f} ms a step")
        if args.out:
            args.out.write_text(json.dumps(record))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
