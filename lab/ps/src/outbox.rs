//! What waits to leave on a connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::frame::{HEADER_LEN, Header, Kind};
use crate::socket::{self, Stream};

/// Frames that one write takes.
pub(crate) const FRAMES_PER_WRITE: usize = 8;

/// A frame on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    header: [u8; HEADER_LEN],
    pub(crate) payload: Arc<Vec<u8>>,
}

impl Outgoing {
    pub(crate) fn new(header: &Header, payload: Arc<Vec<u8>>) -> Self {
        Self { header: header.emit(), payload }
    }

    /// Whether it gives window back to a worker when it has left.
    pub(crate) const fn is_result(&self) -> bool {
        self.header[2] == Kind::Result as u8
    }

    fn len(&self) -> usize {
        HEADER_LEN + self.payload.len()
    }
}

/// Frames in the order in which they leave.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    frames: VecDeque<Outgoing>,
    /// Bytes of the first frame that have left.
    at: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes that have not left.
    pub(crate) fn bytes(&self) -> usize {
        self.frames.iter().map(Outgoing::len).sum::<usize>() - self.at
    }

    pub(crate) fn push(&mut self, frame: Outgoing) {
        self.frames.push_back(frame);
    }

    /// Writes once; false: there is no room. Frames that have left as a whole go to `left`.
    pub(crate) fn write(
        &mut self,
        stream: &Stream,
        mut left: impl FnMut(Outgoing),
    ) -> io::Result<bool> {
        let frames = self.frames.iter().take(FRAMES_PER_WRITE);
        let parts = frames.flat_map(|frame| [&frame.header[..], &frame.payload]);
        let mut places: Vec<_> = parts.map(IoSlice::new).collect();
        let mut rest = &mut places[..];
        IoSlice::advance_slices(&mut rest, self.at);
        let Some(written) = socket::write(stream, rest)? else { return Ok(false) };
        self.at += written;
        while self.frames.front().is_some_and(|frame| self.at >= frame.len()) {
            let Some(frame) = self.frames.pop_front() else { break };
            self.at -= frame.len();
            left(frame);
        }
        Ok(true)
    }
}
