//! The side of a slice's owner: all processes' inputs of its blocks in, results out.

use std::ops::{Deref, Range};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use crate::call::{Call, Stage};
use crate::keys::{Key, Keys};
use crate::options::MAX_PROCESSES;
use crate::{Error, Geometry, Marks};

/// States of a block: these bits, and the number of readers below them.
mod state {
    pub(super) const FINISHED: u8 = 0x80;
    pub(super) const WRITING: u8 = 0x40;
    /// The results are where inputs were.
    pub(super) const HANDED: u8 = 0x20;
    pub(super) const READERS: u8 = 0x1f;
}

/// One block's inputs, in order of local rank. [`Exchange::finish`] panics while it is held.
#[derive(Debug)]
pub struct Inputs<'a> {
    slices: SmallVec<[&'a [u8]; 8]>,
    state: &'a AtomicU8,
}

impl<'a> Deref for Inputs<'a> {
    type Target = [&'a [u8]];

    fn deref(&self) -> &Self::Target {
        &self.slices
    }
}

impl Drop for Inputs<'_> {
    fn drop(&mut self) {
        // Release: the reads are over before the thread that finishes the block sees it unread.
        self.state.fetch_sub(1, Release);
    }
}

/// A block's output that is being written.
struct Writing<'a>(&'a AtomicU8);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(!state::WRITING, Release);
    }
}

/// Where a block is.
struct Place {
    tile: u64,
    /// Its bytes in the tile.
    within: Range<usize>,
    /// Its bytes in the vector.
    vector: Range<usize>,
}

/// One call, seen by the threads that carry the blocks which this process owns.
///
/// Dropping it before all own blocks are finished gives the call up, as with
/// [`Feeder`](crate::Feeder).
#[derive(Debug)]
pub struct Exchange {
    call: Arc<Call>,
    own_blocks: u64,
    /// State of each own block.
    states: Vec<AtomicU8>,
    /// Own blocks of each tile that are not finished.
    open: Vec<AtomicU32>,
    /// Tiles that are reduced, in order.
    reduced: Mutex<u64>,
    finished: AtomicBool,
    /// Own blocks below this are staged: what was seen last.
    staged: AtomicU64,
    /// Of each own block, where they are wanted.
    keys: Keys,
}

impl Exchange {
    pub(crate) fn new(call: Arc<Call>) -> Arc<Self> {
        let (geometry, rank) = (call.geometry, call.core().rank);
        let own_blocks = geometry.own_blocks(rank);
        let open = (0..geometry.tiles())
            .map(|tile| AtomicU32::new(geometry.slice_len(rank, tile) as u32))
            .collect();
        let states = (0..own_blocks).map(|_| AtomicU8::new(0)).collect();
        let keys = Keys::new(if call.key.is_some() { own_blocks } else { 0 });
        let exchange = Self {
            call,
            own_blocks,
            states,
            open,
            reduced: Mutex::new(0),
            finished: AtomicBool::new(own_blocks == 0),
            staged: AtomicU64::new(0),
            keys,
        };
        // A process may own nothing of the last tile, which can be the only one.
        exchange.reduce_in_order();
        Arc::new(exchange)
    }

    /// Which block is where.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.call.geometry
    }

    /// This process among those of the host.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.call.core().rank
    }

    /// Blocks of the vector that this process owns; `j` below is one of `0..own_blocks()`.
    #[must_use]
    pub fn own_blocks(&self) -> u64 {
        self.own_blocks
    }

    /// Own blocks `0..this` have keys, of all processes' peaks. All of them, if none were wanted.
    pub fn scanned(&self) -> u64 {
        let Some(key) = &self.call.key else { return self.own_blocks };
        let scanned = self.call.reached(Stage::Scanned);
        if self.call.own(Stage::Keyed) < scanned {
            let _turn = self.keys.turn.lock().unwrap_or_else(PoisonError::into_inner);
            // Another thread may have been faster.
            let keyed = self.call.own(Stage::Keyed);
            if keyed < scanned {
                self.take_peaks(key, self.own_before(keyed)..self.own_before(scanned));
                self.call.advance(Stage::Keyed, scanned);
            }
        }
        self.own_before(self.call.own(Stage::Keyed))
    }

    /// Makes keys of own blocks' peaks.
    fn take_peaks(&self, key: &Key, blocks: std::ops::Range<u64>) {
        let core = self.call.core();
        let mut peaks = [0.0; MAX_PROCESSES];
        let peaks = &mut peaks[..core.size];
        for j in blocks {
            for (from, peak) in peaks.iter_mut().enumerate() {
                *peak = f64::from_bits(self.call.peak(from, core.rank, j).load(Relaxed));
            }
            self.keys.set(j, key.of(peaks));
        }
    }

    /// Own blocks `0..this` have all processes' inputs.
    #[must_use]
    pub fn staged(&self) -> u64 {
        let staged = self.own_before(self.call.reached(Stage::Staged));
        // Release: the inputs that this thread sees in place are so for any thread that relies on
        // this.
        self.staged.fetch_max(staged, Release);
        staged
    }

    /// The key of block `j`: what [`Shape::key`](crate::Shape::key) made of all processes' peaks.
    ///
    /// # Panics
    /// If `j` is not below [`Self::scanned`], or keys were not wanted.
    #[must_use]
    pub fn key(&self, j: u64) -> u16 {
        assert!(self.call.key.is_some(), "no keys were wanted");
        let keyed = self.own_before(self.call.own(Stage::Keyed));
        assert!(j < keyed || j < self.scanned(), "block {j} is not scanned");
        self.keys.get(j)
    }

    /// All processes' inputs of block `j`.
    ///
    /// # Panics
    /// If `j` is not below [`Self::staged`], or was finished.
    #[must_use]
    pub fn inputs(&self, j: u64) -> Inputs<'_> {
        self.demand_staged(j);
        let state = &self.states[j as usize];
        let entered = state.fetch_update(Acquire, Relaxed, |now| {
            let full = now & state::READERS == state::READERS;
            let over = now & (state::FINISHED | state::HANDED) != 0;
            (!over && !full).then_some(now + 1)
        });
        assert!(entered.is_ok(), "block {j} has its result, or has 31 readers");
        let core = self.call.core();
        let place = self.place(j);
        let slices = (0..core.size)
            .map(|from| match (self.call.vector(from), self.call.own_vector()) {
                (Some(_), Some(own)) if from == core.rank => own.read(place.vector.clone()),
                (Some(at), _) => {
                    call_bytes::input(core, at + place.vector.start, place.vector.len())
                }
                (None, _) => {
                    let offset = self.call.staging(place.tile, from) + place.within.start;
                    call_bytes::input(core, offset, place.within.len())
                }
            })
            .collect();
        Inputs { slices, state }
    }

    /// Lets `write` write block `j`'s result: as many bytes as each input has. What is there before
    /// is of no meaning.
    ///
    /// # Panics
    /// If `j` is not below [`Self::staged`], was finished, or is being written.
    pub fn with_output<R>(&self, j: u64, write: impl FnOnce(&mut [u8]) -> R) -> R {
        self.demand_staged(j);
        let state = &self.states[j as usize];
        let before = state.fetch_or(state::WRITING, Acquire);
        assert!(before & state::WRITING == 0, "block {j} is being written");
        let _writing = Writing(state);
        assert!(before & state::FINISHED == 0, "block {j} is finished");
        let (offset, len) = self.output(j);
        write(call_bytes::output(self.call.core(), offset, len))
    }

    /// Writes block `j`'s result to where processes have their input, if they want it there. Its
    /// inputs are gone then. `is_number`: false of a result that those processes do not want that
    /// keep their input then (see [`Feeder::adopt`](crate::Feeder::adopt)).
    ///
    /// # Panics
    /// If the block was finished, or its inputs or output are borrowed.
    pub fn hand_out(&self, j: u64, is_number: bool) {
        let core = self.call.core();
        self.demand_staged(j);
        let wanted = (0..core.size).filter_map(|rank| {
            let target = self.call.target(rank)?;
            (is_number || !target.numbers).then_some((rank, target.offset))
        });
        let wanted: SmallVec<[(usize, usize); 8]> = wanted.collect();
        if wanted.is_empty() {
            return;
        }
        let state = &self.states[j as usize];
        let held = state::HANDED | state::WRITING;
        let closed = state.compare_exchange(0, held, Acquire, Acquire);
        assert!(closed.is_ok(), "block {j} is finished, or its inputs or output are borrowed");
        let _writing = Writing(state);
        let (offset, len) = self.output(j);
        let result = call_bytes::input(core, offset, len);
        let place = self.place(j).vector;
        for (rank, at) in wanted {
            match self.call.own_vector() {
                Some(own) if rank == core.rank => own.write(place.start, result),
                _ => call_bytes::output(core, at + place.start, len).copy_from_slice(result),
            }
        }
    }

    /// Block `j`'s result is written: once for each block, in any order, by any thread.
    ///
    /// # Panics
    /// If it was finished before, or its inputs or output are borrowed.
    pub fn finish(&self, j: u64, marks: Marks) {
        let state = &self.states[j as usize];
        let closed = state.fetch_update(AcqRel, Acquire, |now| {
            (now & !state::HANDED == 0).then_some(state::FINISHED)
        });
        assert!(closed.is_ok(), "block {j} is finished, or its inputs or output are borrowed");
        self.call.shared().join_marks(&marks);
        let tile = (j / self.geometry().slice_blocks() as u64) as usize;
        // AcqRel: the last one has seen all the tile's results, and passes them on.
        if self.open[tile].fetch_sub(1, AcqRel) == 1 {
            self.reduce_in_order();
        }
    }

    /// Whether all own blocks are finished.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished.load(Acquire)
    }

    /// Ends the call at all local processes with [`Error::Elsewhere`] (the first failure counts).
    pub fn fail(&self, code: u32, text: &str) {
        self.call.shared().fail(code, text);
    }

    /// Tiles whose input can be in place at once: a process stages one when it has gathered the
    /// tile that many before it.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.call.plan.depth as u64
    }

    /// Sleeps until `ready`, a ring, or until `timeout` is over (100 ms at most): for threads
    /// without sockets. Whatever a process of the host does to the call rings.
    pub fn wait(&self, timeout: Duration, ready: impl FnOnce() -> bool) {
        self.call.core().sleep(timeout, ready);
    }

    /// Whether the call can still end well.
    ///
    /// # Errors
    /// As [`Feeder::poll`](crate::Feeder::poll).
    pub fn check(&self) -> Result<(), Error> {
        self.call.check()
    }

    /// Moves `reduced` over all tiles that are complete.
    fn reduce_in_order(&self) {
        let mut reduced = self.reduced.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *reduced;
        while self.open.get(*reduced as usize).is_some_and(|open| open.load(Acquire) == 0) {
            *reduced += 1;
        }
        if *reduced == before {
            return;
        }
        if *reduced == self.geometry().tiles() {
            self.finished.store(true, Release);
        }
        self.call.advance(Stage::Reduced, *reduced);
    }

    fn demand_staged(&self, j: u64) {
        if j >= self.staged.load(Acquire) {
            assert!(j < self.staged(), "block {j} is not staged");
        }
    }

    fn own_before(&self, tiles: u64) -> u64 {
        self.geometry().own_before(self.call.core().rank, tiles)
    }

    /// Where own block `j` is.
    fn place(&self, j: u64) -> Place {
        let (tile, elements) = self.geometry().locate(self.call.core().rank, j);
        let start = self.geometry().tile_range(tile).start;
        let within = self.call.bytes(elements.start - start..elements.end - start);
        Place { tile, within, vector: self.call.bytes(elements) }
    }

    /// Where the result of own block `j` is in the segment, and how long it is.
    fn output(&self, j: u64) -> (usize, usize) {
        let Place { tile, within, vector } = self.place(j);
        let offset = match &self.call.region {
            Some(region) => region.offset() + vector.start,
            None => self.call.results(tile) + within.start,
        };
        (offset, within.len())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.finished() {
            self.call.abandon();
        }
    }
}

/// Plain memory of a call, in the owner's hands.
#[expect(unsafe_code, clippy::mut_from_ref, reason = "plain memory of the segment; see `segment`")]
mod call_bytes {
    use crate::core::Core;

    /// An input in the staging ring, or where its process has it; or a result.
    pub(super) fn input(core: &Core, offset: usize, len: usize) -> &[u8] {
        // SAFETY: the block is staged (seen by Acquire). It is not finished, and cannot be while
        // the caller counts as a reader, or has the WRITING bit. Until all blocks of its tile are
        // finished, no process writes to this place of the ring (`call`). A vector in the segment
        // stays as it is until its process's feeder is done or has cut itself off, and results are
        // written to a block of it when it has no readers any more.
        unsafe { core.segment.bytes(offset, len) }
    }

    /// An output in the result ring, or where it stays; or where a process has its input.
    pub(super) fn output(core: &Core, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: the block is staged and not finished, and nobody else writes it (the caller's
        // WRITING bit). All processes have gathered what was in this place of the ring before, and
        // none reads it before the block is finished (`call`). Of a vector in the segment the block
        // is the owner's until it is finished, and nobody reads the input (HANDED).
        unsafe { core.segment.bytes_mut(offset, len) }
    }
}
