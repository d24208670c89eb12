//! The system calls that the standard library does not offer, behind safe functions.
#![expect(
    unsafe_code,
    reason = "recvmmsg, poll, timerfd and a few socket options have no safe wrapper"
)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Packets that one call of [`Receiver::receive`] takes at most.
pub(crate) const BATCH: usize = 64;

/// Buffers for [`BATCH`] packets, reused.
pub(crate) struct Receiver {
    buffers: Vec<u8>,
    packet_len: usize,
}

impl Receiver {
    /// Buffers for packets of up to `packet_len` bytes; a longer one is cut off.
    pub(crate) fn new(packet_len: usize) -> Self {
        Self { buffers: vec![0; packet_len * BATCH], packet_len }
    }

    /// Makes room for packets of another length.
    pub(crate) fn resize(&mut self, packet_len: usize) {
        self.buffers.resize(packet_len * BATCH, 0);
        self.packet_len = packet_len;
    }

    /// Takes what has arrived on a socket, without waiting; the length of each packet goes to
    /// `lens`. Packet `i` is then [`Self::packet`]`(i, lens[i])`.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        lens: &mut [usize; BATCH],
    ) -> io::Result<usize> {
        let mut iovs = [MaybeUninit::<libc::iovec>::uninit(); BATCH];
        // SAFETY: all-zero bytes are a valid mmsghdr (integers and null pointers).
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for ((iov, header), buffer) in
            iovs.iter_mut().zip(&mut headers).zip(self.buffers.chunks_exact_mut(self.packet_len))
        {
            let iov = iov
                .write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            header.msg_hdr.msg_iov = iov;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: BATCH headers, each with one iovec over a buffer of its own; all of them outlive
        // the call, and the kernel writes at most `iov_len` bytes into each.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (len, header) in lens.iter_mut().zip(&headers[..count]) {
            *len = header.msg_len as usize;
        }
        Ok(count)
    }

    /// A packet of the latest [`Self::receive`].
    pub(crate) fn packet(&self, index: usize, len: usize) -> &[u8] {
        &self.buffers[index * self.packet_len..][..len.min(self.packet_len)]
    }
}

/// What [`wait`] looks for on a descriptor, and what it found.
pub(crate) struct Interest<'a> {
    fd: BorrowedFd<'a>,
    writable: bool,
    /// Set by [`wait`]: there is something to read (or an error, or the end).
    pub(crate) ready: bool,
}

impl<'a> Interest<'a> {
    pub(crate) const fn read(fd: BorrowedFd<'a>) -> Self {
        Self { fd, writable: false, ready: false }
    }

    pub(crate) const fn also_write(mut self, wanted: bool) -> Self {
        self.writable = wanted;
        self
    }

    fn entry(&self) -> libc::pollfd {
        let events = libc::POLLIN | if self.writable { libc::POLLOUT } else { 0 };
        libc::pollfd { fd: self.fd.as_raw_fd(), events, revents: 0 }
    }
}

/// Sleeps until one of the descriptors (at most eight) is ready or the time is over (zero: only
/// looks). A signal ends the sleep early.
pub(crate) fn wait(interests: &mut [Interest<'_>], timeout: Duration) -> io::Result<()> {
    let mut fds = [libc::pollfd { fd: -1, events: 0, revents: 0 }; 8];
    for (fd, interest) in fds.iter_mut().zip(interests.iter()) {
        *fd = interest.entry();
    }
    let count = interests.len().min(fds.len());
    poll(&mut fds[..count], timeout)?;
    for (fd, interest) in fds.iter().zip(interests) {
        interest.ready = fd.revents != 0;
    }
    Ok(())
}

/// Any number of descriptors to sleep on, reused from sleep to sleep.
#[derive(Default)]
pub(crate) struct Watch {
    fds: Vec<libc::pollfd>,
}

impl Watch {
    pub(crate) fn clear(&mut self) {
        self.fds.clear();
    }

    /// These come behind those that are there. They must be open until [`Self::wait`]; what another
    /// one of the same number does is not understood, and does no harm.
    pub(crate) fn extend(&mut self, interests: &[Interest<'_>]) {
        self.fds.extend(interests.iter().map(Interest::entry));
    }

    /// As [`wait`].
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        poll(&mut self.fds, timeout)
    }

    /// The latest [`Self::wait`] found something on the descriptor that was added so many before.
    pub(crate) fn is_ready(&self, index: usize) -> bool {
        self.fds.get(index).is_some_and(|fd| fd.revents != 0)
    }
}

/// A descriptor that becomes readable when its time has come, for who sleeps in [`wait`].
pub(crate) struct Timer {
    fd: OwnedFd,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nobody else has it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Readable so long from now, once; zero: not at all.
    pub(crate) fn set(&self, after: Duration) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: after.as_secs() as libc::time_t,
            tv_nsec: after.subsec_nanos() as libc::c_long,
        };
        let times = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: an itimerspec that outlives the call; the old one is not asked for. It cannot
        // fail: the descriptor is a timer, and the times are in range.
        unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &times, std::ptr::null_mut()) };
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn poll(fds: &mut [libc::pollfd], timeout: Duration) -> io::Result<()> {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(3600) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    let count = fds.len() as libc::nfds_t;
    // SAFETY: `count` initialised entries, and a timespec that outlives the call.
    let found = unsafe { libc::ppoll(fds.as_mut_ptr(), count, &timeout, std::ptr::null()) };
    if found < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
    }
    Ok(())
}

/// Sets an integer socket option.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the option value is one `int` that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an integer socket option.
pub(crate) fn option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `value`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
