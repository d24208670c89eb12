//! The process at the other end of a unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a unix socket, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// 0 if it cannot be named here (another pid namespace).
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // Not rustix's: its pid is never 0, which the kernel's may be.
        // SAFETY: `found` and `len` are valid for writes, and `len` is the size of `found`.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pid: found.pid, uid: found.uid })
    }
}
