"""Data-parallel training with JAX: gradients are averaged inside of the compiled step.

Start an aggregator, and one process a worker; of two workers on one machine:

    xdp-agg serve --engine userspace --control 127.0.0.1:9870 --data-addr 127.0.0.1
    export XDP_AGG_ADDR=127.0.0.1 WORLD_SIZE=2
    RANK=1 python examples/jax_all_reduce.py & RANK=0 python examples/jax_all_reduce.py
"""

import jax
import jax.numpy as jnp
import xdp_agg.jax

Weights = dict[str, jax.Array]


def loss_of(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ weights["inner"]) @ weights["outer"] - y) ** 2)


@jax.jit
def step(weights: Weights, x: jax.Array, y: jax.Array) -> tuple[Weights, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    # One call for all leaves, and the loss with them.
    gradients, loss = xdp_agg.jax.all_reduce((gradients, loss), "mean")
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss


def main() -> None:
    comm = xdp_agg.jax.communicator()
    # The same weights at all workers, and data of each one's own.
    inner, outer = jax.random.split(jax.random.key(0))
    weights = {
        "inner": jax.random.normal(inner, (16, 64)) * 0.1,
        "outer": jax.random.normal(outer, (64, 4)) * 0.1,
    }
    x = jax.random.normal(jax.random.key(comm.rank + 1), (256, 16))
    y = jnp.sin(x[:, :4])

    for _ in range(50):
        weights, loss = step(weights, x, y)

    total = sum(float(jnp.sum(leaf)) for leaf in jax.tree.leaves(weights))
    print(f"rank {comm.rank} of {comm.world_size}: loss {float(loss):.6f}, weights {total:.9f}")
    comm.close()


if __name__ == "__main__":
    main()
