"""What launchers tell a process of its place in the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdp_agg import _xdp_agg
from xdp_agg._errors import Config


@dataclass(frozen=True)
class Place:
    """What was found, and what is wrong with it."""

    rank: int | None
    world_size: int | None
    #: In words.
    finding: str
    #: What to do; None: nothing is wrong.
    remedy: str | None
    #: It is wrong, not only missing.
    is_wrong: bool = False


def place(environ: Mapping[str, str]) -> Place:
    """A process's place by its environment, as the worker library reads it."""
    try:
        rank, world_size, local_rank, local_size, launcher = _xdp_agg._launch(dict(environ))
    except Config as error:
        return Place(None, None, str(error), "correct it, or unset it", True)
    if rank is None or world_size is None:
        names = (("RANK", rank), ("WORLD_SIZE", world_size))
        missing = " and ".join(name for name, value in names if value is None)
        remedy = (
            "start workers with torchrun, mpirun or srun, or give rank= and world_size= to "
            "Communicator"
        )
        return Place(rank, world_size, f"{missing} not set", remedy)
    source = "as torchrun sets it" if launcher == "torchrun" else f"from {launcher}"
    found = f"rank {rank} of {world_size} ({source})"
    if local_size is None:
        return Place(rank, world_size, found, None)
    found += f", local rank {local_rank} of {local_size}"
    return Place(rank, world_size, found, None)
