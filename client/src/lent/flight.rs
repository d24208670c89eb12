//! A call that was started: whether it has ended, and how.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xdp_agg_forks::Origin;

use super::Outcome;
use crate::error::Error;

/// How a call ended.
type Ending = Result<Outcome, Error>;
/// What is to be done then.
type Then = Box<dyn FnOnce(&Ending) + Send>;

/// A call in flight. Dropping it does not end the call: the memory that was lent to it is the
/// call's until [`Self::is_done`].
#[derive(Clone)]
pub struct InFlight(Arc<Flight>);

struct Flight {
    state: Mutex<State>,
    landed: Condvar,
    origin: Origin,
}

#[derive(Default)]
struct State {
    ending: Option<Ending>,
    then: Vec<Then>,
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InFlight").field(&self.0.state.lock().ending).finish()
    }
}

impl InFlight {
    pub(super) fn new() -> Self {
        let (state, landed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Flight { state, landed, origin: Origin::here() }))
    }

    /// This process was forked from the one that started it: here it ends with [`Error::Forked`].
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.0.origin.is_elsewhere()
    }

    /// True once it has ended, in one way or the other.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_forked() || self.0.state.lock().ending.is_some()
    }

    /// Waits for its end, at most for `at_most`. None: it has not ended yet, and goes on.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> Option<Ending> {
        if self.is_forked() {
            return Some(Err(Error::Forked));
        }
        let mut state = self.0.state.lock();
        if state.ending.is_none() {
            let landed = |state: &mut State| state.ending.is_none();
            match Instant::now().checked_add(at_most) {
                Some(until) => drop(self.0.landed.wait_while_until(&mut state, landed, until)),
                None => self.0.landed.wait_while(&mut state, landed),
            }
        }
        state.ending.clone()
    }

    /// Calls `then` when the call ends, on the thread that ends it, which must not be blocked. If
    /// it has ended, calls `then` at once, on this thread.
    pub fn on_done(&self, then: impl FnOnce(&Ending) + Send + 'static) {
        if self.is_forked() {
            return then(&Err(Error::Forked));
        }
        let mut state = self.0.state.lock();
        match state.ending.clone() {
            None => state.then.push(Box::new(then)),
            Some(ending) => {
                drop(state);
                then(&ending);
            }
        }
    }

    fn end(&self, ending: Ending) {
        let mut state = self.0.state.lock();
        state.ending = Some(ending.clone());
        let then = std::mem::take(&mut state.then);
        drop(state);
        self.0.landed.notify_all();
        then.into_iter().for_each(|then| then(&ending));
    }
}

/// A call in flight in the hands of those that carry it out. If they drop it before its end, as a
/// thread that panics does, that is its end.
pub(super) struct Carried(InFlight);

impl Carried {
    pub(super) fn new(call: &InFlight) -> Self {
        Self(call.clone())
    }

    pub(super) fn end(self, ending: Ending) {
        self.0.end(ending);
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if !self.0.is_done() {
            let why = "a thread of the library panicked, and its message says where";
            self.0.end(Err(Error::Interrupted(why.into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_end_is_told_once_to_all_who_asked() {
        let (sender, told) = channel();
        let call = InFlight::new();
        let before = sender.clone();
        call.on_done(move |ending| before.send(ending.is_ok()).expect("waited for"));
        assert!(!call.is_done() && call.wait(Duration::from_millis(1)).is_none());
        Carried::new(&call).end(Ok(Outcome::default()));
        call.on_done(move |ending| sender.send(ending.is_ok()).expect("waited for"));
        assert!(call.is_done() && call.wait(Duration::MAX).is_some());
        assert_eq!(told.iter().collect::<Vec<_>>(), [true, true]);
    }

    #[test]
    fn a_call_that_nobody_carries_any_more_has_ended() {
        let call = InFlight::new();
        let carried = Carried::new(&call);
        let thread = std::thread::spawn(move || {
            let _carried = carried;
            panic!("on purpose");
        });
        let ending = call.wait(Duration::from_secs(10)).expect("it ends with its thread");
        assert!(matches!(ending, Err(Error::Interrupted(_))), "{ending:?}");
        thread.join().expect_err("it panicked");
    }
}
