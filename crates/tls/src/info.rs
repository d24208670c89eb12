//! What the kernel knows of a TCP connection, and how it repeats what was lost.
#![expect(unsafe_code, reason = "getsockopt and setsockopt are C interfaces")]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

/// How long ago the other host's kernel acknowledged something, where something is not
/// acknowledged yet. None: all is, or the kernel does not tell.
pub(crate) fn acknowledged(socket: BorrowedFd<'_>) -> Option<Duration> {
    // SAFETY: integers only, of which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    let ago = Duration::from_millis(info.tcpi_last_ack_recv.into());
    (done == 0 && info.tcpi_unacked > 0).then_some(ago)
}

/// `TCP_RTO_MAX_MS` of Linux 6.15 and later.
const RTO_MAX_MS: libc::c_int = 44;

/// Bounds the pauses between the kernel's repetitions, which double else up to two minutes. The
/// kernel takes 1 s and more, and one that does not know the option goes on doubling.
pub(crate) fn bound_pauses(socket: BorrowedFd<'_>, longest: Duration) {
    let longest = libc::c_int::try_from(longest.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the kernel reads an integer, whose size is given.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            RTO_MAX_MS,
            (&raw const longest).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// The longest of these pauses. None: the kernel does not tell.
#[cfg(test)]
pub(crate) fn longest_pause(socket: BorrowedFd<'_>) -> Option<Duration> {
    let mut longest: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of an integer.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            RTO_MAX_MS,
            (&raw mut longest).cast(),
            &raw mut len,
        )
    };
    let longest = u64::try_from(longest).ok().map(Duration::from_millis);
    longest.filter(|_| done == 0)
}
