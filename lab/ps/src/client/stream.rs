//! Pieces that are pushed one by one as they become ready; their sums are taken in as they come.
//! For programs that sum on a host first, and for blocks that find no slot at an aggregator.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{PsClient, STEPS};
use crate::element::{Element, ElementType};
use crate::error::Error;
use crate::frame::{Header, Kind, MAX_PIECE, Step};
use crate::socket::{self, awaited};

/// The operation of calls whose pieces are pushed one by one.
const PIECES: u64 = 2;

/// The sum of a piece.
#[derive(Debug)]
pub struct Piece<'a, T> {
    /// Number of the call.
    pub sequence: u64,
    /// Number of the piece.
    pub piece: u64,
    /// The sums.
    pub values: &'a [T],
}

/// The sums that a server owes, in order.
#[derive(Debug, Default)]
pub(super) struct Expected {
    headers: VecDeque<Header>,
    /// Bytes of all of them.
    bytes: usize,
    /// When the oldest was pushed, or became the oldest.
    since: Option<Instant>,
}

impl Expected {
    pub(super) fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }
}

impl PsClient {
    /// Begins a call whose pieces are pushed one by one; `pieces` is their number, the same at all
    /// workers. Returns the call's number, which comes back with the sums. An earlier call's sums
    /// may still be outstanding.
    ///
    /// # Errors
    /// An earlier call has failed.
    pub fn start(&mut self, pieces: u64) -> Result<u64, Error> {
        self.check_usable()?;
        self.sequence += 1;
        self.pieces = pieces;
        Ok(self.sequence)
    }

    /// Pushes a piece of the call that was begun last. All workers push the same pieces in the
    /// same order; numbers may be left out. Piece `i` goes to server `i mod p`. False: nothing was
    /// taken, for too much is waiting to leave, or for its sum; [`Self::poll`] makes room.
    ///
    /// # Errors
    /// A piece that is too large ([`MAX_PIECE`] bytes), or a call that has failed.
    pub fn push<T: Element>(&mut self, piece: u64, values: &[T]) -> Result<bool, Error> {
        self.check_usable()?;
        if size_of_val(values) > MAX_PIECE {
            return Err(Error::InvalidSetting {
                name: "the piece",
                value: format!("{} bytes", size_of_val(values)),
                expected: "at most a MiB",
            });
        }
        let at = (piece % self.links.len() as u64) as usize;
        let link = &mut self.links[at];
        if link.queued() > 0 && link.queued() + size_of_val(values) > self.options.queue {
            return Ok(false);
        }
        let expected = &mut self.expected[at];
        if expected.bytes > 0 && expected.bytes + size_of_val(values) > self.options.window {
            return Ok(false);
        }
        let header = Header {
            kind: Kind::Push,
            element: Some(T::TYPE),
            len: size_of_val(values) as u32,
            sequence: self.sequence,
            piece,
            call: self.pieces << 8 | PIECES,
        };
        link.enqueue(&header, bytemuck::cast_slice(values));
        expected.bytes += size_of_val(values);
        expected.headers.push_back(Header { kind: Kind::Result, ..header });
        expected.since.get_or_insert_with(Instant::now);
        link.write_queue();
        Ok(true)
    }

    /// Pushed pieces whose sums have not been taken in.
    pub fn outstanding(&self) -> u64 {
        self.expected.iter().map(|expected| expected.headers.len() as u64).sum()
    }

    /// Writes and reads what is possible, and hands every sum to `take`; returns the number of
    /// sums. Waits `wait` at most for something to do, and not at all where nothing is outstanding.
    /// All outstanding pieces must be of `T`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; the deadline counts for each piece from when it is the oldest.
    pub fn poll<T: Element>(
        &mut self,
        wait: Duration,
        mut take: impl FnMut(Piece<'_, T>),
    ) -> Result<usize, Error> {
        self.check_usable()?;
        let done = self.poll_links(wait, &mut take);
        self.keep(done)
    }

    fn poll_links<T: Element>(
        &mut self,
        wait: Duration,
        take: &mut impl FnMut(Piece<'_, T>),
    ) -> Result<usize, Error> {
        let end = Instant::now() + wait;
        let mut sums = 0;
        loop {
            let mut moved = false;
            for at in 0..self.links.len() {
                moved |= self.links[at].write_queue();
                let (some, taken) = self.read_sums(at, take)?;
                moved |= some;
                sums += taken;
            }
            let now = Instant::now();
            if sums > 0 || now >= end || self.outstanding() == 0 {
                self.check_pieces_deadline(now)?;
                return Ok(sums);
            }
            if moved {
                continue;
            }
            self.check_pieces_deadline(now)?;
            let mut fds: Vec<_> = self
                .links
                .iter()
                .map(|link| awaited(&link.stream, true, link.wants_write()))
                .collect();
            let wait = (end - now).min(Duration::from_millis(200));
            let what = "waiting for the servers";
            socket::wait(&mut fds, wait).map_err(|source| Error::System { what, source })?;
        }
    }

    fn read_sums<T: Element>(
        &mut self,
        at: usize,
        take: &mut impl FnMut(Piece<'_, T>),
    ) -> Result<(bool, usize), Error> {
        let (link, expected) = (&mut self.links[at], &mut self.expected[at]);
        let (mut moved, mut sums) = (false, 0);
        for _ in 0..STEPS {
            match link.step()? {
                Step::Blocked | Step::Closed => break,
                Step::Payload(header) if header.kind == Kind::Result => {
                    check_type(&header, T::TYPE)?;
                    expected.headers.pop_front();
                    expected.bytes -= header.len as usize;
                    let is_last = expected.headers.is_empty();
                    expected.since = (!is_last).then(Instant::now);
                    sums += 1;
                    let values = link.scratch.values(header.len as usize);
                    take(Piece { sequence: header.sequence, piece: header.piece, values });
                }
                Step::Payload(header) => return Err(link.notice(&header)),
                Step::Header(header)
                    if header.kind == Kind::Result && expected.headers.front() != Some(&header) =>
                {
                    let what = format!("it sends {}", header.describe());
                    return Err(Error::Protocol { server: link.server, what });
                }
                Step::Header(_) | Step::Partial => {}
            }
            moved = true;
        }
        Ok((moved, sums))
    }

    fn check_pieces_deadline(&self, now: Instant) -> Result<(), Error> {
        let limit = self.options.deadline + super::GRACE;
        let late = |expected: &Expected| expected.since.is_some_and(|since| now - since > limit);
        if self.expected.iter().any(late) {
            let (waited, outstanding) = (self.options.deadline, self.outstanding());
            return Err(Error::Deadline { waited, outstanding });
        }
        Ok(())
    }
}

fn check_type(header: &Header, taken: ElementType) -> Result<(), Error> {
    match header.element {
        Some(element) if element == taken => Ok(()),
        element => Err(Error::OutOfTurn {
            what: format!(
                "a sum of {} is taken in as {}",
                element.map_or("?", ElementType::name),
                taken.name()
            ),
        }),
    }
}
