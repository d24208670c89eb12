//! Attempts to reach a daemon: by which address, with which pauses, and when to say that they take
//! long.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use xdp_agg_common::control::first_ipv4;
use xdp_agg_forks::own;
use xdp_agg_mesh::meeting::Tell;
use xdp_agg_protocol::worker::RETRY;

/// Longest time for one attempt to connect.
const CONNECT: Duration = Duration::from_secs(1);

/// Connects to a daemon by its name, where it has one, or else by its address.
pub(crate) fn connect(name: Option<&str>, address: SocketAddr) -> io::Result<TcpStream> {
    let Some(name) = name else { return attempt(address) };
    let found = name.to_socket_addrs();
    let found = found.map_err(|error| with(&error, format!("{name} cannot be resolved")))?;
    let none = first_ipv4(found.clone()).err().unwrap_or_default();
    let mut last = io::Error::new(ErrorKind::NotFound, format!("{name} {none}"));
    for address in found.filter(SocketAddr::is_ipv4) {
        match attempt(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = with(&error, format!("{name} is {}", address.ip())),
        }
    }
    Err(last)
}

/// The socket is this process's alone: a forked child has no copy of it.
fn attempt(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = own(|| Socket::new(Domain::for_address(address), Type::STREAM, None))?;
    socket.connect_timeout(&address.into(), CONNECT)?;
    Ok(socket.into())
}

fn with(error: &io::Error, before: String) -> io::Error {
    io::Error::new(error.kind(), format!("{before}: {error}"))
}

/// Longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// Pauses between attempts that may fail for long.
#[derive(Debug)]
pub(crate) struct Pause {
    next: Duration,
    tell: Tell,
}

impl Pause {
    /// Says that it takes long after this time, and then every time that it has passed again.
    pub(crate) fn new(warn_after: Duration) -> Self {
        Self { next: RETRY, tell: Tell::new(Instant::now(), warn_after) }
    }

    /// Until the next attempt: each pause is a little longer than the one before.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause + pause / 8).min(LONGEST);
        pause
    }

    /// How many seconds it has taken, when that is to be told.
    pub(crate) fn is_long(&mut self) -> Option<u64> {
        self.tell.is_long(Instant::now())
    }
}
