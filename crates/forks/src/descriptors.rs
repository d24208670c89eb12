//! The descriptors that no child is to have, by number.
//!
//! A number may be another file's by the time of a fork: closing takes nothing out of the table. So
//! each entry has the file's identity, and a child gives up only what is still that file.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// Entries of a piece of the table.
const PIECE: usize = 1024;
/// Pieces: numbers beyond them, of a process with a million descriptors, are not kept.
const PIECES: usize = 1024;

/// Made as they are needed, and never given back.
static TABLE: [AtomicPtr<Piece>; PIECES] = [const { AtomicPtr::new(ptr::null_mut()) }; PIECES];

type Piece = [Entry; PIECE];

/// A file's identity.
struct Entry {
    device: AtomicU64,
    /// 0: no file.
    inode: AtomicU64,
}

/// Enters a descriptor, if it can be told from others.
pub(crate) fn note(descriptor: BorrowedFd<'_>) {
    let number = descriptor.as_raw_fd();
    if let Some(Identity { device, inode, has_own: true }) = identity(number) {
        store(number, device, inode);
    }
}

/// Enters a descriptor of any kind, which [`forget`] takes out before it is closed.
pub(crate) fn remember(descriptor: BorrowedFd<'_>) {
    let number = descriptor.as_raw_fd();
    if let Some(Identity { device, inode, .. }) = identity(number) {
        store(number, device, inode);
    }
}

/// Takes a descriptor out.
pub(crate) fn forget(descriptor: BorrowedFd<'_>) {
    store(descriptor.as_raw_fd(), 0, 0);
}

fn store(number: RawFd, device: u64, inode: u64) {
    let Some(entry) = usize::try_from(number).ok().and_then(entry) else { return };
    entry.device.store(device, Relaxed);
    entry.inode.store(inode, Relaxed);
}

/// In a child, which has no other thread: puts a socket without a connection in the place of each
/// descriptor that was entered.
pub(crate) fn give_up() {
    // SAFETY: no pointers.
    let nothing = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    for (at, piece) in TABLE.iter().enumerate() {
        // SAFETY: null, or a piece that lives as long as the program.
        let Some(piece) = (unsafe { piece.load(Relaxed).as_ref() }) else { continue };
        for (within, Entry { device, inode }) in piece.iter().enumerate() {
            let (device, inode) = (device.load(Relaxed), inode.swap(0, Relaxed));
            let number = (at * PIECE + within) as RawFd;
            let same = |is: Identity| (is.device, is.inode) == (device, inode);
            if inode == 0 || !identity(number).is_some_and(same) {
                continue;
            }
            // SAFETY: the number is a file of this library's, whose owner never uses it here.
            unsafe {
                // Fails where there was no room for one more socket, or the limit was lowered.
                if libc::dup3(nothing, number, libc::O_CLOEXEC) < 0 {
                    libc::close(number);
                }
            }
        }
    }
    if nothing >= 0 {
        // SAFETY: opened above, and nobody else has this number.
        unsafe { libc::close(nothing) };
    }
}

fn entry(number: usize) -> Option<&'static Entry> {
    let place = TABLE.get(number / PIECE)?;
    let mut piece = place.load(Relaxed);
    if piece.is_null() {
        let empty = || Entry { device: AtomicU64::new(0), inode: AtomicU64::new(0) };
        let fresh = Box::into_raw(Box::new(std::array::from_fn(|_| empty())));
        piece = match place.compare_exchange(ptr::null_mut(), fresh, Relaxed, Relaxed) {
            Ok(_) => fresh,
            Err(faster) => {
                // SAFETY: made above, and shown to nobody.
                drop(unsafe { Box::from_raw(fresh) });
                faster
            }
        };
    }
    // SAFETY: a piece lives as long as the program. It was written before its address was: the
    // fields are atomics, and a hold orders them before any fork.
    unsafe { piece.as_ref() }.map(|piece| &piece[number % PIECE])
}

/// Which file a descriptor is of.
struct Identity {
    device: u64,
    inode: u64,
    /// It is a socket or a file. Others (eventfd, a link of a kernel program) share one inode.
    has_own: bool,
}

/// None for a number that is not open.
fn identity(number: RawFd) -> Option<Identity> {
    // SAFETY: all-zero bytes are a valid stat (integers).
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is valid for writes; any number may be asked about.
    if unsafe { libc::fstat(number, &raw mut found) } != 0 {
        return None;
    }
    let has_own = matches!(found.st_mode & libc::S_IFMT, libc::S_IFSOCK | libc::S_IFREG);
    Some(Identity { device: found.st_dev, inode: found.st_ino, has_own })
}
