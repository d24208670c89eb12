//! Waiting for several sockets.
#![expect(unsafe_code, reason = "poll(2) has no safe wrapper in the standard library")]

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// What to wait for on a socket, and what came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Interest {
    fn events(self) -> libc::c_short {
        let read = if self.read { libc::POLLIN } else { 0 };
        let write = if self.write { libc::POLLOUT } else { 0 };
        read | write
    }
}

/// Waits until one of the sockets is ready or `timeout` is over; says for each whether to read
/// (data, its end, or an error) and whether to write. A socket without interest is left out
/// altogether.
pub(super) fn poll<const N: usize>(
    sockets: [(&TcpStream, Interest); N],
    timeout: Duration,
) -> io::Result<[Interest; N]> {
    let mut fds = sockets.map(|(socket, interest)| libc::pollfd {
        // poll() skips negative descriptors; otherwise it would report errors without being asked.
        fd: if interest.events() == 0 { -1 } else { socket.as_raw_fd() },
        events: interest.events(),
        revents: 0,
    });
    // Rounded up, so that a wait for the rest of a deadline does not end before it.
    let millis = timeout.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
    // SAFETY: `fds` is an array of N initialised pollfd that lives across the call.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), N as libc::nfds_t, millis) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let broken = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
    Ok(fds.map(|fd| Interest {
        read: fd.revents & (libc::POLLIN | broken) != 0,
        write: fd.revents & (libc::POLLOUT | libc::POLLERR) != 0,
    }))
}
