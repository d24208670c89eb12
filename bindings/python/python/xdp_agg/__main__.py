"""``python -m xdp_agg``: tools for people who run workers."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict

import xdp_agg
from xdp_agg import _doctor, _xdp_agg

_PACKAGES = ("numpy", "torch", "jax", "ml_dtypes", "mpi4py")
_SECRET = ("XDP_AGG_TOKEN",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carries out a command; the exit status."""
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m xdp_agg", description="Tools for people who run workers of xdp-agg."
    )
    parser.add_argument("--version", action="version", version=f"xdp-agg {xdp_agg.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="what is wrong with this worker's way to the aggregator, and the cure",
        description="Looks at this worker's way to the aggregator, from the launcher's variables "
        "to a sum, and says how to mend what is wrong. ok: nothing to do. warn: it works, but "
        "slower, or could not be seen. fail: workers cannot run like this. The exit status is 0 "
        "if nothing fails, otherwise 1.",
    )
    doctor.add_argument(
        "--address",
        metavar="HOST[:PORT]",
        help="the daemon's control address; several, separated by commas [default: XDP_AGG_ADDR]",
    )
    doctor.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="longest time of each step [default: 5]",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(run=_run_doctor)
    info = commands.add_parser(
        "info",
        help="versions and settings, for reports of bugs",
        description="Prints versions and the variables that are read. Secrets are not shown.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_run_info)
    return parser


def _run_doctor(options: argparse.Namespace) -> int:
    checks = []
    for check in _doctor.examine(options.address, options.timeout):
        checks.append(check)
        if not options.json:
            mend = f" -> {check.remedy}" if check.remedy else ""
            print(f"{check.status:<4}  {check.subject}: {check.finding}{mend}", flush=True)
    ok = all(check.status != "fail" for check in checks)
    if options.json:
        print(json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}))
    return 0 if ok else 1


def _run_info(options: argparse.Namespace) -> int:
    info = {
        "xdp-agg": xdp_agg.__version__,
        "control protocol": _xdp_agg.CONTROL_VERSION,
        "extension": _xdp_agg.__file__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "variables": _variables(),
    }
    if options.json:
        print(json.dumps(info))
        return 0
    for name, value in info.items():
        if not isinstance(value, dict):
            print(f"{name}: {value}")
            continue
        print(f"{name}:")
        for key, item in value.items():
            print(f"  {key}: {'not installed' if item is None else item}")
    return 0


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _variables() -> dict[str, str]:
    names = sorted(
        name
        for name in os.environ
        if name.startswith("XDP_AGG_") or name in _xdp_agg.LAUNCHER_VARIABLES
    )
    return {name: "(set)" if name in _SECRET else os.environ[name] for name in names}


if __name__ == "__main__":
    sys.exit(main())
