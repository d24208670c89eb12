"""`python -m xdp_agg`: what is found, and the exit status."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest
import xdp_agg
from xdp_agg import _launcher, _network
from xdp_agg.__main__ import main

from tests import networks
from tests.workers import LOOPBACK, Workers, serving


def tool(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command with nothing in the environment but what is given."""
    names = ("PATH", "LD_LIBRARY_PATH", "HOME")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "xdp_agg", *arguments],
        env=kept | dict(env or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def doctor(*arguments: str, env: Mapping[str, str] | None = None) -> dict[str, dict[str, str]]:
    """The checks by their subjects."""
    done = tool("doctor", "--json", "--timeout", "3", *arguments, env=env)
    assert not done.stderr, done.stderr
    found = json.loads(done.stdout)
    checks = {check["subject"]: check for check in found["checks"]}
    assert found["ok"] == all(check["status"] != "fail" for check in checks.values())
    assert done.returncode == (0 if found["ok"] else 1)
    # Whatever is wrong has a cure.
    assert all(check["remedy"] for check in checks.values() if check["status"] != "ok"), checks
    return checks


def test_a_good_worker(daemon: str) -> None:
    checks = doctor(env={"XDP_AGG_ADDR": daemon, "RANK": "1", "WORLD_SIZE": "2"})
    bad = {name: check for name, check in checks.items() if check["status"] == "fail"}
    assert not bad
    assert list(checks) == [
        "launcher",
        "receive buffer",
        "address",
        "route",
        "MTU",
        "GRO",
        "control port",
        "daemon's version",
        "data path",
    ]
    assert checks["launcher"]["finding"].startswith("rank 1 of 2")
    assert "over lo" in checks["route"]["finding"]
    assert "userspace" in checks["data path"]["finding"]


def test_lines_for_people(daemon: str) -> None:
    done = tool("doctor", "--address", daemon)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert all(line[:6] in ("ok    ", "warn  ", "fail  ") for line in lines), lines
    assert "warn  launcher: RANK and WORLD_SIZE not set -> start workers with" in done.stdout


def test_no_address() -> None:
    checks = doctor()
    assert checks["address"]["status"] == "fail"
    assert "XDP_AGG_ADDR" in checks["address"]["finding"]
    assert doctor(env={"MASTER_ADDR": "a"})["address"]["status"] == "warn"
    assert doctor(env={"XDP_AGG_TOPOLOGY": "a"})["address"]["status"] == "warn"
    for wrong in ("no such host", "127.0.0.1:port", "127.0.0.1:99999999"):
        assert doctor("--address", wrong)["address"]["status"] == "fail"


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    checks = doctor("--address", f"127.0.0.1:{port}")
    assert checks["control port"]["status"] == "fail"
    assert f"TCP {port}" in checks["control port"]["remedy"]
    assert "data path" not in checks


@pytest.fixture
def stranger() -> Iterator[list[bytes]]:
    """Answers each connection with what is in the list; the port is its last element."""
    answers: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answers.append(str(listener.getsockname()[1]).encode())

        def answer() -> None:
            with listener.accept()[0] as peer:
                peer.recv(1000)
                peer.sendall(answers[0])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield answers
        thread.join(5)


def frame(message: object) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("answer", "finding", "remedy"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "another protocol", "control port"),
        (b"\0\0\0\2{x", "no JSON", "control port"),
        (b"\0\0", "closed without an answer", "XDP_AGG_TLS_CA"),
        (frame({"type": "done"}), "an answer that is none", "control port"),
        (
            frame({"type": "error", "body": {"code": "unauthorised", "message": "who?"}}),
            "who?",
            "XDP_AGG_TOKEN",
        ),
        (
            frame({"type": "error", "body": {"code": "version", "message": "old"}}),
            "old",
            "same release",
        ),
    ],
)
def test_strangers_answer(stranger: list[bytes], answer: bytes, finding: str, remedy: str) -> None:
    port = stranger[-1].decode()
    stranger.insert(0, answer)
    check = doctor("--address", f"127.0.0.1:{port}")["control port"]
    assert check["status"] == "fail"
    assert finding in check["finding"], check
    assert remedy in check["remedy"], check


def test_a_daemon_of_another_release(stranger: list[bytes]) -> None:
    port = stranger[-1].decode()
    body = {"version": 6, "agent": "xdp-agg 0.0.9", "engine": "userspace"}
    stranger.insert(0, frame({"type": "welcome", "body": body}))
    checks = doctor("--address", f"127.0.0.1:{port}")
    assert checks["daemon's version"]["status"] == "fail"
    assert "xdp-agg 0.0.9, control protocol 6" in checks["daemon's version"]["finding"]
    assert "0.1.0" in checks["daemon's version"]["remedy"]


def test_a_token_is_shown_to_the_daemon(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text("sesame-open-sesame\n")
    path.chmod(0o600)
    with serving([*LOOPBACK, "--token-file", str(path)]) as address:
        refused = doctor("--address", address)
        assert refused["control port"]["status"] == "fail"
        assert "XDP_AGG_TOKEN" in refused["control port"]["remedy"]
        for env in ({"XDP_AGG_TOKEN": "sesame-open-sesame"}, {"XDP_AGG_TOKEN_FILE": str(path)}):
            checks = doctor("--address", address, env=env)
            assert checks["data path"]["status"] == "ok", checks
        with xdp_agg.Communicator(
            address, rank=0, world_size=1, token="sesame-open-sesame"
        ) as comm:
            comm.barrier()


def test_in_a_network(xdp_network: Workers) -> None:
    worker = list(xdp_network.prefixes[0])

    def check() -> dict[str, dict[str, str]]:
        command = [*worker, sys.executable, "-m", "xdp_agg", "doctor", "--json"]
        command += ["--address", xdp_network.address, "--timeout", "3"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return {check["subject"]: check for check in json.loads(done.stdout)["checks"]}

    checks = check()
    assert "over eth0" in checks["route"]["finding"]
    assert checks["MTU"]["finding"].startswith("1500 bytes of eth0")
    assert checks["GRO"]["finding"] == "on, at eth0"
    assert "went through xdp" in checks["data path"]["finding"]
    try:
        networks.run(*worker, "ethtool", "-K", "eth0", "gro", "off")
        checks = check()
        assert checks["GRO"]["status"] == "fail"
        assert "ethtool -K eth0 gro on" in checks["GRO"]["remedy"]
    finally:
        networks.run(*worker, "ethtool", "-K", "eth0", "gro", "on")
    networks.run(*worker, "ip", "link", "set", "eth0", "mtu", "1000")
    try:
        assert check()["MTU"]["status"] == "warn"
    finally:
        networks.run(*worker, "ip", "link", "set", "eth0", "mtu", "1500")
    command = [*worker, "ip", "link", "set", "eth0"]
    networks.run(*command, "down")
    try:
        assert check()["route"]["status"] == "fail"
    finally:
        networks.run(*command, "up")


@pytest.mark.parametrize(
    ("environ", "finding", "is_wrong"),
    [
        ({}, "RANK and WORLD_SIZE not set", False),
        ({"RANK": "1"}, "WORLD_SIZE not set", False),
        ({"RANK": "one", "WORLD_SIZE": "2"}, 'RANK: "one" is not a number from 0 to 65535', True),
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            "RANK: rank 2, with WORLD_SIZE=2; ranks count from 0",
            True,
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, "rank 1 of 4 (from MPICH)", False),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"},
            "rank 1 of 4 (as torchrun sets it), local rank 1 of 3",
            False,
        ),
    ],
)
def test_places(environ: dict[str, str], finding: str, is_wrong: bool) -> None:
    place = _launcher.place(environ)
    assert place.finding == finding
    assert place.is_wrong == is_wrong


def test_places_that_are_mixed() -> None:
    others = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    mixed = _launcher.place({"RANK": "1", **others})
    assert mixed.is_wrong
    assert "another run" in mixed.finding
    slurm = _launcher.place({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    assert slurm.finding == "rank 0 of 2 (from SLURM)"


def test_what_the_kernel_says() -> None:
    assert _network.route_to("127.0.0.1") == _network.Route("lo", "127.0.0.1", None)
    assert _network.interface_mtu("lo") == 65536
    assert _network.has_gro("no such if") is None
    assert _network.receive_buffer(1 << 16) >= 1 << 16


def test_info(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDP_AGG_TOKEN", "secret")
    monkeypatch.setenv("XDP_AGG_JOB", "mine")
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert f"xdp-agg: {xdp_agg.__version__}" in shown
    assert "secret" not in shown
    assert "XDP_AGG_JOB: mine" in shown
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variables"]["XDP_AGG_TOKEN"] == "(set)"


def test_usage() -> None:
    assert tool().returncode == 2
    assert tool("nurse").returncode == 2
    for arguments in ([], ["doctor"], ["info"]):
        helped = tool(*arguments, "--help")
        assert helped.returncode == 0
        assert "usage: python -m xdp_agg" in helped.stdout
    assert tool("--version").stdout == f"xdp-agg {xdp_agg.__version__}\n"
