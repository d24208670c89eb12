//! What is known of other ranks besides their connections, and what is said of long waits.

use std::fmt::Debug;
use std::time::Duration;

/// How often an onlooker is asked.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

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
