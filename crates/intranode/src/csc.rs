//! CSC, cross shared communication (paper 5, section 2.2): each process writes its part once to the
//! shared segment. After one synchronisation all read what they need of the others' parts, each in
//! another order, so that no two start on the same part.
//!
//! A buffer that is larger than the area goes through it in pieces. The area has two halves that
//! take turns, so a piece needs no second synchronisation. A process that writes to a half has
//! passed the barrier of the piece before. So all have arrived there, and have read what the half
//! held. A half that has room for the whole vector is one piece: then there is one synchronisation,
//! as in the paper, and an all-gather reads what lies behind and before the own part in one piece
//! each (Fig. 9, advantages 1 and 3).

use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;

use crate::core::Core;
use crate::layout::{LINE, Slot};
use crate::record::{Claim, Shared};
use crate::{Buffer, Error, Group, digest, stream};

/// A reduction of sources, in order of local rank, into bytes as long as each of them.
pub type Reduce<'a> = &'a mut dyn FnMut(&[&[u8]], &mut [u8]);

/// Which collective.
#[derive(Clone, Copy)]
enum Kind {
    AllGather = 1,
    ReduceScatter,
    AllReduce,
    AllGatherShared,
    ReduceScatterShared,
    AllGatherView,
}

/// What is called: the same in all processes.
#[derive(Clone, Copy)]
struct Called {
    kind: Kind,
    grain: usize,
    /// Bytes.
    len: usize,
}

impl Called {
    fn word(self) -> u64 {
        (self.kind as u64) << 56 | (self.grain as u64 & 0xff) << 48 | self.len as u64
    }

    fn describe(rank: usize, word: u64) -> String {
        let names = [
            "all_gather",
            "reduce_scatter",
            "all_reduce",
            "all_gather_shared",
            "reduce_scatter_shared",
            "all_gather_view",
        ];
        let name = (word >> 56).checked_sub(1).and_then(|kind| names.get(kind as usize));
        let (name, grain) = (name.unwrap_or(&"nothing known"), word >> 48 & 0xff);
        format!(
            "local rank {rank} calls {name} of {} bytes (elements of {grain})",
            word << 16 >> 16
        )
    }
}

/// All processes' parts, in order of local rank, in the segment.
#[derive(Debug)]
pub struct View<'a> {
    parts: SmallVec<[&'a [u8]; 8]>,
}

impl<'a> Deref for View<'a> {
    type Target = [&'a [u8]];

    fn deref(&self) -> &Self::Target {
        &self.parts
    }
}

/// CSC collectives over an area of the segment.
#[derive(Debug)]
pub struct Csc {
    area: Shared,
    /// Bytes of a half.
    half: usize,
    /// Which half is next.
    parity: usize,
    synchronized: u64,
}

impl Csc {
    /// Opens an area of `room` bytes. All processes do, with the same `room`, and in the same order
    /// as other areas.
    ///
    /// # Errors
    /// As [`Group::begin`].
    pub fn new(group: &Arc<Group>, room: usize) -> Result<Self, Error> {
        let n = group.local_size();
        let half = room / 2 / LINE * LINE;
        if half < n * n * LINE {
            let least = 2 * n * n * LINE;
            return Err(Error::config(
                "room",
                format!("{room} bytes; at least {least} are needed"),
            ));
        }
        let description = format!("local rank {}: CSC, {room} bytes", group.local_rank());
        let claim = Claim {
            key: 0,
            digest: digest(format!("csc {room}").bytes()),
            description: &description,
            bytes: 2 * half,
            zeroed: 0,
        };
        Ok(Self { area: group.area(&claim)?, half, parity: 0, synchronized: 0 })
    }

    /// How often this process has waited for all others in its collectives (`t_SYNC` of the paper's
    /// Eq. (4)).
    #[must_use]
    pub const fn synchronizations(&self) -> u64 {
        self.synchronized
    }

    /// CSC-AG (Algorithm 1): `output` is all processes' `input`, in order of local rank.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the processes' lengths differ, [`Error::PeerLost`],
    /// [`Error::PeerLeft`], [`Error::Deadline`].
    ///
    /// # Panics
    /// If `output` is not `local_size` times as long as `input`.
    pub fn all_gather(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        let group = Arc::clone(self.area.group());
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let core = group.core();
        let (rank, n, len) = (core.rank, core.size, input.len());
        let called = Called { kind: Kind::AllGather, grain: 1, len };
        assert_eq!(output.len(), n * len, "an output for all inputs");
        let copy = stream::copy_for(output.len(), n);
        if n * len <= self.half {
            // Parts lie in the half as in the output.
            memory::write(core, self.at(rank * len), len).copy_from_slice(input);
            let round = Self::arrive(core, called, 0);
            copy(input, &mut output[rank * len..(rank + 1) * len]);
            Self::pass(core, round, called)?;
            for others in [(rank + 1) * len..n * len, 0..rank * len] {
                let theirs = memory::read(core, self.at(others.start), others.len());
                copy(theirs, &mut output[others]);
            }
            self.turn(1);
            return Ok(());
        }
        let part = self.half / n / LINE * LINE;
        for start in pieces(len, part) {
            let end = len.min(start + part);
            // Lines 3 to 5: write the own part to the shared memory.
            let own = self.at(rank * part);
            memory::write(core, own, end - start).copy_from_slice(&input[start..end]);
            // Line 6: synchronise; the own part needs none.
            let round = Self::arrive(core, called, 0);
            copy(&input[start..end], &mut output[rank * len + start..rank * len + end]);
            Self::pass(core, round, called)?;
            // Lines 7 to 11: read the others' parts, beginning with the next process's.
            for i in 1..n {
                let from = (i + rank) % n;
                let theirs = memory::read(core, self.at(from * part), end - start);
                copy(theirs, &mut output[from * len + start..from * len + end]);
            }
            self.turn(1);
        }
        Ok(())
    }

    /// CSC-AG without its last step: all processes' inputs where they were written, in order of
    /// local rank, to be read in place by whatever comes next (paper 5, Eq. (10)).
    ///
    /// # Errors
    /// As [`Self::all_gather`], and [`Error::TooLarge`] if they do not fit at once.
    pub fn all_gather_view(&mut self, input: &[u8]) -> Result<View<'_>, Error> {
        let group = Arc::clone(self.area.group());
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let core = group.core();
        let (rank, n, len) = (core.rank, core.size, input.len());
        let part = self.half / n / LINE * LINE;
        if len > part {
            return Err(Error::TooLarge { wanted: len, room: part });
        }
        let called = Called { kind: Kind::AllGatherView, grain: 1, len };
        memory::write(core, self.at(rank * part), len).copy_from_slice(input);
        let round = Self::arrive(core, called, 0);
        Self::pass(core, round, called)?;
        let start = self.at(0);
        self.turn(1);
        let core = self.area.group().core();
        let parts = (0..n).map(|from| memory::read(core, start + from * part, len)).collect();
        Ok(View { parts })
    }

    /// CSC-RS (Algorithm 2): `output` is the reduction of all processes' `local_rank`-th part of
    /// `input`, reduced as it is read. Elements of `grain` bytes stay in one piece.
    ///
    /// # Errors
    /// As [`Self::all_gather`].
    ///
    /// # Panics
    /// If `input` is not `local_size` times as long as `output`, or that no multiple of `grain`.
    pub fn reduce_scatter(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        grain: usize,
        reduce: Reduce<'_>,
    ) -> Result<(), Error> {
        let group = Arc::clone(self.area.group());
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let core = group.core();
        let (rank, n, len) = (core.rank, core.size, output.len());
        let called = Called { kind: Kind::ReduceScatter, grain, len };
        assert_eq!(input.len(), n * len, "an input for all outputs");
        assert!(len.is_multiple_of(grain), "whole elements of {grain} bytes");
        let part = part_of(self.half / (n * n), grain);
        for start in pieces(len, part) {
            let end = len.min(start + part);
            // What the others reduce, each its own first in line.
            for i in 1..n {
                let owner = (i + rank) % n;
                let to = memory::write(core, self.at((rank * n + owner) * part), end - start);
                to.copy_from_slice(&input[owner * len + start..owner * len + end]);
            }
            let round = Self::arrive(core, called, 0);
            Self::pass(core, round, called)?;
            let sources = (0..n).map(|from| match from {
                from if from == rank => &input[rank * len + start..rank * len + end],
                from => memory::read(core, self.at((from * n + rank) * part), end - start),
            });
            let sources: SmallVec<[&[u8]; 8]> = sources.collect();
            reduce(&sources, &mut output[start..end]);
            self.turn(1);
        }
        Ok(())
    }

    /// CSC-RS and CSC-AG in one: `data` becomes the reduction of all processes' `data`. Each
    /// piece is reduced straight into the shared memory, from which all gather it.
    ///
    /// # Errors
    /// As [`Self::all_gather`].
    ///
    /// # Panics
    /// If the length is not a multiple of `grain`.
    pub fn all_reduce(
        &mut self,
        data: &mut [u8],
        grain: usize,
        reduce: Reduce<'_>,
    ) -> Result<(), Error> {
        let group = Arc::clone(self.area.group());
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let core = group.core();
        let (rank, n, len) = (core.rank, core.size, data.len());
        let called = Called { kind: Kind::AllReduce, grain, len };
        assert!(len.is_multiple_of(grain), "whole elements of {grain} bytes");
        let part = part_of(self.half / (n * n), grain);
        for start in pieces(len, n * part) {
            let piece = &mut data[start..len.min(start + n * part)];
            // Slices of whole elements; the last ones may be short or empty.
            let slice = (piece.len() / grain).div_ceil(n) * grain;
            let of = |owner: usize| {
                (owner * slice).min(piece.len())..((owner + 1) * slice).min(piece.len())
            };
            let ranges: SmallVec<[_; 8]> = (0..n).map(of).collect();
            for i in 1..n {
                let owner = (i + rank) % n;
                let from = &piece[ranges[owner].clone()];
                let to = self.at((rank * n + owner) * part);
                memory::write(core, to, from.len()).copy_from_slice(from);
            }
            let round = Self::arrive(core, called, 0);
            Self::pass(core, round, called)?;
            let own = ranges[rank].clone();
            let sources = (0..n).map(|from| match from {
                from if from == rank => &piece[own.clone()],
                from => memory::read(core, self.at((from * n + rank) * part), own.len()),
            });
            let sources: SmallVec<[&[u8]; 8]> = sources.collect();
            // Nobody writes to the place of a process's own slice: it is for the result.
            let result = self.at((rank * n + rank) * part);
            reduce(&sources, memory::write(core, result, own.len()));
            drop(sources);
            core.pass(core.arrive())?;
            for i in 0..n {
                let owner = (i + rank) % n;
                let range = ranges[owner].clone();
                let from = memory::read(core, self.at((owner * n + owner) * part), range.len());
                piece[range].copy_from_slice(from);
            }
            self.turn(2);
        }
        Ok(())
    }

    /// [`Self::all_gather`] of an input that lies in the segment: nothing is written at all, and a
    /// second synchronisation tells when all have read it.
    ///
    /// # Errors
    /// As [`Self::all_gather`]. After an error others may still read `input`.
    ///
    /// # Panics
    /// As [`Self::all_gather`].
    pub fn all_gather_shared(&mut self, input: &Buffer, output: &mut [u8]) -> Result<(), Error> {
        let group = Arc::clone(self.area.group());
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let core = group.core();
        let (rank, n, len) = (core.rank, core.size, input.len());
        let called = Called { kind: Kind::AllGatherShared, grain: 1, len };
        assert_eq!(output.len(), n * len, "an output for all inputs");
        let round = Self::arrive(core, called, input.offset());
        Self::pass(core, round, called)?;
        let copy = stream::copy_for(output.len(), n);
        for i in 0..n {
            let from = (i + rank) % n;
            let theirs = memory::read(core, brought_at(core, round, from), len);
            copy(theirs, &mut output[from * len..(from + 1) * len]);
        }
        core.pass(core.arrive())?;
        self.turn(2);
        Ok(())
    }

    /// [`Self::reduce_scatter`] of an input that lies in the segment, as
    /// [`Self::all_gather_shared`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As [`Self::reduce_scatter`].
    pub fn reduce_scatter_shared(
        &mut self,
        input: &Buffer,
        output: &mut [u8],
        grain: usize,
        reduce: Reduce<'_>,
    ) -> Result<(), Error> {
        let group = Arc::clone(self.area.group());
        let _turn = group.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let core = group.core();
        let (rank, n, len) = (core.rank, core.size, output.len());
        let called = Called { kind: Kind::ReduceScatterShared, grain, len };
        assert_eq!(input.len(), n * len, "an input for all outputs");
        assert!(len.is_multiple_of(grain), "whole elements of {grain} bytes");
        let round = Self::arrive(core, called, input.offset());
        Self::pass(core, round, called)?;
        let sources =
            (0..n).map(|from| memory::read(core, brought_at(core, round, from) + rank * len, len));
        let sources: SmallVec<[&[u8]; 8]> = sources.collect();
        reduce(&sources, output);
        drop(sources);
        core.pass(core.arrive())?;
        self.turn(2);
        Ok(())
    }

    /// The next piece uses the other half; all were waited for so many times in this one.
    fn turn(&mut self, synchronizations: u64) {
        self.parity ^= 1;
        self.synchronized += synchronizations;
    }

    /// Offset of a byte of the half whose turn it is.
    fn at(&self, within: usize) -> usize {
        self.area.offset + self.parity * self.half + within
    }

    /// Comes to the synchronisation with what is called.
    fn arrive(core: &Core, called: Called, offset: usize) -> u32 {
        let (slot, parity) = (Slot::of(core.rank), parity_of(core.next_round()));
        core.segment.counter(slot.brings(parity)).store(called.word(), Relaxed);
        core.segment.counter(slot.brings_at(parity)).store(offset as u64, Relaxed);
        core.arrive()
    }

    fn pass(core: &Core, round: u32, called: Called) -> Result<(), Error> {
        core.pass(round)?;
        for rank in 0..core.size {
            let brings = Slot::of(rank).brings(parity_of(round));
            let brought = core.segment.counter(brings).load(Relaxed);
            if brought != called.word() {
                let ours = Called::describe(core.rank, called.word());
                return Err(Error::Mismatch { ours, theirs: Called::describe(rank, brought) });
            }
        }
        Ok(())
    }
}

/// Which of its two words a process brings to a round. The two serve all areas, so this goes by the
/// barrier's round. A process that writes for a round has passed the one before. So all have
/// arrived there, and have read what was brought to the one before that.
const fn parity_of(round: u32) -> usize {
    (round & 1) as usize
}

/// Where in the segment a process's input of this round lies.
fn brought_at(core: &Core, round: u32, rank: usize) -> usize {
    core.segment.counter(Slot::of(rank).brings_at(parity_of(round))).load(Relaxed) as usize
}

/// Starts of the pieces of `len` bytes: at least one, for the synchronisation.
fn pieces(len: usize, part: usize) -> impl Iterator<Item = usize> {
    (0..len.max(1)).step_by(part)
}

/// The largest size within `room` of whole elements, on cache lines where that fits.
fn part_of(room: usize, grain: usize) -> usize {
    let lines = LINE * grain;
    if room >= lines { room / lines * lines } else { room / grain * grain }
}

/// Plain memory of the area.
#[expect(unsafe_code, clippy::mut_from_ref, reason = "plain memory of the segment; see `segment`")]
mod memory {
    use crate::core::Core;

    /// A part that this process writes.
    pub(super) fn write(core: &Core, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: one process writes a part, before the barrier of its piece (a result: before the
        // second). By then all have read what was there before (see the module's text).
        unsafe { core.segment.bytes_mut(offset, len) }
    }

    /// A part that is written.
    pub(super) fn read(core: &Core, offset: usize, len: usize) -> &[u8] {
        // SAFETY: the barrier after its writing is passed, and it is written again only when this
        // process has come to the next one.
        unsafe { core.segment.bytes(offset, len) }
    }
}
