//! What is known of other ranks besides their connections, and what is said of long waits.

use std::fmt::Debug;
use std::time::Duration;

/// How often an onlooker is asked.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// How often a caller is asked.
pub(crate) const ASKED: Duration = Duration::from_millis(50);

/// How long a call's caller waits for it.
pub struct Patience<'a> {
    /// From the call's beginning on.
    pub deadline: Duration,
    /// Asked some twenty times a second, on the call's thread: true ends the call with
    /// [`Error::Interrupted`](crate::Error::Interrupted).
    pub interrupted: &'a mut dyn FnMut() -> bool,
}

impl Patience<'_> {
    /// The same for a part of what the caller waits for.
    pub fn again(&mut self) -> Patience<'_> {
        Patience { deadline: self.deadline, interrupted: self.interrupted }
    }
}

impl Debug for Patience<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patience").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// Looks on while a call waits.
pub trait Onlooker: Debug + Send + Sync {
    /// A call has been waiting for this long, at present for this rank. Said about once a second.
    ///
    /// # Errors
    /// Why the call shall end.
    fn waits(&self, rank: u16, waited: Duration) -> Result<(), String>;

    /// What is known of a rank, at the end of such a wait.
    fn known(&self, rank: u16) -> Option<String>;
}

/// Where nobody else looks on: it tells of long waits in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone;

/// Seconds after which a wait is told of; it is told of again after twice that, and so on.
const FIRST: u64 = 10;

impl Onlooker for Alone {
    fn waits(&self, rank: u16, waited: Duration) -> Result<(), String> {
        let seconds = waited.as_secs();
        if seconds >= FIRST && seconds.is_multiple_of(FIRST) && (seconds / FIRST).is_power_of_two()
        {
            tracing::warn!(
                "a call over the workers' connections has waited {seconds} s for rank {rank}; \
                 XDP_AGG_DEADLINE says how long it may"
            );
        }
        Ok(())
    }

    fn known(&self, _: u16) -> Option<String> {
        None
    }
}
