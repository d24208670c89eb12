//! The side of the vector's owner: peaks and data in, results out.

use std::time::Duration;

use crate::{Error, Marks};

/// What [`Feeder::poll`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// A piece of work was done; there may be more.
    pub did: bool,
    /// The whole result is in the vector.
    pub done: bool,
}

/// One call, seen by the thread that has this process's vector.
#[derive(Debug)]
pub struct Feeder;

impl Feeder {
    /// Does one piece of work, if one can be done: gathers a finished chunk into `data`, publishes
    /// the peaks of a chunk's blocks, or stages a chunk.
    ///
    /// `data` is the vector, input and output, the same at each call. `scan` gives a block's peak.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Elsewhere`], [`Error::PeerLost`], [`Error::PeerLeft`].
    ///
    /// # Panics
    /// If `data` has not the shape's length.
    pub fn poll(
        &mut self,
        data: &mut [u8],
        scan: &mut dyn FnMut(&[u8]) -> f64,
    ) -> Result<Progress, Error> {
        todo!()
    }

    /// Whether [`Self::poll`] has something to do now (or an error to tell).
    #[must_use]
    pub fn can(&self) -> bool {
        todo!()
    }

    /// Whether the whole result is in the vector.
    #[must_use]
    pub fn done(&self) -> bool {
        todo!()
    }

    /// Sleeps until [`Self::can`] or until `timeout` is over: for threads without sockets.
    pub fn wait(&self, timeout: Duration) {
        todo!()
    }

    /// Local ranks that have not done what this process waits for now.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<usize> {
        todo!()
    }

    /// What all owners reported; complete when done.
    #[must_use]
    pub fn marks(&self) -> Marks {
        todo!()
    }
}
