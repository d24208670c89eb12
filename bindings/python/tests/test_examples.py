"""The examples do what they say."""

from __future__ import annotations

import pytest

from tests.workers import ROOT, Workers


def run(workers: Workers, name: str, world_size: int = 2) -> list[list[str]]:
    """The lines that each worker of an example prints."""
    running = workers.run([str(ROOT / "examples" / name)], world_size)
    return [out.splitlines() for out in running.check(120)]


def test_numpy(workers: Workers) -> None:
    lines = run(workers, "numpy_all_reduce.py", 3)
    assert [one[0] for one in lines] == [
        f"rank {rank} of 3: {lines[0][0].split(': ')[1]}" for rank in range(3)
    ]
    assert lines[0][0].endswith("y = 3.001 x -1.001") or "y = 3.0" in lines[0][0]
    assert "over 3000 points, summed by userspace" in lines[0][1]
    assert "precision='exact'" in lines[0][1]


def test_numpy_over_xdp(xdp_network: Workers) -> None:
    lines = run(xdp_network, "numpy_all_reduce.py", 3)
    assert "summed by xdp" in lines[0][1]


def test_jax(workers: Workers) -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
    lines = run(workers, "jax_all_reduce.py")
    told = [one[0].split(": ")[1] for one in lines]
    assert told[0] == told[1]
    assert told[0].startswith("loss 0.")
