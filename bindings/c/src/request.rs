//! A call in flight.

use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use xdp_agg_client::Error;
use xdp_agg_client::lent::{Caller, InFlight, LentView, ViewInFlight};

use crate::failure::{Failure, keep};
use crate::memory::After;

/// A call in flight, and what it needs until its end.
pub(crate) struct Request {
    pub(crate) flight: InFlight,
    /// None once it was done.
    pub(crate) after: Mutex<Option<After>>,
    /// Of a call whose result is to be read.
    pub(crate) view: Option<ViewInFlight>,
    /// Gone when the communicator was destroyed.
    pub(crate) caller: Weak<Caller>,
    /// For errors of this host's processes.
    pub(crate) first_rank_of_host: u16,
}

impl Request {
    /// Waits for `at_most` at the longest. False: it has not ended yet.
    ///
    /// # Errors
    /// The call's.
    pub(crate) fn wait(&self, at_most: Duration) -> Result<bool, Failure> {
        // Locks of the parent may be held in a child for ever: they are not touched there.
        if self.flight.is_forked() {
            return Err(Error::Forked.into());
        }
        let Some(ending) = self.flight.wait(at_most) else { return Ok(false) };
        let outcome = ending.map_err(|error| Failure::in_world(&error, self.first_rank_of_host))?;
        // Held until the copy is made, so that other threads that wait see the copy as well.
        let mut after = self.after.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(after) = after.take() {
            after.carry_out();
        }
        drop(after);
        keep(outcome);
        Ok(true)
    }

    /// The result, of a call that has ended well.
    ///
    /// # Errors
    /// The call's; it has not ended, or its result is in a vector of the caller's.
    pub(crate) fn view(&self) -> Result<LentView, Failure> {
        if self.flight.is_forked() {
            return Err(Error::Forked.into());
        }
        let problem = "is of a call that leaves its result in recv";
        let call = self.view.as_ref().ok_or_else(|| Failure::of("request", problem))?;
        let ending = call.wait(Duration::ZERO).ok_or_else(Failure::in_progress)?;
        let ending = ending.map_err(|error| Failure::in_world(&error, self.first_rank_of_host));
        ending.map(|(view, _)| view)
    }

    /// Whether nobody needs its memory any more.
    pub(crate) fn is_over(&self) -> bool {
        self.flight.is_done()
    }

    /// Ends the membership that the call is made in, unless the call has ended.
    ///
    /// # Errors
    /// This process was forked from the one that started it.
    pub(crate) fn cancel(&self) -> Result<(), Failure> {
        if self.flight.is_forked() {
            return Err(Error::Forked.into());
        }
        if let (false, Some(caller)) = (self.flight.is_done(), self.caller.upgrade()) {
            caller.abort("it cancelled a call");
        }
        Ok(())
    }
}
