"""Fixtures of all tests: a daemon, jobs of workers, and networks."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests import networks
from tests.workers import ROOMY, Workers, binary, serving

# A shell has background jobs ignore it, and so would their children: workers do not hear Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    """Control address of a daemon that sums in user space, on loopback.

    Each module has its own: what one leaves behind is no other's trouble.
    """
    if not binary().exists():
        pytest.skip(f"no daemon at {binary()}: cargo build, or set XDP_AGG_BIN")
    with serving(ROOMY) as address:
        yield address


@pytest.fixture
def workers(daemon: str) -> Iterator[Workers]:
    """Starts workers of jobs at the daemon, and ends what is left of them."""
    all_of_them = Workers(daemon)
    yield all_of_them
    all_of_them.kill()


@pytest.fixture(scope="module")
def xdp_network() -> Iterator[Workers]:
    """Starts workers in namespaces, whose daemon sums by XDP: jobs of up to three."""
    if reason := networks.why_not():
        pytest.skip(reason)
    if not binary().exists():
        pytest.skip(f"no daemon at {binary()}: cargo build, or set XDP_AGG_BIN")
    with networks.network(3) as workers:
        yield workers
