"""Networks of namespaces with a daemon that sums by XDP; they need root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

from tests.workers import Workers, new_name, serving

DAEMON = "10.99.0.100"


def why_not() -> str | None:
    """Why there can be no network here; None: there can."""
    if os.geteuid() != 0:
        return "networks of namespaces need root"
    missing = [tool for tool in ("ip", "nsenter", "ethtool") if shutil.which(tool) is None]
    return f"{', '.join(missing)} not found (Debian: iproute2, ethtool)" if missing else None


def run(*command: str) -> None:
    """Runs a tool; its failure fails the test."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _inside(namespace: str) -> list[str]:
    # Not `ip netns exec`, which mounts another /sys.
    return ["nsenter", f"--net=/run/netns/{namespace}"]


@contextlib.contextmanager
def network(hosts: int) -> Iterator[Workers]:
    """A bridge with a daemon beside it, and this number of hosts, each in a namespace of its own.

    The daemon's host has the bridge; the XDP program is attached to its ports.
    """
    center = new_name("xdpagg")
    names = [f"{center}-h{host}" for host in range(hosts)]
    with contextlib.ExitStack() as stack:
        for name in (center, *names):
            run("ip", "netns", "add", name)
            # With a namespace go its interfaces, and the ends of its pairs elsewhere.
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False, timeout=30)
        run("ip", "-n", center, "link", "set", "lo", "up")
        run("ip", "-n", center, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", center, "addr", "add", f"{DAEMON}/24", "dev", "br0")
        run("ip", "-n", center, "link", "set", "br0", "up")
        ports = [_connect(center, name, host) for host, name in enumerate(names)]
        arguments = [argument for port in ports for argument in ("--interface", port)]
        arguments += ["--engine", "xdp", "--data-addr", DAEMON, "--control", f"{DAEMON}:9870"]
        address = stack.enter_context(serving(arguments, _inside(center)))
        workers = Workers(address, [_inside(name) for name in names])
        stack.callback(workers.kill)
        yield workers


def _connect(center: str, host: str, number: int) -> str:
    """Connects a host to the bridge; the bridge's port."""
    port = f"p{number}"
    peer = ["type", "veth", "peer", "name", "eth0", "netns", host]
    run("ip", "-n", center, "link", "add", port, *peer)
    run("ip", "-n", center, "link", "set", port, "master", "br0", "up")
    run("ip", "-n", host, "link", "set", "lo", "up")
    run("ip", "-n", host, "addr", "add", f"10.99.0.{number + 1}/24", "dev", "eth0")
    run("ip", "-n", host, "link", "set", "eth0", "up")
    # Else its end of the pair drops what an XDP program sends.
    run(*_inside(host), "ethtool", "-K", "eth0", "gro", "on")
    return port
