//! What the library says goes to Python's logger `xdp_agg`.

use std::process;
use std::sync::{Mutex, Once, PoisonError};

use pyo3::prelude::*;
use xdp_agg_client::log::{Level, forward};

use crate::pool::Pool;

/// The threads that tell it, and the process that they are in: a forked child has none of them.
static POOL: Mutex<Option<(u32, Pool)>> = Mutex::new(None);

fn pool() -> Pool {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let (own, here) = (process::id(), |(of, _): &(u32, Pool)| *of == process::id());
    if !pool.as_ref().is_some_and(here) {
        *pool = Some((own, Pool::default()));
    }
    pool.as_ref().map(|(_, pool)| pool.clone()).unwrap_or_default()
}

/// From here on what the library says is told, once. The threads that say it do not wait for
/// Python.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        forward(Level::INFO, |level, line| {
            pool().give(Box::new(move |py| {
                // A logger that raises harms nobody.
                let _ = tell(py, level, &line);
            }));
        });
    });
}

fn tell(py: Python<'_>, level: Level, line: &str) -> PyResult<()> {
    let number = match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        _ => 20,
    };
    let logger = py.import("logging")?.call_method1("getLogger", ("xdp_agg",))?;
    logger.call_method1("log", (number, "%s", line)).map(drop)
}

/// Tells what is left; at the interpreter's end.
///
/// # Errors
/// What a signal's handler raises.
#[pyfunction]
pub(crate) fn _close_log(py: Python<'_>) -> PyResult<()> {
    pool().close(py)
}
