//! The processes of a job on this host.

use std::sync::Arc;
use std::time::Duration;

use crate::{Error, Exchange, Feeder, Geometry, Options, Waker};

/// What a call is: has to be the same in all local processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of the call; below 2^63. Calls that run at the same time have different ones.
    pub sequence: u64,
    /// Elements of the vector.
    pub len: usize,
    /// Bytes of an element.
    pub element_size: usize,
    /// Whatever else has to be the same (type, operation, scaling), as a digest.
    pub digest: u64,
    /// The call in words, for errors; cut off after 128 bytes.
    pub description: String,
    /// Whether each block's peak is needed before its data.
    pub wants_peaks: bool,
}

/// The processes of a job on this host, and their shared segment. Dropping it is leaving in good
/// order.
#[derive(Debug)]
pub struct Group;

impl Group {
    /// Meets the other local processes and shares a segment with them. Blocks until all are there.
    ///
    /// # Errors
    /// See [`Error`]; a mismatch is an error at all processes.
    pub fn join(options: &Options) -> Result<Arc<Self>, Error> {
        todo!()
    }

    /// This process among those of the host.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        todo!()
    }

    /// Processes of the group.
    #[must_use]
    pub fn local_size(&self) -> usize {
        todo!()
    }

    /// Blocks of `block_bytes` (of the caller's elements) that a slice of a full chunk has: as many
    /// as let two calls run at a time, at most [`Options::slice_blocks`]. It follows from options
    /// alone, so all hosts with the same options get the same.
    #[must_use]
    pub fn slice_blocks(&self, block_bytes: usize) -> usize {
        todo!()
    }

    /// Whether all processes are there and well.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub fn check(&self) -> Result<(), Error> {
        todo!()
    }

    /// Opens a call. The first process to come makes room, the others join in. Waits for room, up
    /// to [`Options::wait_within`]: other calls of this process have to be driven meanwhile by other
    /// threads; see [`Self::try_begin`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] at every process if their shapes or geometries differ,
    /// [`Error::TooLarge`], [`Error::Deadline`], [`Error::PeerLost`].
    pub fn begin(
        self: &Arc<Self>,
        shape: &Shape,
        geometry: Geometry,
    ) -> Result<(Feeder, Arc<Exchange>), Error> {
        todo!()
    }

    /// As [`Self::begin`], but does not wait.
    ///
    /// # Errors
    /// As there, and [`Error::Busy`].
    pub fn try_begin(
        self: &Arc<Self>,
        shape: &Shape,
        geometry: Geometry,
    ) -> Result<(Feeder, Arc<Exchange>), Error> {
        todo!()
    }

    /// A way to sleep in `poll(2)`, one a thread.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn waker(self: &Arc<Self>) -> Result<Waker, Error> {
        todo!()
    }

    /// Waits until all processes have come here.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::PeerLeft`], [`Error::Deadline`].
    pub fn barrier(&self) -> Result<(), Error> {
        todo!()
    }
}
