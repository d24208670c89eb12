//! Threads that tell Python of calls that are done.
//!
//! What they call may wait for other calls, whose ends have to be told as well: PyTorch's PowerSGD
//! hook does that. So there is one more thread whenever all are busy for longer than an instant.
//! All of them can call Python, and a thread that does so while the interpreter ends may bring the
//! process down: they are joined before ([`Pool::close`]).

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// A thread that waits asks this often whether there is a signal to handle.
pub(crate) const SLICE: Duration = Duration::from_millis(50);
/// How long a job keeps others from being taken: most are done long before, and one thread is
/// enough for them.
const PATIENCE: Duration = Duration::from_millis(1);

thread_local! {
    static IS_OF_A_POOL: Cell<bool> = const { Cell::new(false) };
}

/// What is to be told; it runs attached to Python.
pub(crate) type Job = Box<dyn FnOnce(Python<'_>) + Send>;

/// The threads of one communicator. Cheap to clone: all clones are the same pool.
#[derive(Clone, Default)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a job, or the pool is closed.
    given: Condvar,
    /// A thread has come to its end.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Since when each busy thread has been so.
    busy: Vec<(ThreadId, Instant)>,
    /// Threads that wait for a job.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    /// Threads that have not come to their end.
    alive: usize,
    is_closed: bool,
}

impl Pool {
    /// Has a job done by one of the threads. Nothing blocks here, and Python need not be attached.
    /// Jobs are begun in the order in which they are given.
    pub(crate) fn give(&self, job: Job) {
        let mut state = self.shared.lock();
        state.jobs.push_back(job);
        self.grow(&mut state);
        self.shared.given.notify_one();
    }

    /// Has a thread ready, so that a system that has no more of them says so in good time.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn prepare(&self) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        if state.alive > 0 { Ok(()) } else { self.spawn(&mut state) }
    }

    /// Lets jobs that were given be done, and waits for the threads' ends, without keeping Python
    /// from others. A thread of the pool that calls this waits for none: it would wait for itself.
    ///
    /// # Errors
    /// What a signal's handler raises; the threads are not waited for then.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.let_end();
        if IS_OF_A_POOL.get() {
            return Ok(());
        }
        while !py.detach(|| self.shared.has_ended(SLICE)) {
            py.check_signals()?;
        }
        let all: Vec<_> = self.shared.lock().threads.drain(..).collect();
        // Panics were caught and told.
        py.detach(|| all.into_iter().for_each(|thread| drop(thread.join())));
        Ok(())
    }

    /// Has the threads end when all jobs are done, without waiting for that.
    pub(crate) fn let_end(&self) {
        self.shared.lock().is_closed = true;
        self.shared.given.notify_all();
    }

    /// No thread is left, and none will be.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.shared.lock();
        state.alive == 0 && state.is_closed
    }

    /// Starts another thread, unless one is free to look after the jobs.
    fn grow(&self, state: &mut State) {
        if state.idle == 0 && !state.jobs.is_empty() {
            // Without it jobs wait for a thread that is busy now.
            let _ = self.spawn(state);
        }
    }

    fn spawn(&self, state: &mut State) -> std::io::Result<()> {
        let pool = self.clone();
        let named = thread::Builder::new().name("xdp-agg-done".into());
        state.threads.push(named.spawn(move || pool.serve())?);
        state.alive += 1;
        // It counts from now on, so that a burst of jobs does not start a thread for each.
        state.idle += 1;
        Ok(())
    }

    fn serve(&self) {
        IS_OF_A_POOL.set(true);
        while let Some(job) = self.next() {
            let told = Python::try_attach(|py| {
                // Python prints exceptions of its own; this is what is wrong with this library.
                let done = catch_unwind(AssertUnwindSafe(|| job(py)));
                if done.is_err() {
                    eprintln!("xdp_agg: telling of a call's end panicked; the process goes on");
                }
            });
            let mut state = self.shared.lock();
            state.busy.retain(|(id, _)| *id != thread::current().id());
            state.idle += 1;
            if told.is_none() {
                // The interpreter is ending: nobody can be told of anything any more.
                state.jobs.clear();
                state.is_closed = true;
            }
        }
        let mut state = self.shared.lock();
        state.idle -= 1;
        state.alive -= 1;
        drop(state);
        self.shared.ended.notify_all();
    }

    /// Waits for a job that may be begun. None: there will be none.
    fn next(&self) -> Option<Job> {
        let mut state = self.shared.lock();
        loop {
            let now = Instant::now();
            let since = state.busy.iter().map(|(_, since)| *since).max();
            let free_at = since.map_or(now, |since| since + PATIENCE);
            if free_at <= now
                && let Some(job) = state.jobs.pop_front()
            {
                state.busy.push((thread::current().id(), now));
                state.idle -= 1;
                self.grow(&mut state);
                return Some(job);
            }
            if state.jobs.is_empty() {
                if state.is_closed {
                    return None;
                }
                let given = self.shared.given.wait(state);
                state = given.unwrap_or_else(PoisonError::into_inner);
            } else {
                let rest = free_at.saturating_duration_since(now);
                let given = self.shared.given.wait_timeout(state, rest);
                state = given.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all threads have ended, for `at_most` at the longest; whether they have.
    fn has_ended(&self, at_most: Duration) -> bool {
        let give_up = Instant::now() + at_most;
        let mut state = self.lock();
        while state.alive > 0 {
            let rest = give_up.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            let ended = self.ended.wait_timeout(state, rest);
            state = ended.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
