//! The rings that an `AF_XDP` socket shares with the kernel: one side writes entries and moves the
//! producer's mark, the other side reads them and moves the consumer's.
#![expect(unsafe_code, reason = "memory that the kernel reads and writes")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};
use xdp_agg_forks::Pages;

/// What an entry of a ring may be: plain numbers, of which any bytes are a value.
///
/// # Safety
/// Any bytes are a value.
unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: integers, and flags that may have any bits.
unsafe impl Entry for XdpDesc {}

/// A mapped ring of `mask + 1` entries.
struct Ring<T> {
    pages: Pages,
    marks: XdpRingOffset,
    mask: u32,
    entries: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        marks: XdpRingOffset,
        entries: u32,
    ) -> io::Result<Self> {
        debug_assert!(entries.is_power_of_two());
        let len = marks.desc as usize + entries as usize * size_of::<T>();
        let pages = Pages::of_file_at(socket, place, len)?;
        let mask = entries - 1;
        Ok(Self { pages, marks, mask, entries: PhantomData })
    }

    /// A place of the mapping, which is of this process alone.
    fn at(&self, offset: u64) -> NonNull<u8> {
        let offset = offset as usize;
        assert!(offset < self.pages.len() && !self.pages.is_elsewhere());
        // SAFETY: within the mapping.
        unsafe { self.pages.base().add(offset) }
    }

    fn mark(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: a word of the mapping that the kernel, too, reads and writes as a whole. It is
        // aligned, and lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast().as_ptr()) }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        let offset = self.marks.desc + u64::from(index & self.mask) * size_of::<T>() as u64;
        self.at(offset).cast()
    }
}

/// A ring whose entries this side reads.
pub(super) struct Incoming {
    ring: Ring<XdpDesc>,
    read: u32,
}

impl Incoming {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        marks: XdpRingOffset,
        entries: u32,
    ) -> io::Result<Self> {
        let ring = Ring::map(socket, rustix::net::xdp::XDP_PGOFF_RX_RING, marks, entries)?;
        Ok(Self { ring, read: 0 })
    }

    /// Entries that are there, at most `most`.
    pub(super) fn ready(&self, most: u32) -> u32 {
        let written = self.ring.mark(self.ring.marks.producer).load(Ordering::Acquire);
        written.wrapping_sub(self.read).min(most)
    }

    /// Entry `index` of those that are there.
    pub(super) fn get(&self, index: u32) -> XdpDesc {
        // SAFETY: an entry of the mapping; the kernel does not write it until `release`.
        unsafe { self.ring.entry(self.read.wrapping_add(index)).read() }
    }

    /// Gives the first `count` entries back.
    pub(super) fn release(&mut self, count: u32) {
        self.read = self.read.wrapping_add(count);
        self.ring.mark(self.ring.marks.consumer).store(self.read, Ordering::Release);
    }
}

/// The ring by which the kernel gets memory to fill.
pub(super) struct Free {
    ring: Ring<u64>,
    written: u32,
}

impl Free {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        marks: XdpRingOffset,
        entries: u32,
    ) -> io::Result<Self> {
        let ring = Ring::map(socket, rustix::net::xdp::XDP_UMEM_PGOFF_FILL_RING, marks, entries)?;
        Ok(Self { ring, written: 0 })
    }

    /// Writes one more entry; [`Self::submit`] shows it to the kernel. There is room: no more
    /// pieces of memory exist than the ring has entries.
    pub(super) fn push(&mut self, address: u64) {
        // SAFETY: an entry of the mapping that the kernel does not read before `submit`.
        unsafe { self.ring.entry(self.written).write(address) };
        self.written = self.written.wrapping_add(1);
    }

    pub(super) fn submit(&self) {
        self.ring.mark(self.ring.marks.producer).store(self.written, Ordering::Release);
    }

    /// The driver sleeps, and wants to be told that there is memory.
    pub(super) fn wants_wakeup(&self) -> bool {
        let Some(flags) = self.ring.marks.flags else { return false };
        let flags = self.ring.mark(flags).load(Ordering::Relaxed);
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }
}

/// The memory that the kernel writes packets into, cut into pieces of one size.
pub(super) struct Memory {
    pages: Pages,
    piece: usize,
}

impl Memory {
    pub(super) fn new(pieces: u32, piece: usize) -> io::Result<Self> {
        Ok(Self { pages: Pages::anonymous(pieces as usize * piece)?, piece })
    }

    pub(super) fn address(&self) -> u64 {
        self.pages.base().as_ptr() as u64
    }

    pub(super) const fn len(&self) -> usize {
        self.pages.len()
    }

    /// The start of the piece that this place is in.
    pub(super) const fn piece_of(&self, offset: u64) -> u64 {
        offset & !(self.piece as u64 - 1)
    }

    /// What the kernel has written, if the entry makes sense.
    ///
    /// # Safety
    /// The kernel has handed over the entry, and its piece has not gone back since, nor will it
    /// while the bytes are used.
    pub(super) unsafe fn packet(&self, entry: &XdpDesc) -> Option<&[u8]> {
        let (offset, len) = (usize::try_from(entry.addr).ok()?, entry.len as usize);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.pages.len());
        if !inside || self.pages.is_elsewhere() {
            return None;
        }
        // SAFETY: within the mapping, initialised (zeros or what the kernel wrote), and nobody's
        // but ours until the piece goes back.
        Some(unsafe { std::slice::from_raw_parts(self.pages.base().add(offset).as_ptr(), len) })
    }
}
