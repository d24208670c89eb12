"""What can be summed in place, and what is refused with what to do about it."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import xdp_agg


@pytest.fixture(scope="module")
def comm(daemon: str) -> Iterator[xdp_agg.Communicator]:
    """A job of one worker: a sum is what it was."""
    with xdp_agg.Communicator(daemon, rank=0, world_size=1, job="buffers") as made:
        yield made


TYPES_OF_TORCH = [
    *("float32", "float16", "bfloat16", "float64"),
    *("int8", "uint8", "int16", "int32", "int64", "bool"),
]


class Exporter:
    """Somebody else's tensor, with DLPack alone."""

    def __init__(self, of: Any, device: tuple[int, int] = (1, 0), versioned: bool = True) -> None:
        self.of = of
        self.device = device
        self.versioned = versioned
        self.asked: dict[str, Any] = {}

    def __dlpack__(self, **wishes: Any) -> Any:
        if not self.versioned and wishes:
            raise TypeError("__dlpack__() takes no keyword arguments")
        self.asked = wishes
        return self.of.__dlpack__(**wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_the_buffer_protocol(comm: xdp_agg.Communicator) -> None:
    with mmap.mmap(-1, 4096) as mapped:
        for one in (
            bytearray(b"abc"),
            array.array("d", [1.5, 2.5]),
            array.array("f", [1.5]),
            array.array("l", [7]),
            array.array("q", [7]),
            memoryview(bytearray(16)).cast("i"),
            (ctypes.c_float * 4)(1, 2, 3, 4),
            (ctypes.c_int64 * 2)(5, 6),
            mapped,
            np.ones((2, 3), "f4"),
            np.ones(3, "<i8"),
            np.ones(3, "=f8"),
            np.array(3.0),
            np.ones(3, "f4").view(np.matrix),
        ):
            before = bytes(one)  # type: ignore[arg-type, unused-ignore]
            assert comm.all_reduce(one).contributors == (0,)
            assert bytes(one) == before  # type: ignore[arg-type, unused-ignore]


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(comm: xdp_agg.Communicator, versioned: bool) -> None:
    for kind in ("f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8", "?"):
        tensor = Exporter(np.ones((2, 5), kind), versioned=versioned)
        comm.all_reduce(tensor, "max")
        assert bool(tensor.asked) == versioned
    comm.all_reduce(Exporter(np.ones((0, 4))))
    comm.all_reduce(Exporter(np.array(1.0)))
    comm.start(Exporter(np.ones(1000))).wait()


def test_pytorch(comm: xdp_agg.Communicator) -> None:
    torch = pytest.importorskip("torch")
    for name in TYPES_OF_TORCH:
        tensor = torch.ones(3, 4, dtype=getattr(torch, name))
        comm.all_reduce(tensor, "max")
        assert bool((tensor == 1).all())
    parameter = torch.nn.Parameter(torch.ones(3))
    comm.all_reduce(parameter, "mean")
    comm.all_reduce(torch.ones(3, requires_grad=True) * 2)
    comm.all_reduce(torch.ones(0))
    comm.all_reduce(Exporter(torch.ones(5, dtype=torch.bfloat16)))

    class Mine(torch.Tensor):  # type: ignore[misc, name-defined, unused-ignore]
        pass

    comm.all_reduce(torch.ones(3).as_subclass(Mine))
    for wrong, match in (
        (torch.ones(4, 4).t(), "contiguous"),
        (torch.ones(4, device="meta"), "meta"),
        (torch.ones(4).to_sparse(), "sparse"),
    ):
        with pytest.raises(ValueError, match=match):
            comm.all_reduce(wrong)
    with pytest.raises(TypeError, match="complex64"):
        comm.all_reduce(torch.ones(4, dtype=torch.complex64))


def test_bfloat16_of_ml_dtypes(comm: xdp_agg.Communicator) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ones = np.ones((4, 4), ml_dtypes.bfloat16)
    assert comm.all_reduce(ones, "mean").precision == "exact"
    assert (ones == 1).all()
    comm.all_reduce(np.ones((0, 4), ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="contiguous"):
        comm.all_reduce(ones.T[1:])
    ones.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        comm.all_reduce(ones)
    with pytest.raises(TypeError, match="float8"):
        comm.all_reduce(np.ones(4, ml_dtypes.float8_e4m3))


def _frozen() -> Any:
    array = np.ones(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (b"bytes", ValueError, "read-only"),
        (_frozen(), ValueError, "read-only"),
        (np.float32(1), ValueError, "read-only"),
        (memoryview(b"bytes"), ValueError, "read-only"),
        (Exporter(_frozen()), ValueError, "read-only"),
        (np.ones((4, 4))[:, 1], ValueError, "ascontiguousarray"),
        (np.ones((4, 4)).T, ValueError, "ascontiguousarray"),
        (np.ones(4)[::-1], ValueError, "ascontiguousarray"),
        (memoryview(bytearray(8))[::2], ValueError, "ascontiguousarray"),
        (Exporter(np.ones((4, 4)).T), ValueError, "ascontiguousarray"),
        (np.frombuffer(bytearray(9), "i1")[1:].view("f4"), ValueError, "aligned"),
        (np.ones(3, ">f4"), TypeError, "astype"),
        (np.ones(3, ">i8"), TypeError, "astype"),
        (np.ones(3, "complex64"), TypeError, "astype"),
        (np.ones(3, "u4"), TypeError, "astype"),
        (np.ones(3, "u2"), TypeError, "astype"),
        (np.ones(3, "longdouble"), TypeError, "astype"),
        (np.array(["text"]), TypeError, "astype"),
        (np.array([object()]), TypeError, "astype"),
        (np.zeros(3, [("a", "f4"), ("b", "i4")]), TypeError, "astype"),
        (np.zeros(3, "M8[s]"), (TypeError, ValueError), "M8|datetime|buffer"),
        (Exporter(np.ones(3, "u4")), TypeError, "code 1, 32 bits"),
        (Exporter(np.ones(3), (2, 0)), ValueError, "CUDA"),
        (Exporter(np.ones(3), (77, 0)), ValueError, "77"),
        ([1.0, 2.0], TypeError, "list is no array"),
        (3.0, TypeError, "float is no array"),
        (None, TypeError, "NoneType is no array"),
    ],
)
def test_what_is_refused(
    comm: xdp_agg.Communicator, wrong: Any, error: type[Exception], match: str
) -> None:
    for call in (comm.all_reduce, comm.start, comm.broadcast, comm.all_gather):
        with pytest.raises(error, match=match):
            call(wrong)
    assert comm.state == "running"


def test_a_capsule_that_was_used(comm: xdp_agg.Communicator) -> None:
    class Used(Exporter):
        def __dlpack__(self, **wishes: Any) -> Any:
            capsule = super().__dlpack__(**wishes)
            np.from_dlpack(_Once(capsule))
            return capsule

    with pytest.raises(ValueError, match="unused"):
        comm.all_reduce(Used(np.ones(3)))
    with pytest.raises(TypeError):
        comm.all_reduce(_Once("no capsule"))


class _Once:
    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_arrays_of_jax_and_tensorflow_are_immutable(comm: xdp_agg.Communicator) -> None:
    for module, match in (("jaxlib._jax", "xdp_agg.jax"), ("tensorflow.python", "numpy.array")):
        class_ = type("Array", (Exporter,), {"__module__": module})
        with pytest.raises(TypeError, match=match):
            comm.all_reduce(class_(np.ones(3)))
