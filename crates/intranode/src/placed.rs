//! Pages of the segment under memory that a process has already: whatever lies in it lies in the
//! segment then, without having been allocated there.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use xdp_agg_forks::{cut_off, empty, give_to_children};

use crate::held::Alias;
use crate::vector::PAGE;
use crate::{Buffer, Error, Group};

/// Memory of this process under which pages of the segment lie. Dropping it gives the memory pages
/// of this process's own again, with what is in it.
#[derive(Debug)]
pub struct Placed {
    memory: NonNull<u8>,
    /// In whole pages.
    len: usize,
    room: ManuallyDrop<Buffer>,
}

// SAFETY: an address, which is the caller's promise of `Group::place` on whichever thread.
unsafe impl Send for Placed {}
// SAFETY: as above; a shared reference gives no access.
unsafe impl Sync for Placed {}

impl Group {
    /// Puts pages of the segment under memory of this process, with what is in it: calls on the
    /// memory, or on a part of it, find it by its address, as they find a [`Buffer`].
    ///
    /// # Errors
    /// [`Error::Config`] of memory that does not begin with a page, or of a lone process;
    /// [`Error::BufferRoom`]; [`Error::PeerLost`]; [`Error::System`].
    ///
    /// # Safety
    /// The memory is the caller's, up to the end of its last page, and there is nothing else in
    /// these pages. It stays mapped until the returned value is dropped. Nobody touches it while
    /// this runs, nor while that value is dropped, and no call has it then. In a forked child
    /// nothing is there.
    pub unsafe fn place(self: &Arc<Self>, memory: *mut u8, len: usize) -> Result<Placed, Error> {
        let found = NonNull::new(memory).filter(|_| memory.addr().is_multiple_of(PAGE) && len > 0);
        let Some(memory) = found else {
            return Err(Error::config("memory", "does not begin with a page, or is empty"));
        };
        if self.local_size() == 1 {
            return Err(Error::config("memory", "has nobody to be shared with"));
        }
        let mut room = self.buffer(len)?;
        // SAFETY: as the caller promises.
        room.copy_from_slice(unsafe { std::slice::from_raw_parts(memory.as_ptr(), len) });
        let (core, len) = (self.core(), len.next_multiple_of(PAGE));
        // SAFETY: as the caller promises; what was there is in `room`.
        unsafe { empty(memory, len) };
        // SAFETY: as the caller promises.
        if let Err(error) = unsafe { core.segment.put_under(room.offset(), len, memory) } {
            // SAFETY: as above, and the memory is as long as `room`.
            unsafe { memory.copy_from_nonoverlapping(NonNull::from(&mut room[0]), room.len()) };
            return Err(error);
        }
        let (start, offset) = (memory.addr().get(), room.offset());
        core.aliases().push(Alias { start, len, offset });
        Ok(Placed { memory, len, room: ManuallyDrop::new(room) })
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let core = self.room.group().core();
        // In a child nothing is there, and the room is the parent's.
        if core.is_forked() {
            return;
        }
        core.aliases().retain(|alias| alias.start != self.memory.addr().get());
        // SAFETY: as the caller of `Group::place` promised.
        if let Err(error) = unsafe { cut_off(self.memory, self.len) } {
            // Nobody else may get the room then.
            tracing::warn!(%error, "memory stays in the segment");
            return;
        }
        // SAFETY: as above. Where it fails, children have nothing there, as before.
        let _ = unsafe { give_to_children(self.memory, self.len) };
        // SAFETY: dropped once, here, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.room) };
    }
}
