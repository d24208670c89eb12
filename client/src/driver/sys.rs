//! The system calls that the standard library does not offer, behind safe functions.
#![expect(
    unsafe_code,
    reason = "recvmmsg, poll, timerfd and a few socket options have no safe wrapper"
)]

use smallvec::SmallVec;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use xdp_agg_forks::Bytes;

/// Packets that one call of [`Receiver::receive`] takes at most, about.
pub(crate) const BATCH: usize = 64;
/// Room for a message: the most that the kernel joins.
const MESSAGE_LEN: usize = 1 << 16;
/// Room for the length of a message's packets, as the kernel tells it.
const CONTROL_WORDS: usize = 3;

/// Buffers for [`BATCH`] messages, reused. A message is one packet or several of one length (the
/// last one may be shorter) that came together, where the socket takes such (`UDP_GRO`).
pub(crate) struct Receiver {
    /// Only what messages have filled takes memory.
    buffers: Bytes,
    /// Length of each message of the latest [`Self::receive`], and of its packets.
    lens: [(usize, usize); BATCH],
    /// Messages that the next call takes at most: taking in too much at once delays sending.
    most: usize,
}

impl Receiver {
    pub(crate) fn new() -> io::Result<Self> {
        let buffers = Bytes::zeroed(MESSAGE_LEN * BATCH)?;
        Ok(Self { buffers, lens: [(0, 1); BATCH], most: BATCH })
    }

    /// Takes what has arrived on a socket, without waiting; how many messages.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut controls = [[0_u64; CONTROL_WORDS]; BATCH];
        let mut iovs = [MaybeUninit::<libc::iovec>::uninit(); BATCH];
        // SAFETY: all-zero bytes are a valid mmsghdr (integers and null pointers).
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let places = iovs.iter_mut().zip(&mut headers).zip(&mut controls);
        let buffers = self.buffers.chunks_exact_mut(MESSAGE_LEN);
        for (((iov, header), control), buffer) in places.zip(buffers).take(self.most) {
            let iov = iov
                .write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            header.msg_hdr.msg_iov = iov;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of_val(control) as _;
        }
        // SAFETY: `most` headers, each with one iovec over a buffer of its own and a control
        // buffer. All outlive the call, and the kernel writes at most their lengths.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                self.most as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let mut packets = 0;
        for (lens, header) in self.lens.iter_mut().zip(&headers[..count]) {
            let len = header.msg_len as usize;
            // SAFETY: the kernel has filled the header, whose control buffer is still there.
            *lens = (len, unsafe { packet_len(&header.msg_hdr) }.unwrap_or(len).max(1));
            packets += lens.0.div_ceil(lens.1).max(1);
        }
        if count > 0 {
            self.most = (BATCH * count / packets).clamp(1, BATCH);
        }
        Ok(count)
    }

    /// The packets of a message of the latest [`Self::receive`].
    pub(crate) fn packets(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        let (len, packet) = self.lens[index];
        self.buffers[index * MESSAGE_LEN..][..len.min(MESSAGE_LEN)].chunks(packet)
    }
}

/// The length of a message's packets, if it has several.
///
/// # Safety
/// `recvmmsg` has filled the header, and its control buffer is still there.
unsafe fn packet_len(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the macros stay in the control buffer, which is there, as the caller promises.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(header).as_ref()?;
        let ours = control.cmsg_level == libc::SOL_UDP && control.cmsg_type == libc::UDP_GRO;
        let value = libc::CMSG_DATA(control).cast::<libc::c_int>();
        if ours { usize::try_from(value.read_unaligned()).ok() } else { None }
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
    /// Those of one engine in place: a short call allocates nothing.
    fds: SmallVec<[libc::pollfd; 8]>,
}

impl Watch {
    pub(crate) fn clear(&mut self) {
        self.fds.clear();
    }

    /// Adds these behind those that are there. They must be open until [`Self::wait`]. A later file
    /// with the same number is mistaken for the first, which does no harm.
    pub(crate) fn extend(&mut self, interests: &[Interest<'_>]) {
        self.fds.extend(interests.iter().map(Interest::entry));
    }

    /// As [`wait`].
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        poll(&mut self.fds, timeout)
    }

    /// The latest [`Self::wait`] found something on descriptor `index`, counted from 0 as added.
    pub(crate) fn is_ready(&self, index: usize) -> bool {
        self.fds.get(index).is_some_and(|fd| fd.revents != 0)
    }
}

/// A descriptor that becomes readable when its time has come, for a thread in [`wait`].
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

    /// Readable once, `after` from now; zero: not at all.
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

/// The system's clock that never goes back, since the host was started. All processes of a host
/// have the same.
pub(crate) fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec that outlives the call, which cannot fail: every system has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
