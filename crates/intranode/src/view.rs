//! Results that stay in the segment: one copy of them, which all processes of the host read in
//! place (paper 5, section 2.3 and Fig. 10).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::layout::LINE;
use crate::record::{Claim, Shared, VIEW};
use crate::{Error, Group};

/// Results that one process may read in place at a time.
pub const MAX_VIEWS: usize = 8;

/// Room for a call's results. It is free again when all processes have dropped it.
#[derive(Debug)]
pub(crate) struct Region {
    shared: Shared,
    len: usize,
    /// All owners have written all of it.
    is_complete: AtomicBool,
}

impl Region {
    /// Whether there can be one of `len` bytes at all, as far as this process knows.
    pub(crate) fn check(group: &Arc<Group>, len: usize) -> Result<(), Error> {
        let core = group.core();
        if core.views.load(Relaxed) >= MAX_VIEWS {
            return Err(Error::TooManyViews { most: MAX_VIEWS });
        }
        if len > core.buffers().capacity() {
            let used = core.lock().map(|_locked| core.used_by_buffers())?;
            return Err(core.no_room(len, used));
        }
        Ok(())
    }

    /// Makes room, or joins the process that has. Waits while views of others fill it.
    pub(crate) fn claim(group: &Arc<Group>, sequence: u64, len: usize) -> Result<Self, Error> {
        let core = group.core();
        let key = VIEW | sequence;
        let bytes = len.max(LINE);
        let claim = Claim { key, digest: bytes as u64, description: "results", bytes, zeroed: 0 };
        let shared = group.when_there_is_room(|| Shared::claim(group, &claim));
        let shared = shared.map_err(|error| match error {
            Error::Busy { .. } => {
                let used = core.lock().map(|_locked| core.used_by_buffers());
                used.map_or_else(|error| error, |used| core.no_room(len, used))
            }
            error => error,
        })?;
        core.views.fetch_add(1, Relaxed);
        Ok(Self { shared, len, is_complete: AtomicBool::new(false) })
    }

    /// Where it is in the segment.
    pub(crate) fn offset(&self) -> usize {
        self.shared.offset
    }

    /// All owners have written all of it, which this process has seen.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Release);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.shared.group().core().views.fetch_sub(1, Relaxed);
    }
}

impl Group {
    /// Whether a call may have `len` bytes of results to be read in place: nothing has begun yet.
    ///
    /// # Errors
    /// [`Error::TooManyViews`], and as [`Self::check_room`].
    pub fn check_view(self: &Arc<Self>, len: usize) -> Result<(), Error> {
        Region::check(self, len)?;
        self.check_room(len)
    }

    /// Whether there is room set apart that could ever hold `len` bytes.
    ///
    /// # Errors
    /// [`Error::BufferRoom`], which says how much would have to be set apart.
    pub fn check_room(&self, len: usize) -> Result<(), Error> {
        if len > self.room_for_buffers() {
            let core = self.core();
            let used = core.lock().map(|_locked| core.used_by_buffers())?;
            return Err(core.no_room(len, used));
        }
        Ok(())
    }
}

/// Where the results of a call will be.
#[derive(Debug)]
pub struct Results(Arc<Region>);

impl Results {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self(region)
    }

    /// The results; `None` unless the call's feeder is done.
    #[must_use]
    pub fn view(self) -> Option<View> {
        self.0.is_complete.load(Acquire).then_some(View(self.0))
    }
}

/// The results of a call, read where the owners have written them. They stay as long as a process
/// of the host has them.
#[derive(Clone, Debug)]
pub struct View(Arc<Region>);

#[expect(unsafe_code, reason = "plain memory of the segment; see `segment`")]
impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: all owners have finished all blocks (seen by Acquire), and none writes them
        // again. The room is free when all processes have dropped the region, this one included.
        unsafe { self.0.shared.group().core().segment.bytes(self.0.offset(), self.0.len) }
    }
}
