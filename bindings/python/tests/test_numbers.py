"""Random tensors against exact sums: the promise of each precision holds, of every type.

``XDP_AGG_NUMBERS=1000000 cargo xtask python tests/test_numbers.py`` makes a million calls.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.workers import Workers

SCRIPT = Path(__file__).with_name("random_sums.py")
CALLS = int(os.environ.get("XDP_AGG_NUMBERS", "3000"))


@pytest.mark.timeout(60 + CALLS // 100)
@pytest.mark.parametrize("world_size", [2, 4])
def test_random_tensors_keep_the_promise(workers: Workers, world_size: int) -> None:
    running = workers.run([str(SCRIPT), str(CALLS // 2), str(world_size)], world_size)
    reports = [json.loads(text) for text in running.check(timeout=30 + CALLS / 100)]
    for report in reports:
        assert report["calls"] == CALLS // 2
        assert report["redone"] > 0
        for kind, worst in report["worst_ulp"].items():
            assert worst <= 1, (kind, worst)
    print(json.dumps(reports[0]))


def test_a_loss_a_count_and_a_rate_in_one_tensor(workers: Workers) -> None:
    """They came back as 9.375, 5000000 and 0 when everything was scaled by the largest."""
    script = """
comm = xdp_agg.Communicator()
values = np.array([2.3456789, 1.25e6, 0.0017], dtype=np.float32)
summed = values.copy()
comm.all_reduce(summed, op="sum")
assert np.array_equal(summed, values * 4), summed
for spoiled in (np.inf, np.nan):
    large = np.linspace(-1, 1, 100_000, dtype=np.float32)
    large[12345] = spoiled if rank == 0 else 1.0
    comm.all_reduce(large)
    assert np.isfinite(large).sum() == 99_999, np.isfinite(large).sum()
# One rank's integer is too large for four of them to fit: the sum wraps, and the job goes on.
whole = np.array([1_000_000_000 if rank == 0 else 2_000_000_000], dtype=np.int32)
comm.all_reduce(whole)
assert whole[0] == np.int64(7_000_000_000).astype(np.int32), whole
comm.close()
"""
    workers.start(script, 4).check()
