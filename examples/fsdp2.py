"""Trains a small language model whose parameters are spread over all ranks, with FSDP2.

On each host, with an aggregator at 10.0.0.100:

    export XDP_AGG_ADDR=10.0.0.100
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29400 \\
        examples/fsdp2.py --replicas 2

With `--replicas 2` there are two whole models (HSDP): best one for each host, so that shards stay
inside, and gradients alone go through the network.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import xdp_agg.torch  # torch 2.14 and later find the backend without it
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

#: Numbers of a text, and the longest that the model looks at.
WORDS, LENGTH = 64, 32


class Layer(nn.Module):
    """Attention to what came before, and a network for each place."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.first_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.think(self.second_norm(x))
        return out


class Model(nn.Module):
    """Says of each word what comes next."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))
        self.out = nn.Linear(width, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places[: text.shape[1]]
        for layer in self.layers:
            x = layer(x)
        guess: Tensor = self.out(x)
        return guess


def texts(count: int, random: torch.Generator) -> Tensor:
    """Each word follows from the one before and from the text's own step."""
    first = torch.randint(WORDS, (count, 1), generator=random)
    step = torch.randint(1, 8, (count, 1), generator=random)
    return (first + step * torch.arange(LENGTH + 1)) % WORDS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="xdp-agg")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    if world % args.replicas:
        parser.error(f"{args.replicas} replicas of {world} ranks")
    shape = {"shard": world}
    if args.replicas > 1:
        shape = {"replicate": args.replicas, "shard": world // args.replicas}
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))

    torch.manual_seed(0)
    model = Model(args.width, args.layers)
    count = sum(parameter.numel() for parameter in model.parameters())
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    random = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        text = texts(16, random)
        guess = model(text[:, :-1])
        loss = functional.cross_entropy(guess.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0 or step + 1 == args.steps:
            mean = loss.detach() / world
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1}: loss {mean.item():.4f}", flush=True)

    # All of it at rank 0, to be saved.
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        gathered = sum(value.numel() for value in whole.values() if isinstance(value, Tensor))
        print(f"{gathered} of {count} parameters gathered")
    if args.backend == "xdp-agg":
        for name in shape:
            stats = xdp_agg.torch.stats(mesh.get_group(name))
            if rank == 0:
                print(f"group {name!r}: {stats['calls']} by {stats['engine']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
