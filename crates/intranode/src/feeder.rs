//! The side of the vector's owner: peaks and data in, results out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::call::{Call, Stage};
use crate::exchange::Exchange;
use crate::vector::InSegment;
use crate::{Error, Marks};

/// What [`Feeder::poll`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// A piece of work was done; there may be more.
    pub did: bool,
    /// The whole result is in the vector.
    pub done: bool,
}

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Key,
    Gather,
    Scan,
    Stage,
}

/// One call, seen by the thread that has this process's vector.
///
/// Dropping it before all is staged gives the call up: the other local processes get
/// [`Error::Elsewhere`] with [`ABANDONED`](crate::ABANDONED).
#[derive(Debug)]
pub struct Feeder {
    call: Arc<Call>,
    exchange: Arc<Exchange>,
    tiles: u64,
    scanned: u64,
    staged: u64,
    gathered: u64,
    /// Results that are no numbers are looked for: see [`Self::adopt`].
    looks: bool,
}

/// The vector, as a step of the call finds it.
enum Data<'a> {
    /// Input and output.
    Both(&'a mut [u8]),
    /// Input; results stay in the segment.
    Input(&'a [u8]),
    /// It lies in the segment.
    InSegment(InSegment),
}

impl Data<'_> {
    fn read(&self, bytes: Range<usize>) -> &[u8] {
        match self {
            Self::Both(data) => &data[bytes],
            Self::Input(data) => &data[bytes],
            Self::InSegment(own) => own.read(bytes),
        }
    }
}

impl Feeder {
    pub(crate) fn new(call: Arc<Call>, exchange: Arc<Exchange>) -> Self {
        let tiles = call.geometry.tiles();
        Self { call, exchange, tiles, scanned: 0, staged: 0, gathered: 0, looks: false }
    }

    /// The vector lies in the segment ([`Group::find`](crate::Group::find)): it is not copied, and
    /// [`Self::poll_in_segment`] goes on with the call. Results are written to where the inputs
    /// were, unless they are read in place. Before the first step. `keeps`: where a result is no
    /// number, the input stays, as with [`Self::poll_choosing`].
    ///
    /// A call that fails cuts this process off from the memory: it keeps it, with whatever is in it
    /// then, but no other process sees any more what is written to it. So those that do not know of
    /// the failure yet go on with the inputs they were promised.
    ///
    /// # Safety
    /// The memory must be valid for reading, and for writing unless results are read in place. But
    /// for this call, nobody may touch it until this value and the [`Exchange`] are dropped, or all
    /// is [`Self::done`].
    ///
    /// # Panics
    /// If it has not the shape's length, or the call has begun.
    #[expect(unsafe_code, reason = "the caller leaves its memory to the call")]
    pub unsafe fn adopt(&mut self, vector: InSegment, keeps: bool) {
        let len = self.call.bytes(0..self.call.geometry.len()).len();
        assert_eq!(vector.len(), len, "the bytes of the vector");
        assert!(self.scanned == 0 && self.staged == 0, "before the first step");
        self.looks = keeps;
        self.call.adopt(vector, keeps);
    }

    /// The call's results are read in place, and [`Self::poll_reading`] shows each of their blocks
    /// to `wanted`, as [`Self::adopt`] does where inputs are kept.
    pub fn look_at_results(&mut self) {
        self.looks = true;
    }

    /// Does one piece of work, if one can be done: makes keys of peaks, gathers a finished tile
    /// into `data`, publishes the peaks of a tile's blocks, or stages a tile.
    ///
    /// `data` is the vector, input and output, the same at each call. `scan` gives a block's peak.
    /// Peaks run ahead of data by [`Options::scan_ahead`](crate::Options::scan_ahead) own blocks.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Elsewhere`], [`Error::PeerLost`], [`Error::PeerLeft`].
    ///
    /// # Panics
    /// If `data` has not the shape's length.
    pub fn poll(
        &mut self,
        data: &mut [u8],
        scan: &mut dyn FnMut(&[u8]) -> f64,
    ) -> Result<Progress, Error> {
        self.poll_choosing(data, scan, &mut |_, _| true)
    }

    /// As [`Self::poll`], of a vector that is only read: a call whose results are read in place.
    /// `wanted` sees these after [`Self::look_at_results`], by their bytes' range in the vector.
    /// What it says of them is of no meaning.
    ///
    /// # Errors
    /// As [`Self::poll`].
    ///
    /// # Panics
    /// As [`Self::poll`]; if the call is another one.
    pub fn poll_reading(
        &mut self,
        data: &[u8],
        scan: &mut dyn FnMut(&[u8]) -> f64,
        wanted: &mut dyn FnMut(Range<usize>, &[u8]) -> bool,
    ) -> Result<Progress, Error> {
        assert!(self.call.region.is_some(), "results are to be written to the vector");
        self.step(Data::Input(data), scan, wanted)
    }

    /// As [`Self::poll_choosing`], of the vector that was adopted.
    ///
    /// # Errors
    /// As [`Self::poll`].
    ///
    /// # Panics
    /// If none was.
    pub fn poll_in_segment(
        &mut self,
        scan: &mut dyn FnMut(&[u8]) -> f64,
        wanted: &mut dyn FnMut(Range<usize>, &[u8]) -> bool,
    ) -> Result<Progress, Error> {
        let own = *self.call.own_vector().expect("a vector that was adopted");
        self.step(Data::InSegment(own), scan, wanted)
    }

    /// As [`Self::poll`], but gathers only those result blocks that `wanted` says true of, by their
    /// bytes' range in the vector and these bytes. The other blocks' input stays.
    ///
    /// # Errors
    /// As [`Self::poll`].
    ///
    /// # Panics
    /// As [`Self::poll`].
    pub fn poll_choosing(
        &mut self,
        data: &mut [u8],
        scan: &mut dyn FnMut(&[u8]) -> f64,
        wanted: &mut dyn FnMut(Range<usize>, &[u8]) -> bool,
    ) -> Result<Progress, Error> {
        self.step(Data::Both(data), scan, wanted)
    }

    fn step(
        &mut self,
        mut data: Data<'_>,
        scan: &mut dyn FnMut(&[u8]) -> f64,
        wanted: &mut dyn FnMut(Range<usize>, &[u8]) -> bool,
    ) -> Result<Progress, Error> {
        let vector = self.call.bytes(0..self.call.geometry.len());
        let len = match &data {
            Data::Both(data) => data.len(),
            Data::Input(data) => data.len(),
            Data::InSegment(own) => own.len(),
        };
        assert_eq!(len, vector.len(), "the bytes of the vector");
        if self.done() {
            self.end();
            return Ok(Progress { did: false, done: true });
        }
        self.call.check()?;
        let Some(piece) = self.next() else {
            self.look_for_leavers()?;
            return Ok(Progress { did: false, done: false });
        };
        match piece {
            Piece::Key => drop(self.exchange.scanned()),
            Piece::Gather => self.gather(&mut data, wanted),
            Piece::Scan => self.scan(&data, scan),
            Piece::Stage => self.stage(&data),
        }
        if self.done() {
            self.end();
        }
        Ok(Progress { did: true, done: self.done() })
    }

    /// Whether [`Self::poll`] has something to do now (or an error to tell).
    #[must_use]
    pub fn can(&self) -> bool {
        let is_in_vain = || self.call.check().is_err() || self.look_for_leavers().is_err();
        !self.done() && (self.next().is_some() || is_in_vain())
    }

    /// Whether the whole result is in the vector.
    #[must_use]
    pub fn done(&self) -> bool {
        self.gathered == self.tiles
    }

    /// Sleeps until [`Self::can`], a ring, or until `timeout` is over (100 ms at most): for threads
    /// without sockets.
    pub fn wait(&self, timeout: Duration) {
        if !self.done() && !self.can() {
            self.call.core().sleep(timeout, || self.can());
        }
    }

    /// Local ranks that have not done what this process waits for now.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<usize> {
        if self.done() || self.next().is_some() {
            return Vec::new();
        }
        // The tile's owners wait for processes that have not even staged it.
        let stages = [Stage::Staged, Stage::Reduced];
        let behind = stages.map(|stage| self.call.behind(stage, self.gathered));
        behind.into_iter().find(|behind| !behind.is_empty()).unwrap_or_default()
    }

    /// Of these, those whose part of the vector is not there. Any other process that is waited for
    /// may wait for something itself.
    #[must_use]
    pub fn unstaged(&self) -> Vec<usize> {
        if self.done() || self.next().is_some() {
            return Vec::new();
        }
        self.call.behind(Stage::Staged, self.gathered)
    }

    /// What all owners reported; complete when done.
    #[must_use]
    pub fn marks(&self) -> Marks {
        self.call.shared().marks()
    }

    /// How these processes of the host do, in words.
    #[must_use]
    pub fn describe(&self, ranks: &[usize]) -> String {
        self.call.core().describe(ranks)
    }

    /// The call's other side.
    #[must_use]
    pub fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// What to do next. Keys and gathering first: they make room for all the others. Then scanning,
    /// until it is as far ahead as it should be; what it reads is in the cache when it is staged.
    fn next(&self) -> Option<Piece> {
        let wants_keys = self.call.key.is_some();
        if wants_keys && self.call.reached(Stage::Scanned) > self.call.own(Stage::Keyed) {
            return Some(Piece::Key);
        }
        if self.gathered < self.tiles && self.call.reached(Stage::Reduced) > self.gathered {
            return Some(Piece::Gather);
        }
        let plan = &self.call.plan;
        let can_scan = wants_keys
            && self.scanned < self.tiles.min(self.gathered + plan.ahead as u64)
            && self.scanned < self.call.reached(Stage::Keyed) + plan.ring as u64;
        let can_stage = self.staged < self.tiles.min(self.gathered + plan.depth as u64);
        let ahead = (plan.ahead - plan.depth) as u64;
        let far_enough = self.scanned == self.tiles || self.scanned > self.staged + ahead;
        match (can_scan, can_stage) {
            (true, true) if far_enough => Some(Piece::Stage),
            (true, _) => Some(Piece::Scan),
            (false, true) => Some(Piece::Stage),
            (false, false) => None,
        }
    }

    fn scan(&mut self, data: &Data<'_>, scan: &mut dyn FnMut(&[u8]) -> f64) {
        let geometry = &self.call.geometry;
        for owner in 0..geometry.processes() {
            let first = geometry.own_before(owner, self.scanned);
            for j in first..geometry.own_before(owner, self.scanned + 1) {
                let (_, elements) = geometry.locate(owner, j);
                self.call.set_peak(owner, j, scan(data.read(self.call.bytes(elements))));
            }
        }
        self.scanned += 1;
        self.call.advance(Stage::Scanned, self.scanned);
    }

    fn stage(&mut self, data: &Data<'_>) {
        let tile = self.staged;
        if self.call.own_vector().is_none() {
            let from = self.call.bytes(self.call.geometry.tile_range(tile));
            let to = self.call.staging(tile, self.call.core().rank);
            let to = call_bytes::staging(self.call.core(), to, from.len());
            to.copy_from_slice(data.read(from));
        }
        self.staged += 1;
        self.call.advance(Stage::Staged, self.staged);
    }

    /// Reads the owners' results, each process in another order (paper 5, Algorithm 1, line 8).
    /// Where the owners have written them to the vector, or where they are read in place, it only
    /// looks at them, if at all.
    fn gather(&mut self, data: &mut Data<'_>, wanted: &mut dyn FnMut(Range<usize>, &[u8]) -> bool) {
        let copies = matches!(data, Data::Both(_));
        if !copies && !self.looks {
            self.gathered += 1;
            return;
        }
        let block = self.call.bytes(0..self.call.geometry.block()).len();
        let (tile, core) = (self.gathered, self.call.core());
        let start = self.call.bytes(self.call.geometry.tile_range(tile)).start;
        for i in 0..core.size {
            let owner = (i + core.rank) % core.size;
            let to = self.call.bytes(self.call.geometry.slice_range(owner, tile));
            let from = match &self.call.region {
                Some(region) => region.offset() + to.start,
                None => self.call.results(tile) + to.start - start,
            };
            let from = call_bytes::results(core, from, to.len());
            for (index, result) in from.chunks(block).enumerate() {
                let start = to.start + index * block;
                let place = start..start + result.len();
                let is_wanted = wanted(place.clone(), result);
                if let Data::Both(data) = data
                    && is_wanted
                {
                    data[place].copy_from_slice(result);
                }
            }
        }
        self.gathered += 1;
    }

    /// All owners have finished all blocks.
    fn end(&self) {
        self.call.done.store(true, Relaxed);
        if let Some(region) = &self.call.region {
            region.complete();
        }
    }

    /// Whether a process left that is still needed.
    fn look_for_leavers(&self) -> Result<(), Error> {
        let left = self.call.core().left();
        if left == 0 {
            return Ok(());
        }
        // All that they did before they left is seen now, so they will never do the rest.
        match self.waiting_for().into_iter().find(|&rank| left & 1 << rank != 0) {
            Some(local_rank) => {
                self.call.shared().miss(local_rank);
                self.call.check()
            }
            None => Ok(()),
        }
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        if self.staged < self.tiles {
            self.call.abandon();
        }
    }
}

/// Plain memory of a call, in the feeder's hands.
#[expect(unsafe_code, clippy::mut_from_ref, reason = "plain memory of the segment; see `segment`")]
mod call_bytes {
    use crate::core::Core;

    /// This process's own copy in a place of the staging ring.
    pub(super) fn staging(core: &Core, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: this process alone writes its copies. Owners read one between `staged` and
        // `reduced` of its tile. The place's last tile was gathered here, so all have reduced it
        // (seen by Acquire). This tile is not yet announced as staged (`call`).
        unsafe { core.segment.bytes_mut(offset, len) }
    }

    /// Results of a tile that all owners have reduced.
    pub(super) fn results(core: &Core, offset: usize, len: usize) -> &[u8] {
        // SAFETY: all owners have finished the tile (seen by Acquire). They write to this place
        // of the ring again only after this process has gathered this tile and staged a later one.
        // Results that are read in place have their place for themselves.
        unsafe { core.segment.bytes(offset, len) }
    }
}
