"""What launchers tell a process of its place in the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Variables that are read, the first that is set counts: as the worker library reads them.
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

_FAMILIES = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE"),
)


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
    """A process's place by its environment."""
    try:
        rank, world_size = _number(environ, RANK), _number(environ, WORLD_SIZE)
        local_rank, local_size = _number(environ, LOCAL_RANK), _number(environ, LOCAL_SIZE)
    except ValueError as error:
        return Place(None, None, str(error), "set it to a number, or unset it", True)
    if rank is None or world_size is None:
        return _missing(environ, rank, world_size)
    found = f"rank {rank} of {world_size} ({_source(environ)})"
    if not 0 <= rank < world_size:
        return Place(rank, world_size, found, "ranks count from 0, below WORLD_SIZE", True)
    if local_size is not None:
        found += f", local rank {local_rank} of {local_size}"
        if local_size < 1 or world_size % local_size or not 0 <= (local_rank or 0) < local_size:
            remedy = (
                "every host must have equally many processes, so that WORLD_SIZE is a multiple of "
                "LOCAL_WORLD_SIZE, or set XDP_AGG_IN_HOST=off"
            )
            return Place(rank, world_size, found, remedy, True)
    mixed = _mixed(environ)
    return Place(rank, world_size, found, mixed)


def _missing(environ: Mapping[str, str], rank: int | None, world_size: int | None) -> Place:
    missing = " and ".join(
        name for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)) if value is None
    )
    remedy = "start workers with torchrun or mpirun, or give rank= and world_size= to Communicator"
    if "SLURM_PROCID" in environ:
        remedy = (
            "SLURM's variables are not read: in the command of srun, "
            "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS"
        )
    return Place(rank, world_size, f"{missing} not set", remedy)


def _mixed(environ: Mapping[str, str]) -> str | None:
    """A rank of one launcher and a size of another."""
    rank = next(name for name in RANK if name in environ)
    size = next(name for name in WORLD_SIZE if name in environ)
    if RANK.index(rank) == WORLD_SIZE.index(size):
        return None
    return f"{rank} and {size} are of two launchers; unset one's variables"


def _source(environ: Mapping[str, str]) -> str:
    names = (name for name, rank, _ in _FAMILIES if rank in environ)
    first = next(names, "nobody")
    return "as torchrun sets it" if first == "torchrun" else f"from {first}"


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in environ:
            try:
                return int(environ[name])
            except ValueError:
                raise ValueError(f"{name}={environ[name]!r} is no number") from None
    return None
