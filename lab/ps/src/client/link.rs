//! A worker's connection to one server.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bytes::Aligned;
use crate::error::Error;
use crate::frame::{Failure, Header, Hello, Inbox, Kind, Step};
use crate::outbox::{FRAMES_PER_WRITE, Outbox, Outgoing};
use crate::socket::{self, Stream};

/// How long a worker waits before it knocks again.
const RETRY: Duration = Duration::from_millis(30);

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) server: SocketAddr,
    pub(super) stream: Stream,
    pub(super) inbox: Inbox,
    /// Where payloads go that belong nowhere else.
    pub(super) scratch: Aligned,
    /// Frames that were pushed and have not left.
    queue: Outbox,
    /// The other side takes nothing any more: why. What it has said may still be here, and is read
    /// first.
    deaf: Option<io::Error>,
}

impl Link {
    /// Connects and introduces this worker. A server that is not there yet is asked again until
    /// `end`.
    pub(super) fn connect(
        server: SocketAddr,
        hello: &Hello,
        deadline: Duration,
        end: Instant,
    ) -> Result<Self, Error> {
        let stream = loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match Stream::connect_timeout(&server, left) {
                Ok(stream) => break stream,
                Err(source) if Instant::now() + RETRY >= end => {
                    return Err(Error::Unreachable { server, waited: deadline, source });
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        let lost = |source| Error::ServerLost { server, source };
        socket::prepare(&stream).map_err(lost)?;
        let payload = hello.emit();
        let header = Header::plain(Kind::Hello, payload.len()).emit();
        // A fresh connection has room for that.
        socket::write(&stream, &[IoSlice::new(&header), IoSlice::new(&payload)]).map_err(lost)?;
        Ok(Self {
            server,
            stream,
            inbox: Inbox::default(),
            scratch: Aligned::default(),
            queue: Outbox::default(),
            deaf: None,
        })
    }

    /// Bytes that were pushed and have not left.
    pub(super) fn queued(&self) -> usize {
        self.queue.bytes()
    }

    /// A frame to leave behind those that were pushed before.
    pub(super) fn enqueue(&mut self, header: &Header, payload: &[u8]) {
        self.queue.push(Outgoing::new(header, Arc::new(payload.to_vec())));
    }

    /// Writes what was pushed, as far as there is room. True: something has left.
    pub(super) fn write_queue(&mut self) -> bool {
        let mut some = false;
        while self.wants_write() {
            match self.queue.write(&self.stream, drop) {
                Ok(true) => some = true,
                Ok(false) => break,
                Err(source) => self.deaf = Some(source),
            }
        }
        some
    }

    /// Writes frames that lie in the caller's memory: whole ones from the first on, of which `at`
    /// bytes have left. Bytes that left now; None: no room.
    pub(super) fn write_frames<'a>(
        &mut self,
        frames: impl Iterator<Item = (Header, &'a [u8])>,
        at: usize,
    ) -> Option<usize> {
        if self.deaf.is_some() {
            return None;
        }
        let frames: Vec<_> =
            frames.take(FRAMES_PER_WRITE).map(|(header, bytes)| (header.emit(), bytes)).collect();
        let parts = frames.iter().flat_map(|(header, payload)| [&header[..], payload]);
        let mut places: Vec<_> = parts.map(IoSlice::new).collect();
        let mut left = &mut places[..];
        IoSlice::advance_slices(&mut left, at);
        socket::write(&self.stream, left).unwrap_or_else(|source| {
            self.deaf = Some(source);
            None
        })
    }

    /// Whether there is something to write, and somebody to take it.
    pub(super) fn wants_write(&self) -> bool {
        !self.queue.is_empty() && self.deaf.is_none()
    }

    /// Whether writing makes sense at all.
    pub(super) const fn listens(&self) -> bool {
        self.deaf.is_none()
    }

    /// Reads once into the scratch memory.
    pub(super) fn step(&mut self) -> Result<Step, Error> {
        let len = self.inbox.current().map_or(0, |header| header.len as usize);
        let step = self.inbox.step(&self.stream, self.scratch.bytes(len));
        self.stepped(step)
    }

    /// Reads once into `payload`.
    pub(super) fn step_into(&mut self, payload: &mut [u8]) -> Result<Step, Error> {
        let step = self.inbox.step(&self.stream, payload);
        self.stepped(step)
    }

    fn stepped(&mut self, step: io::Result<Step>) -> Result<Step, Error> {
        let server = self.server;
        match step {
            Ok(Step::Closed) => {
                let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
                Err(Error::ServerLost { server, source: self.deaf.take().unwrap_or_else(ended) })
            }
            Ok(step) => Ok(step),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Error::Protocol { server, what: error.to_string() })
            }
            Err(source) => Err(Error::ServerLost { server, source }),
        }
    }

    /// What a frame other than a result says, when its payload is in the scratch memory.
    pub(super) fn notice(&mut self, header: &Header) -> Error {
        let server = self.server;
        let bytes = self.scratch.bytes(header.len as usize);
        match Failure::parse(bytes).filter(|_| header.kind == Kind::Failed) {
            Some(failure) => Error::told(server, failure),
            None => Error::Protocol { server, what: format!("an unexpected {:?}", header.kind) },
        }
    }

    /// Says that nothing more is pushed, where that can be said.
    pub(super) fn bye(&mut self) {
        if self.queue.is_empty() {
            let header = Header::plain(Kind::Bye, 0).emit();
            drop(socket::write(&self.stream, &[IoSlice::new(&header)]));
        }
    }
}
