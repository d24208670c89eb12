//! A call in flight.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use xdp_agg_client::lent::{InFlight, ViewInFlight};

use crate::calls;
use crate::memory::SharedResult;
use crate::open::Open;

/// A call in flight. The array belongs to the call until it is done, and is kept until then, also
/// if the handle is dropped.
#[pyclass(module = "xdp_agg", name = "Handle", frozen, weakref)]
pub(crate) struct Handle {
    flight: InFlight,
    view: Option<Viewed>,
    /// Keeps the communicator alive as long as a thread may wait.
    open: Arc<Open>,
}

/// A call whose result is to be read, and what makes an array of it.
struct Viewed {
    call: ViewInFlight,
    view: Py<PyAny>,
}

impl Handle {
    pub(crate) fn new(flight: InFlight, open: &Arc<Open>) -> Self {
        Self { flight, view: None, open: Arc::clone(open) }
    }

    /// Of a call whose result is to be read: `view` makes an array of it.
    pub(crate) fn of_view(call: ViewInFlight, view: Py<PyAny>, open: &Arc<Open>) -> Self {
        let flight = call.flight().clone();
        Self { flight, view: Some(Viewed { call, view }), open: Arc::clone(open) }
    }

    pub(crate) const fn flight(&self) -> &InFlight {
        &self.flight
    }
}

#[pymethods]
impl Handle {
    /// Whether the call has ended, with a result or an error. Does not wait.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        self.open.caller(py)?;
        Ok(self.flight.is_done())
    }

    /// Waits for the end of the call; other threads run meanwhile, and Ctrl-C is heard. May be
    /// called again.
    ///
    /// timeout: seconds; None: as long as the call's deadline lets it live.
    ///
    /// Returns the call's report; of all_reduce_view_async the result and the report. The result's
    /// memory is kept by the handle, too.
    ///
    /// Raises TimeoutError if the call is still in flight then, and the call's own error
    /// (`xdp_agg.Error`) if it failed.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.open.caller(py)?;
        let at_most = match timeout {
            Some(0.0) => Some(Duration::ZERO),
            Some(time) => Some(calls::seconds("timeout", time)?),
            None => None,
        };
        let ended = calls::wait(py, at_most, |slice| self.flight.wait(slice))?;
        let result = ended.ok_or_else(|| {
            let time = at_most.unwrap_or_default();
            PyTimeoutError::new_err(format!("the call is still in flight after {time:?}"))
        })?;
        let report = Bound::new(py, calls::report(py, result, &self.open)?)?;
        let Some(Viewed { call, view }) = &self.view else { return Ok(report.into_any().unbind()) };
        // It has ended well, so the result is there.
        let found = call.wait(Duration::ZERO).and_then(Result::ok);
        let (bytes, _) = found.ok_or_else(|| PyRuntimeError::new_err("there is no result"))?;
        let array = view.call1(py, (Bound::new(py, SharedResult::new(bytes))?,))?;
        Ok((array, report).into_pyobject(py)?.into_any().unbind())
    }

    /// Has `call(handle)` called once when the call has ended, on a thread of its own, or soon if
    /// it has ended already. It may wait for other calls.
    fn on_done(slf: &Bound<'_, Self>, call: Py<PyAny>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        this.open.caller(py)?;
        calls::check_callable(call.bind(py))?;
        this.open.pool().prepare()?;
        let pool = this.open.pool().clone();
        let handle = slf.clone().unbind();
        this.flight.on_done(move |_| {
            pool.give(Box::new(move |py| {
                if let Err(error) = call.call1(py, (handle,)) {
                    error.write_unraisable(py, Some(call.bind(py)));
                }
            }));
        });
        Ok(())
    }

    fn __repr__(&self) -> &'static str {
        if self.flight.is_done() { "<xdp_agg.Handle: done>" } else { "<xdp_agg.Handle: in flight>" }
    }
}
