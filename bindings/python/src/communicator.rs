//! A worker's membership in a job, as Python has it.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PySlice, PyTuple, PyType};
use xdp_agg_client::State;
use xdp_agg_client::lent::Task;

use crate::array::{lend, lend_reading};
use crate::calls;
use crate::connect::connect;
use crate::errors::{exception, exception_in};
use crate::handle::Handle;
use crate::memory::{Loan, PlacedMemory, SharedMemory};
use crate::open::Open;
use crate::report::Report;
use crate::settings::{Given, Number};

/// A worker's membership in a job: collectives with the other workers, summed by the aggregator.
///
/// All settings are optional; what is not given comes from the environment, as torchrun, mpirun and
/// the variables XDP_AGG_* set it. The constructor returns when all workers have joined.
///
/// address: host or host:port of the aggregator's daemon; several, separated by commas.
/// rank, world_size: this worker's number, from 0, and how many there are. If one of them is given,
///     what the launcher says of the processes of a host is not used.
/// local_rank, local_size: this process among those of its host that sum over shared memory first.
/// in_host: False: each process is a worker of its own, also where a host has several.
/// job: name; workers of one name sum together.
/// deadline, join_deadline: seconds that a call (1800), or joining (60), may take.
/// stall_deadline: seconds that a call may stand still although all workers are in it (30).
/// precision: "exact" or "gradient", of all sums of floats. None: exact up to `exact_up_to` bytes
///     (65536), gradient above.
/// scaling: "block", "fixed:1e7", or the number of a fixed scale.
/// lanes: bits of a number on the wire, 16 or 32. slots: of the aggregator, a power of two.
/// mtu: bytes of the largest IP packet.
/// on_worker_loss: "fail" or "shrink". on_aggregator_loss: "fail", "resume" or "ring".
/// token: the secret that the daemon asks for.
/// topology, strategy: a topology file instead of an address, and how sums are made on it.
/// trace: the file that a trace of all calls goes to; "%r" in it is the rank.
///
/// Arrays are NumPy's, PyTorch's on the CPU, or whatever has the buffer protocol or DLPack; of any
/// shape, C-contiguous and writable. Calls work in place. All workers make the same calls, in the
/// same order, with arrays of the same number of elements and the same type.
///
/// Use it in a `with` statement, or call close().
#[pyclass(module = "xdp_agg", name = "Communicator", frozen, weakref, subclass)]
pub(crate) struct Communicator {
    open: Arc<Open>,
    job: String,
}

#[pymethods]
impl Communicator {
    #[new]
    #[pyo3(signature = (
        address=None, *, rank=None, world_size=None, local_rank=None, local_size=None,
        in_host=None, job=None, deadline=None, join_deadline=None, stall_deadline=None,
        precision=None, exact_up_to=None, scaling=None, lanes=None, slots=None, mtu=None,
        on_worker_loss=None, on_aggregator_loss=None, token=None, topology=None, strategy=None,
        trace=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        address: Option<String>,
        rank: Option<Number>,
        world_size: Option<Number>,
        local_rank: Option<Number>,
        local_size: Option<Number>,
        in_host: Option<bool>,
        job: Option<String>,
        deadline: Option<f64>,
        join_deadline: Option<f64>,
        stall_deadline: Option<f64>,
        precision: Option<String>,
        exact_up_to: Option<usize>,
        scaling: Option<&Bound<'_, PyAny>>,
        lanes: Option<Number>,
        slots: Option<Number>,
        mtu: Option<Number>,
        on_worker_loss: Option<String>,
        on_aggregator_loss: Option<String>,
        token: Option<String>,
        topology: Option<String>,
        strategy: Option<String>,
        trace: Option<String>,
    ) -> PyResult<Self> {
        let mut given = Given::default();
        given.set("XDP_AGG_ADDR", address);
        given.set("RANK", rank);
        given.set("WORLD_SIZE", world_size);
        given.set("LOCAL_RANK", local_rank);
        given.set("LOCAL_WORLD_SIZE", local_size);
        given.set_in_host(in_host);
        given.set("XDP_AGG_JOB", job);
        given.set("XDP_AGG_DEADLINE", deadline);
        given.set("XDP_AGG_JOIN_DEADLINE", join_deadline);
        given.set("XDP_AGG_STALL_DEADLINE", stall_deadline);
        given.set_numbers(precision, exact_up_to);
        given.set_scaling(scaling)?;
        given.set("XDP_AGG_LANES", lanes);
        given.set("XDP_AGG_JOB_SLOTS", slots);
        given.set("XDP_AGG_MTU", mtu);
        given.set("XDP_AGG_ON_WORKER_LOSS", on_worker_loss);
        given.set("XDP_AGG_ON_AGGREGATOR_LOSS", on_aggregator_loss);
        given.set("XDP_AGG_TOKEN", token);
        given.set("XDP_AGG_TOPOLOGY", topology);
        given.set("XDP_AGG_STRATEGY", strategy);
        given.set("XDP_AGG_TRACE", trace);
        let settings = given.settings(py)?;
        let builder = given.builder().map_err(|error| exception(py, &error))?;
        let caller = connect(py, builder, settings, given.world())?;
        Ok(Self { open: Open::new(caller, py), job: given.job() })
    }

    /// A communicator of the processes of an mpi4py communicator: rank and size are its, and the
    /// job's name is agreed on over it. Collective: all its processes call it.
    ///
    /// comm: an intracommunicator of mpi4py. Further arguments: as the constructor's.
    #[classmethod]
    #[pyo3(signature = (comm, address=None, **settings))]
    fn from_mpi<'py>(
        class: &Bound<'py, PyType>,
        comm: &Bound<'py, PyAny>,
        address: Option<String>,
        settings: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let settings =
            settings.map_or_else(|| Ok(PyDict::new(class.py())), |given| given.copy())?;
        if let Some(address) = address {
            settings.set_item("address", address)?;
        }
        class.py().import("xdp_agg.mpi")?.call_method1("connect", (comm, class, settings))
    }

    /// Reduces an array over all workers, in place; every worker gets the result.
    ///
    /// array: of any shape, the same number of elements at all workers.
    /// op: "sum", "mean" ("avg", "average"), "min", "max"; of bool also "and", "or".
    /// precision: "exact" or "gradient", of this call; the same at all workers.
    /// deadline: seconds, of this call.
    /// name: what this call is called, the same at all workers, 1 to 128 bytes: "layer3". Calls of
    /// one shape that another worker makes in another order are an error then, and else are reduced
    /// with each other.
    ///
    /// Other threads run meanwhile. Ctrl-C ends the call and the membership.
    #[pyo3(signature = (array, op="sum", *, precision=None, deadline=None, name=None))]
    fn all_reduce(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        precision: Option<&str>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Report> {
        let task = Task::AllReduce(calls::reduction(op)?);
        let options = calls::options(precision, deadline, name)?;
        calls::run(array.py(), &self.open, &lend(array)?, &task, &options)
    }

    /// Reduces an array over all workers, and leaves it as it is. Returns the result, a read-only
    /// NumPy array of its shape and type, and the call's report.
    ///
    /// Sums and means of floats in the precision of gradients lie in memory that the processes of
    /// this host share, once for all of them: with the array from empty() nothing is copied inside
    /// the host. Any other result is in memory of this process. A result stays what it is,
    /// whatever is called afterwards, until the last array that lies in it is gone. A process may
    /// have 8 such results at a time, in the room of XDP_AGG_BUFFERS; a lack of either is an error
    /// before the call has begun. All processes of a host make this call; those of other hosts may
    /// call all_reduce. The result must not be touched in a forked child.
    ///
    /// array: as of all_reduce, but may be read-only. Other arguments as of all_reduce.
    #[pyo3(signature = (array, op="sum", *, precision=None, deadline=None, name=None))]
    fn all_reduce_view<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        op: &str,
        precision: Option<&str>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<(Bound<'py, PyAny>, Report)> {
        let py = array.py();
        let reduction = calls::reduction(op)?;
        let options = calls::options(precision, deadline, name)?;
        let loan = lend_reading(array)?;
        // Before the call: a type that NumPy has not is refused while nothing has begun.
        let view = py.import("xdp_agg._memory")?.call_method1("viewer", (array,))?;
        let (result, report) = calls::run_view(py, &self.open, &loan, reduction, &options)?;
        Ok((view.call1((Bound::new(py, result)?,))?, report))
    }

    /// Starts an all_reduce_view and returns at once. The handle's wait() returns the result and
    /// the call's report.
    ///
    /// The array must not change until the handle says that it is done. The result counts among the
    /// 8 of this process from the start on, and until the handle and all arrays that lie in it are
    /// gone. Where other processes of the host have results in all of the room, the call waits for
    /// them.
    ///
    /// Arguments as of all_reduce_view.
    #[pyo3(signature = (array, op="sum", *, precision=None, deadline=None, name=None))]
    fn all_reduce_view_async(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        precision: Option<&str>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Handle> {
        let py = array.py();
        let call = (calls::reduction(op)?, calls::options(precision, deadline, name)?);
        let loan = lend_reading(array)?;
        let view = py.import("xdp_agg._memory")?.call_method1("viewer", (array,))?;
        calls::start_view(py, &self.open, loan, call, view.unbind())
    }

    /// Starts an all_reduce and returns at once. The array is the call's until the handle says that
    /// it is done. Several calls may be in flight; they are carried out in the order of their
    /// starts.
    ///
    /// Arguments as of all_reduce.
    #[pyo3(signature = (array, op="sum", *, precision=None, deadline=None, name=None))]
    fn start(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        precision: Option<&str>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Handle> {
        let task = Task::AllReduce(calls::reduction(op)?);
        let options = calls::options(precision, deadline, name)?;
        calls::start(array.py(), &self.open, lend(array)?, task, options)
    }

    /// Gives every worker the root's array, bit for bit, in place.
    ///
    /// array: of any shape, the same number of elements at all workers. root: a rank.
    /// deadline: seconds, of this call.
    #[pyo3(signature = (array, root=0, *, deadline=None, name=None))]
    fn broadcast(
        &self,
        array: &Bound<'_, PyAny>,
        root: u16,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Report> {
        let options = calls::options(None, deadline, name)?;
        calls::run(array.py(), &self.open, &lend(array)?, &Task::Broadcast { root }, &options)
    }

    /// Reduces an array over all workers; the root gets the result in place, and the others' arrays
    /// are unspecified then.
    ///
    /// root: a rank. Other arguments as of all_reduce.
    #[pyo3(signature = (array, op="sum", root=0, *, precision=None, deadline=None, name=None))]
    fn reduce(
        &self,
        array: &Bound<'_, PyAny>,
        op: &str,
        root: u16,
        precision: Option<&str>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Report> {
        let task = Task::Reduce { reduction: calls::reduction(op)?, root };
        let options = calls::options(precision, deadline, name)?;
        calls::run(array.py(), &self.open, &lend(array)?, &task, &options)
    }

    /// Reduces an array over all workers; each gets its part of the result, in place. Returns the
    /// slice of the flattened array that holds it, as part() does; the rest is unspecified then.
    ///
    /// Arguments as of all_reduce.
    #[pyo3(signature = (array, op="sum", *, precision=None, deadline=None, name=None))]
    fn reduce_scatter<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        op: &str,
        precision: Option<&str>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Bound<'py, PySlice>> {
        let task = Task::ReduceScatter(calls::reduction(op)?);
        let options = calls::options(precision, deadline, name)?;
        let loan = lend(array)?;
        calls::run(array.py(), &self.open, &loan, &task, &options)?;
        self.part(array.py(), loan.len(), None)
    }

    /// Gives every worker each worker's part of the array, in place: part(n, rank) of its n
    /// elements is rank's contribution.
    ///
    /// array: of any shape, the same number of elements at all workers.
    /// deadline: seconds, of this call.
    #[pyo3(signature = (array, *, deadline=None, name=None))]
    fn all_gather(
        &self,
        array: &Bound<'_, PyAny>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Report> {
        let options = calls::options(None, deadline, name)?;
        calls::run(array.py(), &self.open, &lend(array)?, &Task::AllGather, &options)
    }

    /// An array of zeros in the memory that the processes of this host share: calls on it, or on a
    /// part of it, copy nothing inside the host. XDP_AGG_BUFFERS says how many bytes there are for
    /// such arrays. Where each process is a worker of its own, it is in memory of this process.
    ///
    /// The memory lives as long as an array that lies in it, also when the communicator is closed.
    /// It belongs to this process: a forked child must not touch it.
    ///
    /// shape: a number or several. dtype: of NumPy, by name or as a type, or of PyTorch, which
    ///     gives a tensor.
    #[pyo3(signature = (shape, dtype=None))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = Arc::clone(&self.open);
        let memory = move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            let py = args.py();
            let bytes: usize = args.get_item(0)?.extract()?;
            let (caller, _underway) = open.begin(py)?;
            let memory = SharedMemory::new(caller, bytes);
            memory.map_err(|error| exception_in(py, &error, open.world()))
        };
        let memory = PyCFunction::new_closure(py, Some(c"memory"), None, memory)?;
        py.import("xdp_agg._memory")?.call_method1("array", (memory, shape, dtype))
    }

    /// Returns when all workers have called it.
    ///
    /// deadline: seconds, of this call.
    #[pyo3(signature = (*, deadline=None, name=None))]
    fn barrier(
        &self,
        py: Python<'_>,
        deadline: Option<f64>,
        name: Option<&str>,
    ) -> PyResult<Report> {
        let options = calls::options(None, deadline, name)?;
        calls::run(py, &self.open, &Loan::nothing(), &Task::Barrier, &options)
    }

    /// The slice of a flattened array of `length` elements that is a worker's in reduce_scatter and
    /// all_gather. rank: None: this worker.
    #[pyo3(signature = (length, rank=None))]
    fn part<'py>(
        &self,
        py: Python<'py>,
        length: usize,
        rank: Option<u16>,
    ) -> PyResult<Bound<'py, PySlice>> {
        let communicator = self.open.caller(py)?.communicator();
        let range = communicator.part(rank.unwrap_or_else(|| communicator.rank()), length);
        Ok(PySlice::new(py, range.start as isize, range.end as isize, 1))
    }

    /// What this worker has sent, received and lost so far, as a dictionary of numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let caller = self.open.caller(py)?;
        let stats = py.detach(|| caller.stats()).map_err(|error| exception(py, &error))?;
        of_json(py, serde_json::to_string(&stats))
    }

    /// Which way all-reduces of each size have learned to go, as a list of dictionaries.
    fn learned<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let caller = self.open.caller(py)?;
        let learned = py.detach(|| caller.communicator().learned());
        of_json(py, serde_json::to_string(&learned))
    }

    /// The latest 1000 calls, as a text of Chrome trace events. `xdp-agg trace diagnose` reads such
    /// a text from a file, and Perfetto opens it.
    fn flight_recording(&self, py: Python<'_>) -> PyResult<String> {
        let communicator = self.open.caller(py)?.communicator();
        Ok(py.detach(|| communicator.flight_recording()))
    }

    /// Writes them to a new file of the directory XDP_AGG_FLIGHT_DIR; its name.
    fn write_flight_recording(&self, py: Python<'_>) -> PyResult<PathBuf> {
        let communicator = self.open.caller(py)?.communicator();
        let written = py.detach(|| communicator.write_flight_recording());
        written.map_err(|error| exception(py, &error))
    }

    /// The file of the latest flight recording, of a failed call for example; None: there is none.
    #[getter]
    fn flight_file(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        Ok(self.open.caller(py)?.communicator().flight_file())
    }

    /// The file that a trace of all calls is written to; None: no trace is wanted.
    #[getter]
    fn trace_file(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        Ok(self.open.caller(py)?.communicator().trace_file())
    }

    /// Leaves the job. Calls in flight have a second to end; then they end with `xdp_agg.Closed`,
    /// and the other workers' with `xdp_agg.Aborted`. Returns when all callbacks have. May be
    /// called again; does nothing in a forked process.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.open.close(py)
    }

    /// Ends the job, from any thread: calls in flight end with an error soon, here and at the other
    /// workers, who are told the reason.
    #[pyo3(signature = (reason=""))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let caller = self.open.caller(py)?;
        py.detach(|| caller.abort(reason));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Leaves the job; where an exception ends the block, the other workers are told so.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if !kind.is_none() && !self.open.is_closed() && self.open.caller(py).is_ok() {
            self.abort(py, &value.repr()?.to_string_lossy())?;
        }
        self.close(py)
    }

    /// This worker's number, from 0.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.open.caller(py)?.communicator().rank())
    }

    /// Number of workers.
    #[getter]
    fn world_size(&self) -> u16 {
        self.open.world().size
    }

    /// Number of this host's processes that sum over shared memory first.
    #[getter]
    fn local_size(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.open.caller(py)?.communicator().local_size())
    }

    /// The job's name.
    #[getter]
    fn job(&self) -> &str {
        &self.job
    }

    /// What sums: "xdp (native)", "xdp (generic)" or "userspace".
    #[getter]
    fn engine(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.open.caller(py)?.communicator().engine())
    }

    /// The ranks that are members now, in ascending order.
    #[getter]
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.open.caller(py)?.communicator().members())
    }

    /// Seconds that a call may take.
    #[getter]
    fn deadline(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.open.caller(py)?.communicator().deadline().as_secs_f64())
    }

    /// Bytes of a full block, which one packet carries.
    #[getter]
    fn block_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.open.caller(py)?.communicator().block_bytes())
    }

    /// How results come: "ports", "fanout" or "multicast".
    #[getter]
    fn result_mode(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.open.caller(py)?.communicator().result_mode().name())
    }

    /// By which strategy the job sums; "aggregators" where these were named.
    #[getter]
    fn strategy(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(&self.open.caller(py)?.communicator().chosen().strategy)
    }

    /// "joining", "probing", "running", "reforming", "reconnecting", "on_ring", "failed" or
    /// "closed".
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        let caller = self.open.caller(py)?;
        if self.open.is_closed() {
            return Ok("closed");
        }
        Ok(match caller.communicator().state() {
            State::Joining => "joining",
            State::Probing => "probing",
            State::Running => "running",
            State::Reforming => "reforming",
            State::Reconnecting => "reconnecting",
            State::OnRing => "on_ring",
            State::Failed => "failed",
        })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (job, size) = (&self.job, self.open.world().size);
        match self.open.caller(py) {
            Ok(_) if self.open.is_closed() => format!("<xdp_agg.Communicator {job:?}: closed>"),
            Ok(caller) => {
                let rank = caller.communicator().rank();
                format!("<xdp_agg.Communicator {job:?}: rank {rank} of {size}>")
            }
            Err(_) => format!("<xdp_agg.Communicator {job:?}: of the parent process>"),
        }
    }

    /// A call on memory at an address, for layers that know their arrays themselves. Blocks.
    ///
    /// task: all_reduce, broadcast, reduce, reduce_scatter, all_gather or barrier. arg: name of the
    /// reduction, root, or both. The memory must be valid, aligned and untouched by others until
    /// this returns. length: elements. dtype: f32, f16, bf16, f64, i32, i64, i16, i8, u8 or bool.
    #[pyo3(signature = (task, arg, pointer, length, dtype, precision=None, deadline=None))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn _run(
        &self,
        py: Python<'_>,
        task: &str,
        arg: Option<&Bound<'_, PyAny>>,
        pointer: usize,
        length: usize,
        dtype: &str,
        precision: Option<&str>,
        deadline: Option<f64>,
    ) -> PyResult<Report> {
        let task = calls::task(task, arg)?;
        let options = calls::options(precision, deadline, None)?;
        let loan = Loan::at(pointer, length, calls::data_type(dtype)?);
        calls::run(py, &self.open, &loan, &task, &options)
    }

    /// Puts memory that the processes of this host share under other memory of this process, with
    /// what is in it, for layers that know their arrays themselves: calls on it copy nothing inside
    /// the host. None where each process is a worker of its own.
    ///
    /// The memory must be whole pages, with nothing else in them, that `keep` keeps. Nothing may
    /// touch it while this runs, nor while the returned object goes away, and no call may have it
    /// then. That gives the memory pages of this process's own again.
    fn _place(
        &self,
        py: Python<'_>,
        pointer: usize,
        bytes: usize,
        keep: Py<PyAny>,
    ) -> PyResult<Option<PlacedMemory>> {
        let (caller, _underway) = self.open.begin(py)?;
        let placed = PlacedMemory::new(caller, (pointer, bytes), keep);
        placed.map_err(|error| exception_in(py, &error, self.open.world()))
    }

    /// The same without waiting. `done(exception, None)` or `done(None, report)` is called on a
    /// thread that may wait; `keep`, which keeps the memory, is held until then.
    #[pyo3(signature = (task, arg, pointer, length, dtype, precision, deadline, done, keep))]
    #[expect(clippy::too_many_arguments, reason = "arguments of Python")]
    fn _start(
        &self,
        py: Python<'_>,
        task: &str,
        arg: Option<&Bound<'_, PyAny>>,
        pointer: usize,
        length: usize,
        dtype: &str,
        precision: Option<&str>,
        deadline: Option<f64>,
        done: Py<PyAny>,
        keep: Py<PyAny>,
    ) -> PyResult<Handle> {
        let task = calls::task(task, arg)?;
        let options = calls::options(precision, deadline, None)?;
        let loan = Loan::at(pointer, length, calls::data_type(dtype)?);
        calls::check_callable(done.bind(py))?;
        self.open.pool().prepare()?;
        let handle = calls::start(py, &self.open, loan, task, options)?;
        calls::tell(&self.open, &handle, done, keep);
        Ok(handle)
    }
}

/// What a JSON text says, as dictionaries, lists and numbers.
fn of_json(py: Python<'_>, text: Result<String, serde_json::Error>) -> PyResult<Bound<'_, PyAny>> {
    let wrong = |error| PyRuntimeError::new_err(format!("a value as JSON: {error}"));
    py.import("json")?.call_method1("loads", (text.map_err(wrong)?,))
}
