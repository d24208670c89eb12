//! Results that stay in the segment: one copy of them, which all processes of the host read in
//! place (paper 5, section 2.3 and Fig. 10).

use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, PoisonError};

use crate::layout::LINE;
use crate::pages::PAGE;
use crate::record::{Claim, Shared, VIEW};
use crate::{Error, Group};

/// Results that one process may read in place at a time.
pub const MAX_VIEWS: usize = 8;

/// A place among the results that this process may read: one call's. It is free again when it is
/// dropped, or the results are for which it was given to [`Group::begin_view`].
#[derive(Debug)]
pub struct Reserved {
    group: Arc<Group>,
    len: usize,
}

impl Reserved {
    /// In whole pages.
    fn bytes(len: usize) -> usize {
        len.max(LINE).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
    }

    /// Whether it was set apart for such results.
    pub(crate) fn is_for(&self, group: &Arc<Group>, len: usize) -> bool {
        Arc::ptr_eq(&self.group, group) && self.len == len
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut reading = self.group.core().reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.count -= 1;
        reading.bytes -= Self::bytes(self.len);
    }
}

/// Room for a call's results. It is free again when all processes have dropped it.
#[derive(Debug)]
pub(crate) struct Region {
    shared: Shared,
    /// All owners have written all of it.
    is_complete: AtomicBool,
    place: Reserved,
}

impl Region {
    /// Makes room, or joins the process that has. Waits while views of others fill it.
    pub(crate) fn claim(sequence: u64, place: Reserved) -> Result<Self, Error> {
        let Reserved { group, len } = &place;
        let (core, len) = (group.core(), *len);
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
        Ok(Self { shared, is_complete: AtomicBool::new(false), place })
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

impl Group {
    /// Sets a place apart for a call's `len` bytes of results that are read in place: nothing has
    /// begun yet. What this process itself holds would never come free while a call of its own
    /// waits for room, so that is an error at once.
    ///
    /// # Errors
    /// [`Error::TooManyViews`], [`Error::BufferRoom`].
    pub fn reserve_view(self: &Arc<Self>, len: usize) -> Result<Reserved, Error> {
        let core = self.core();
        let mut reading = core.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if reading.count >= MAX_VIEWS {
            return Err(Error::TooManyViews { most: MAX_VIEWS });
        }
        let bytes = Reserved::bytes(len);
        if bytes > core.buffers().capacity().saturating_sub(reading.bytes) {
            let used = core.lock().map(|_locked| core.used_by_buffers())?;
            return Err(core.no_room(len, used.max(reading.bytes)));
        }
        reading.count += 1;
        reading.bytes += bytes;
        Ok(Reserved { group: Arc::clone(self), len })
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
        unsafe { self.0.shared.group().core().segment.bytes(self.0.offset(), self.0.place.len) }
    }
}
