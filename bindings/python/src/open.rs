//! Communicators that are open, and their ends: by `close`, when Python forgets them, and at the
//! interpreter's exit.
//!
//! Nothing of this happens in a process that was forked: threads are not there, locks may be held
//! for ever, and the membership is the parent's.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;
use xdp_agg_client::lent::Caller;

use crate::errors::{World, forked};
use crate::pool::Pool;

/// All communicators of this process and those it was forked from, and their threads. Locked by who
/// is attached to Python alone, and nothing waits under it: so it is free whenever Python forks.
static ALL: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

struct Listed {
    process: u32,
    open: Weak<Open>,
    pool: Pool,
}

/// A communicator, from its connection to its end.
pub(crate) struct Open {
    caller: Caller,
    pool: Pool,
    /// The process that made it.
    process: u32,
    world: World,
    is_closed: AtomicBool,
}

impl Open {
    /// Takes care of a communicator from now on.
    pub(crate) fn new(caller: Caller, _: Python<'_>) -> Arc<Self> {
        let communicator = caller.communicator();
        let (rank, size) = (communicator.rank(), communicator.world_size());
        let world = World { size, first_of_host: rank - rank % communicator.local_size().max(1) };
        let process = std::process::id();
        let pool = Pool::default();
        let is_closed = AtomicBool::new(false);
        let listed = pool.clone();
        let open = Arc::new(Self { caller, pool, process, world, is_closed });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // What they hold is not to be touched, nor to be dropped.
        let of_parents = all.extract_if(.., |listed| listed.process != process);
        of_parents.for_each(mem::forget);
        all.retain(|listed| listed.open.strong_count() > 0 || !listed.pool.is_over());
        all.push(Listed { process, open: Arc::downgrade(&open), pool: listed });
        open
    }

    /// What calls are made on.
    ///
    /// # Errors
    /// `Forked`: it is another process's.
    pub(crate) fn caller(&self, py: Python<'_>) -> PyResult<&Caller> {
        if self.process == std::process::id() { Ok(&self.caller) } else { Err(forked(py)) }
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

    /// Ends calls in flight, leaves the job, and waits for the threads that tell of calls' ends.
    /// Does nothing in a process that was forked, nor when it is done again.
    ///
    /// # Errors
    /// What a signal's handler raises meanwhile; threads are not waited for then.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(caller) = self.caller(py) else { return Ok(()) };
        self.is_closed.store(true, Ordering::Relaxed);
        py.detach(|| caller.close());
        self.pool.close(py)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            mem::forget(mem::take(&mut self.pool));
            return;
        }
        if self.is_closed() {
            return;
        }
        // Leaving waits for other threads, but for none that needs Python while it is detached
        // here. Where the interpreter has ended, the field's own end closes it.
        Python::try_attach(|py| py.detach(|| self.caller.close()));
        // Callbacks are not waited for: they may wait for the thread that forgets this
        // communicator.
        self.pool.let_end();
    }
}

/// Closes every communicator of this process and joins all threads that can call Python. For
/// `atexit`.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) -> PyResult<()> {
    let process = std::process::id();
    let (open, pools): (Vec<_>, Vec<_>) = {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().filter(|listed| listed.process == process);
        own.map(|listed| (listed.open.upgrade(), listed.pool.clone())).unzip()
    };
    for open in open.iter().flatten() {
        open.close(py)?;
    }
    pools.iter().try_for_each(|pool| pool.close(py))
}
