"""The examples for PyTorch learn something; one of them with the launcher that people use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import torch_ranks
from tests.workers import ROOT

pytest.importorskip("torch")

EXAMPLES = ROOT / "examples"


def run(daemon: str, name: str, arguments: list[str], world: int = 2) -> str:
    """What rank 0 of an example prints."""
    script = f"""
import runpy
sys.argv = {[name, *arguments]!r}
runpy.run_path({str(EXAMPLES / name)!r}, run_name="__main__")
"""
    return torch_ranks.run(daemon, script, world)[0].out


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", text)]


def test_digits_with_torchrun(daemon: str, tmp_path: Path) -> None:
    out = tmp_path / "digits.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(EXAMPLES / "ddp_digits.py")]
    command += ["--epochs", "3", "--out", str(out)]
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("XDP_AGG_")}
    done = subprocess.run(
        command,
        env=kept | {"XDP_AGG_ADDR": daemon, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert record["world_size"] == 2
    assert record["wrong"] == 0
    assert record["accuracy"] > 0.8
    assert record["loss_by_epoch"][-1] < record["loss_by_epoch"][0] < 3
    assert record["stats"]["gradient_calls"] >= record["steps"]


@pytest.mark.parametrize("more", [[], ["--backend", "gloo", "--hook", "16-bit"]])
def test_resnet(daemon: str, more: list[str]) -> None:
    small = ["--steps", "20", "--width", "8", "--batch", "8", *more]
    text = run(daemon, "ddp_resnet.py", small)
    assert len(losses(text)) == 2, text
    assert "pictures a second" in text


def test_fsdp2(daemon: str) -> None:
    text = run(daemon, "fsdp2.py", ["--steps", "20", "--width", "64", "--layers", "2"])
    found = losses(text)
    assert found[1] < found[0] < 4.2, text
    count, of = re.findall(r"(\d+) of (\d+) parameters gathered", text)[0]
    assert count == of
    assert "by xdp-agg" in text
    assert "gloo" not in text


@pytest.mark.skipif(
    torch_ranks.version() < (2, 8), reason="torch 2.7's fully_shard wants a GPU for replicas"
)
def test_fsdp2_with_replicas(daemon: str) -> None:
    small = ["--steps", "10", "--width", "64", "--layers", "2", "--replicas", "2"]
    text = run(daemon, "fsdp2.py", small, 4)
    assert len(losses(text)) == 1, text
    assert text.count("by xdp-agg") == 2, text
