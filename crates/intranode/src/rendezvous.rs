//! How the processes of a job on a host find each other, and come to share a segment.
//!
//! Local rank 0 binds an abstract unix socket whose name follows from user, job and run. Such a
//! name belongs to a network namespace and lives as long as the socket does. When its process ends,
//! however that happens, the kernel frees it. So a name that is taken is taken by a live process,
//! and a stale one cannot exist.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use xdp_agg_forks::own;

use crate::credentials::Peer;
use crate::error::MEETING;
use crate::message::{self, Hello, Message};
use crate::options::until;
use crate::{Error, Options, digest};

mod join;
mod lead;

pub(crate) use join::join;
pub(crate) use lead::{lead, refuse_newcomer};

/// How long a name that is in use may take to become free: the last job's process may be ending.
const NAME_PATIENCE: Duration = Duration::from_secs(3);
/// How long late processes are told why the group fails.
const LINGER: Duration = Duration::from_secs(1);
/// Between looks whether the wait goes on.
const LOOK: Duration = Duration::from_millis(50);
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Whether a wait for other processes goes on; else why not.
pub(crate) type GoesOn<'a> = &'a dyn Fn() -> Result<(), Error>;

/// A group that has formed, as one of its processes has it.
#[derive(Debug)]
pub(crate) struct Formed {
    pub(crate) segment: crate::segment::Segment,
    /// By local rank.
    pub(crate) bells: Vec<OwnedFd>,
    /// Connections to watch, with the local rank and process at the other end.
    pub(crate) connections: Vec<Connection>,
    /// Local rank 0's: to tell newcomers that the name is in use.
    pub(crate) listener: Option<OwnedFd>,
}

/// A connection to another local process.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) local_rank: usize,
    pub(crate) pid: i32,
}

/// Makes a bell: a thread that sleeps in `poll(2)` hears it.
pub(crate) fn bell() -> Result<OwnedFd, Error> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map_err(|errno| Error::system("eventfd", errno))
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Error> {
    let flags = flags | SocketFlags::CLOEXEC;
    own(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None))
        .map_err(|errno| Error::system("a unix socket", errno))
}

/// The name of a group's socket: readable where that fits, and never another job's or run's.
pub(crate) fn name(options: &Options) -> Result<SocketAddrUnix, Error> {
    let uid = rustix::process::getuid().as_raw();
    let Options { job, run, .. } = options;
    let mut name = format!("xdp-agg-host/{uid}/{job}");
    if !run.is_empty() {
        name.push_str(&format!("/{run}"));
    }
    if name.len() > 100 {
        let rest = digest(name.bytes());
        name.truncate(name.floor_char_boundary(80));
        name.push_str(&format!("~{rest:016x}"));
    }
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|errno| Error::system("the name of the job's socket", errno))
}

/// Connects to the process that has the name; the connection blocks. Nobody is waited for: where
/// its queue is full, because it is stopped, this is [`Errno::AGAIN`] at once.
fn connect(name: &SocketAddrUnix) -> Result<rustix::io::Result<OwnedFd>, Error> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    let connected = rustix::net::connect(&socket, name);
    Ok(connected.and_then(|()| rustix::io::ioctl_fionbio(&socket, false)).map(|()| socket))
}

/// The next connection of a listener that does not block.
fn accept(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    own(|| rustix::net::accept_with(listener, SocketFlags::CLOEXEC))
}

/// The process at the other end, if it is of the same user.
fn same_user(socket: impl AsFd) -> Result<Peer, Option<Peer>> {
    match Peer::of(socket) {
        Ok(peer) if peer.uid == rustix::process::getuid().as_raw() => Ok(peer),
        Ok(peer) => Err(Some(peer)),
        Err(_) => Err(None),
    }
}

/// Waits until one of `descriptors` can be read or has ended; says which.
fn readable(descriptors: &[BorrowedFd<'_>], until: Instant) -> Result<Vec<bool>, Error> {
    let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let left = until.saturating_duration_since(Instant::now());
    let timeout = rustix::time::Timespec {
        tv_sec: left.as_secs().cast_signed(),
        tv_nsec: left.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(Error::system("poll", errno)),
    }
    Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// A wait for other processes, which is told of when it is long.
struct Waits {
    since: Instant,
    every: Duration,
    warn_at: Instant,
}

impl Waits {
    fn new(options: &Options) -> Self {
        let (since, every) = (Instant::now(), options.warn_after);
        Self { since, every, warn_at: until(every) }
    }

    fn tell(&mut self, missing: &[usize]) {
        if Instant::now() >= self.warn_at {
            self.warn_at = until(self.every);
            let waited = self.since.elapsed().as_secs();
            tracing::warn!(
                "after {waited} s local ranks {missing:?} of this host have not come; \
                 XDP_AGG_JOIN_DEADLINE says how long they may take"
            );
        }
    }
}

fn deadline(options: &Options, waiting_for: Vec<usize>) -> Error {
    let (after, known) = (options.join_within, String::new());
    Error::Deadline { what: MEETING, after, waiting_for, known }
}

fn lost(local_rank: usize, pid: i32) -> Error {
    Error::PeerLost { local_rank, pid, how: "its process ended while the group was being made" }
}

/// The next message of a connection, `None` at its end.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut received = message::receive(socket);
    if matches!(received, Err(Errno::CONNRESET)) {
        // The other end closed without reading all it was sent. What it said before is still there.
        received = message::receive(socket);
    }
    match received {
        Err(Errno::CONNRESET | Errno::PIPE) => Ok(None),
        received => received,
    }
}
