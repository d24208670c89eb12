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
use xdp_agg_forks::{Pages, own};

use crate::options::Backing;
use crate::{Error, cgroup};

/// A mapping of the segment. Forked children do not have it.
#[derive(Debug)]
pub(crate) struct Segment(Pages);

/// Makes a file of `len` bytes whose memory is all there.
pub(crate) fn create(backing: &Backing, len: usize) -> Result<OwnedFd, Error> {
    cgroup::room_for(len)?;
    match backing {
        Backing::Memory => {
            let file = in_memory().map_err(|errno| Error::system("memfd_create", errno))?;
            fill(&file, len, "memory", "free memory, raise the memory limit, or lower `segment`")?;
            // No process with the descriptor can pull the memory from under the others (SIGBUS).
            rustix::fs::fcntl_add_seals(&file, SIZE_SEALS | SealFlags::SEAL)
                .map_err(|errno| Error::system("sealing the segment", errno))?;
            Ok(file)
        }
        Backing::Directory(directory) => {
            let file = own(|| unlinked(directory))?;
            let place = directory.display().to_string();
            fill(&file, len, &place, "make room there, lower `segment`, or use `Backing::Memory`")?;
            Ok(file)
        }
    }
}

/// Seals that keep a file's size.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A file in memory that nobody can execute: a system may refuse others (`vm.memfd_noexec`).
fn in_memory() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let make = |flags| own(|| rustix::fs::memfd_create("xdp-agg-intranode", flags));
    match make(flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 there is no such flag.
        Err(Errno::INVAL) => make(flags),
        made => made,
    }
}

/// Whether another process's file may be mapped: if it could be made shorter, each access could be
/// a SIGBUS.
pub(crate) fn check(backing: &Backing, file: &OwnedFd) -> Result<(), Error> {
    // Where the files of a directory are of a kind that has no seals, its owner is trusted.
    if matches!(backing, Backing::Directory(_)) {
        return Ok(());
    }
    match rustix::fs::fcntl_get_seals(file) {
        Ok(seals) if seals.contains(SIZE_SEALS) => Ok(()),
        found => Err(Error::Mismatch {
            ours: "the segment is to be sealed memory (`Backing::Memory`)".into(),
            theirs: format!("local rank 0 sent a file whose size may change ({found:?})"),
        }),
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
        Self::new(Pages::of_file(file, len))
    }

    /// Memory of this process alone.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Error> {
        Self::new(Pages::anonymous(len))
    }

    fn new(pages: rustix::io::Result<Pages>) -> Result<Self, Error> {
        pages.map(Self).map_err(|errno| Error::system("mapping the segment", errno))
    }

    /// Where this memory of `len` bytes lies, if that is within the segment.
    pub(crate) fn find(&self, memory: *const u8, len: usize) -> Option<usize> {
        let offset = memory.addr().checked_sub(self.0.base().as_ptr().addr())?;
        let end = offset.checked_add(len)?;
        (end <= self.len() && !self.is_elsewhere()).then_some(offset)
    }

    /// Cuts this process off from these bytes, on boundaries of pages: it keeps what is in them,
    /// and from now on neither does it see what the others write, nor they what it does.
    ///
    /// # Safety
    /// No thread of this process writes to them meanwhile.
    pub(crate) unsafe fn detach(&self, offset: usize, len: usize) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        let detached = unsafe { self.0.detach(offset, len) };
        detached.map_err(|errno| Error::system("cutting a buffer off from the segment", errno))
    }

    /// The same of memory under which pages of it were put.
    ///
    /// # Safety
    /// As [`Self::detach`]; the memory is that.
    pub(crate) unsafe fn cut_off(&self, memory: NonNull<u8>, len: usize) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        let cut = unsafe { xdp_agg_forks::cut_off(memory, len) };
        cut.map_err(|errno| Error::system("cutting memory off from the segment", errno))
    }

    /// Puts these bytes, on boundaries of pages, under other memory of this process, too.
    ///
    /// # Safety
    /// The memory is `len` bytes of whole pages, with nothing else in them, that nobody touches
    /// meanwhile.
    pub(crate) unsafe fn put_under(
        &self,
        offset: usize,
        len: usize,
        memory: NonNull<u8>,
    ) -> Result<(), Error> {
        // SAFETY: as the caller promises.
        let put = unsafe { self.0.put_under(offset, len, memory) };
        put.map_err(|errno| Error::system("putting the segment under memory", errno))
    }

    /// Bytes of the mapping.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// This process was forked from the one that has it: nothing of it may be touched.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.0.is_elsewhere()
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
        assert!(end <= self.len(), "{offset}+{len} is beyond the segment of {}", self.len());
        assert!(!self.is_elsewhere(), "the segment is that of the process this was forked from");
        // SAFETY: in bounds, by the first assertion.
        unsafe { self.0.base().as_ptr().add(offset) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_in_memory_is_sealed_and_others_are_refused() {
        let file = create(&Backing::Memory, 1 << 20).expect("memory");
        check(&Backing::Memory, &file).expect("it is sealed");
        let seals = rustix::fs::fcntl_get_seals(&file).expect("it has seals");
        // Absent before Linux 6.3, and then nobody asks for it.
        let knows = std::fs::metadata("/proc/sys/vm/memfd_noexec").is_ok();
        assert_eq!(seals.contains(SealFlags::EXEC), knows, "{seals:?}");
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).expect("memory");
        rustix::fs::fcntl_add_seals(&open, SealFlags::GROW).expect("it may be sealed");
        let error = check(&Backing::Memory, &open).expect_err("it can shrink");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        check(&Backing::Directory("/dev/shm".into()), &open).expect("as its owner wants");
    }
}
