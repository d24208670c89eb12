"""Trains a small ResNet on pictures that are made up, with DDP.

On each host, with an aggregator at 10.0.0.100:

    export XDP_AGG_ADDR=10.0.0.100
    torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST0:29400 \\
        examples/ddp_resnet.py

`--hook` keeps the backend for all else, and has the gradients alone go through the aggregator:
beside NCCL, say, with `--backend nccl --hook hierarchical`.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import xdp_agg.torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
SIZE = 32


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            shrink = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.around = nn.Sequential(shrink, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + self.around(x))


def resnet(width: int) -> nn.Module:
    """Eight blocks, as in ResNet18, for pictures of 32 x 32."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inside = width
    for stage in range(4):
        outside = width << stage
        for block in range(2):
            layers.append(Block(inside, outside, 2 if stage and not block else 1))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


def pictures(count: int, random: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Stripes, whose direction and distance say the class, in noise."""
    labels = torch.randint(CLASSES, (count,), generator=random)
    angle = labels.float().mul(torch.pi / CLASSES)[:, None, None]
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    phase = torch.rand(count, 1, 1, generator=random) * 6
    stripes = torch.sin((x * torch.cos(angle) + y * torch.sin(angle)) * 0.8 + phase)
    noise = torch.randn(count, 3, SIZE, SIZE, generator=random)
    return (stripes[:, None] + 0.5 * noise).to(device), labels.to(device)


def hook_up(model: nn.parallel.DistributedDataParallel, hook: str) -> None:
    """Has the gradients go through the aggregator, whatever the backend is."""
    if hook == "hierarchical":
        state = xdp_agg.torch.State()
        model.register_comm_hook(state, xdp_agg.torch.hierarchical_hook)
    elif hook != "none":
        state = xdp_agg.torch.State(compression="16-bit" if hook == "16-bit" else None)
        model.register_comm_hook(state, xdp_agg.torch.allreduce_hook)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="xdp-agg")
    hooks = ["none", "allreduce", "16-bit", "hierarchical"]
    parser.add_argument("--hook", choices=hooks, default="none")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="pictures of a rank in a step")
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage")
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    on_gpu = torch.accelerator.is_available()
    device = torch.device("cpu")
    if on_gpu:
        index = dist.get_node_local_rank(fallback_rank=0)
        torch.accelerator.set_device_index(index)
        device = torch.device(f"{torch.accelerator.current_accelerator()}:{index}")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(resnet(args.width).to(device))
    hook_up(model, args.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    random = torch.Generator().manual_seed(rank)
    seconds = []
    for step in range(args.steps):
        images, labels = pictures(args.batch, random, device)
        start = time.perf_counter()
        output = model(images)
        loss = functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()  # buckets are averaged meanwhile
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        if (step + 1) % 10 == 0 or step + 1 == args.steps:
            right = (output.argmax(1) == labels).sum()
            told = torch.stack([loss.detach() * len(labels), right, torch.tensor(len(labels))])
            told = told.double().to(device)
            dist.all_reduce(told)
            if rank == 0:
                mean, share = (told[:2] / told[2]).tolist()
                print(f"step {step + 1}: loss {mean:.4f}, {share:.1%} right", flush=True)
    if rank == 0:
        pace = statistics.median(seconds)
        print(f"{pace * 1e3:.1f} ms a step, {args.batch * world / pace:.0f} pictures a second")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
