"""The extension module; :mod:`xdp_agg` has its public names."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, SupportsIndex, TypeAlias, final

from typing_extensions import TypeVar, disjoint_base

__all__ = [
    "CONTROL_PORT",
    "CONTROL_VERSION",
    "DATA_PORT",
    "LAUNCHER_VARIABLES",
    "Communicator",
    "Handle",
    "Report",
    "__version__",
    "_close_all",
    "_close_log",
    "_launch",
]

__version__: Final[str]
#: Of the control protocol that this library speaks.
CONTROL_VERSION: Final[int]
#: Default TCP port of the daemon's control service.
CONTROL_PORT: Final[int]
#: Default UDP port of the daemon's data path.
DATA_PORT: Final[int]
#: Variables by which launchers tell a process of its place in a run.
LAUNCHER_VARIABLES: Final[list[str]]

#: How elements are put together. "and" and "or" are for arrays of bool.
_Op: TypeAlias = Literal["sum", "mean", "avg", "average", "min", "max", "and", "or"]
_Precision: TypeAlias = Literal["exact", "gradient"]
#: NumPy's arrays, PyTorch's tensors on the CPU, whatever has the buffer protocol or DLPack.
_Array: TypeAlias = Any
_Task: TypeAlias = Literal[
    "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "barrier"
]

#: What a call in flight brings.
_Brings = TypeVar("_Brings", default=Report, covariant=True)

@final
class _SharedMemory:
    """Bytes in the memory that the processes of a host share; an array keeps them."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class _PlacedMemory:
    """Has memory of another object's lie in the memory that the processes of a host share."""

@disjoint_base
class Communicator:
    """A worker's membership in a job: collectives with the other workers."""

    def __new__(
        cls,
        address: str | None = None,
        *,
        rank: SupportsIndex | None = None,
        world_size: SupportsIndex | None = None,
        local_rank: SupportsIndex | None = None,
        local_size: SupportsIndex | None = None,
        in_host: bool | None = None,
        job: str | None = None,
        deadline: float | None = None,
        join_deadline: float | None = None,
        stall_deadline: float | None = None,
        precision: str | None = None,
        exact_up_to: int | None = None,
        scaling: str | float | None = None,
        lanes: SupportsIndex | None = None,
        slots: SupportsIndex | None = None,
        mtu: SupportsIndex | None = None,
        on_worker_loss: str | None = None,
        on_aggregator_loss: str | None = None,
        token: str | None = None,
        topology: str | None = None,
        strategy: str | None = None,
        trace: str | None = None,
    ) -> Self: ...
    @classmethod
    def from_mpi(cls, comm: Any, address: str | None = None, **settings: Any) -> Self:
        """A communicator of the processes of an mpi4py communicator. Collective."""

    def all_reduce(
        self,
        array: _Array,
        op: str = "sum",
        *,
        precision: str | None = None,
        deadline: float | None = None,
        name: str | None = None,
    ) -> Report:
        """Reduces an array of any shape over all workers, in place; every worker gets the result.

        deadline: seconds. name: what the call is called, the same at all workers, 1 to 128 bytes.
        """

    def all_reduce_view(
        self,
        array: _Array,
        op: str = "sum",
        *,
        precision: str | None = None,
        deadline: float | None = None,
        name: str | None = None,
    ) -> tuple[Any, Report]:
        """Reduces an array and leaves it alone; the result is a read-only NumPy array.

        Sums of floats in the precision of gradients lie in memory that the processes of this host
        share. A result stays what it is as long as an array lies in it.
        """

    def all_reduce_view_async(
        self,
        array: _Array,
        op: str = "sum",
        *,
        precision: str | None = None,
        deadline: float | None = None,
        name: str | None = None,
    ) -> Handle[tuple[Any, Report]]:
        """Starts an all_reduce_view; wait() returns what that returns.

        The array must not change until the handle says that it is done.
        """

    def start(
        self,
        array: _Array,
        op: str = "sum",
        *,
        precision: str | None = None,
        deadline: float | None = None,
        name: str | None = None,
    ) -> Handle:
        """Starts an all_reduce; the array is the call's until the handle says that it is done."""

    def broadcast(
        self,
        array: _Array,
        root: int = 0,
        *,
        deadline: float | None = None,
        name: str | None = None,
    ) -> Report:
        """Gives every worker the root's array, bit for bit, in place."""

    def reduce(
        self,
        array: _Array,
        op: str = "sum",
        root: int = 0,
        *,
        precision: str | None = None,
        deadline: float | None = None,
        name: str | None = None,
    ) -> Report:
        """Reduces an array; the root gets the result, the others' arrays are unspecified then."""

    def reduce_scatter(
        self,
        array: _Array,
        op: str = "sum",
        *,
        precision: str | None = None,
        deadline: float | None = None,
        name: str | None = None,
    ) -> slice[int, int, int]:
        """Reduces an array; each worker gets its part, the returned slice of it, flattened."""

    def all_gather(
        self, array: _Array, *, deadline: float | None = None, name: str | None = None
    ) -> Report:
        """Gives every worker each worker's part of the array, in place."""

    def empty(self, shape: SupportsIndex | Iterable[SupportsIndex], dtype: Any = None) -> Any:
        """An array of zeros in the memory that the processes of this host share.

        dtype: of NumPy (float32 unless given), or of PyTorch, which gives a tensor.
        """

    def barrier(self, *, deadline: float | None = None, name: str | None = None) -> Report:
        """Returns when all workers have called it."""

    def part(self, length: int, rank: int | None = None) -> slice[int, int, int]:
        """A worker's slice of a flattened array; rank None: this worker's."""

    def stats(self) -> dict[str, Any]:
        """What this worker has sent, received and lost so far."""

    def learned(self) -> list[dict[str, Any]]:
        """Which way all-reduces of each size have learned to go.

        Each dictionary has ``up_to`` (the most bytes of these calls), ``scaled`` (exponents are
        agreed on first), ``route`` ("aggregator", "exchange", "doubling", "halving" or "ring"),
        ``calls``, ``tried`` (those that tried another way) and ``times``: pairs of a way and its
        median time in nanoseconds. Empty where nothing is learned.
        """

    def flight_recording(self) -> str:
        """The latest 1000 calls, as a text of Chrome trace events."""

    def write_flight_recording(self) -> Path:
        """Writes them to a new file of XDP_AGG_FLIGHT_DIR; its name."""

    @property
    def flight_file(self) -> Path | None:
        """The file of the latest flight recording, of a failed call for example."""

    @property
    def trace_file(self) -> Path | None:
        """The file that a trace of all calls is written to."""

    def close(self) -> None:
        """Leaves the job; calls in flight have a second to end before they are ended."""

    def abort(self, reason: str = "") -> None:
        """Ends the job; the other workers are told the reason."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    @property
    def rank(self) -> int:
        """This worker's number, from 0."""

    @property
    def world_size(self) -> int:
        """Number of workers."""

    @property
    def local_size(self) -> int:
        """Number of this host's processes that sum over shared memory first."""

    @property
    def job(self) -> str:
        """The job's name."""

    @property
    def engine(self) -> str:
        """What sums: "xdp (native)", "xdp (generic)" or "userspace"."""

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that are members now, in ascending order."""

    @property
    def deadline(self) -> float:
        """Seconds that a call may take."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a full block, which one packet carries."""

    @property
    def result_mode(self) -> str:
        """How results come: "ports", "fanout" or "multicast"."""

    @property
    def strategy(self) -> str:
        """By which strategy the job sums; "aggregators" where these were named."""

    @property
    def state(self) -> str:
        """ "running", "closed", "failed", or what else the communicator is doing."""

    def _run(
        self,
        task: _Task | str,
        arg: str | int | tuple[str, int] | None,
        pointer: int,
        length: int,
        dtype: str,
        precision: str | None = None,
        deadline: float | None = None,
    ) -> Report: ...
    def _place(self, pointer: int, bytes: int, keep: object) -> _PlacedMemory | None: ...
    def _start(
        self,
        task: _Task | str,
        arg: str | int | tuple[str, int] | None,
        pointer: int,
        length: int,
        dtype: str,
        precision: str | None,
        deadline: float | None,
        done: Callable[[BaseException | None, Report | None], object],
        keep: object,
    ) -> Handle: ...

@final
class Handle(Generic[_Brings]):
    """A call in flight. It brings a report, or a result to read and a report."""

    def is_done(self) -> bool:
        """Whether the call has ended, with a result or an error. Does not wait."""

    def wait(self, timeout: float | None = None) -> _Brings:
        """Waits at most `timeout` seconds; TimeoutError: the call is still in flight."""

    def on_done(self, call: Callable[[Self], object]) -> None:
        """Has `call(handle)` called once when the call has ended, on a thread of its own."""

@final
class Report:
    """What became of a call."""

    @property
    def precision(self) -> _Precision | None:
        """How floats were summed; None: nothing had to be rounded."""

    @property
    def redone(self) -> int:
        """Elements summed again because a NaN or an infinity stood in their block."""

    @property
    def blocks(self) -> int:
        """Blocks that the call was cut into; a block is what one packet carries."""

    @property
    def saturated(self) -> int:
        """Elements of this worker that did not fit and were clamped."""

    @property
    def non_finite_blocks(self) -> int:
        """Blocks in which some worker had a NaN or an infinity."""

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ranks whose contribution is in all of the result."""

    @property
    def partial(self) -> tuple[int, ...]:
        """The ranks whose contribution is in a part of the result."""

    @property
    def reforms(self) -> int:
        """How often the job's members changed while the call was under way."""

    @property
    def path(self) -> Literal["aggregator", "ring", "mixed", "host"]:
        """Where the sums were made."""

def _launch(
    environ: dict[str, str],
) -> tuple[int | None, int | None, int | None, int | None, str | None]:
    """Rank, world size, local rank and size by these variables, and the rank's launcher."""

def _close_all() -> None:
    """Closes every communicator of this process and joins their threads; atexit calls it."""

def _close_log() -> None:
    """Tells what is left to the logger `xdp_agg`; atexit calls it."""
