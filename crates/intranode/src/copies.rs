//! CSC as a call that never blocks (paper 5, Algorithm 1): what each process has of a vector comes
//! to all, byte for byte.
//!
//! Each owner of a part writes it into the call's room, all synchronise, and each process reads the
//! parts of the others, beginning with the next process's. Parts lie one behind the other, in the
//! room as in the vector. So the parts of the processes behind this one are one piece of memory,
//! and so are those before it (paper 5, Fig. 9, advantage 3: blocks are read as one contiguous
//! piece).
//!
//! A vector that does not fit goes through in rounds, each with a piece of every part. Two counters
//! of each process say how far it is:
//!
//! * `written[p]`: process `p` has written its pieces of the rounds below this.
//! * `read[p]`: process `p` has read all pieces of the rounds below this.
//!
//! Round `k` uses place `k mod PLACES`. A process writes its piece when all have read round
//! `k - PLACES`, and reads when all have written round `k`. Every process has written, in this
//! sense, also where its part is empty: nobody is done before all have come and have called the
//! same. A vector that fits has one round, and so one synchronisation, as in the paper.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::call::ABANDONED;
use crate::core::Core;
use crate::layout::LINE;
use crate::record::{Claim, Shared};
use crate::{Error, Group, Progress, digest, stream};

/// Places of a call of several rounds.
const PLACES: usize = 2;

/// Bytes of a process's counters: two lines, which prefetchers pull together.
const COUNTERS: usize = 2 * LINE;

/// Most bytes of a call's room: a quarter of the segment that there is by default.
const ROOM: usize = 8 << 20;

/// Bytes that one step copies at most: others' work in the same thread is not kept waiting longer.
const STEP: usize = 1 << 20;

/// What is called: has to be the same in all processes.
#[derive(Clone, Debug)]
pub struct Copied {
    /// Number of the call, as [`Shape::sequence`](crate::Shape): calls of both sorts that run at
    /// the same time have different ones.
    pub sequence: u64,
    /// Bytes of the vector.
    pub len: usize,
    /// The part of each process, in order of local rank, one behind the other; empty ones may be
    /// anywhere.
    pub parts: Vec<Range<usize>>,
    /// The call in words, on which the processes must agree; cut off after 160 bytes in errors.
    pub description: String,
}

/// A call under way. Dropping it before it is done gives the call up: the others get
/// [`Error::Elsewhere`] with [`ABANDONED`].
#[derive(Debug)]
pub struct Copies {
    shared: Shared,
    parts: Vec<Range<usize>>,
    len: usize,
    /// Bytes of a piece; the last ones are shorter.
    piece: usize,
    /// Bytes from one place to the next.
    place: usize,
    rounds: u64,
    /// Rounds that this process has written.
    written: u64,
    /// Rounds that it has read all of.
    read: u64,
    /// Bytes that it has read of the next round, in its own order.
    within: usize,
    failed: bool,
}

#[derive(Clone, Copy)]
enum Counter {
    Written,
    Read,
}

impl Group {
    /// Opens a call that brings all processes' parts to all. Waits for room as [`Self::begin`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] at every process if they call differently; others as [`Self::begin`].
    pub fn begin_copies(self: &Arc<Self>, copied: &Copied) -> Result<Copies, Error> {
        let core = self.core();
        let plan = Plan::of(core, copied)?;
        let mut words = copied.description.as_str();
        while words.len() > 160 {
            words = &words[..words.floor_char_boundary(160)];
        }
        let Copied { sequence, len, .. } = *copied;
        let rank = core.rank;
        let description = format!("local rank {rank}, call {sequence}: {words} ({len} bytes)");
        let parts = format!("copies {} {len} {:?}", copied.description, copied.parts);
        let claim = Claim {
            key: sequence,
            digest: digest(parts.bytes()),
            description: &description,
            bytes: core.size * COUNTERS + plan.bytes,
            zeroed: core.size * COUNTERS,
        };
        let shared = self.when_there_is_room(|| Shared::claim(self, &claim))?;
        let Plan { piece, place, rounds, .. } = plan;
        let parts = copied.parts.clone();
        let (written, read, within, failed) = (0, 0, 0, false);
        Ok(Copies { shared, parts, len, piece, place, rounds, written, read, within, failed })
    }
}

/// How a vector goes through a call's room.
struct Plan {
    piece: usize,
    place: usize,
    rounds: u64,
    bytes: usize,
}

impl Plan {
    fn of(core: &Core, copied: &Copied) -> Result<Self, Error> {
        let Copied { len, ref parts, .. } = *copied;
        let in_order = parts.iter().filter(|part| !part.is_empty());
        let fits = in_order.clone().is_sorted_by(|a, b| a.end <= b.start)
            && in_order.clone().all(|part| part.end <= len);
        if parts.len() != core.size || !fits {
            let problem = format!("{parts:?} of {len} bytes in a group of {}", core.size);
            return Err(Error::config("parts", problem));
        }
        let owners = in_order.clone().count().max(1);
        let longest = in_order.map(Range::len).max().unwrap_or(0);
        // Two calls have room at a time, and what they leave is enough for sums.
        let room = (core.arena.capacity() / 4).min(ROOM);
        if len <= room {
            return Ok(Self { piece: len.max(1), place: len, rounds: 1, bytes: len });
        }
        let piece = (room / PLACES / owners / LINE * LINE).max(LINE);
        let place = piece * owners;
        let rounds = longest.div_ceil(piece) as u64;
        Ok(Self { piece, place, rounds, bytes: PLACES * place })
    }
}

impl Copies {
    /// Does one piece of work, if one can be done. `data` is the vector, the same at each call: its
    /// own part is read, the others are written.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Elsewhere`], [`Error::PeerLost`], [`Error::PeerLeft`].
    ///
    /// # Panics
    /// If `data` has not the call's length.
    pub fn poll(&mut self, data: &mut [u8]) -> Result<Progress, Error> {
        assert_eq!(data.len(), self.len, "the bytes of the vector");
        if self.done() {
            return Ok(Progress { did: false, done: true });
        }
        let step = self.step(data);
        self.failed |= step.is_err();
        step
    }

    fn step(&mut self, data: &mut [u8]) -> Result<Progress, Error> {
        self.shared.check()?;
        if self.can_write() {
            self.write(data);
        } else if self.can_read() {
            self.read(data);
        } else {
            self.look_for_leavers()?;
            return Ok(Progress { did: false, done: false });
        }
        Ok(Progress { did: true, done: self.done() })
    }

    /// Whether [`Self::poll`] has something to do now.
    #[must_use]
    pub fn can(&self) -> bool {
        !self.done() && (self.can_write() || self.can_read())
    }

    /// Whether all parts are in the vector.
    #[must_use]
    pub fn done(&self) -> bool {
        self.read == self.rounds
    }

    /// Local ranks that have not done what this process waits for now.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<usize> {
        if self.done() || self.can() {
            return Vec::new();
        }
        let behind = |counter, round| -> Vec<usize> {
            (0..self.parts.len())
                .filter(|rank| self.counter(counter, *rank).load(Acquire) <= round)
                .collect()
        };
        if self.written > self.read {
            return behind(Counter::Written, self.read);
        }
        // It has read all that it has written, and has no place for more.
        behind(Counter::Read, self.written - PLACES as u64)
    }

    /// How these processes of the host do, in words.
    #[must_use]
    pub fn describe(&self, ranks: &[usize]) -> String {
        self.core().describe(ranks)
    }

    /// Tells the others that this process gave up, and why; see
    /// [`Exchange::fail`](crate::Exchange::fail).
    pub fn fail(&mut self, code: u32, text: &str) {
        if !self.done() && !self.core().is_forked() {
            self.shared.fail(code, text);
        }
        self.failed = true;
    }

    fn core(&self) -> &Core {
        self.shared.group().core()
    }

    fn counter(&self, counter: Counter, rank: usize) -> &AtomicU64 {
        let line = match counter {
            Counter::Written => 0,
            Counter::Read => LINE,
        };
        self.core().segment.counter(self.shared.offset + rank * COUNTERS + line)
    }

    /// Rounds that all are beyond. Acquire: what they did before is seen afterwards.
    fn reached(&self, counter: Counter) -> u64 {
        let each = (0..self.parts.len()).map(|rank| self.counter(counter, rank).load(Acquire));
        each.min().unwrap_or(0)
    }

    /// Release: a process that sees this sees what this one did before. The one that all have
    /// waited for rings; of two that come at once, the fence lets at least one see both.
    fn advance(&self, counter: Counter, rounds: u64) {
        self.counter(counter, self.core().rank).store(rounds, Release);
        crate::protocol::advanced::<std::sync::atomic::AtomicU32>();
        // Of the last places nobody waits to be read.
        let matters = matches!(counter, Counter::Written) || rounds + PLACES as u64 <= self.rounds;
        if matters && self.reached(counter) >= rounds {
            self.core().ring_sleepers();
        }
    }

    fn can_write(&self) -> bool {
        self.written < self.rounds
            && (self.written < PLACES as u64
                || self.reached(Counter::Read) + PLACES as u64 > self.written)
    }

    fn can_read(&self) -> bool {
        self.written > self.read && self.reached(Counter::Written) > self.read
    }

    /// Bytes of process `rank`'s piece of a round, in the vector.
    fn piece_of(&self, rank: usize, round: u64) -> Range<usize> {
        let part = &self.parts[rank];
        if self.rounds == 1 {
            return part.clone();
        }
        let start = (part.start + round as usize * self.piece).min(part.end);
        start..(start + self.piece).min(part.end)
    }

    /// Where process `rank`'s piece of a round is in the segment.
    fn offset_of(&self, rank: usize, round: u64) -> usize {
        let room = self.shared.offset + self.parts.len() * COUNTERS;
        if self.rounds == 1 {
            return room + self.parts[rank].start;
        }
        let owner = self.parts[..rank].iter().filter(|part| !part.is_empty()).count();
        room + (round as usize % PLACES) * self.place + owner * self.piece
    }

    /// Lines 3 to 6 of Algorithm 1: writes the own piece, and comes to the synchronisation.
    fn write(&mut self, data: &[u8]) {
        let (core, rank) = (self.core(), self.core().rank);
        let piece = self.piece_of(rank, self.written);
        let to = self.offset_of(rank, self.written);
        memory::write(core, to, piece.len()).copy_from_slice(&data[piece]);
        self.written += 1;
        self.advance(Counter::Written, self.written);
    }

    /// Lines 7 to 11: reads some of the others' pieces, from the next process's on. Pieces that are
    /// neighbours in the room and in the vector are one.
    fn read(&mut self, data: &mut [u8]) {
        let (core, round, copy) =
            (self.core(), self.read, stream::copy_for(self.len, self.parts.len()));
        let (rank, n) = (core.rank, self.parts.len());
        let (mut skip, mut room) = (self.within, STEP);
        let mut copy_some = |from: usize, place: Range<usize>| {
            let left = place.len().saturating_sub(skip);
            let start = place.start + skip.min(place.len());
            skip = skip.saturating_sub(place.len());
            let len = left.min(room);
            copy(
                memory::read(core, from + start - place.start, len),
                &mut data[start..start + len],
            );
            room -= len;
            len
        };
        let mut did = 0;
        let mut all = 0;
        for ranks in [rank + 1..n, 0..rank] {
            let mut run: Option<(usize, Range<usize>)> = None;
            for from in ranks {
                let (offset, piece) = (self.offset_of(from, round), self.piece_of(from, round));
                all += piece.len();
                run = match run {
                    None => Some((offset, piece)),
                    Some((start, place))
                        if place.end == piece.start && start + place.len() == offset =>
                    {
                        Some((start, place.start..piece.end))
                    }
                    Some((start, place)) => {
                        did += copy_some(start, place);
                        Some((offset, piece))
                    }
                };
            }
            if let Some((start, place)) = run {
                did += copy_some(start, place);
            }
        }
        self.within += did;
        if self.within == all {
            self.within = 0;
            self.read += 1;
            self.advance(Counter::Read, self.read);
        }
    }

    /// Whether a process left that is still needed.
    fn look_for_leavers(&self) -> Result<(), Error> {
        let left = self.core().left();
        if left == 0 {
            return Ok(());
        }
        // All that they did before they left is seen now, so they will never do the rest.
        match self.waiting_for().into_iter().find(|&rank| left & 1 << rank != 0) {
            Some(local_rank) => {
                self.shared.miss(local_rank);
                self.shared.check()
            }
            None => Ok(()),
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if !self.failed {
            self.fail(ABANDONED, "gave the call up");
        }
    }
}

/// Plain memory of a call's room.
#[expect(unsafe_code, clippy::mut_from_ref, reason = "plain memory of the segment; see `segment`")]
mod memory {
    use crate::core::Core;

    /// The own piece of a round.
    pub(super) fn write(core: &Core, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: this process alone writes its piece. All have read what was in its place (seen by
        // Acquire), and nobody reads the piece before `written` says that it is there.
        unsafe { core.segment.bytes_mut(offset, len) }
    }

    /// A piece of a round that all have written.
    pub(super) fn read(core: &Core, offset: usize, len: usize) -> &[u8] {
        // SAFETY: all have written the round (seen by Acquire). Its place is written again only
        // when this process has said that it has read it.
        unsafe { core.segment.bytes(offset, len) }
    }
}
