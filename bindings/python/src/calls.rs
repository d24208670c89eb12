//! Arguments of calls, and carrying them out.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError, PyValueError};
use pyo3::prelude::*;
use xdp_agg_client::lent::{
    Caller, DataType, InFlight, Options, Outcome, Precision, Reduction, Task, UnknownName,
};
use xdp_agg_client::{Error, Name};

use crate::errors::{exception_in, noting};
use crate::handle::Handle;
use crate::memory::{Loan, SharedResult};
use crate::open::{Open, Underway};
use crate::pool::SLICE;
use crate::report::Report;

fn unknown(error: UnknownName) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// No caller waits longer than this; the clock can still count it.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Seconds above 0 as a time.
///
/// # Errors
/// `ValueError`: it is NaN, or not above 0.
pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(PyValueError::new_err(format!(
            "{name} is {seconds}; expected seconds above 0, such as 30 or 0.5"
        )));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST))
}

/// How elements are put together, by its name.
///
/// # Errors
/// `ValueError`: no reduction has this name.
pub(crate) fn reduction(op: &str) -> PyResult<Reduction> {
    op.parse().map_err(unknown)
}

/// A precision by its name.
///
/// # Errors
/// `ValueError`: no precision has this name.
pub(crate) fn precision(name: &str) -> PyResult<Precision> {
    name.parse().map_err(unknown)
}

/// What a call has besides its task.
///
/// # Errors
/// `ValueError`: no precision has this name, the time is not one, or the call's name is empty or
/// too long.
pub(crate) fn options(
    chosen: Option<&str>,
    deadline: Option<f64>,
    name: Option<&str>,
) -> PyResult<Options> {
    let refused = |error: Error| PyValueError::new_err(error.to_string());
    Ok(Options {
        precision: chosen.map(precision).transpose()?,
        deadline: deadline.map(|time| seconds("deadline", time)).transpose()?,
        name: name.map(Name::new).transpose().map_err(refused)?,
    })
}

/// A task by its name, with its argument: the name of the reduction, the root, or both.
///
/// # Errors
/// `ValueError`: there is no such task or reduction. `TypeError`: an argument that is not the
/// task's.
pub(crate) fn task(name: &str, argument: Option<&Bound<'_, PyAny>>) -> PyResult<Task> {
    let given = || argument.ok_or_else(|| PyTypeError::new_err(format!("{name} has an argument")));
    Ok(match name {
        "all_reduce" => Task::AllReduce(reduction(given()?.extract()?)?),
        "reduce_scatter" => Task::ReduceScatter(reduction(given()?.extract()?)?),
        "broadcast" => Task::Broadcast { root: given()?.extract()? },
        "reduce" => {
            let (op, root): (String, u16) = given()?.extract()?;
            Task::Reduce { reduction: reduction(&op)?, root }
        }
        "all_gather" => Task::AllGather,
        "barrier" => Task::Barrier,
        _ => {
            let known = "all_reduce, broadcast, reduce, reduce_scatter, all_gather, barrier";
            return Err(PyValueError::new_err(format!("task {name:?} is not one of {known}")));
        }
    })
}

/// A type of elements by its name.
///
/// # Errors
/// `ValueError`: no type has this name.
pub(crate) fn data_type(name: &str) -> PyResult<DataType> {
    name.parse().map_err(unknown)
}

/// Carries out a call on this thread, without keeping Python from others. Signals' handlers run
/// meanwhile; what one raises ends the call, the membership, and is raised here.
///
/// # Errors
/// The call's, or what a signal's handler raises.
pub(crate) fn run(
    py: Python<'_>,
    open: &Open,
    loan: &Loan,
    task: &Task,
    options: &Options,
) -> PyResult<Report> {
    let outcome = hearing_signals(py, open, |caller, interrupted| {
        loan.call(caller, task, options, interrupted)
    })?;
    Ok(Report::new(outcome, open.world().size))
}

/// Carries out an all-reduce whose result is to be read, as [`run`] carries out a call.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_view(
    py: Python<'_>,
    open: &Open,
    loan: &Loan,
    reduction: Reduction,
    options: &Options,
) -> PyResult<(SharedResult, Report)> {
    let (result, outcome) = hearing_signals(py, open, |caller, interrupted| {
        loan.all_reduce_view(caller, reduction, options, interrupted)
    })?;
    Ok((result, Report::new(outcome, open.world().size)))
}

fn hearing_signals<T: Send>(
    py: Python<'_>,
    open: &Open,
    call: impl FnOnce(&Caller, &mut dyn FnMut() -> bool) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let (caller, _underway) = open.begin(py)?;
    let mut raised = None;
    let done = py.detach(|| {
        let mut signals = Signals::default();
        call(caller, &mut || {
            raised = raised.take().or_else(|| signals.check());
            raised.is_some()
        })
    });
    match raised {
        Some(raised) => Err(raised),
        None => outcome(py, done, open),
    }
}

/// Starts a call. Its memory is kept until it is done.
///
/// # Errors
/// The call's, as far as they are known at once.
pub(crate) fn start(
    py: Python<'_>,
    open: &Arc<Open>,
    mut loan: Loan,
    task: Task,
    options: Options,
) -> PyResult<Handle> {
    let (caller, underway) = open.begin(py)?;
    let flight = py.detach(|| loan.start(caller, task, options));
    let flight = flight.map_err(|error| exception_in(py, &error, open.world()))?;
    keep_until_done(&flight, &mut loan, underway);
    Ok(Handle::new(flight, open))
}

/// Starts an all-reduce whose result is to be read: `view` makes an array of it. Its memory is kept
/// until it is done.
///
/// # Errors
/// As [`start`].
pub(crate) fn start_view(
    py: Python<'_>,
    open: &Arc<Open>,
    mut loan: Loan,
    (reduction, options): (Reduction, Options),
    view: Py<PyAny>,
) -> PyResult<Handle> {
    let (caller, underway) = open.begin(py)?;
    let call = py.detach(|| loan.start_view(caller, reduction, options));
    let call = call.map_err(|error| exception_in(py, &error, open.world()))?;
    keep_until_done(call.flight(), &mut loan, underway);
    Ok(Handle::of_view(call, view, open))
}

fn keep_until_done(flight: &InFlight, loan: &mut Loan, underway: Underway) {
    let keep = loan.take_keep();
    // The reference is dropped at once or, where Python is busy, at its next call of this module.
    flight.on_done(move |_| drop((keep, underway)));
}

/// Tells Python of a call's end on a thread of the pool: `done(None, report)`, or
/// `done(exception, None)`. `keep` is held until then.
pub(crate) fn tell(open: &Arc<Open>, handle: &Handle, done: Py<PyAny>, keep: Py<PyAny>) {
    let (pool, world) = (open.pool().clone(), open.world());
    // A call must not keep its communicator from being forgotten.
    let open = Arc::downgrade(open);
    handle.flight().on_done(move |result| {
        let result = result.clone();
        pool.give(Box::new(move |py| {
            let called = match result {
                Ok(outcome) => done.call1(py, (py.None(), Report::new(outcome, world.size))),
                Err(error) => {
                    let raised = exception_in(py, &error, world);
                    let raised = match open.upgrade() {
                        Some(open) => with_recording(py, raised, &open),
                        None => raised,
                    };
                    let error = raised.into_value(py);
                    done.call1(py, (error, py.None()))
                }
            };
            if let Err(error) = called {
                error.write_unraisable(py, Some(done.bind(py)));
            }
            drop((done, keep));
        }));
    });
}

/// Refuses what cannot be called, before it has to be.
///
/// # Errors
/// `TypeError`.
pub(crate) fn check_callable(done: &Bound<'_, PyAny>) -> PyResult<()> {
    if done.is_callable() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("{} cannot be called; expected a function", done.repr()?)))
}

/// Asks for signals while a call is waited for.
#[derive(Default)]
struct Signals {
    /// Python runs handlers on its main thread alone.
    is_elsewhere: bool,
}

impl Signals {
    /// What a signal's handler raised.
    fn check(&mut self) -> Option<PyErr> {
        if self.is_elsewhere {
            return None;
        }
        let asked = Python::try_attach(|py| {
            py.check_signals()?;
            // Handlers run in there, too.
            self.is_elsewhere = !is_main_thread(py)?;
            Ok(())
        });
        match asked {
            Some(heard) => heard.err(),
            // The interpreter is ending.
            None => Some(PyKeyboardInterrupt::new_err(())),
        }
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    main.eq(threading.call_method0("get_ident")?)
}

/// Waits for something that is asked for in slices, without keeping Python from others.
///
/// # Errors
/// What a signal's handler raises.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    at_most: Option<Duration>,
    slice: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    let give_up = at_most.map(|time| std::time::Instant::now() + time);
    loop {
        let rest = give_up.map(|end| end.saturating_duration_since(std::time::Instant::now()));
        let next = rest.unwrap_or(SLICE).min(SLICE);
        if let Some(found) = py.detach(|| slice(next)) {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if rest.is_some_and(|rest| rest <= next) {
            return Ok(None);
        }
    }
}

/// A call's report for Python.
///
/// # Errors
/// The call's.
pub(crate) fn report(
    py: Python<'_>,
    result: Result<Outcome, Error>,
    open: &Open,
) -> PyResult<Report> {
    outcome(py, result, open).map(|outcome| Report::new(outcome, open.world().size))
}

/// What a call brought, or its error as an exception that names the file with the calls before it.
fn outcome<T>(py: Python<'_>, result: Result<T, Error>, open: &Open) -> PyResult<T> {
    result.map_err(|error| with_recording(py, exception_in(py, &error, open.world()), open))
}

/// The same exception, with a note of the communicator's flight recording if there is one.
fn with_recording(py: Python<'_>, raised: PyErr, open: &Open) -> PyErr {
    match open.caller(py).map(|caller| caller.communicator().flight_file()) {
        Ok(Some(file)) => noting(py, raised, &file),
        _ => raised,
    }
}
