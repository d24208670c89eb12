"""Points PyTorch's own tests of process groups at xdp-agg, and says what became of each.

usage: python -m tests.torch_upstream [--file PATH] [PATTERN ...]

Without `--file` these are the tests in PyTorch's wheel, of collectives and of DDP. With it they are
those of a file of PyTorch's repository, of the same version, such as
`test/distributed/_composable/fsdp/test_fully_shard_training.py`. `--backend gloo` shows what a test
does without xdp-agg. Needs a daemon's program, as all tests do: `XDP_AGG_BIN`.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import os
import re
import sys
import tempfile
import textwrap
import time
import types
import unittest
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from tests.workers import ROOMY, binary, serving

OURS = "xdp-agg"
#: The class of the wheel's tests.
WHEEL = "TestXdpAgg"
#: How long a test may take, in seconds.
PATIENCE = 120
_HOLDER = "PyTorch hides all of a Python backend's work but wait and get_future"
_DEVICE = "asks a group for a device of gloo's"
_MONITORED = "PyTorch refuses it to all backends but gloo"
_TORCH = tuple(int(part) for part in version("torch").split(".")[:2])

#: Tests that cannot pass, for a reason that lies in PyTorch or in what gloo alone has.
NOT_APPLICABLE: dict[str, str] = {
    "test_ddp_logging_data_cpu": 'PyTorch\'s log calls every backend but its own "custom"',
    "test_isend*": _HOLDER,
    "test_irecv": _HOLDER,
    **({"test_monitored_barrier*": _MONITORED} if _TORCH < (2, 15) else {}),
    "test_send_recv_any_source*": _HOLDER,
    # Of test_c10d_gloo.py.
    "CommTest.test_broadcast_coalesced_gloo_cpu": _DEVICE,
    "DistributedDataParallelTest.test_gloo_backend_cpu_module*": _DEVICE,
    "GlooProcessGroupWithDispatchedCollectivesTests.test_monitored_barrier": (_MONITORED),
    "*.test_init_process_group_for_all_backends": "makes groups of backends that are not built",
}


class Outcome(unittest.TestResult):
    """What became of each test, told as it comes."""

    def __init__(self, console: TextIO, made: Path) -> None:
        """`made` is there once a rank has made a group of ours."""
        super().__init__()
        self.passed: list[str] = []
        self.left_out: list[tuple[str, str]] = []
        self.failed: list[str] = []
        self._console = console
        self._made = made
        self._began = 0.0

    def those_of_any_world(self) -> set[str]:
        """All that were run, but for those that want another number of ranks: forgets them."""
        others = [(name, why) for name, why in self.left_out if "world size" in why]
        self.left_out = [each for each in self.left_out if each not in others]
        return {*self.passed, *self.failed, *(name for name, _ in self.left_out)}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began = time.monotonic()

    def _tell(self, test: unittest.TestCase, what: str) -> None:
        took = time.monotonic() - self._began
        print(f"{name_of(test)}: {what} ({took:.1f} s)", file=self._console, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        if not self._made.exists():
            self.addSkip(test, "no rank makes a group of the backend")
            return
        self.passed.append(name_of(test))
        self._tell(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.left_out.append((name_of(test), re.sub(r"\s+", " ", reason).strip()))
        self._tell(test, f"not applicable: {reason}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        why = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]
        self.failed.append(name_of(test))
        self._tell(test, f"FAILED\n{why}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addError(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.addSkip(test, "PyTorch expects it to fail")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.failed.append(name_of(test))
        self._tell(test, "FAILED: it was expected to")


def name_of(test: unittest.TestCase) -> str:
    """Its method, and its class where there are several."""
    kind, _, method = test.id().rpartition(".")
    kind = kind.rpartition(".")[2]
    return method if kind == WHEEL else f"{kind}.{method}"


def _prepare(directory: str) -> None:
    """The environment that PyTorch's files expect."""
    os.environ |= {
        # What is for some backends only is for gloo: ours is to do what it does.
        "BACKEND": "gloo",
        "TEMP_DIR": directory,
        "INIT_METHOD": f"file://{directory}/init",
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(PATIENCE),
    }
    # PyTorch's modules look at it when they are imported.
    del sys.argv[1:]
    try:
        importlib.import_module("expecttest")
    except ImportError:
        # Of it tests of processes want a class to derive from.
        stub: Any = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        stub.assert_expected_inline = None
        sys.modules["expecttest"] = stub


def _fork_ranks() -> None:
    """Children of this process rather than new ones: they know what was changed here."""
    import torch.multiprocessing

    torch.multiprocessing.set_start_method("fork")
    methods: Any = torch.multiprocessing
    get = methods.get_context
    methods.get_context = lambda method=None: get("fork")


def _take_the_place_of_gloo() -> None:
    """Makes a group of gloo, or of the CPU's default backend, one of ours."""
    import torch.distributed as dist
    from torch.testing._internal import common_fsdp

    dist.Backend.default_device_backend_map["cpu"] = OURS
    common_fsdp.DISTRIBUTED_BACKEND = OURS
    module: Any = dist.distributed_c10d
    for name, place in (("init_process_group", 0), ("new_group", 2)):
        setattr(module, name, _replacing(getattr(module, name), place))
        setattr(dist, name, getattr(module, name))


def _need_no_accelerators() -> None:
    """Has tests that want some number of accelerators run on the CPU."""
    import torch
    from torch.testing._internal import common_distributed

    upstream: Any = common_distributed

    def as_it_is(test: Callable[..., Any]) -> Callable[..., Any]:
        return test

    upstream.skip_if_lt_x_gpu = lambda count, **more: as_it_is
    accelerators: Any = torch.accelerator
    accelerators.device_count = lambda: 8


def _replacing(call: Callable[..., Any], place: int) -> Callable[..., Any]:
    """The same call, with ours for gloo where it names a backend."""

    def ours(backend: Any) -> Any:
        return re.sub(r"\bgloo\b", OURS, backend) if isinstance(backend, str) else backend

    def replaced(*arguments: Any, **more: Any) -> Any:
        given = list(arguments)
        if len(given) > place:
            given[place] = ours(given[place])
        if "backend" in more:
            more["backend"] = ours(more["backend"])
        return call(*given, **more)

    return replaced


def _note_groups(made: Path) -> None:
    """Has a file made whenever a rank makes a group of ours."""
    from xdp_agg.torch import _backend

    group: Any = _backend._Group
    set_up = group._set_up

    def noted(self: Any, *arguments: Any) -> None:
        made.touch()
        set_up(self, *arguments)

    group._set_up = noted


def _of_the_wheel(backend: str) -> unittest.TestSuite:
    from torch.testing._internal.distributed import distributed_test as upstream

    # Anew, for what is for a number of ranks is decided by decorators.
    importlib.reload(upstream)
    # Ours have other shapes; what is called must come out right all the same.
    upstream.PROFILING_SUPPORTED_BACKENDS = []

    tests: Any = upstream.TestDistBackend

    def set_up(self: Any) -> None:
        tests.setUp(self)
        # These ask for a name that they know, to choose between the CPU and GPUs.
        asks = self._testMethodName.startswith("test_accumulate_gradients_no_sync")
        upstream.BACKEND = "gloo" if asks else backend
        self._spawn_processes()

    bases = (tests, upstream.DistributedTest._DistTestBase)
    kind = types.new_class(WHEEL, bases, exec_body=lambda body: body.update(setUp=set_up))
    return unittest.defaultTestLoader.loadTestsFromTestCase(kind)


def _of_file(path: Path) -> unittest.TestSuite:
    # Some of PyTorch's files import others that lie beside them.
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.import_module(path.stem)
    # Their own way of loading refuses to be used from another program.
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    tests = [kind for kind in kinds if issubclass(kind, unittest.TestCase)]
    own = [kind for kind in tests if kind.__module__ == path.stem]
    return unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, own))


def _each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _each(test)
        else:
            yield test


def _reason(name: str) -> str | None:
    """Why a test is not applicable, if it is not."""
    patterns = (pattern for pattern in NOT_APPLICABLE if fnmatch.fnmatchcase(name, pattern))
    return next((NOT_APPLICABLE[pattern] for pattern in patterns), None)


def _left_out(test: unittest.TestCase, reason: str) -> unittest.TestCase:
    """In a test's place, one that is skipped before any process starts."""

    def skip() -> None:
        raise unittest.SkipTest(reason)

    substitute = unittest.FunctionTestCase(skip)
    identity = test.id()
    setattr(substitute, "id", lambda: identity)  # noqa: B010
    return substitute


def _wrapped(first: str, names: list[str]) -> str:
    text = f"{first}: {', '.join(names)}."
    return textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def _report(outcome: Outcome, title: str) -> None:
    """What became of the tests, as docs/measurements/pytorch-tests.md has it."""
    passed, left_out = len(outcome.passed), len(outcome.left_out)
    print(f"\n## {title}: {passed} passed, {left_out} not applicable, {len(outcome.failed)} failed")
    if outcome.failed:
        print("\n" + _wrapped("**Failed**", outcome.failed))
    if outcome.passed:
        print("\n" + _wrapped("Passed", outcome.passed))
    by_reason: dict[str, list[str]] = {}
    for name, reason in outcome.left_out:
        by_reason.setdefault(reason, []).append(name)
    if by_reason:
        print("\nNot applicable:\n")
    for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        print(_wrapped(f"- {reason} ({len(names)})", names))


def _run(args: argparse.Namespace, console: TextIO, directory: str) -> Outcome:
    _prepare(directory)
    import torch.testing._internal.common_distributed  # noqa: F401
    import xdp_agg.torch  # noqa: F401

    made = Path(directory, "made")
    _fork_ranks()
    if args.backend == OURS:
        _note_groups(made)
        _take_the_place_of_gloo()
    else:
        made.touch()
    if args.cpu:
        _need_no_accelerators()
    outcome = Outcome(console, made)
    worlds = args.world if args.file is None else args.world[:1]
    for world in worlds:
        os.environ["WORLD_SIZE"] = str(world)
        suite = _of_the_wheel(args.backend) if args.file is None else _of_file(args.file)
        done = outcome.those_of_any_world()
        for test in _each(suite):
            name = name_of(test)
            if name in done or not any(fnmatch.fnmatch(name, each) for each in args.patterns):
                continue
            reason = _reason(name) if args.backend == OURS else None
            one = test if reason is None else _left_out(test, reason)
            if args.backend == OURS:
                made.unlink(missing_ok=True)
            unittest.TestSuite([one]).run(outcome)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, help="a file of tests; else PyTorch's wheel has them")
    parser.add_argument("--world", type=int, nargs="+", default=[8, 4], help="numbers of ranks")
    parser.add_argument("--backend", default=OURS, help="instead of xdp-agg")
    parser.add_argument("--cpu", action="store_true", help="of a file, also what is for GPUs")
    parser.add_argument("--log", default=os.devnull, help="where ranks print to")
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN")
    args = parser.parse_args()
    if not binary().exists():
        raise SystemExit(f"no daemon at {binary()}: cargo build, or set XDP_AGG_BIN")
    with tempfile.TemporaryDirectory() as directory, serving(ROOMY) as address:
        os.environ["XDP_AGG_ADDR"] = address
        console = os.fdopen(os.dup(1), "w")
        errors = os.dup(2)
        with open(args.log, "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            outcome = _run(args, console, directory)
        finally:
            os.dup2(console.fileno(), 1)
            os.dup2(errors, 2)
    import torch

    what = "" if args.file is None else f", {args.file.name}"
    _report(outcome, f"torch {torch.__version__.partition('+')[0]}{what}")
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
