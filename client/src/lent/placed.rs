//! Memory of a caller's own that calls do not copy.
#![expect(unsafe_code, reason = "pages under memory that a caller has")]

use xdp_agg_intranode::Placed;

use super::Caller;
use crate::error::Error;

impl Caller {
    /// Puts pages of the segment that the processes of this host share under memory of this
    /// process, with what is in it: calls on it, or on a part of it, copy nothing inside the host,
    /// as those on a [`SharedBuffer`](crate::SharedBuffer). None where each process is a worker of
    /// its own. Dropping the value gives the memory pages of this process's own again.
    ///
    /// # Errors
    /// [`Error::Host`] with [`xdp_agg_intranode::Error::BufferRoom`] or
    /// [`xdp_agg_intranode::Error::Config`]: no room, or no whole pages; neither does harm.
    /// [`Error::Forked`].
    ///
    /// # Safety
    /// The memory is the caller's, up to the end of its last page, and there is nothing else in
    /// these pages. It stays mapped until the returned value is dropped. Nobody touches it while
    /// this runs, nor while that value is dropped, and no call has it then. A forked child does not
    /// touch it.
    pub unsafe fn place(&self, memory: *mut u8, bytes: usize) -> Result<Option<Placed>, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let Some(group) = &self.communicator().group else { return Ok(None) };
        group.check_room(bytes)?;
        // SAFETY: as the caller promises.
        Ok(Some(unsafe { group.place(memory, bytes) }?))
    }
}
