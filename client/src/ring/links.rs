//! The connections of a rank: from the rank before it and to the one after it.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::call::Notice;
use super::error::Error;
use super::poll::{Interest, poll};

/// What a neighbour's control connection has said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing: it is there.
    Here,
    /// It dropped its ring.
    Left,
    /// The connection ended without a word.
    Lost(String),
}

/// A neighbour: payload goes one way on `data`, notices go both ways on `control`.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) rank: u16,
    pub(super) data: TcpStream,
    pub(super) control: TcpStream,
    pub(super) state: State,
    inbox: Vec<u8>,
}

impl Neighbour {
    /// Takes over two connected sockets and tunes them.
    pub(super) fn new(rank: u16, data: TcpStream, control: TcpStream) -> Result<Self, Error> {
        for stream in [&data, &control] {
            stream.set_nodelay(true).map_err(Error::io("set TCP_NODELAY"))?;
            stream.set_nonblocking(true).map_err(Error::io("make a socket non-blocking"))?;
        }
        Ok(Self { rank, data, control, state: State::Here, inbox: Vec::new() })
    }

    /// Looks, without waiting, for a notice; remembers how the connection ended.
    fn read_notice(&mut self) -> Result<(), Error> {
        let mut bytes = [0; Notice::MAX_LEN];
        while self.state == State::Here {
            match self.control.read(&mut bytes) {
                Ok(0) => self.state = State::Lost("its connection was closed".into()),
                Ok(n) => self.inbox.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => self.state = State::Lost(e.to_string()),
            }
            match Notice::decode(&self.inbox) {
                Some(Notice::Stopped { by, reason }) => return Err(Error::Stopped { by, reason }),
                Some(Notice::Leaving) => self.state = State::Left,
                None => {}
            }
        }
        Ok(())
    }

    /// Listening for a notice, as long as one can come.
    pub(super) fn listening(&self) -> (&TcpStream, Interest) {
        (&self.control, Interest { read: self.state == State::Here, write: false })
    }
}

/// Which neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Previous,
    Next,
}

/// Both neighbours. Payload goes from `previous` through here to `next`.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) previous: Neighbour,
    pub(super) next: Neighbour,
}

impl Links {
    pub(super) fn neighbour(&self, side: Side) -> &Neighbour {
        match side {
            Side::Previous => &self.previous,
            Side::Next => &self.next,
        }
    }

    /// Looks, without waiting, for notices.
    ///
    /// # Errors
    /// [`Error::Stopped`] when a neighbour, or a rank behind it, gave up.
    pub(super) fn read_notices(&mut self) -> Result<(), Error> {
        self.next.read_notice()?;
        self.previous.read_notice()
    }

    /// Waits for a notice that explains why the ring does not move: until one comes, the
    /// neighbour on `side` can say nothing any more, or `grace` is over.
    pub(super) fn await_reason(&mut self, side: Option<Side>, grace: Duration) -> Option<Error> {
        let end = Instant::now() + grace;
        loop {
            if let Err(reason) = self.read_notices() {
                return Some(reason);
            }
            let silent = side.is_some_and(|side| self.neighbour(side).state != State::Here);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || silent {
                return None;
            }
            poll([self.previous.listening(), self.next.listening()], left).ok()?;
        }
    }

    /// Tells both neighbours, as far as that is still possible.
    pub(super) fn notify(&self, notice: &Notice) {
        for neighbour in [&self.next, &self.previous] {
            // The socket buffer cannot be full, nothing else is sent on this connection; and
            // where it is closed there is nobody to tell.
            let control = SockRef::from(&neighbour.control);
            let _ = control.send_with_flags(&notice.encode(), libc::MSG_NOSIGNAL);
        }
    }
}
