//! Joining a job, so that Ctrl-C ends the wait for others.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use xdp_agg_client::lent::{Caller, Settings};
use xdp_agg_client::{Builder, Error};

use crate::calls;
use crate::errors::{World, exception_in};
use crate::log;

type Joined = Result<Caller, Error>;

/// Joins, without keeping Python from others. If a signal's handler raises, a thread that cannot
/// call Python goes on with it, and leaves as soon as it has joined.
///
/// # Errors
/// The client's, or what a signal's handler raises.
pub(crate) fn connect(
    py: Python<'_>,
    builder: Builder,
    settings: Settings,
    world: World,
) -> PyResult<Caller> {
    log::start();
    let (sender, joined) = channel();
    let named = thread::Builder::new().name("xdp-agg-join".into());
    let thread = named.spawn(move || {
        // Nobody waits any more: the communicator comes back, is dropped, and leaves.
        drop(sender.send(Caller::connect(builder, settings)));
    })?;
    let joined = Mutex::new(joined);
    let caller = calls::wait(py, None, |slice| receive(&joined, slice))?;
    py.detach(|| drop(thread.join()));
    match caller.flatten() {
        Some(caller) => caller.map_err(|error| exception_in(py, &error, world)),
        None => Err(PyRuntimeError::new_err("joining the job panicked; please report this")),
    }
}

/// None: not yet. Some(None): there will be nothing.
fn receive(joined: &Mutex<Receiver<Joined>>, at_most: Duration) -> Option<Option<Joined>> {
    let joined = joined.lock().ok()?;
    match joined.recv_timeout(at_most) {
        Ok(joined) => Some(Some(joined)),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    }
}
