//! TCP connections that never block, and waiting for many of them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};
use rustix::net::{recvmsg, sendmsg};

/// A connection.
pub(crate) type Stream = TcpStream;

/// When a host that takes nothing counts as dead. Longer than a call: a server reads from a worker
/// only when the slowest one has come as far, and the kernel counts a closed window, too.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// Makes a connection what this crate wants: it does not block, does not wait for more to send,
/// and ends when the other host is gone.
pub(crate) fn prepare(stream: &Stream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, DEAD_AFTER.as_millis() as u32)?;
    Ok(())
}

/// Reads into two places, one behind the other. None: nothing is there. 0: the end.
pub(crate) fn read(
    stream: &Stream,
    first: &mut [u8],
    second: &mut [u8],
) -> io::Result<Option<usize>> {
    let mut places = [IoSliceMut::new(first), IoSliceMut::new(second)];
    let places = if places[0].is_empty() { &mut places[1..] } else { &mut places[..] };
    loop {
        let mut control = RecvAncillaryBuffer::default();
        return match recvmsg(stream, places, &mut control, RecvFlags::empty()) {
            Ok(message) => Ok(Some(message.bytes)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// Writes as much as there is room for. None: no room.
pub(crate) fn write(stream: &Stream, places: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    loop {
        let mut control = SendAncillaryBuffer::default();
        return match sendmsg(stream, places, &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(Some(sent)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// What is awaited of a descriptor, and then what has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// Waits until something is ready, `wait` at most. An error or an end makes a descriptor readable.
pub(crate) fn wait(fds: &mut [(BorrowedFd<'_>, Ready)], wait: Duration) -> io::Result<()> {
    let flags = |ready: &Ready| {
        let read = if ready.read { PollFlags::IN } else { PollFlags::empty() };
        read | if ready.write { PollFlags::OUT } else { PollFlags::empty() }
    };
    let mut polled: Vec<_> =
        fds.iter().map(|(fd, ready)| PollFd::from_borrowed_fd(*fd, flags(ready))).collect();
    xdp_agg_mesh::meet::wait(&mut polled, wait)?;
    let came: Vec<_> = polled.iter().map(PollFd::revents).collect();
    for ((_, ready), came) in fds.iter_mut().zip(came) {
        let broken = came.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        ready.read = came.contains(PollFlags::IN) || broken;
        ready.write = came.contains(PollFlags::OUT);
    }
    Ok(())
}

/// A descriptor and what is awaited of it.
pub(crate) fn awaited(fd: &impl AsFd, read: bool, write: bool) -> (BorrowedFd<'_>, Ready) {
    (fd.as_fd(), Ready { read, write })
}

/// The address of the other side, for messages.
pub(crate) fn peer(stream: &Stream) -> SocketAddr {
    stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// Two ends of a connection on this host.
#[cfg(test)]
pub(crate) fn pair() -> (Stream, Stream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let ours = Stream::connect(address).expect("it listens");
    let theirs = listener.accept().expect("somebody connects").0;
    [&ours, &theirs].into_iter().for_each(|end| prepare(end).expect("options of TCP"));
    (ours, theirs)
}
