"""Fixtures of all tests: a daemon, jobs of workers, and networks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import networks
from tests.workers import Workers, binary, serving


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    """Control address of a daemon that sums in user space, on loopback.

    Each module has its own: what one leaves behind is no other's trouble.
    """
    if not binary().exists():
        pytest.skip(f"no daemon at {binary()}: cargo build, or set XDP_AGG_BIN")
    arguments = ["--engine", "userspace", "--control", "127.0.0.1:0", "--data-port", "0"]
    # Room for the jobs of many tests at a time.
    arguments += ["--data-addr", "127.0.0.1", "--slots", "65536"]
    with serving(arguments) as address:
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
