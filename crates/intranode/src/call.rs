//! One call: its room in the segment, and which process owns which part of it when.
//!
//! Four counters of each process, in tiles, say how far it is. They alone determine which process
//! may use a piece of memory:
//!
//! * `scanned[p]`: process `p` has published the peaks of its input in tiles below this.
//! * `keyed[l]`: owner `l` has made keys of all peaks of its blocks in tiles below this.
//! * `staged[p]`: the copy of `p`'s input of tiles below this is in the staging ring.
//! * `reduced[l]`: owner `l` has written its results of tiles below this to the result ring.
//!
//! A process stages tile `c` into place `c mod D` only when it has itself gathered tile `c - D`.
//! By then all owners have reduced `c - D`, so nobody reads that place of the staging ring any
//! more. And once all processes have staged `c`, all have gathered `c - D`. Then, and not before,
//! the owners write results of `c` into place `c mod D` of the result ring. So this one rule guards
//! both rings, and no counter is needed for what is gathered.
//!
//! A vector that lies in the segment itself is not copied. Its process says where it is before it
//! announces the first tile as staged, and owners read the input there. A block of it belongs to
//! the block's owner from `staged` until the block is finished, as a place in the staging ring
//! does: nobody else reads or writes it. So the owner may write the result where the input was
//! ([`Exchange::hand_out`](crate::Exchange::hand_out)), once it needs no input any more. The rule
//! of the result ring stays as it is, also for a process that has no use for the ring.
//!
//! Where the results are to be read in place ([`View`](crate::View)), they have room for the whole
//! vector, and no ring. Each byte of it is written by its block's owner alone, before `reduced`.
//!
//! Peaks have a ring of their own, of R tiles. A process scans tile `c` when all owners have
//! keyed `c - R`, so nobody reads that place any more. Keys stay in their owner's own memory. So
//! peaks known far ahead of the data (a flow over one of many aggregators looks far) cost no room
//! here. Nor does R, of any size, make a process wait for the network. Keying tile `c` waits only
//! until all have scanned it. Scanning it waits only for `keyed > c - R` and the bound `gathered +
//! ahead` that the feeder keeps to. So all can scan, and then key, the first tile below the
//! slowest process's bound that is not keyed. In the end all of these are keyed, whatever the flows
//! do meanwhile, as if each pair had room for `ahead` tiles.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::core::{Core, How};
use crate::keys::Key;
use crate::layout::LINE;
use crate::plan::{COUNTERS, Plan};
use crate::record::{Claim, Shared};
use crate::vector::InSegment;
use crate::view::Region;
use crate::{Error, Geometry, Group};

/// What a call is: has to be the same in all local processes.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of the call; below 2^62. Calls that run at the same time have different ones.
    pub sequence: u64,
    /// Elements of the vector.
    pub len: usize,
    /// Bytes of an element.
    pub element_size: usize,
    /// Whatever else has to be the same (type, operation, scaling), as a digest.
    pub digest: u64,
    /// The call in words, for errors; cut off after 128 bytes.
    pub description: String,
    /// Makes each block's key of its peaks, where it is needed before its data.
    pub key: Option<Key>,
}

/// In a process's counters: where its vector lies in the segment, plus 1; 0: it copies it.
const VECTOR: usize = 16;
/// What it wants of the owners then.
const WANTS: usize = 24;

/// A counter of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Scanned,
    Keyed,
    Staged,
    Reduced,
}

/// One call, as the feeder and the exchange of a process share it.
#[derive(Debug)]
pub(crate) struct Call {
    shared: Shared,
    pub(crate) geometry: Geometry,
    pub(crate) element: usize,
    pub(crate) key: Option<Key>,
    pub(crate) plan: Plan,
    /// This process's vector, if it lies in the segment.
    own: OnceLock<InSegment>,
    /// Where the results are to stay, if they are not only passed on.
    pub(crate) region: Option<Arc<Region>>,
    /// The feeder is done.
    pub(crate) done: AtomicBool,
}

/// What a process wants of the owners, where its vector lies in the segment.
mod wants {
    /// The results, where the inputs are.
    pub(super) const RESULTS: u64 = 1;
    /// But not those that are no numbers.
    pub(super) const NUMBERS: u64 = 2;
}

/// Where the owners are to write results, of a process whose vector lies in the segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) offset: usize,
    /// Results that are no numbers are not wanted.
    pub(crate) numbers: bool,
}

impl Call {
    pub(crate) fn open(
        group: &std::sync::Arc<Group>,
        shape: &Shape,
        geometry: Geometry,
        is_view: bool,
    ) -> Result<Self, Error> {
        let core = group.core();
        check_shape(core, shape, &geometry)?;
        let plan = Plan::of_call(core, shape, &geometry)?;
        let description = describe(core.rank, shape, &geometry);
        let claim = Claim {
            key: shape.sequence,
            digest: digest(shape, &geometry, &plan, is_view),
            description: &description,
            bytes: plan.bytes,
            zeroed: core.size * COUNTERS,
        };
        let shared = Shared::claim(group, &claim)?;
        let (element, key) = (shape.element_size, shape.key.clone());
        let (own, done) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { shared, geometry, element, key, plan, own, region: None, done })
    }

    /// This process's vector lies in the segment. Before anything of it is announced.
    pub(crate) fn adopt(&self, vector: InSegment, numbers: bool) {
        let wants = match (&self.region, numbers) {
            (Some(_), _) => 0,
            (None, false) => wants::RESULTS,
            (None, true) => wants::RESULTS | wants::NUMBERS,
        };
        self.own.set(vector).expect("a vector is adopted once");
        let rank = self.core().rank;
        // Relaxed: owners read these after they have seen `staged` (Acquire).
        self.at_line(rank, WANTS).store(wants, Relaxed);
        self.at_line(rank, VECTOR).store(vector.offset() as u64 + 1, Relaxed);
    }

    /// This process's vector, if it lies in the segment.
    pub(crate) fn own_vector(&self) -> Option<&InSegment> {
        self.own.get()
    }

    /// Where process `rank` has its vector in the segment. It has staged something, or may be about
    /// to say that it has one.
    pub(crate) fn vector(&self, rank: usize) -> Option<usize> {
        (self.at_line(rank, VECTOR).load(Relaxed) as usize).checked_sub(1)
    }

    /// Where process `rank`, which has staged something, wants results to be written.
    pub(crate) fn target(&self, rank: usize) -> Option<Target> {
        let wants = self.at_line(rank, WANTS).load(Relaxed);
        let offset = self.vector(rank).filter(|_| wants & wants::RESULTS != 0)?;
        Some(Target { offset, numbers: wants & wants::NUMBERS != 0 })
    }

    fn at_line(&self, rank: usize, within: usize) -> &AtomicU64 {
        self.core().segment.counter(self.shared.offset + rank * COUNTERS + within)
    }

    pub(crate) fn core(&self) -> &Core {
        self.shared.group().core()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Whether the call can still end well.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    fn counter(&self, stage: Stage, rank: usize) -> &AtomicU64 {
        let line = match stage {
            Stage::Scanned => 0,
            Stage::Staged => 8,
            // Written by other threads than these two.
            Stage::Reduced => LINE,
            Stage::Keyed => LINE + 8,
        };
        self.at_line(rank, line)
    }

    /// How far this process is: tiles that it is beyond.
    pub(crate) fn own(&self, stage: Stage) -> u64 {
        self.counter(stage, self.core().rank).load(Acquire)
    }

    /// How far the slowest process is: tiles that all are beyond.
    ///
    /// Acquire: what those processes did to the memory before is seen afterwards.
    pub(crate) fn reached(&self, stage: Stage) -> u64 {
        let each = (0..self.core().size).map(|rank| self.counter(stage, rank).load(Acquire));
        each.min().expect("a group has at least one process")
    }

    /// The processes that are not beyond `tile`.
    pub(crate) fn behind(&self, stage: Stage, tile: u64) -> Vec<usize> {
        let behind = |&rank: &usize| self.counter(stage, rank).load(Acquire) <= tile;
        (0..self.core().size).filter(behind).collect()
    }

    /// This process is beyond `tiles` tiles now.
    ///
    /// Release: a process that sees this sees what this one did to the memory before. The last
    /// process to get here rings for sleepers. Of two that come at once, the fences in `advanced`
    /// let at least one see that both have.
    pub(crate) fn advance(&self, stage: Stage, tiles: u64) {
        let core = self.core();
        let own = self.counter(stage, core.rank);
        let before = own.load(Relaxed);
        own.store(tiles, Release);
        crate::protocol::advanced::<std::sync::atomic::AtomicU32>();
        // It can have been this process that all were waiting for.
        if self.reached(stage) > before && self.is_waited_for(stage, before) {
            core.ring_sleepers();
        }
    }

    /// Whether somebody may wait for all to be beyond `before` tiles. Only a process whose peaks
    /// have filled the ring waits for keys of others. By the fence in `advanced` and the one before
    /// its last look, either this sees how far that process has scanned, or it sees the keys.
    fn is_waited_for(&self, stage: Stage, before: u64) -> bool {
        let full = before + self.plan.ring as u64;
        !matches!(stage, Stage::Keyed)
            || (0..self.core().size).any(|p| self.counter(Stage::Scanned, p).load(Relaxed) >= full)
    }

    /// Offset of process `rank`'s copy of `tile` in the segment.
    pub(crate) fn staging(&self, tile: u64, rank: usize) -> usize {
        let place = (tile % self.plan.depth as u64) as usize;
        let copies = place * self.core().size + rank;
        self.shared.offset + self.plan.staging + copies * self.plan.tile_bytes
    }

    /// Offset of `tile`'s results in the segment.
    pub(crate) fn results(&self, tile: u64) -> usize {
        let place = (tile % self.plan.depth as u64) as usize;
        self.shared.offset + self.plan.results + place * self.plan.tile_bytes
    }

    /// The peak that process `from` found in block `j` of `owner`, as bits. A place is used again
    /// after `ring` tiles, when all owners have keyed what was in it.
    pub(crate) fn peak(&self, from: usize, owner: usize, j: u64) -> &AtomicU64 {
        let ring = self.plan.ring as u64 * self.geometry.slice_blocks() as u64;
        let index = ((from * self.core().size + owner) as u64 * ring + j % ring) as usize;
        self.core().segment.counter(self.shared.offset + self.plan.peaks + index * 8)
    }

    pub(crate) fn set_peak(&self, owner: usize, j: u64, peak: f64) {
        self.peak(self.core().rank, owner, j).store(peak.to_bits(), Relaxed);
    }

    /// Bytes of elements.
    pub(crate) fn bytes(&self, elements: std::ops::Range<usize>) -> std::ops::Range<usize> {
        elements.start * self.element..elements.end * self.element
    }
}

/// Of an [`Error::Elsewhere`]: a process dropped the call before it was done.
pub const ABANDONED: u32 = u32::MAX;

impl Call {
    /// Tells the others that this process's part will not be done.
    pub(crate) fn abandon(&self) {
        // A forked child gives nothing up in its parent's name.
        if self.core().is_forked() {
            return;
        }
        self.shared.fail(ABANDONED, "gave the call up");
    }
}

impl Drop for Call {
    /// In a call that has failed the others may not know it yet, and sum what this process has in
    /// the segment, which its caller may write to from now on.
    fn drop(&mut self) {
        let core = self.core();
        if let Some(own) = self.own.get().filter(|_| !self.done.load(Relaxed))
            && !core.is_forked()
            && let Err(error) = own.detach(core)
        {
            tracing::error!(%error, "the group of this host's processes ends");
            core.lose(core.rank, How::Closed);
        }
    }
}

fn check_shape(core: &Core, shape: &Shape, geometry: &Geometry) -> Result<(), Error> {
    if shape.sequence >= 1 << 62 {
        return Err(Error::config("sequence", "not below 2^62"));
    }
    if shape.len != geometry.len() {
        let problem = format!("the shape has {}, the geometry {}", shape.len, geometry.len());
        return Err(Error::config("len", problem));
    }
    if geometry.processes() != core.size {
        let problem = format!("{} in a group of {}", geometry.processes(), core.size);
        return Err(Error::config("processes of the geometry", problem));
    }
    if shape.element_size == 0 || shape.len.checked_mul(shape.element_size).is_none() {
        let problem = format!("{} elements of {} bytes", shape.len, shape.element_size);
        return Err(Error::config("element_size", problem));
    }
    Ok(())
}

fn describe(rank: usize, shape: &Shape, geometry: &Geometry) -> String {
    let mut words = shape.description.as_str();
    while words.len() > 128 {
        words = &words[..words.floor_char_boundary(128)];
    }
    format!(
        "local rank {rank}, call {}: {words} ({} elements of {} bytes, blocks of {}, {} a slice)",
        shape.sequence,
        shape.len,
        shape.element_size,
        geometry.block(),
        geometry.slice_blocks(),
    )
}

/// Of all that has to be the same (FNV-1a).
fn digest(shape: &Shape, geometry: &Geometry, plan: &Plan, is_view: bool) -> u64 {
    let parts = [
        shape.len as u64,
        shape.element_size as u64,
        shape.digest,
        u64::from(shape.key.is_some()),
        geometry.block() as u64,
        geometry.slice_blocks() as u64,
        plan.bytes as u64,
        u64::from(is_view),
    ];
    crate::digest(parts.iter().flat_map(|part| part.to_le_bytes()))
}
