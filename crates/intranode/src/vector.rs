//! A process's own vector, where it lies in the segment.

use std::ops::Range;

use std::ptr::NonNull;

use crate::core::Core;
use crate::{Error, Group};

/// Bytes of a page; where pages are larger, the system refuses what is said of parts of them.
pub(crate) const PAGE: usize = 4096;

/// Memory of a process that lies in the segment, as that process reaches it. What it says holds for
/// the group that found it.
#[derive(Clone, Copy, Debug)]
pub struct InSegment {
    memory: *mut u8,
    offset: usize,
    len: usize,
    /// It is not the segment's mapping that it is reached through, but one of its own.
    is_alias: bool,
}

// SAFETY: an address. Whoever reaches the memory through it keeps the promise of
// `Feeder::adopt`, on whichever thread.
unsafe impl Send for InSegment {}
// SAFETY: as above.
unsafe impl Sync for InSegment {}

impl Group {
    /// Whether this memory of the process lies in a [`Buffer`](crate::Buffer), in a
    /// [`View`](crate::View), or where pages of the segment were put under it ([`Self::place`]):
    /// then it need not be copied into the segment.
    #[must_use]
    pub fn find(&self, memory: *mut u8, len: usize) -> Option<InSegment> {
        let core = self.core();
        let own = core.segment.find(memory, len);
        let offset = own.or_else(|| core.alias(memory, len)).filter(|_| len > 0)?;
        let arena = core.buffers();
        let is_there = arena.holds(offset) && arena.holds(offset + len - 1);
        // A call failed that had it: nothing of it is shared any more.
        let is_shared = is_there && !core.is_detached(&(offset..offset + len));
        is_shared.then_some(InSegment { memory, offset, len, is_alias: own.is_none() })
    }
}

impl InSegment {
    /// Where it is in the segment.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// False: memory of no bytes lies nowhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Cuts this process off from it, when the call that had it is over in this process.
    pub(crate) fn detach(&self, core: &Core) -> Result<(), Error> {
        // Buffers begin and end with a page, so nothing else is in these pages.
        let start = self.offset / PAGE * PAGE;
        let end = (self.offset + self.len).next_multiple_of(PAGE);
        core.detached().push(start..end);
        let alias = NonNull::new(self.memory.wrapping_sub(self.offset - start));
        // SAFETY: of this process, owners wrote to the vector with the call's exchange, which is
        // gone, and its caller is still waiting for the call (`Feeder::adopt`). Memory under which
        // there are pages of the segment is there as long as a call has it (`Group::place`).
        unsafe {
            match alias.filter(|_| self.is_alias) {
                Some(memory) => core.segment.cut_off(memory, end - start),
                None => core.segment.detach(start, end - start),
            }
        }
    }

    /// Bytes of it, which nobody writes as long as the slice lives (`call`).
    pub(crate) fn read<'a>(&self, bytes: Range<usize>) -> &'a [u8] {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "{bytes:?} of {}", self.len);
        // SAFETY: within memory that is valid until the feeder that adopted it and the exchange
        // beside it are gone (`Feeder::adopt`). A block that is not staged is the feeder's, which
        // reads; one that is staged and has no result yet is read by its owner.
        unsafe { std::slice::from_raw_parts(self.memory.add(bytes.start), bytes.len()) }
    }

    /// Writes bytes from `start` on, of a block that this process owns and that has no reader.
    pub(crate) fn write(&self, start: usize, bytes: &[u8]) {
        assert!(start + bytes.len() <= self.len, "{start}+{} of {}", bytes.len(), self.len);
        // SAFETY: within memory that is valid for writing, as in `read`; the block is the owner's
        // until it is finished, and the owner is this process.
        let to = unsafe { std::slice::from_raw_parts_mut(self.memory.add(start), bytes.len()) };
        to.copy_from_slice(bytes);
    }
}
