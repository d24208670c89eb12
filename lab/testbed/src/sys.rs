//! The system calls that the standard library has no name for.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Moves the process, which must have one thread, into new user and network namespaces.
pub(crate) fn unshare_user_and_network() -> io::Result<()> {
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) }).map(drop)
}

/// Moves the calling thread into a network namespace. Async-signal-safe.
pub(crate) fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is handed over, and the descriptor is open.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Has the kernel kill this process when the *thread* that made it ends. Fails if that happened
/// already. Async-signal-safe: for the time between fork and exec.
pub(crate) fn die_with_parent(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: takes nothing, cannot fail.
    if unsafe { libc::getppid() } == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Takes `CAP_NET_ADMIN` from whatever this process executes. Async-signal-safe: for the time
/// between fork and exec.
pub(crate) fn drop_network_privilege() -> io::Result<()> {
    /// Its number in `linux/capability.h`.
    const CAP_NET_ADMIN: libc::c_ulong = 12;
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_NET_ADMIN, 0, 0, 0) }).map(drop)
}

/// The effective user and group of this process.
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: these take nothing and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Forks a child that ends with what `work` returns, or is ended by the kernel after `life`.
pub(crate) fn fork(life: Duration, work: impl FnOnce() -> libc::c_int) -> io::Result<libc::pid_t> {
    // SAFETY: takes nothing. What `work` does in a child of a process with many threads is the
    // tests' point; allocations may be made there, the system's allocator sees to that.
    let child = checked(unsafe { libc::fork() })?;
    if child == 0 {
        let seconds = life.as_secs().clamp(1, 3600) as libc::c_uint;
        // SAFETY: takes no pointers.
        unsafe { libc::alarm(seconds) };
        let code = work();
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    Ok(child)
}

/// Waits for a child; its exit code.
pub(crate) fn exit_code(child: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: the status is an integer that outlives the call.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    if libc::WIFEXITED(status) {
        return Ok(libc::WEXITSTATUS(status));
    }
    Err(io::Error::other(format!("signal {} ended the child", libc::WTERMSIG(status))))
}

/// A descriptor of a process.
pub(crate) fn process_descriptor(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    let number = checked(opened as libc::c_int)?;
    // SAFETY: opened above, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A copy of a descriptor of a process.
pub(crate) fn take_descriptor(process: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    let number = checked(taken as libc::c_int)?;
    // SAFETY: made above, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes standard input, output and error.
pub(crate) fn close_standard_streams() {
    for number in 0..3 {
        // SAFETY: nobody uses them after this: the process does nothing more.
        unsafe { libc::close(number) };
    }
}

/// Sends a signal to a process group that the caller leads no other way than by its id.
pub(crate) fn kill_group(group: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::killpg(group.cast_signed(), signal) }).map(drop)
}

/// Sends a signal to one process.
pub(crate) fn kill(pid: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::kill(pid.cast_signed(), signal) }).map(drop)
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

/// One `SIOCETHTOOL` request: `data` begins with the command and is as long as that asks for.
///
/// # Errors
/// As the kernel's; `InvalidInput` where the name is too long for an interface.
pub(crate) fn ethtool(socket: BorrowedFd<'_>, name: &str, data: &mut [u32]) -> io::Result<()> {
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    let request: *mut c_void = (&raw mut request).cast();
    // SAFETY: both structures outlive the call; the callers size `data` for what its first word
    // asks, which is all that the kernel writes to.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, request) }).map(drop)
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

/// Has the calling thread, and those that it starts from now on, run on one processor only.
pub(crate) fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as the macro takes it for; it ignores numbers beyond.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set outlives the call and its size is told.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).map(drop)
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

/// Has the calling thread wake up when it asked to, and not up to 50 µs later.
pub(crate) fn sleep_exactly() -> io::Result<()> {
    // SAFETY: no memory is handed over.
    checked(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) }).map(drop)
}

/// Waits until something can be read, an end has been closed, or the time is up (`None`: without
/// end): which of the descriptors are ready.
pub(crate) fn wait_readable(
    fds: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let poll =
        |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = fds.iter().map(poll).collect();
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let pointer = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
    let count = polls.len() as libc::nfds_t;
    // SAFETY: descriptors and time outlive the call; it takes a null pointer for no limit, and for
    // leaving signals as they are.
    let result = unsafe { libc::ppoll(polls.as_mut_ptr(), count, pointer, std::ptr::null()) };
    match checked(result) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(vec![false; fds.len()]),
        Err(error) => Err(error),
        Ok(_) => Ok(polls.iter().map(|poll| poll.revents != 0).collect()),
    }
}

/// A socket for whole frames on one interface, through its queueing discipline or past it.
pub(crate) fn frame_socket(index: u32, past_queue: bool) -> io::Result<OwnedFd> {
    // SAFETY: no memory is handed over.
    let fd =
        checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: it is a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, past_queue.into())?;
    // SAFETY: all zeroes is a value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
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
