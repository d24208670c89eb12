//! What the all-reduces of a communicator have learned, and which of their calls have times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::learner::{Class, Size, Slot};
use super::route::Route;
use super::sums::Scratch;

/// What a communicator's all-reduces have learned.
#[derive(Debug, Default)]
pub(crate) struct Learning {
    pub(super) classes: Mutex<Classes>,
    pub(super) scratch: Mutex<Scratch>,
    /// Calls that have begun, and that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A call whose time may count: if no other call was in flight at any time of it.
pub(super) struct Timed {
    learning: Arc<Learning>,
    counts: Option<(Size, Slot)>,
    number: u64,
    alone: bool,
}

impl Timed {
    pub(super) fn begin(learning: &Arc<Learning>, counts: Option<(Size, Slot)>) -> Self {
        let number = learning.begun.fetch_add(1, Ordering::AcqRel);
        let alone = learning.ended.load(Ordering::Acquire) == number;
        Self { learning: Arc::clone(learning), counts, number, alone }
    }

    /// The call has ended well, and took this time.
    pub(super) fn took(self, time: Duration) {
        let alone = self.alone && self.learning.begun.load(Ordering::Acquire) == self.number + 1;
        let Some((size, slot)) = self.counts.filter(|_| alone) else { return };
        let nanoseconds = time.as_nanos().try_into().unwrap_or(u64::MAX);
        if let Some(known) = self.learning.classes.lock().all.get_mut(&size) {
            known.class.took(slot, nanoseconds);
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.learning.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
pub(super) struct Classes {
    pub(super) all: BTreeMap<Size, Known>,
    /// The workers cannot reach each other.
    pub(super) alone: bool,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) class: Class,
    /// Chunks of a block, as the workers have agreed.
    pub(super) chunks: i64,
}

/// How a call goes that learns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Going {
    pub(super) route: Route,
    pub(super) chunks: i64,
    pub(super) counts: Option<(Size, Slot)>,
}
