//! A worker's connection, as its job's thread sees it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::frame::{Header, Inbox, Kind, Step};
use crate::outbox::{Outbox, Outgoing};
use crate::socket::{self, Stream};

/// Bytes that are read from one worker before it is the others' turn.
const TURN: usize = 1 << 20;

/// Where a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It takes part.
    Here,
    /// It has said that it pushes no more.
    Leaving,
    /// Its connection has ended.
    Gone,
}

/// A worker of a job.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: Stream,
    pub(super) deadline: Duration,
    pub(super) state: State,
    /// Pieces that it has pushed.
    pub(super) pushed: u64,
    /// Bytes that it has pushed and whose sums have not left to it.
    held: usize,
    inbox: Inbox,
    payload: Vec<u8>,
    out: Outbox,
}

/// What comes from a worker.
pub(super) enum Event {
    /// A part.
    Part(Header, Vec<u8>),
    /// It leaves.
    Bye,
    /// Its connection has ended, for this reason.
    Lost(String),
}

impl Peer {
    pub(super) fn new(stream: Stream, deadline: Duration) -> Self {
        Self {
            stream,
            deadline,
            state: State::Here,
            pushed: 0,
            held: 0,
            inbox: Inbox::default(),
            payload: Vec::new(),
            out: Outbox::default(),
        }
    }

    /// Whether it may be read from: what it is ahead is bounded.
    pub(super) fn wants_read(&self, window: usize) -> bool {
        self.state != State::Gone && self.held < window
    }

    pub(super) fn wants_write(&self) -> bool {
        self.state != State::Gone && !self.out.is_empty()
    }

    pub(super) fn send(&mut self, frame: Outgoing) {
        if self.state != State::Gone {
            self.out.push(frame);
        }
    }

    /// Reads what is there, within its window and its turn. `spare` are buffers to be used again.
    pub(super) fn read(
        &mut self,
        window: usize,
        spare: &mut Vec<Vec<u8>>,
        mut event: impl FnMut(Event),
    ) {
        let turn_ends = self.pushed_bytes_limit(window);
        while self.wants_read(window) && self.held < turn_ends {
            match self.inbox.step(&self.stream, &mut self.payload) {
                Ok(Step::Blocked) => return,
                Ok(Step::Partial) => {}
                Ok(Step::Header(header)) if matches!(header.kind, Kind::Push | Kind::Bye) => {
                    self.payload = spare.pop().unwrap_or_default();
                    self.payload.resize(header.len as usize, 0);
                }
                Ok(Step::Header(header)) => {
                    return event(Event::Lost(format!("it sent a {:?}", header.kind)));
                }
                Ok(Step::Payload(header)) if header.kind == Kind::Bye => event(Event::Bye),
                Ok(Step::Payload(header)) => {
                    self.pushed += 1;
                    self.held += header.len as usize;
                    event(Event::Part(header, std::mem::take(&mut self.payload)));
                }
                Ok(Step::Closed) => {
                    return event(Event::Lost("its connection has ended".into()));
                }
                Err(error) => return event(Event::Lost(error.to_string())),
            }
        }
    }

    fn pushed_bytes_limit(&self, window: usize) -> usize {
        window.min(self.held + TURN)
    }

    /// Writes what there is room for. Payloads that nobody else has come back into `spare`.
    pub(super) fn write(&mut self, spare: &mut Vec<Vec<u8>>) -> io::Result<()> {
        while self.wants_write() {
            let left = |frame: Outgoing| {
                if frame.is_result() {
                    self.held -= frame.payload.len().min(self.held);
                }
                spare.extend(Arc::try_unwrap(frame.payload));
            };
            if !self.out.write(&self.stream, left)? {
                break;
            }
        }
        Ok(())
    }

    /// Nothing more comes from it, and nothing goes to it.
    pub(super) fn end(&mut self, state: State) {
        self.state = state;
        if state == State::Gone {
            self.out = Outbox::default();
        }
    }

    /// Reads and forgets. False: the connection has ended.
    pub(super) fn discard(&self, scratch: &mut [u8]) -> bool {
        loop {
            match socket::read(&self.stream, scratch, &mut []) {
                Ok(None) => return true,
                Ok(Some(0)) | Err(_) => return false,
                Ok(Some(_)) => {}
            }
        }
    }
}
