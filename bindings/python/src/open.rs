//! Communicators that are open, and their ends: by `close`, when Python forgets them, and at the
//! interpreter's exit.
//!
//! Nothing of this happens in a process that was forked: threads are not there, locks may be held
//! for ever, and the membership is the parent's.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use xdp_agg_client::lent::Caller;
use xdp_agg_client::{Error, JobError};
use xdp_agg_forks::Origin;

use crate::errors::{World, exception, forked};
use crate::pool::Pool;

/// All communicators of this process and those it was forked from, and their threads. Only a thread
/// that is attached to Python locks it, and nothing waits under it: so it is free when Python
/// forks.
static ALL: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

/// How long the end of a communicator waits for calls in flight. Programs that forget a last one
/// end at about the same time everywhere.
const GRACE: Duration = Duration::from_secs(1);
/// How often it looks whether they have ended.
const LOOK: Duration = Duration::from_millis(2);
/// Characters of an exception that others are told.
const LONGEST: usize = 500;

struct Listed {
    origin: Origin,
    open: Weak<Open>,
    pool: Pool,
}

/// A communicator, from its connection to its end.
pub(crate) struct Open {
    caller: Caller,
    pool: Pool,
    origin: Origin,
    world: World,
    is_closed: AtomicBool,
    /// Calls that have not ended.
    underway: Arc<AtomicUsize>,
}

/// A call counts as long as this lives. A thread that holds it need not be attached to Python.
pub(crate) struct Underway(Arc<AtomicUsize>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Open {
    /// Takes care of a communicator from now on.
    pub(crate) fn new(caller: Caller, _: Python<'_>) -> Arc<Self> {
        let communicator = caller.communicator();
        let world = World {
            size: communicator.world_size(),
            first_of_host: communicator.first_rank_of_host(),
        };
        let origin = Origin::here();
        let pool = Pool::default();
        let is_closed = AtomicBool::new(false);
        let underway = Arc::default();
        let listed = pool.clone();
        let open = Arc::new(Self { caller, pool, origin, world, is_closed, underway });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // What they hold is not to be touched, nor to be dropped.
        let of_parents = all.extract_if(.., |listed| listed.origin.is_elsewhere());
        of_parents.for_each(mem::forget);
        all.retain(|listed| listed.open.strong_count() > 0 || !listed.pool.is_over());
        all.push(Listed { origin, open: Arc::downgrade(&open), pool: listed });
        open
    }

    /// What calls are made on.
    ///
    /// # Errors
    /// `Forked`: it is another process's.
    pub(crate) fn caller(&self, py: Python<'_>) -> PyResult<&Caller> {
        if self.origin.is_elsewhere() { Err(forked(py)) } else { Ok(&self.caller) }
    }

    pub(crate) const fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) const fn world(&self) -> World {
        self.world
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Begins a call. Only a thread that is attached to Python changes which calls there are, and
    /// whether one may be made. So the end does not wait for a call that is refused here, and vice
    /// versa.
    ///
    /// # Errors
    /// `Forked`; `Closed`, as soon as its end has begun.
    pub(crate) fn begin(&self, py: Python<'_>) -> PyResult<(&Caller, Underway)> {
        let caller = self.caller(py)?;
        if self.is_closed() {
            return Err(exception(py, &Error::Job(JobError::Closed)));
        }
        self.underway.fetch_add(1, Ordering::Relaxed);
        Ok((caller, Underway(Arc::clone(&self.underway))))
    }

    /// Leaves the job. Calls in flight may end until then; otherwise they are ended, and the other
    /// workers told so. Waits for no thread that needs Python.
    fn leave(&self, py: Python<'_>, until: Instant) {
        let is_busy = || self.underway.load(Ordering::Relaxed) > 0;
        py.detach(|| {
            while is_busy() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            if is_busy() {
                // Else the others would find out at their deadlines.
                self.caller.abort("it closed its communicator while calls were in flight");
            }
            self.caller.close();
        });
    }

    /// Leaves the job, and waits for the threads that tell of calls' ends. Calls in flight have
    /// [`GRACE`] to end. Does nothing in a process that was forked.
    ///
    /// # Errors
    /// What a signal's handler raises meanwhile; threads are not waited for then.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_until(py, Instant::now() + GRACE)
    }

    fn close_until(&self, py: Python<'_>, until: Instant) -> PyResult<()> {
        if self.caller(py).is_err() {
            return Ok(());
        }
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            self.leave(py, until);
        }
        self.pool.close(py)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            mem::forget(mem::take(&mut self.pool));
            return;
        }
        if self.is_closed() {
            return;
        }
        // Leaving waits for other threads, but for none that needs Python while it is detached
        // here. Where the interpreter has ended, the field's own end closes it.
        Python::try_attach(|py| self.leave(py, Instant::now() + GRACE));
        // Callbacks are not waited for: they may wait for the thread that forgets this
        // communicator.
        self.pool.let_end();
    }
}

/// Closes every communicator of this process and joins all threads that can call Python. For
/// `atexit`. Where an exception ends the program, the other workers are told so.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) -> PyResult<()> {
    let (open, pools): (Vec<_>, Vec<_>) = {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().filter(|listed| !listed.origin.is_elsewhere());
        own.map(|listed| (listed.open.upgrade(), listed.pool.clone())).unzip()
    };
    let open: Vec<_> = open.into_iter().flatten().filter(|open| !open.is_closed()).collect();
    if let Some(reason) = why_it_ends(py).filter(|_| !open.is_empty()) {
        py.detach(|| open.iter().for_each(|open| open.caller.abort(&reason)));
    }
    // One time for all: however many there are, the program ends soon.
    let until = Instant::now() + GRACE;
    open.iter().try_for_each(|open| open.close_until(py, until))?;
    pools.iter().try_for_each(|pool| pool.close(py))
}

/// The exception that ends the program, in words. None: the program ends well, or Python is
/// interactive, where an exception ends nothing.
fn why_it_ends(py: Python<'_>) -> Option<String> {
    let sys = py.import("sys").ok()?;
    // The interpreter leaves it there when it prints what nobody has caught.
    let value = sys.getattr("last_value").ok().filter(|value| !value.is_none())?;
    if sys.hasattr("ps1").unwrap_or(true) {
        return None;
    }
    let name = value.get_type().name().ok()?;
    let text = value.str().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let text: String = text.chars().take(LONGEST).collect();
    let separator = if text.is_empty() { "" } else { ": " };
    Some(format!("its program ended with {name}{separator}{text}"))
}
