//! Memory that a child does not get.

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Origin;

/// Mapped memory of one process. In its children nothing is at this address, or something of
/// theirs.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
    origin: Origin,
}

// SAFETY: the mapping is plain memory that belongs to no thread; there is nothing here that reads
// or writes it.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// The first `len` bytes of a file, shared with all that map it. All of it is there at once, so
    /// that no page fault comes later.
    ///
    /// # Errors
    /// The system's.
    pub fn of_file(file: impl AsFd, len: usize) -> Result<Self> {
        Self::of_file_at(file, 0, len)
    }

    /// The same of `len` bytes from `offset` on, which is a multiple of the page's size.
    ///
    /// # Errors
    /// The system's.
    pub fn of_file_at(file: impl AsFd, offset: u64, len: usize) -> Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let flags = flags | MapFlags::POPULATE;
        let place = ptr::null_mut();
        // SAFETY: a new mapping at an address of the system's choice aliases nothing.
        let base = unsafe { rustix::mm::mmap(place, len, protection, flags, file, offset)? };
        Self::new(base, len)
    }

    /// Memory that is zero at first, and taken up when it is written.
    ///
    /// # Errors
    /// The system's.
    pub fn anonymous(len: usize) -> Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the system's choice aliases nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, flags)? };
        Self::new(base, len)
    }

    fn new(base: *mut std::ffi::c_void, len: usize) -> Result<Self> {
        let origin = Origin::here();
        // SAFETY: the pages were mapped just now. A kernel that does not know this advice leaves a
        // child a copy, which holds up the memory and nothing else.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork) };
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Self { base, len, origin })
    }

    /// Cuts a part off from the file: from now on it is memory of this process alone, with what was
    /// in it. Processes that have the file see nothing of what is written to it.
    ///
    /// # Errors
    /// The system's, also of what are no whole pages; nothing has changed then.
    ///
    /// # Panics
    /// If it is beyond the end; in a child.
    ///
    /// # Safety
    /// No thread of this process writes to the part meanwhile.
    pub unsafe fn detach(&self, offset: usize, len: usize) -> Result<()> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len) && !self.is_elsewhere());
        // SAFETY: within the mapping.
        let part = unsafe { self.base.add(offset) };
        // SAFETY: as the caller promises.
        unsafe { cut_off(part, len) }
    }

    /// Puts a part of a shared file's mapping under other memory of this process, too. What was in
    /// that memory is gone. A child does not get it.
    ///
    /// # Errors
    /// The system's, also of what are no whole pages. If the memory was mapped with one call,
    /// nothing has changed then.
    ///
    /// # Panics
    /// If it is beyond the end; in a child.
    ///
    /// # Safety
    /// `at` is the start of `len` bytes of whole pages that are the caller's, and in which there is
    /// nothing else. Nobody touches them meanwhile.
    pub unsafe fn put_under(&self, offset: usize, len: usize, at: NonNull<u8>) -> Result<()> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len) && !self.is_elsewhere());
        // SAFETY: within the mapping.
        let from = unsafe { self.base.add(offset) };
        let flags = rustix::mm::MremapFlags::MAYMOVE;
        let (from, to) = (from.as_ptr().cast(), at.as_ptr().cast());
        // SAFETY: of a shared mapping, 0 bytes that become more are a further mapping of the same
        // pages (mremap(2)); the old one stays. What they take the place of is the caller's.
        unsafe { rustix::mm::mremap_fixed(from, 0, len, flags, to)? };
        Ok(())
    }

    /// Where it is. Not to be used where [`Self::is_elsewhere`].
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes of it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// False: a mapping of nothing is refused.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// This process was forked from the one that has the memory.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.origin.is_elsewhere()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            return;
        }
        // SAFETY: the mapping is this value's own; references into it borrow from the owner.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Makes memory this process's alone, with what is in it, whatever it was shared with.
///
/// # Errors
/// The system's, also of what are no whole pages; nothing has changed then.
///
/// # Safety
/// The memory is the caller's, `len` bytes of whole pages, and no thread of this process writes to
/// it meanwhile.
pub unsafe fn cut_off(memory: NonNull<u8>, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let copy = Pages::anonymous(len)?;
    // SAFETY: as many bytes on both sides, of which nobody writes the old ones (the caller's
    // promise) and nobody else knows the new ones.
    unsafe { ptr::copy_nonoverlapping(memory.as_ptr(), copy.base.as_ptr(), len) };
    let flags = rustix::mm::MremapFlags::MAYMOVE;
    let (from, to) = (copy.base.as_ptr().cast(), memory.as_ptr().cast());
    // SAFETY: what is moved is `copy`, which is given up; what it takes the place of is the
    // caller's, and holds the same bytes. References into it stay good.
    unsafe { rustix::mm::mremap_fixed(from, len, len, flags, to)? };
    std::mem::forget(copy);
    Ok(())
}

/// Frees what a file of memory has below these pages, if they are of one: they are zero then.
///
/// # Safety
/// The memory is the caller's, `len` bytes of whole pages, and what is in it is of no meaning.
pub unsafe fn empty(memory: NonNull<u8>, len: usize) {
    // Fails on other memory, which goes when something else takes its place.
    // SAFETY: as the caller promises.
    let _ = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), len, Advice::LinuxRemove) };
}

/// Lets children have their copy of memory that was [`cut_off`], as of any other.
///
/// # Errors
/// The system's.
///
/// # Safety
/// The memory is the caller's, `len` bytes of whole pages.
pub unsafe fn give_to_children(memory: NonNull<u8>, len: usize) -> Result<()> {
    // SAFETY: the advice changes nothing of the memory in this process.
    unsafe { rustix::mm::madvise(memory.as_ptr().cast(), len, Advice::LinuxDoFork) }
}

/// Plain bytes in [`Pages`] of their own. In a child there are none.
#[derive(Debug)]
pub struct Bytes(Pages);

impl Bytes {
    /// `len` zeros.
    ///
    /// # Errors
    /// The system's.
    pub fn zeroed(len: usize) -> Result<Self> {
        Pages::anonymous(len).map(Self)
    }

    fn len_here(&self) -> usize {
        if self.0.is_elsewhere() { 0 } else { self.0.len() }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a mapping of this process, initialised (zeros), borrowed as `self` is.
        unsafe { slice::from_raw_parts(self.0.base().as_ptr(), self.len_here()) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.0.base().as_ptr(), self.len_here()) }
    }
}
