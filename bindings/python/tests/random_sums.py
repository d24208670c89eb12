"""A worker that sums random tensors and compares each with exact sums; see test_numbers.py.

All types, operations and precisions; magnitudes of all kinds beside each other, with infinities and
NaNs among them. All ranks draw the same numbers, so each knows what all others contribute, and
checks its share of the calls; that all ranks have the same bits is checked of every call.
"""

from __future__ import annotations

import json
import math
import sys
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xdp_agg

#: Types of floats by name: bits of the significand, lowest exponent of a bit, largest value.
FLOATS = {
    "f32": (24, -149, float(np.finfo(np.float32).max)),
    "f16": (11, -24, 65504.0),
    "bf16": (8, -133, float.fromhex("0x1.fep127")),
    "f64": (53, -1074, sys.float_info.max),
}
INTEGERS = {"i32": np.int32, "i64": np.int64, "i16": np.int16, "i8": np.int8, "u8": np.uint8}
#: How the elements lie in memory: NumPy has no type for bf16.
STORED: dict[str, Any] = {
    "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "f64": np.float64,
    "bool": np.uint8, **INTEGERS,
}  # fmt: skip


def ulp(value: float, kind: str) -> float:
    """The distance between neighbours of a type at a value."""
    bits, lowest, _ = FLOATS[kind]
    if value == 0.0 or not math.isfinite(value):
        return math.ldexp(1.0, lowest)
    return math.ldexp(1.0, max(math.frexp(value)[1] - bits, lowest))


def store(values: np.ndarray, kind: str) -> np.ndarray:
    """Numbers as elements of a type, rounded."""
    if kind == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return np.asarray(bits >> 16, dtype=np.uint16)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(STORED[kind]))


def load(elements: np.ndarray, kind: str) -> np.ndarray:
    """Elements of a type as doubles, exactly."""
    if kind == "bf16":
        return (elements.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return elements.astype(np.float64)


def floats(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> np.ndarray:
    """Random floats of one of several kinds of company."""
    mantissas = rng.uniform(-2.0, 2.0, shape)
    spread = {"f32": 60, "f16": 8, "bf16": 60, "f64": 400}[kind]
    match rng.integers(5):
        case 0:  # as gradients are
            exponents = rng.normal(-12, 3, shape)
        case 1:  # of all magnitudes, in one vector
            exponents = rng.uniform(-spread, spread, shape)
        case 2:  # a few that dwarf the others
            exponents = np.where(rng.random(shape) < 0.02, spread / 2, -spread / 3)
        case 3:  # whole numbers
            return np.floor(mantissas * 1000)
        case _:  # what cancels
            values = mantissas * np.exp2(rng.uniform(-spread, spread, shape).round())
            values[1:] = -values[:1] * (rng.random((shape[0] - 1, shape[1])) < 0.5)
            return values
    return np.asarray(mantissas * np.exp2(exponents.round().clip(-spread, spread)))


def exact(column: list[float], divisor: int, kind: str) -> float:
    """The sum of numbers, rounded once, divided."""
    if any(math.isnan(x) for x in column):
        return math.nan
    if infinities := {x for x in column if math.isinf(x)}:
        return infinities.pop() if len(infinities) == 1 else math.nan
    try:
        value = math.fsum(column) / divisor
    except OverflowError:
        return math.nan if divisor > 1 else math.copysign(math.inf, max(column, key=abs))
    return value


@dataclass
class Tally:
    """What was called, and the largest error in units in the last place."""

    calls: int = 0
    elements: int = 0
    redone: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    bits: int = 0


class Checker:
    """Makes random calls and checks them."""

    def __init__(self, seed: int) -> None:
        self.comm = xdp_agg.Communicator()
        self.rng = np.random.default_rng(seed)
        self.tally = Tally()

    def call(self, number: int) -> None:
        """One call."""
        kind = str(self.rng.choice([*FLOATS, *FLOATS, *INTEGERS, "bool"]))
        longest = int(self.rng.choice([4, 40, 400, 3000], p=[0.7, 0.25, 0.045, 0.005]))
        length = int(self.rng.integers(1, longest + 1))
        if self.rng.random() < 0.08:
            # Spans of exact sums are guessed by those of the last call of the same length.
            length = int(self.rng.choice([17, 100, 256]))
        shape = (self.comm.world_size, length)
        if kind in FLOATS:
            self.call_floats(number, kind, shape)
        else:
            self.call_integers(number, kind, shape)

    def run(self, stored: np.ndarray, kind: str, op: str, precision: str | None) -> np.ndarray:
        """Makes the call with this rank's row; every rank's result must have the same bits."""
        own: np.ndarray = stored[self.comm.rank].copy()
        place = own.ctypes.data
        report = self.comm._run("all_reduce", op, place, own.size, kind, precision, None)
        self.tally.calls += 1
        self.tally.elements += own.size
        self.tally.redone += report.redone
        self.tally.bits = zlib.crc32(own.tobytes(), self.tally.bits)
        return own

    def call_floats(self, number: int, kind: str, shape: tuple[int, int]) -> None:
        values = floats(self.rng, shape, kind)
        if self.rng.random() < 0.1:
            where = self.rng.random(shape) < 0.05
            values[where] = self.rng.choice([math.inf, -math.inf, math.nan], int(where.sum()))
        op = str(self.rng.choice(["sum", "mean", "min", "max"], p=[0.5, 0.3, 0.1, 0.1]))
        precision = str(self.rng.choice(["exact", "gradient"]))
        stored = store(values, kind)
        result = load(self.run(stored, kind, op, precision), kind)
        if number % self.comm.world_size != self.comm.rank:
            return
        columns = load(stored, kind).T.tolist()
        peak = max((abs(x) for column in columns for x in column if math.isfinite(x)), default=0)
        for at, (column, got) in enumerate(zip(columns, result.tolist(), strict=True)):
            if op in ("min", "max"):
                nan = any(math.isnan(x) for x in column)
                want = math.nan if nan else (min if op == "min" else max)(column)
                allowed = 0.0
            else:
                want = exact(column, self.comm.world_size if op == "mean" else 1, kind)
                allowed = ulp(want, kind)
                if precision == "gradient":
                    allowed += self.gradient_bound(peak, kind)
            self.compare(
                f"{number}: {op} of {kind}, {precision}, element {at}",
                (column, got, want),
                allowed,
                kind,
            )

    def gradient_bound(self, peak: float, kind: str) -> float:
        """Four times what block scaling may be off by, were the whole vector one block."""
        world, lane = self.comm.world_size, 62 if kind == "f64" else 30
        step = math.ldexp(peak, -lane) * world
        # Doubles are rounded to 53 bits on their way into a lane.
        return 4 * world * max(step, math.ldexp(peak, -52) if kind == "f64" else 0.0)

    def compare(
        self, what: str, numbers: tuple[list[float], float, float], allowed: float, kind: str
    ) -> None:
        column, got, want = numbers
        if math.isnan(want):
            right = math.isnan(got)
        elif abs(want) >= FLOATS[kind][2] or not math.isfinite(got):
            # Beyond the type: an infinity, or the last finite number where it rounds to that.
            largest = FLOATS[kind][2]
            right = got == want or (abs(want) + allowed > largest and abs(got) >= largest)
        else:
            error = abs(got - want)
            right = error <= allowed
            if allowed == ulp(want, kind):
                worst = self.tally.worst.get(kind, 0.0)
                self.tally.worst[kind] = max(worst, error / allowed)
        if not right:
            raise AssertionError(f"{what}: {got!r} for {want!r} of {column!r}; allowed {allowed!r}")

    def call_integers(self, number: int, kind: str, shape: tuple[int, int]) -> None:
        if kind == "bool":
            ops = ["sum", "min", "max", "and", "or"]
            stored = (self.rng.random(shape) < 0.5).astype(np.uint8)
        else:
            ops = ["sum", "mean", "min", "max"]
            info: Any = np.iinfo(INTEGERS[kind])
            low, high = (info.min, info.max) if self.rng.random() < 0.5 else (0, 9)
            stored = self.rng.integers(low, high, shape, dtype=INTEGERS[kind], endpoint=True)
        op = str(self.rng.choice(ops))
        result = self.run(stored, kind, op, None)
        with np.errstate(over="ignore"):
            total = stored.sum(axis=0, dtype=stored.dtype)
        if kind == "bool":
            want = stored.min(axis=0) if op in ("min", "and") else stored.max(axis=0)
        elif op == "sum":
            want = total
        elif op == "mean":
            divided = [
                int(x) // self.comm.world_size if x >= 0 else -(-int(x) // self.comm.world_size)
                for x in total
            ]
            want = np.array(divided, dtype=stored.dtype)
        else:
            want = stored.min(axis=0) if op == "min" else stored.max(axis=0)
        if not np.array_equal(result, want):
            raise AssertionError(f"{number}: {op} of {kind}: {result} for {want} of {stored}")


def main() -> None:
    """``random_sums.py CALLS SEED``: makes the calls, and prints a JSON object."""
    calls, seed = int(sys.argv[1]), int(sys.argv[2])
    checker = Checker(seed)
    start = time.monotonic()
    for number in range(calls):
        checker.call(number)
    bits = np.zeros(checker.comm.world_size, dtype=np.int64)
    bits[checker.comm.rank] = checker.tally.bits
    checker.comm.all_gather(bits)
    assert len(set(bits.tolist())) == 1, f"ranks have other bits: {bits}"
    tally = checker.tally
    print(json.dumps({
        "calls": tally.calls, "elements": tally.elements, "redone": tally.redone,
        "worst_ulp": tally.worst, "seconds": time.monotonic() - start,
    }))  # fmt: skip
    checker.comm.close()


if __name__ == "__main__":
    main()
