"""Traces and flight recordings, as Python programs and torchrun's have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import ROOT, Workers, binary


def events(file: Path) -> list[dict[str, object]]:
    """A trace's events. The bracket at its end may be missing."""
    text = file.read_text().rstrip()
    found = json.loads(text if text.endswith("]") else text + "]")
    assert isinstance(found, list)
    return found


def diagnose(files: list[Path]) -> dict[str, object]:
    """What `xdp-agg trace diagnose` says of the one job in these files."""
    command = [str(binary()), "trace", "diagnose", "--json", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)
    assert isinstance(job, dict)
    return job


def test_torchrun_with_a_trace(daemon: str, tmp_path: Path) -> None:
    """A job that torchrun started has a trace of each rank, with all calls of its backend."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(ROOT / "examples/ddp_digits.py"), "--epochs", "1"]
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("XDP_AGG_")}
    settings = {"XDP_AGG_ADDR": daemon, "XDP_AGG_TRACE": f"{tmp_path}/r%r.json"}
    done = subprocess.run(
        command,
        env=kept | settings | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = [tmp_path / "r0.json", tmp_path / "r1.json"]
    for file in files:
        found = events(file)
        begun = [event for event in found if event["ph"] == "B"]
        ended = [event for event in found if event["ph"] == "E"]
        assert len(begun) > 10
        assert len(begun) == len(ended)
        assert all(event["args"]["outcome"] == "done" for event in ended)  # type: ignore[index]
        assert found[-1]["name"] == "left"
    job = diagnose(files)
    assert job["world_size"] == 2
    assert (job["differs"], job["stopped"], job["hangs"]) == ([], [], [])


#: How a call's failure is told: it is raised, by a call or by a wait, or a function is called with
#: it, as PyTorch's backend has it.
FAILS = {
    "a call": "error = raised(lambda: communicator.all_reduce(array))",
    "a wait": "error = raised(communicator.start(array).wait)",
    "a function": """
ends = queue.Queue()
communicator._start(
    "all_reduce", "sum", array.ctypes.data, array.size, "f32", None, None,
    lambda error, report: ends.put(error), array,
)
error = ends.get(timeout=60)
""",
}


@pytest.mark.parametrize("way", FAILS)
def test_a_failed_call_names_its_recording(workers: Workers, tmp_path: Path, way: str) -> None:
    """The exception has a note with the file, which tells what each rank called."""
    script = f"""
import queue

def raised(call):
    try:
        call()
    except xdp_agg.CallMismatch as error:
        return error

communicator = xdp_agg.Communicator()
communicator.all_reduce(np.ones(100, np.float32))
assert '"call":0' in communicator.flight_recording()
assert communicator.flight_file is None
assert communicator.trace_file is None
array = np.ones(1000 + rank, np.float32)
{FAILS[way]}
assert isinstance(error, xdp_agg.CallMismatch), error
print("\\n".join(error.__notes__))
print(communicator.flight_file)
"""
    job_of = workers.start(script, env={"XDP_AGG_FLIGHT_DIR": str(tmp_path)})
    files = []
    for out in job_of.check():
        note, file = out.split("\n")[:2]
        assert note == f"the calls before it: xdp-agg trace diagnose {file}"
        files.append(Path(file))
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    job = diagnose(files)
    assert job["differs"]
