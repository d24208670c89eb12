//! The control connection of a worker: joining, and what the daemon says later.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use xdp_agg_common::control::{self, CONTROL_VERSION, ErrorCode, Join, Reply, Request};
use xdp_agg_common::frame::chunks_for_mtu;

use crate::error::Error;
use crate::sys;

/// Pause between two attempts to reach a daemon that is not there yet.
const RETRY: Duration = Duration::from_millis(100);

/// An open control connection.
#[derive(Debug)]
pub(crate) struct Session {
    stream: TcpStream,
    received: Vec<u8>,
    engine: String,
}

impl Session {
    /// Connects and agrees on the version; tries again until `patience` is over, because workers
    /// and the daemon are often started together.
    pub(crate) fn open(address: SocketAddr, patience: Duration) -> Result<Self, Error> {
        let give_up = Instant::now() + patience;
        let stream = loop {
            let left = give_up.saturating_duration_since(Instant::now());
            match TcpStream::connect_timeout(&address, left.max(RETRY)) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= give_up => {
                    return Err(Error::Unreachable { address, reason: error.to_string() });
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        let unreachable =
            |error: std::io::Error| Error::Unreachable { address, reason: error.to_string() };
        stream.set_nodelay(true).map_err(unreachable)?;
        stream.set_nonblocking(true).map_err(unreachable)?;
        let mut session = Self { stream, received: Vec::new(), engine: String::new() };
        let agent = concat!("xdp-agg-client ", env!("CARGO_PKG_VERSION")).to_owned();
        session.send(&Request::Hello { version: CONTROL_VERSION, agent, token: None })?;
        match session.next(Instant::now() + patience.max(Duration::from_secs(2)))? {
            Some(Reply::Welcome { version, .. }) if version != CONTROL_VERSION => {
                Err(Error::Version { ours: CONTROL_VERSION, theirs: version })
            }
            Some(Reply::Welcome { engine, .. }) => Ok(Self { engine, ..session }),
            Some(Reply::Error { code, message }) => Err(Error::Refused { code, message }),
            Some(other) => Err(Error::Protocol(format!("{other:?} as its first words"))),
            None => Err(Error::Unreachable {
                address,
                reason: "it accepts connections but says nothing; is it an xdp-agg daemon?".into(),
            }),
        }
    }

    /// What sums on the other side: `xdp (native)`, `userspace`, …
    pub(crate) fn engine(&self) -> &str {
        &self.engine
    }

    /// The address that the daemon sees this worker at.
    pub(crate) fn local_addr(&self) -> Result<Ipv4Addr, Error> {
        match self.stream.local_addr().map_err(Error::io("reading the local address"))? {
            SocketAddr::V4(address) => Ok(*address.ip()),
            SocketAddr::V6(address) => Err(Error::Config {
                name: "XDP_AGG_ADDR",
                problem: format!(
                    "the connection runs over IPv6 ({address}); this version sums over IPv4, so \
                     give an IPv4 address"
                ),
            }),
        }
    }

    /// Chunks of payload that fit the path to the daemon, `mtu` permitting.
    pub(crate) fn path_chunks(&self, mtu: Option<u32>) -> Result<u16, Error> {
        let path = sys::option(self.stream.as_fd(), libc::IPPROTO_IP, libc::IP_MTU)
            .map_err(Error::io("reading the path MTU"))?;
        let path = u32::try_from(path).unwrap_or(0);
        let used = mtu.unwrap_or(path).min(path);
        match chunks_for_mtu(used) {
            0 => Err(Error::Config {
                name: "mtu",
                problem: format!(
                    "{used} bytes leave no room for a payload; at least 114 are needed"
                ),
            }),
            chunks => Ok(chunks),
        }
    }

    /// Joins the job; returns when all its ranks are there.
    pub(crate) fn join(
        &mut self,
        join: Join,
        patience: Duration,
    ) -> Result<control::Admitted, Error> {
        self.send(&Request::Join(join))?;
        match self.next(Instant::now() + patience)? {
            Some(Reply::Admitted(admitted)) => Ok(admitted),
            Some(other) => Err(refusal(other)),
            None => Err(Error::Deadline { sequence: None, waited: patience, ranks: Vec::new() }),
        }
    }

    /// Sends a message; these are short, so a full buffer means a daemon that reads no more.
    pub(crate) fn send(&mut self, message: &Request) -> Result<(), Error> {
        let frame = control::encode(message)?;
        let mut rest = &frame[..];
        let give_up = Instant::now() + Duration::from_secs(5);
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < give_up => {
                    let fd = self.stream.as_fd();
                    let mut interest = [sys::Interest::read(fd).also_write(true)];
                    sys::wait(&mut interest, RETRY).map_err(Error::io("waiting"))?;
                }
                Err(error) => return Err(Error::AggregatorLost(error.to_string())),
            }
        }
        Ok(())
    }

    /// The next message that has arrived whole, without waiting.
    pub(crate) fn poll(&mut self) -> Result<Option<Reply>, Error> {
        loop {
            if let Some(reply) = control::decode(&mut self.received)? {
                return Ok(Some(reply));
            }
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => {
                    let reason = "its control connection ended without a word";
                    return Err(Error::AggregatorLost(reason.into()));
                }
                Ok(len) => self.received.extend_from_slice(&part[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::AggregatorLost(error.to_string())),
            }
        }
    }

    /// The next message, or `None` when the deadline passes first.
    pub(crate) fn next(&mut self, deadline: Instant) -> Result<Option<Reply>, Error> {
        loop {
            if let Some(reply) = self.poll()? {
                return Ok(Some(reply));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let mut interest = [sys::Interest::read(self.stream.as_fd())];
            sys::wait(&mut interest, left).map_err(Error::io("waiting for the aggregator"))?;
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The error behind a reply that is not the awaited one.
pub(crate) fn refusal(reply: Reply) -> Error {
    match reply {
        Reply::Aborted(reason) => Error::Aborted(reason),
        Reply::Error { code: ErrorCode::Version, message } => {
            Error::Refused { code: ErrorCode::Version, message }
        }
        Reply::Error { code, message } => Error::Refused { code, message },
        other => Error::Protocol(format!("{other:?}")),
    }
}
