"""Ranks that are killed, stopped, interrupted, that differ, leave or forget, at random moments.

Whatever it is: an exception that names it, or a clean end; no abort, no hang, no wrong number.

`XDP_AGG_TIMES` says how often. The number in a test's name is the seed of its moment, its loop,
and, with the fault, of where the ranks are: on hosts of their own, all on one, or on two.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time

import pytest

from tests import faults, networks, torch_ranks
from tests.workers import Running, Workers

TIMES = int(os.environ.get("XDP_AGG_TIMES", "1"))
#: Seconds until a run hangs: calls and joins have ended by then.
PATIENCE = 120.0
#: Processes of a host.
PLACES = (1, faults.WORLD, 2)

everywhere = pytest.mark.parametrize("fault", faults.FAULTS)
often = pytest.mark.parametrize("seed", range(TIMES))


def _place(request: pytest.FixtureRequest, fault: str, seed: int) -> tuple[Workers, int]:
    """Where the ranks are, and how many processes a host has."""
    per_host = PLACES[(seed + faults.FAULTS.index(fault)) % len(PLACES)]
    if per_host != 2:
        return request.getfixturevalue("workers"), per_host
    if networks.why_not():
        return request.getfixturevalue("workers"), faults.WORLD
    network = request.getfixturevalue("xdp_network")
    return Workers(network.address, [network.prefixes[host] for host in (0, 0, 1, 1)]), per_host


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@often
@everywhere
def test_torch(request: pytest.FixtureRequest, fault: str, seed: int) -> None:
    workers, per_host = _place(request, fault, seed)
    given = faults.environment(fault, "torch", seed)
    ended = torch_ranks.run(
        workers.address,
        faults.script(faults.TORCH),
        faults.WORLD,
        env=given | {"XDP_AGG_IN_HOST": "off" if per_host == 1 else "on"},
        prefixes=workers.prefixes,
        master="10.99.0.1" if workers.prefixes else "127.0.0.1",
        timeout=PATIENCE,
        to_the_end=True,
        as_they_will=True,
        stopped=int(given["CULPRIT"]) if fault == "stopped" else None,
    )
    faults.judge(fault, given, ended)


@often
@everywhere
def test_bare(request: pytest.FixtureRequest, fault: str, seed: int) -> None:
    workers, per_host = _place(request, fault, seed)
    given = faults.environment(fault, "bare", seed)
    running = workers.start(
        f"os.environ.update(LOCAL_RANK=str(rank % {per_host}), LOCAL_WORLD_SIZE='{per_host}')\n"
        + faults.script(faults.NUMPY),
        faults.WORLD,
        env=given,
    )
    try:
        if fault == "stopped":
            _wake(running, int(given["CULPRIT"]))
        faults.judge(fault, given, running.finish(PATIENCE))
    finally:
        running.kill()


def _wake(running: Running, culprit: int) -> None:
    """Lets the one that was stopped go on when all others have ended."""
    give_up = time.monotonic() + PATIENCE
    others = [one for rank, one in enumerate(running.processes) if rank != culprit]
    while any(one.poll() is None for one in others) and time.monotonic() < give_up:
        time.sleep(0.02)
    running.signal(culprit, signal.SIGCONT)
