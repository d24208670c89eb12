//! Sockets of ranks that look for each other, and waiting for them: what all over TCP need.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, Type};
use xdp_agg_forks::own;

/// Largest world size: every rank has a connection with every other one.
pub const MAX_WORLD: u16 = 512;
/// Wait between two attempts to connect.
pub(crate) const RETRY: Duration = Duration::from_millis(5);
/// Buffers of a connection, each way, in bytes: they decide the window scale.
const SOCKET_BUFFER: usize = 4 << 20;

/// Options that count from the handshake on: buffers, and how the connection starts.
pub fn tune(socket: &SockRef<'_>) {
    // All are improvements only; a kernel that refuses one still has a correct connection.
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    // BBR, the default of some distributions, halves the throughput of short low-latency paths.
    let _ = socket.set_tcp_congestion(b"cubic");
}

/// A non-blocking listener for `callers` callers at a time.
///
/// # Errors
/// The system's; `AddrInUse` where another socket has the port.
pub fn listen(address: SocketAddr, callers: u16) -> io::Result<TcpListener> {
    let socket = own(|| Socket::new(Domain::for_address(address), Type::STREAM, None))?;
    // A port whose last connections linger in TIME_WAIT is free for us.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit these.
    tune(&SockRef::from(&socket));
    socket.bind(&address.into())?;
    socket.listen(callers.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Connects as soon as somebody listens there, with a `pause` between attempts, until `end`.
///
/// # Errors
/// That of the last attempt.
pub fn connect_until(address: SocketAddr, end: Instant, pause: Duration) -> io::Result<TcpStream> {
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let attempt = || {
            let socket = own(|| Socket::new(Domain::for_address(address), Type::STREAM, None))?;
            tune(&SockRef::from(&socket));
            socket.connect_timeout(&address.into(), left)?;
            Ok(TcpStream::from(socket))
        };
        match attempt() {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() + pause >= end => return Err(error),
            Err(_) => std::thread::sleep(pause),
        }
    }
}

/// Waits until one of the sockets is ready, `time` at most; or a little less, for a signal.
///
/// # Errors
/// The system's.
pub fn wait(fds: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
    match poll(fds, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// True if nobody is at the other end any more: it has ended the connection, and said nothing that
/// is still to be read.
#[must_use]
pub fn is_gone(stream: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    let peeked =
        SockRef::from(stream).recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    match peeked {
        Ok(bytes) => bytes == 0,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}

/// A number that nobody can guess: the hasher is seeded by the system's random numbers.
#[must_use]
pub fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// Processes that say the same can share memory: their kernel, network namespace and user are the
/// same.
#[must_use]
pub fn this_host() -> String {
    use std::hash::Hasher;
    use std::os::unix::fs::MetadataExt;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // The thread's own network.
    let network = std::fs::metadata("/proc/thread-self/ns/net");
    let network = network.map_or((0, 0), |network| (network.dev(), network.ino()));
    let mut digest = siphasher::sip::SipHasher24::new();
    digest.write(format!("{boot} {network:?} {}", rustix::process::getuid().as_raw()).as_bytes());
    format!("{:016x}", digest.finish())
}
