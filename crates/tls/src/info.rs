//! What the kernel knows of a TCP connection.
#![expect(unsafe_code, reason = "getsockopt is a C interface")]

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
