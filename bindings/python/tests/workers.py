"""Daemons, and the workers of jobs as processes of their own, each with an end in bounded time."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Seconds until workers that have not ended are killed.
PATIENCE = 60.0
#: Arguments of a daemon that sums in user space, on loopback, at ports that are free.
LOOPBACK: tuple[str, ...] = (
    *("--engine", "userspace", "--control", "127.0.0.1:0"),
    *("--data-addr", "127.0.0.1", "--data-port", "0"),
)
#: The same, with room for the jobs of many tests at a time.
ROOMY = (*LOOPBACK, "--slots", "65536")

_numbers = itertools.count()


def binary() -> Path:
    """The daemon's program."""
    return Path(os.environ.get("XDP_AGG_BIN", ROOT / "target/debug/xdp-agg"))


def new_name(prefix: str = "job") -> str:
    """A name that no other test of this machine has."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True)
class Ended:
    """How a worker ended."""

    rank: int
    #: Exit status; below 0: the signal that killed it.
    code: int
    out: str
    err: str

    def check(self) -> Ended:
        """It ended well, and silently."""
        assert (self.code, self.err) == (0, ""), str(self)
        return self

    def __str__(self) -> str:
        return f"rank {self.rank} ended with {self.code}:\n{self.out}\n{self.err}"


@dataclass
class Running:
    """The workers of a job."""

    processes: list[subprocess.Popen[str]]
    _lines: dict[int, list[str]] = field(default_factory=dict)

    def line(self, rank: int = 0) -> str:
        """Waits for a worker's next line on standard output; its end fails the test."""
        stream = self.processes[rank].stdout
        assert stream is not None
        # The test's own time limit ends this, and the fixture kills the worker.
        text = stream.readline()
        if not text:
            raise AssertionError(f"no line more: {self.finish()[rank]}")
        self._lines.setdefault(rank, []).append(text)
        return text.rstrip("\n")

    def lines(self) -> list[str]:
        """The same of all workers, in the order of ranks."""
        return [self.line(rank) for rank in range(len(self.processes))]

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Sends a signal to a worker."""
        self.processes[rank].send_signal(number)

    def finish(self, timeout: float = PATIENCE) -> list[Ended]:
        """Waits for all workers; those that have not ended after ``timeout`` seconds are killed,
        with what Python was doing in their errors."""
        give_up = time.monotonic() + timeout
        ended = []
        for rank, process in enumerate(self.processes):
            try:
                out, err = process.communicate(timeout=max(0.1, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                # `faulthandler` of the preamble writes where it stands.
                process.send_signal(signal.SIGUSR1)
                time.sleep(0.5)
                process.kill()
                out, err = process.communicate()
                err += f"\nstill running after {timeout} s"
            out = "".join(self._lines.pop(rank, [])) + out
            ended.append(Ended(rank, process.returncode, out, err))
        return ended

    def check(self, timeout: float = PATIENCE) -> list[str]:
        """Waits for all workers to end well and silently; what they printed."""
        ended = self.finish(timeout)
        for one in ended:
            assert one.code == 0, "\n".join(map(str, ended))
        return [one.check().out for one in ended]

    def kill(self) -> None:
        """Ends what is left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


#: What every script of a worker begins with.
PREAMBLE = """\
import faulthandler, os, signal, sys, time
faulthandler.register(signal.SIGUSR1)
import numpy as np
import xdp_agg
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""


@dataclass
class Workers:
    """Starts workers of a daemon's jobs."""

    #: The daemon's control address.
    address: str
    #: What goes before each worker's command, by rank.
    prefixes: Sequence[Sequence[str]] = ()
    _all: list[Running] = field(default_factory=list)

    def start(
        self,
        script: str,
        world_size: int = 2,
        *arguments: str,
        env: Mapping[str, str] | None = None,
    ) -> Running:
        """Starts the workers of a new job, each with the script, after :data:`PREAMBLE`."""
        return self.run(["-c", PREAMBLE + script, *arguments], world_size, env=env)

    def run(
        self, command: Sequence[str], world_size: int = 2, *, env: Mapping[str, str] | None = None
    ) -> Running:
        """Starts the workers of a new job, each with these arguments of Python."""
        job = new_name()
        processes = []
        for rank in range(world_size):
            prefix = self.prefixes[rank] if self.prefixes else ()
            processes.append(
                subprocess.Popen(
                    [*prefix, sys.executable, *command],
                    env=self._environment(rank, world_size, job) | dict(env or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        running = Running(processes)
        self._all.append(running)
        return running

    def _environment(self, rank: int, world_size: int, job: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDP_AGG_", "LOCAL_", "OMPI_", "PMI_", "MPI_", "GROUP_"))
        }
        return kept | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "XDP_AGG_ADDR": self.address,
            "XDP_AGG_JOB": job,
            "XDP_AGG_JOIN_DEADLINE": "30",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }

    def kill(self) -> None:
        """Ends all workers that are left."""
        for running in self._all:
            running.kill()


@contextlib.contextmanager
def serving(arguments: Sequence[str], prefix: Sequence[str] = ()) -> Iterator[str]:
    """A daemon, until the context ends; its control address."""
    command = [*prefix, str(binary()), "serve", *arguments]
    # A pipe that nobody reads would stop it when its log has filled it.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready "):
                process.kill()
                process.wait()
                log.seek(0)
                raise AssertionError(f"no daemon: {line}{log.read()}")
            words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
            yield words["control"]
        finally:
            process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
