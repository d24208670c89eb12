//! The shared memory itself: where it comes from, and the only places that turn an offset into a
//! reference.
//!
//! Words ([`Segment::word`], [`Segment::counter`]) are atomics, so any process may do anything to
//! them at any time. Bytes ([`Segment::bytes`], [`Segment::bytes_mut`]) are plain memory: this
//! crate's protocols arrange which process may touch which of them when, by Release stores and
//! Acquire loads of words. Processes that break the protocol (of the same user, and with the same
//! segment open: a debugger could do no worse) are out of scope.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::options::Place;
use crate::{Error, cgroup};

/// A mapping of the segment.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread; what may be touched when is up to
// the accessors below.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// Makes a file of `len` bytes whose memory is all there.
pub(crate) fn create(place: &Place, len: usize) -> Result<OwnedFd, Error> {
    cgroup::room_for(len)?;
    match place {
        Place::Memory => {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("xdp-agg-intranode", flags)
                .map_err(|errno| Error::system("memfd_create", errno))?;
            fill(&file, len, "memory", "free memory, raise the memory limit, or lower `segment`")?;
            // No process with the descriptor can pull the memory from under the others (SIGBUS).
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&file, seals)
                .map_err(|errno| Error::system("sealing the segment", errno))?;
            Ok(file)
        }
        Place::Directory(directory) => {
            let file = unlinked(directory)?;
            let place = directory.display().to_string();
            fill(&file, len, &place, "make room there, lower `segment`, or use `Place::Memory`")?;
            Ok(file)
        }
    }
}

fn unlinked(directory: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
    rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| {
        let directory = directory.display();
        Error::config(
            "place",
            format!("no unlinked file (O_TMPFILE) in {directory}: {errno}; name a tmpfs"),
        )
    })
}

/// Takes up all the memory now: a page that could not be had later would be a SIGBUS.
fn fill(file: &OwnedFd, len: usize, place: &str, advice: &'static str) -> Result<(), Error> {
    let attempt = rustix::fs::ftruncate(file, len as u64).and_then(|()| {
        rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len as u64)
        })
    });
    attempt.map_err(|errno| match errno {
        Errno::NOSPC | Errno::NOMEM | Errno::DQUOT | Errno::FBIG => Error::NoSpace {
            wanted: len,
            place: place.to_owned(),
            reason: errno.to_string(),
            advice,
        },
        errno => Error::system("fallocate of the segment", errno),
    })
}

impl Segment {
    /// Maps `len` bytes of a file that [`create`] made, here or in another process.
    pub(crate) fn map(file: impl AsFd, len: usize) -> Result<Self, Error> {
        let found = rustix::fs::fstat(&file)
            .map_err(|errno| Error::system("fstat of the segment", errno))?
            .st_size;
        if found != len as i64 {
            let ours = format!("a segment of {len} bytes was announced");
            return Err(Error::Mismatch { ours, theirs: format!("{found} bytes came") });
        }
        // Populated, so that no page fault is in the path of data.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice aliases nothing.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) };
        Self::new(base, len)
    }

    /// Memory of this process alone.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Error> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice aliases nothing.
        let base = unsafe {
            let flags = MapFlags::PRIVATE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)
        };
        Self::new(base, len)
    }

    fn new(base: rustix::io::Result<*mut std::ffi::c_void>, len: usize) -> Result<Self, Error> {
        let base = base.map_err(|errno| Error::system("mapping the segment", errno))?;
        let base = NonNull::new(base.cast()).expect("mmap gives no null page unless asked to");
        Ok(Self { base, len })
    }

    /// Bytes of the mapping.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The 32-bit word at `offset`.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        let at = self.at(offset, 4);
        assert!(offset.is_multiple_of(4), "a word lies on its boundary");
        // SAFETY: in bounds (`at`), aligned (the mapping is on a page), alive as long as `self`. It
        // is never anything but an atomic: words and bytes of a segment do not overlap.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The 64-bit word at `offset`.
    pub(crate) fn counter(&self, offset: usize) -> &AtomicU64 {
        let at = self.at(offset, 8);
        assert!(offset.is_multiple_of(8), "a word lies on its boundary");
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Bytes for reading.
    ///
    /// # Safety
    /// No process writes them while the slice lives, and what was written before happened before
    /// (an Acquire load saw the writer's Release store).
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let at = self.at(offset, len);
        // SAFETY: in bounds (`at`), initialised (a file's bytes); the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// Bytes for writing.
    ///
    /// # Safety
    /// No process reads or writes them while the slice lives, and what was done to them before
    /// happened before.
    #[expect(clippy::mut_from_ref, reason = "the caller promises what `&mut self` would")]
    pub(crate) unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        let at = self.at(offset, len);
        // SAFETY: in bounds (`at`), initialised (a file's bytes); the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len).expect("an offset within an address space");
        assert!(end <= self.len, "{offset}+{len} is beyond the segment of {}", self.len);
        // SAFETY: in bounds, by the first assertion.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; references into it borrow from `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

impl Segment {
    /// Writes what of `text` fits into `room` bytes, cut between characters; returns how much.
    /// Text lies in words, so that a reader at a bad time gets wrong words and nothing worse.
    pub(crate) fn write_text(&self, offset: usize, room: usize, text: &str) -> usize {
        let mut len = text.len().min(room);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        for (i, part) in text.as_bytes()[..len].chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.counter(offset + i * 8).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        len
    }

    /// Reads what [`Self::write_text`] wrote.
    pub(crate) fn read_text(&self, offset: usize, len: usize) -> String {
        let words = (0..len.div_ceil(8)).map(|i| self.counter(offset + i * 8));
        let mut bytes: Vec<u8> =
            words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
