//! Sleeping without missing what the other processes do.

use std::os::fd::{AsFd, BorrowedFd};

/// For one thread that sleeps in `poll(2)`.
///
/// 1. [`Waker::arm`]; 2. look once more whether there is something to do; 3. if not, poll with
///    [`Waker::fd`] among the descriptors (readable: look again); 4. [`Waker::disarm`].
///
/// Whoever advances what this process may wait for rings only where a thread has armed itself.
#[derive(Debug)]
pub struct Waker;

impl Waker {
    /// Readable after a ring, until [`Waker::disarm`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        todo!()
    }

    /// Before the last look and the sleep: from here on others ring.
    pub fn arm(&self) {
        todo!()
    }

    /// After the sleep: takes the ring in.
    pub fn disarm(&self) {
        todo!()
    }
}
