//! A call that was started: whether it has ended, and how.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

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

#[derive(Default)]
struct Flight {
    state: Mutex<State>,
    landed: Condvar,
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
        Self(Arc::default())
    }

    /// True once it has ended, in one way or the other.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.state.lock().ending.is_some()
    }

    /// Waits for its end, at most for `at_most`. None: it has not ended yet, and goes on.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> Option<Ending> {
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
        let mut state = self.0.state.lock();
        match state.ending.clone() {
            None => state.then.push(Box::new(then)),
            Some(ending) => {
                drop(state);
                then(&ending);
            }
        }
    }

    pub(super) fn end(&self, ending: Ending) {
        let mut state = self.0.state.lock();
        state.ending = Some(ending.clone());
        let then = std::mem::take(&mut state.then);
        drop(state);
        self.0.landed.notify_all();
        then.into_iter().for_each(|then| then(&ending));
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
        call.end(Ok(Outcome::default()));
        call.on_done(move |ending| sender.send(ending.is_ok()).expect("waited for"));
        assert!(call.is_done() && call.wait(Duration::MAX).is_some());
        assert_eq!(told.iter().collect::<Vec<_>>(), [true, true]);
    }
}
