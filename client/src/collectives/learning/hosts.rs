//! Sums between hosts of several processes, with the aggregators' lanes.
//!
//! The processes of a host sum inside it as they do for an aggregator: each makes lanes of the
//! blocks that it owns ([`Grouped`]). Then the owners of the same blocks, one on each host, sum
//! their lanes. So these are the integers that an aggregator would sum, and the bits are the same.
//!
//! A long vector goes in batches of as many tiles as can be in place at once in the host's segment;
//! all hosts have segments of one size (`XDP_AGG_SEGMENT` is the same at all ranks).
//! Before a process takes a batch between hosts, all of its host have staged that batch, so they
//! have gathered the one before. Until the batch's results are there, nobody needs anything else
//! of that process.

use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use xdp_agg_common::wire::Reduction;
use xdp_agg_intranode::{Geometry, Group};
use xdp_agg_mesh::{By, Mesh, Patience, Pattern, Span};
use xdp_agg_protocol::worker::{
    Blocks, Buffer, DataBlock, Path, Purpose, Report, Share, rank_bits,
};
use xdp_agg_quantize::Element;

use super::blocks::{Account, Cut, Marked, WORD};
use super::route::Route;
use super::sums::{Scratch, Summed};
use crate::error::{Error, JobError};
use crate::grouped::{Grouped, Opened, Opening};
use crate::handle::{ASKED, INTERRUPTED};
use crate::settings::Place;

/// In the numbers of a host's calls: this one goes among the workers, which count their calls.
const AMONG_WORKERS: u64 = 1 << 61;
/// Yields to other threads before sleeping: another process of the host is often ready by then.
const YIELDS: u32 = 20;
/// How often the onlooker is asked.
const LOOK: Duration = Duration::from_secs(1);

/// What sums between hosts of several processes, in one of these processes.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) group: Arc<Group>,
    pub(super) place: Place,
    /// Chunks of a block.
    pub(super) chunks: u16,
    pub(super) purpose: Purpose,
}

impl Hosts {
    /// Sums a vector that is not empty over all processes of all hosts.
    pub(super) fn sum<T: Element>(
        &self,
        cut: &Cut,
        route: Route,
        (mesh, data): (&mut Mesh, &mut [T]),
        scratch: &mut Scratch,
        patience: &mut Patience<'_>,
    ) -> Result<Summed, Error> {
        #[expect(unsafe_code, reason = "a call on memory that a caller lends")]
        // SAFETY: the call is dropped before this function ends, also while unwinding, and `data`
        // is borrowed until then.
        let buffer = unsafe { Buffer::lend(data) };
        let (format, chunks, purpose) = (cut.format, self.chunks, &self.purpose);
        let sequence = AMONG_WORKERS | mesh.calls();
        let opening = Opening { format, chunks, sequence, purpose, way: route.name() };
        let Opened { exchange, place, feed, .. } = opening.open(&self.group, buffer, None)?;
        let (geometry, window) = (exchange.geometry(), exchange.window());
        let host = Grouped::new(exchange, format, Share::ALL, place, Some(feed));
        let host = host.with_purpose(purpose);
        let (begun, hosts) = (Instant::now(), self);
        let account = Account::default();
        let mut call =
            HostCall { hosts, cut, mesh, host, scratch, patience, begun, looked: begun, account };
        match call.run(geometry, window, route) {
            Ok(report) => Ok(Summed::new(report, call.host.left_out().to_vec())),
            Err(error) => {
                // The other processes of the host wait for this one's blocks.
                call.host.abort(&JobError::from(error.clone()));
                Err(error)
            }
        }
    }
}

/// Such a call under way.
struct HostCall<'a, 'p, T: Element> {
    hosts: &'a Hosts,
    cut: &'a Cut,
    mesh: &'a mut Mesh,
    /// This process's part of the host's call.
    host: Grouped<T>,
    scratch: &'a mut Scratch,
    patience: &'a mut Patience<'p>,
    begun: Instant,
    /// When the onlooker was asked last.
    looked: Instant,
    account: Account,
}

impl<T: Element> HostCall<'_, '_, T> {
    /// Carries it out in batches of that many tiles.
    fn run(&mut self, geometry: Geometry, batch: u64, route: Route) -> Result<Report, Error> {
        self.host.cut(self.hosts.chunks)?;
        let (tiles, owner) = (geometry.tiles(), self.hosts.group.local_rank());
        let own = |tiles: u64| geometry.own_before(owner, tiles);
        for first in (0..tiles).step_by(batch as usize) {
            self.sum_batch(own(first)..own(tiles.min(first + batch)), route)?;
        }
        self.end(own(tiles))
    }

    /// Sums these own blocks between hosts. All processes make as many such steps, with whatever
    /// blocks they own.
    fn sum_batch(&mut self, blocks: Range<u64>, route: Route) -> Result<(), Error> {
        let (format, op) = (self.cut.format, self.cut.format.op());
        let pattern = route.pattern().unwrap_or(Pattern::Ring);
        let by = self.cut.by(pattern, Span::Hosts);
        let count = (blocks.end - blocks.start) as usize;
        self.scratch.keys.clear();
        if format.needs_exponents() {
            self.until(|host| host.scanned().0 >= blocks.end)?;
            self.scratch.keys.resize((count * size_of::<u16>()).div_ceil(WORD), 0);
            let keys: &mut [u16] = bytemuck::cast_slice_mut(&mut self.scratch.keys);
            for (key, block) in keys.iter_mut().zip(blocks.clone()) {
                *key = self.host.key(DataBlock(block));
            }
            let by = By { pattern: Pattern::Doubling, ..by };
            let patience = left(self.patience, self.begun);
            let keys = &mut self.scratch.keys;
            self.mesh.all_reduce_words_by(keys, Reduction::Max16, by, patience)?;
        }
        self.until(|host| host.staged().0 >= blocks.end)?;
        let per_block = format.payload(self.cut.block) / WORD;
        let mut marked = Marked::new::<T>(&format, self.cut.block);
        let Scratch { words, keys, .. } = &mut *self.scratch;
        words.resize(count * per_block, 0);
        let keys: &[u16] = bytemuck::cast_slice(keys);
        let key = |index: usize| keys.get(index).copied().unwrap_or_default();
        for (index, block) in blocks.clone().map(DataBlock).enumerate() {
            let lanes = &mut words[index * per_block..][..per_block];
            let payload = format.payload(self.host.elements(block));
            let lanes = &mut bytemuck::cast_slice_mut(lanes)[..payload];
            let encoded = self.host.encode(block, key(index), lanes);
            self.account.saturated += u64::from(encoded.saturated);
            if encoded.non_finite {
                marked.mark(lanes);
            }
        }
        let (unit, patience) = ((op, per_block * WORD), left(self.patience, self.begun));
        let lanes: &mut [i64] = bytemuck::cast_slice_mut(words);
        self.mesh.all_reduce_units(lanes, unit, by, &mut marked, patience)?;
        for (index, block) in blocks.map(DataBlock).enumerate() {
            let lanes: &[u8] = bytemuck::cast_slice(&words[index * per_block..][..per_block]);
            let lanes = Some(lanes).filter(|lanes| !marked.is_marked(lanes));
            self.account.non_finite += u64::from(lanes.is_none());
            self.host.decode(block, key(index), lanes, self.hosts.place.hosts.into());
        }
        Ok(())
    }

    /// All own blocks, that many, have their results: this process waits for the others' ones.
    fn end(&mut self, blocks: u64) -> Result<Report, Error> {
        let mut report = Report {
            blocks,
            saturated: self.account.saturated,
            non_finite_blocks: self.account.non_finite,
            contributors: rank_bits(self.hosts.place.hosts),
            path: Path::Ring,
            ..Report::default()
        };
        self.host.all_reduced(&report);
        self.until(Grouped::finished)?;
        self.host.complete(&mut report);
        Ok(report)
    }

    /// Does this process's part of the host's call until `reached`.
    fn until(&mut self, reached: impl Fn(&Grouped<T>) -> bool) -> Result<(), Error> {
        let mut yields = 0;
        while !reached(&self.host) {
            if self.host.work()? {
                yields = 0;
            } else if yields < YIELDS {
                yields += 1;
                thread::yield_now();
            } else {
                self.wait(&reached)?;
            }
        }
        Ok(())
    }

    /// Sleeps until another process of the host has done something.
    fn wait(&mut self, reached: &impl Fn(&Grouped<T>) -> bool) -> Result<(), Error> {
        if (self.patience.interrupted)() {
            return Err(xdp_agg_mesh::Error::Interrupted(INTERRUPTED.into()).into());
        }
        let waited = self.begun.elapsed();
        let left = self.patience.deadline.saturating_sub(waited);
        if left.is_zero() {
            return Err(self.host.overdue(waited).map_or_else(|| late(waited), Error::from));
        }
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            let Place { rank, local_rank, .. } = self.hosts.place;
            let awaited = self.host.awaited().first().map_or(local_rank, |local| *local as u16);
            let onlooker = Arc::clone(self.mesh.onlooker());
            let told = onlooker.waits(rank - local_rank + awaited, waited);
            told.map_err(xdp_agg_mesh::Error::Interrupted)?;
        }
        self.host.wait(ASKED.min(left), reached);
        Ok(())
    }
}

/// What is left of a caller's patience.
fn left<'a>(patience: &'a mut Patience<'_>, begun: Instant) -> Patience<'a> {
    let deadline = patience.deadline.saturating_sub(begun.elapsed());
    Patience { deadline, ..patience.again() }
}

/// The deadline is over, and no process of this host is known to be late.
fn late(after: Duration) -> Error {
    let (what, waiting_for, known) = ("a call", Vec::new(), String::new());
    Error::Host(xdp_agg_intranode::Error::Deadline { what, after, waiting_for, known })
}
