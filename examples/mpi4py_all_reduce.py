"""A communicator of the processes that mpirun has started: no address book, no variables.

Start an aggregator, and the workers by MPI:

    xdp-agg serve --engine userspace --control 127.0.0.1:9870 --data-addr 127.0.0.1
    XDP_AGG_ADDR=127.0.0.1 mpirun -n 2 python examples/mpi4py_all_reduce.py

Without mpirun it is a job of one process.
"""

import numpy as np
import xdp_agg
from mpi4py import MPI


def main() -> None:
    world = MPI.COMM_WORLD
    # Rank and size are MPI's; rank 0's name for the job goes to the others by MPI.
    with xdp_agg.Communicator.from_mpi(world) as comm:
        array = np.full(1_000_000, comm.rank + 1, dtype="float32")
        comm.all_reduce(array)
        expected = comm.world_size * (comm.world_size + 1) / 2
        right = bool((array == expected).all())
        # MPI goes on beside it.
        all_right = world.allreduce(right, op=MPI.LAND)
        print(f"rank {comm.rank} of {comm.world_size}: {array[0]:g}, right everywhere: {all_right}")


if __name__ == "__main__":
    main()
