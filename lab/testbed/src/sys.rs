//! The system calls that the standard library has no name for.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Moves the calling thread into new namespaces; into one of users only where the process has no
/// other thread.
pub(crate) fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: namespaces alone are parted, and no table of descriptors.
    Ok(unsafe { unshare_unsafe(what) }?)
}

/// Moves the calling thread into a network namespace. Async-signal-safe.
pub(crate) fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Has the kernel kill this process when the *thread* that made it ends. Fails if that happened
/// already. Async-signal-safe: for the time between fork and exec.
pub(crate) fn die_with_parent(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Forks a child that ends with what `work` returns, or is ended by the kernel after `life`.
pub(crate) fn fork(life: Duration, work: impl FnOnce() -> libc::c_int) -> io::Result<Pid> {
    // SAFETY: takes nothing. What `work` does in a child of a process with many threads is the
    // tests' point; allocations may be made there, the system's allocator sees to that.
    let child = checked(unsafe { libc::fork() })?;
    let Some(child) = Pid::from_raw(child) else {
        let seconds = life.as_secs().clamp(1, 3600) as libc::c_uint;
        // SAFETY: takes no pointers.
        unsafe { libc::alarm(seconds) };
        let code = work();
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(code) };
    };
    Ok(child)
}

/// Closes standard input, output and error.
pub(crate) fn close_standard_streams() {
    for number in 0..3 {
        // SAFETY: nobody uses them after this: the process does nothing more.
        unsafe { libc::close(number) };
    }
}

/// Sets an integer option of a socket.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (pointer, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the pointer is to an integer of that length, which outlives the call.
    checked(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, len) }).map(drop)
}

/// A request about the interface of this name, with nothing else in it; `InvalidInput` where the
/// name is too long for an interface.
fn request_for(name: &str) -> io::Result<libc::ifreq> {
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all zeroes is a value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

/// Makes an open `/dev/net/tun` the TAP device of this name, in the network namespace of the thread
/// that opened it. Each frame comes and goes with the header of virtio; super-packets and checksums
/// that are not worked out are welcome; reading and writing never wait.
pub(crate) fn become_tap(tun: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request_for(name)?;
    let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    let request: *mut c_void = (&raw mut request).cast();
    // SAFETY: the structure outlives the call, which reads it and writes the name.
    checked(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, request) })?;
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let trains = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let offload = |what: libc::c_uint| {
        // SAFETY: the third argument is a number; no memory is handed over.
        let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD as _, what) };
        checked(result)
    };
    // Kernels before 6.2 have no flag for trains of UDP: they cut them up themselves then.
    offload(tcp | trains).or_else(|_| offload(tcp))?;
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::fcntl(tun.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }).map(drop)
}

/// A socket for whole frames on one interface, through its queueing discipline or past it.
pub(crate) fn frame_socket(index: u32, past_queue: bool) -> io::Result<OwnedFd> {
    let fd = frames_of(index, 0)?;
    set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, past_queue.into())?;
    Ok(fd)
}

/// A socket that gets a copy of every frame that enters or leaves by one interface.
pub(crate) fn frame_tap(index: u32) -> io::Result<OwnedFd> {
    frames_of(index, (libc::ETH_P_ALL as u16).to_be())
}

/// A socket of whole frames that is bound to one interface, and gets frames of this type there.
fn frames_of(index: u32, kind: u16) -> io::Result<OwnedFd> {
    let raw = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is handed over.
    let fd = checked(unsafe { libc::socket(libc::AF_PACKET, raw, 0) })?;
    // SAFETY: it is a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeroes is a value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = kind;
    address.sll_ifindex = index.cast_signed();
    let (pointer, len) = ((&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
    // SAFETY: the pointer is to an address of that length, which outlives the call.
    checked(unsafe { libc::bind(fd.as_raw_fd(), pointer, len) })?;
    Ok(fd)
}

/// Sends messages on a socket that knows where to; how many went out.
pub(crate) fn send_many(socket: BorrowedFd<'_>, messages: &[Vec<u8>]) -> io::Result<usize> {
    let mut parts: Vec<libc::iovec> = messages
        .iter()
        .map(|bytes| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        })
        .collect();
    let mut headers: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: all zeroes is a value of this plain structure.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header
        })
        .collect();
    let len = headers.len() as libc::c_uint;
    // SAFETY: headers, parts and messages outlive the call, which only reads the messages.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), len, 0) };
    checked(sent).map(|sent| sent as usize)
}
