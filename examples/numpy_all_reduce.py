"""The mean of an array over all workers, with NumPy.

Start an aggregator, and one process a worker; of two workers on one machine:

    xdp-agg serve --engine userspace --control 127.0.0.1:9870 --data-addr 127.0.0.1
    export XDP_AGG_ADDR=127.0.0.1 WORLD_SIZE=2
    RANK=1 python examples/numpy_all_reduce.py & RANK=0 python examples/numpy_all_reduce.py
"""

import numpy as np
import xdp_agg


def main() -> None:
    # Rank, world size and the aggregator's address are those of the environment.
    with xdp_agg.Communicator() as comm:
        # Each worker's own data: points of a line with noise of its own.
        random = np.random.default_rng(comm.rank)
        x = random.normal(size=1000)
        y = 3 * x - 1 + random.normal(scale=0.1, size=1000)

        # Gradient descent; the workers average their gradients, and so stay together.
        weights = np.zeros(2)
        for _ in range(100):
            error = weights[0] * x + weights[1] - y
            gradient = np.array([(error * x).mean(), error.mean()])
            comm.all_reduce(gradient, op="mean")
            weights -= 0.1 * gradient

        # Loss and count in one array: each element is exact by itself.
        told = np.array([np.square(error).sum(), len(x)])
        report = comm.all_reduce(told)
        loss = told[0] / told[1]
        print(f"rank {comm.rank} of {comm.world_size}: y = {weights[0]:.3f} x {weights[1]:+.3f}")
        if comm.rank == 0:
            print(f"loss {loss:.4f} over {told[1]:.0f} points, summed by {comm.engine}: {report}")


if __name__ == "__main__":
    main()
