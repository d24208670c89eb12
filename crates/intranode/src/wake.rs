//! Sleeping in `poll(2)` without missing what the other processes do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::time::Timespec;

use crate::layout::Slot;
use crate::protocol::{POLLS, fall_asleep};
use crate::{Error, Group};

/// For one thread that sleeps in `poll(2)`.
///
/// 1. [`Waker::arm`]; 2. look once more whether there is something to do; 3. if not, poll with
///    [`Waker::fd`] among the descriptors (readable: look again); 4. [`Waker::disarm`].
///
/// A process that advances what this one may wait for rings only where a thread has armed itself.
/// Do not sleep longer than some 100 ms: a process may die before it rings.
#[derive(Debug)]
pub struct Waker {
    group: Arc<Group>,
    /// All wakers of a process share one eventfd, which is never read. Each sees its own edges of
    /// it, so that no thread takes in a ring that another has not heard yet.
    ears: OwnedFd,
}

impl Waker {
    pub(crate) fn new(group: &Arc<Group>) -> Result<Self, Error> {
        let ears = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::system("epoll_create", errno))?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let core = group.core();
        epoll::add(&ears, &core.bells[core.rank], epoll::EventData::new_u64(0), flags)
            .map_err(|errno| Error::system("epoll_ctl", errno))?;
        let waker = Self { group: Arc::clone(group), ears };
        waker.disarm();
        Ok(waker)
    }

    /// Readable after a ring, until [`Waker::disarm`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ears.as_fd()
    }

    /// Before the last look and the sleep: from here on others ring.
    pub fn arm(&self) {
        let core = self.group.core();
        fall_asleep(core.segment.word(Slot::of(core.rank).asleep()), POLLS);
    }

    /// After the sleep: takes the ring in.
    pub fn disarm(&self) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: NONE }; 1];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Fails when interrupted: then the next sleep is a short one.
        let _ = epoll::wait(&self.ears, &mut events[..], Some(&now));
    }
}

const NONE: epoll::EventData = epoll::EventData::new_u64(0);
