"""Ranks of PyTorch jobs: children of one process that has imported PyTorch already.

To import it takes seconds, and a test has two to four ranks. So a process that has done it waits
for scripts, and forks a child for each rank: before there is any thread, so that the child is as
good as a new one. Tests of how processes start and end start their own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.workers import Ended

#: Seconds until ranks that have not ended are killed.
PATIENCE = 60.0
_CLONE_NEWNET = 0x40000000

#: What scripts find: `rank`, `world`, and these.
PREAMBLE = """
import contextlib, os, sys, time, warnings
from datetime import timedelta
import torch, torch.distributed as dist, torch.nn as nn
import xdp_agg, xdp_agg.torch
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(rank)

store = None

def begin(backend="xdp-agg", timeout=30, **more):
    # One for all groups: rank 0 could not make its second one before the others leave the first.
    global store
    if store is None:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, world, rank == 0, timedelta(seconds=30))
    timeout = timedelta(seconds=timeout)
    dist.init_process_group(backend, None, timeout, world, rank, store, **more)
    return dist.group.WORLD

@contextlib.contextmanager
def raises(*kinds):
    began = time.monotonic()
    caught = []
    try:
        yield caught
    except kinds as error:
        caught.append(error)
        took = time.monotonic() - began
        assert took < 15, f"it took {took:.1f} s: {error}"
    else:
        raise AssertionError(f"no {kinds} was raised")
"""


def version() -> tuple[int, int]:
    """Of PyTorch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def run(
    address: str,
    script: str,
    world: int = 2,
    *,
    env: Mapping[str, str] | None = None,
    prefixes: Sequence[Sequence[str]] = (),
    master: str = "127.0.0.1",
    timeout: float = PATIENCE,
    lost: Sequence[int] = (),
    to_the_end: bool = False,
    as_they_will: bool = False,
    stopped: int | None = None,
) -> list[Ended]:
    """Runs a script at all ranks; how they ended. All but the `lost` ones must have ended well.

    `prefixes` are those of `tests.networks`: ranks run in the namespaces that they name. A lost
    rank may end as it will; if it is still there when the others have ended, it is killed.
    `to_the_end`: exceptions reach the interpreter, which takes itself to pieces, in some seconds.
    `as_they_will`: how they ended is not looked at. `stopped` goes on when the others have ended.
    """
    ended = _Parent.get().run(
        {
            "script": PREAMBLE + script,
            "ranks": [
                _environment(address, rank, world, master) | dict(env or {})
                for rank in range(world)
            ],
            "namespaces": [_namespace(prefix) for prefix in prefixes],
            "timeout": timeout,
            "lost": list(lost),
            "stopped": stopped,
            "to_the_end": to_the_end,
        }
    )
    for one in ended:
        if one.rank not in lost and not as_they_will:
            assert one.code == 0, "\n".join(map(str, ended))
    return ended


def _environment(address: str, rank: int, world: int, master: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "XDP_AGG_ADDR": address,
        "MASTER_ADDR": master,
        "MASTER_PORT": str(free_port()),
    }


def free_port() -> int:
    """A TCP port that nobody listens at. Ranks of one job get the same."""
    if not _ports:
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", 0))
                _ports.append(probe.getsockname()[1])
    return _ports[0]


_ports: list[int] = []


def _namespace(prefix: Sequence[str]) -> str:
    (path,) = [word.partition("=")[2] for word in prefix if word.startswith("--net=")]
    return path


class _Parent:
    """The process that forks ranks."""

    _only: _Parent | None = None

    def __init__(self) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDP_AGG_", "LOCAL_", "GROUP_", "TORCH", "RANK", "WORLD_SIZE"))
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.torch_ranks"],
            cwd=Path(__file__).parents[1],
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.process.kill)

    @classmethod
    def get(cls) -> _Parent:
        if cls._only is None or cls._only.process.poll() is not None:
            cls._only = cls()
        return cls._only

    def run(self, request: dict[str, Any]) -> list[Ended]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        with tempfile.TemporaryDirectory(prefix="xdp-agg-ranks-") as directory:
            request["directory"] = directory
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
            _ports.pop(0)
            assert line, "the process that forks ranks has ended"
            codes: list[int] = json.loads(line)
            read = Path(directory).joinpath
            return [
                Ended(rank, code, read(f"{rank}.out").read_text(), read(f"{rank}.err").read_text())
                for rank, code in enumerate(codes)
            ]


# --- what follows runs in the process that forks


def _serve() -> None:
    import numpy  # noqa: F401
    import xdp_agg.torch  # noqa: F401

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for rank in range(len(request["ranks"])):
            pid = os.fork()
            if pid == 0:
                replies.close()
                _be_rank(request, rank)
            children.append(pid)
        codes = _wait(children, request)
        replies.write(json.dumps(codes) + "\n")
        replies.flush()


def _be_rank(request: dict[str, Any], rank: int) -> NoReturn:
    """Runs the script, and ends as a process does that has done nothing else."""
    import faulthandler

    for name in ("out", "err"):
        file = os.open(f"{request['directory']}/{rank}.{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, 1 if name == "out" else 2)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = io.StringIO()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    os.environ.update(request["ranks"][rank])
    if request["namespaces"]:
        with open(request["namespaces"][rank]) as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
    code = 0
    if request["to_the_end"]:
        exec(compile(request["script"], "<script>", "exec"), {"__name__": "__main__"})
        raise SystemExit
    try:
        exec(compile(request["script"], "<script>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        _show(request["script"])
        code = 1
    # What a process does at its end, but for the interpreter's.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _show(script: str) -> None:
    """Prints the lines of the script that the exception came from."""
    lines = script.splitlines()
    for frame in traceback.extract_tb(sys.exc_info()[2]):
        if frame.filename == "<script>" and frame.lineno:
            print(f"  line {frame.lineno}: {lines[frame.lineno - 1]}", file=sys.stderr)


def _wait(children: list[int], request: dict[str, Any]) -> list[int]:
    """Waits for the children; below 0: the signal that killed one."""
    codes: dict[int, int] = {}
    give_up = time.monotonic() + request["timeout"]
    asked = False
    while len(codes) < len(children):
        for rank, pid in enumerate(children):
            if rank not in codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        left = [rank for rank in range(len(children)) if rank not in codes]
        if left and all(rank in request["lost"] for rank in left):
            for rank in left:
                os.kill(children[rank], signal.SIGKILL)
        elif time.monotonic() > give_up:
            for rank in left:
                # First what Python is doing, then the end.
                os.kill(children[rank], signal.SIGKILL if asked else signal.SIGUSR1)
            asked, give_up = True, time.monotonic() + 1
        elif left == [request["stopped"]]:
            os.kill(children[left[0]], signal.SIGCONT)
        select.select([], [], [], 0.01)
    return [codes[rank] for rank in range(len(children))]


if __name__ == "__main__":
    _serve()
