//! Where each thing is in a segment, in bytes from its start. `docs/intranode.md` has the picture.

use crate::options::MAX_PROCESSES;

/// Size of a cache line, and of the pair of lines that prefetchers pull together.
pub(crate) const LINE: usize = 64;

/// Which process is lost, and how it showed: 0, or [`failure`](crate::core::failure).
pub(crate) const FAILED: usize = 0;
/// Bit set of the local ranks that left in good order.
pub(crate) const LEFT: usize = 8;
/// The lock of allocator and records.
pub(crate) const LOCK: usize = 2 * LINE;
/// Processes that have come to the barrier of this round.
pub(crate) const BARRIER_ARRIVED: usize = 4 * LINE;
/// Rounds of the barrier that are over (futex).
pub(crate) const BARRIER_ROUND: usize = 6 * LINE;
/// Processes that sleep at the barrier.
pub(crate) const BARRIER_SLEEPERS: usize = 8 * LINE;

const SLOTS: usize = 4096;
const SLOT: usize = 256;

/// What belongs to one process.
#[derive(Clone, Copy)]
pub(crate) struct Slot(usize);

impl Slot {
    pub(crate) fn of(local_rank: usize) -> Self {
        assert!(local_rank < MAX_PROCESSES);
        Self(SLOTS + local_rank * SLOT)
    }

    /// How this process's threads sleep (see `protocol`).
    pub(crate) fn asleep(self) -> usize {
        self.0
    }

    /// Counts rings for threads that sleep without a descriptor (futex).
    pub(crate) fn bell(self) -> usize {
        self.0 + LINE
    }

    /// Rounds of the barrier that this process has come to: to say which process is missing.
    pub(crate) fn round(self) -> usize {
        self.0 + 2 * LINE
    }

    /// Process id.
    pub(crate) fn pid(self) -> usize {
        self.0 + 2 * LINE + 4
    }

    /// The number that it compares with the others'.
    pub(crate) fn compared(self) -> usize {
        self.0 + 2 * LINE + 8
    }

    /// What this process brings to the collective's piece of this parity: a digest of what it calls
    /// and how long that is.
    pub(crate) fn brings(self, parity: usize) -> usize {
        self.0 + 3 * LINE + parity * 16
    }

    /// Where it is, if it lies in the segment.
    pub(crate) fn brings_at(self, parity: usize) -> usize {
        self.brings(parity) + 8
    }
}

/// The table of calls.
pub(crate) const RECORDS: usize = SLOTS + MAX_PROCESSES * SLOT;
/// Bytes of a record.
pub(crate) const RECORD: usize = 1024;
/// Records in the table.
pub(crate) const RECORD_COUNT: usize = 32;
/// The allocator's memory starts here.
pub(crate) const ARENA: usize = (RECORDS + RECORD * RECORD_COUNT).next_multiple_of(4096);
