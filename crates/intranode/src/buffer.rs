//! Memory of the segment in a caller's hands.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::{Error, Group};

/// Memory of the segment that belongs to this process: what it holds can be read by the others
/// without being copied first ([`Feeder::adopt`](crate::Feeder::adopt),
/// [`Csc::all_gather_shared`](crate::csc::Csc::all_gather_shared)). Paper 5, Table 1:
/// `sdaaMallocCross` and `sdaaFreeCross`.
///
/// It begins and ends with a page. Its bytes are at first of no meaning.
#[derive(Debug)]
pub struct Buffer {
    group: Arc<Group>,
    offset: usize,
    len: usize,
}

impl Group {
    /// Allocates `len` bytes of the segment.
    ///
    /// # Errors
    /// [`Error::BufferRoom`], [`Error::PeerLost`].
    pub fn buffer(self: &Arc<Self>, len: usize) -> Result<Buffer, Error> {
        let core = self.core();
        let _locked = core.lock()?;
        match core.buffers().allocate_pages(&core.segment, len) {
            Some(offset) => Ok(Buffer { group: Arc::clone(self), offset, len }),
            None => Err(core.no_room(len, core.used_by_buffers())),
        }
    }
}

impl Buffer {
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Where it is in the segment.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }
}

#[expect(unsafe_code, reason = "plain memory of the segment; see `segment`")]
impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated to this value alone, which is borrowed; others read it only while a
        // collective has it borrowed as well.
        unsafe { self.group.core().segment.bytes(self.offset, self.len) }
    }
}

#[expect(unsafe_code, reason = "plain memory of the segment; see `segment`")]
impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing, so that no collective has it.
        unsafe { self.group.core().segment.bytes_mut(self.offset, self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let core = self.group.core();
        // Without the lock the group is lost, and the segment goes with its last process.
        let Ok(_locked) = core.lock() else { return };
        // Where a call failed that had it, others may still look there. The group is of no more
        // use then, and its memory goes with the last process.
        if !core.is_detached(&(self.offset..self.offset + self.len.max(1))) {
            core.free(self.offset);
        }
    }
}
