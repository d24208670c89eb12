//! Going on without an aggregator: the same blocks, summed over a ring of the members.
//!
//! The ring is the caller's: it gathers what all members have ([`Machine::handle_ring_formed`]),
//! and then reduces lanes, batch by batch ([`Machine::poll_ring_batch`],
//! [`Machine::handle_ring_result`]). All members cut the same batches, because blocks, plan and
//! calls are the same at all, and so is what may be sent.

use std::net::SocketAddrV4;
use std::time::Duration;

use xdp_agg_common::control::{
    AbortReason, Admitted, AggregatorLoss, Plan, Progress, RunKind, WorkerLoss,
};
use xdp_agg_common::lanes::MAX_PAYLOAD;
use xdp_agg_common::reform::PlanError;
use xdp_agg_common::wire::{MAX_WORKERS, Reduction, flags};

use super::data::carry;
use super::{Freeze, Machine, Phase};
use crate::worker::{EpochBlock, Error, rank_bit};

/// Most blocks of a batch: some 3 MB at MTU 1500.
const BATCH: u64 = 2048;

/// The members of a ring, and where they listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The members' ranks, as the ring visits them.
    pub members: Vec<u16>,
    /// Where each of them listens.
    pub addresses: Vec<SocketAddrV4>,
    /// This worker's place among them.
    pub index: u16,
    /// Number and cookie of the epoch that ended: the same at all.
    pub epoch: (u16, u64),
    /// How many rings the members were on since: the same at all.
    pub rings: u32,
}

/// Blocks that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// How the members' words become one.
    pub reduction: Reduction,
    first: EpochBlock,
    blocks: u64,
    /// Of the calls that they are summed for; 0: all are carried over.
    digest: u64,
}

impl Batch {
    /// Its blocks, by their numbers in the epoch.
    #[must_use]
    pub const fn blocks(&self) -> std::ops::Range<u64> {
        self.first.0..self.first.0 + self.blocks
    }
}

/// What travels for a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// The blocks' payloads, end to end, eight bytes to a word: reduced as the batch says.
    pub words: Vec<u64>,
    /// Summed: what the headers would say, then one if this worker's daemon would take it back,
    /// then the halves of the digest of the blocks' calls.
    pub marks: Vec<i32>,
}

impl Machine {
    /// The ring that is to be built now, if any. If the policy is to go on without lost workers, it
    /// leaves out the ranks of `lost`, whose loss is known from elsewhere.
    #[must_use]
    pub fn ring_seat(&self, lost: u64) -> Option<Seat> {
        let wanted = self.phase == Phase::Ring(None) && self.failed.is_none();
        let admitted = self.admitted().filter(|_| wanted)?;
        let ranks = 0..MAX_WORKERS as u16;
        let goes_on = self.config.policy.worker_loss == WorkerLoss::Shrink;
        let out = if goes_on { lost & !rank_bit(self.config.rank) } else { 0 };
        let all = ranks.filter(|rank| admitted.members & rank_bit(*rank) != 0);
        let left = all.zip(&admitted.ring).filter(|(rank, _)| out & rank_bit(*rank) == 0);
        let mut left: Vec<_> = left.collect();
        let order = &self.config.ring_order;
        let place = |rank| order.iter().position(|other| *other == rank).unwrap_or(usize::MAX);
        left.sort_by_key(|(rank, _)| place(*rank));
        let (members, addresses): (Vec<u16>, Vec<_>) = left.into_iter().unzip();
        let index = members.iter().position(|rank| *rank == self.config.rank)? as u16;
        let (epoch, rings) = ((admitted.epoch, admitted.cookie), self.back.rings);
        Some(Seat { members, addresses, index, epoch, rings })
    }

    /// No daemon came back for too long: the members are to build a ring.
    pub(super) fn fall_back_if_due(&mut self, now: Duration) {
        let due = self.fall_back_at().is_some_and(|at| now >= at);
        if !due {
            return;
        }
        tracing::warn!(
            rank = self.config.rank,
            aggregator = %self.config.aggregator,
            reason = self.lost_reason,
            "no aggregator can be reached: going on over a TCP ring, which is slower"
        );
        self.hang_up();
        self.phase = Phase::Ring(None);
        self.freeze = Freeze::Reform;
    }

    /// When that will be.
    pub(super) fn fall_back_at(&self) -> Option<Duration> {
        let may = self.config.policy.aggregator_loss == AggregatorLoss::Ring
            && self.has_run
            && !matches!(self.phase, Phase::Ring(_));
        let admitted = self.admitted().filter(|_| may)?;
        let all_listen = admitted.ring.len() == admitted.members.count_ones() as usize;
        Some(self.lost_since.filter(|_| all_listen)? + self.config.fallback_after)
    }

    /// A daemon answers in the place of the lost one, and this job cannot go on with it: it is of
    /// another release, or has another secret. Where the policy is a ring, that is no daemon.
    /// False: this worker cannot do without.
    pub fn does_without(&mut self, error: &Error, now: Duration) -> bool {
        // A worker that was on a ring can go on over one.
        let over_ring = self.fall_back_at().is_some() || self.back.rings > 0;
        if self.lost_since.is_none() || !over_ring {
            return false;
        }
        let (rank, reason) = (self.config.rank, error.to_string());
        if self.lost_reason != reason {
            let aggregator = self.config.aggregator;
            tracing::warn!(rank, %aggregator, reason, "what is there now counts as no aggregator");
        }
        self.lost_reason = reason;
        self.hang_up();
        self.lost(now);
        true
    }

    /// The ring is there, and this is what its members have, in the order of [`Seat::members`].
    ///
    /// # Errors
    /// The members' reports do not fit together; this worker is not a member any more.
    pub fn handle_ring_formed(
        &mut self,
        progress: &[(u16, Progress)],
        now: Duration,
    ) -> Result<(), Error> {
        let entered = self.try_enter_ring(progress, now);
        if let Err(error) = &entered {
            self.fail(error.clone());
        }
        entered
    }

    fn try_enter_ring(&mut self, progress: &[(u16, Progress)], now: Duration) -> Result<(), Error> {
        // A plan depends on the order of the ranks, and is the same at all.
        let mut progress = progress.to_vec();
        progress.sort_by_key(|(rank, _)| *rank);
        let plan = Plan::new(&progress).map_err(|error| match error {
            PlanError::NoSource(block) => Error::Aborted(AbortReason::Unrecoverable { block }),
            PlanError::Impossible { .. } => Error::Protocol(error.to_string()),
        })?;
        let Some(admitted) = self.admitted().cloned() else { return Err(Error::NotJoined) };
        let members = progress.iter().fold(0, |bits, (rank, _)| bits | rank_bit(*rank));
        let ring = ring_of(&admitted, members);
        self.follow(Admitted { plan: Some(plan), members, ring, ..admitted })?;
        self.phase = Phase::Ring(Some(EpochBlock(0)));
        self.lost_since = None;
        self.look_back(now);
        self.begin_calls();
        Ok(())
    }

    /// The next blocks to sum over the ring: their lanes go to `lanes`. None: no call has any.
    pub fn poll_ring_batch(&mut self, lanes: &mut Lanes) -> Option<Batch> {
        let Phase::Ring(Some(first)) = self.phase else { return None };
        // Nobody else looks whether input has come in place meanwhile.
        self.release();
        let epoch = self.epoch.as_ref().filter(|_| self.failed.is_none())?;
        let carried_end = epoch.runs_end();
        let end = match carried_end {
            end if first < end => end,
            _ => {
                let (block, _) = epoch.locate(first);
                let call = self.calls.iter().find(|call| call.holds(block))?;
                first + (call.end() - block).min(call.most_at_once())
            }
        };
        let end = end.min(first + BATCH);
        let reduction = self.ring_reduction(first)?;
        let mut blocks = 1;
        while first + blocks < end && self.ring_reduction(first + blocks) == Some(reduction) {
            blocks += 1;
        }
        // Which blocks a batch has must not depend on how far this worker's input is.
        if epoch.locate(first + (blocks - 1)).0 >= self.released {
            return None;
        }
        lanes.words.clear();
        lanes.marks.clear();
        let (mut digest, mut last) = (0, None);
        for number in (0..blocks).map(|index| first + index) {
            let (flags, call) = self.ring_block(number, &mut lanes.words)?;
            lanes.marks.push(i32::from(flags & flags::NON_FINITE));
            if let Some(call) = call.filter(|call| last.replace(*call) != Some(*call)) {
                digest = with_next(digest, call);
            }
        }
        // As long as the plan carries blocks over, members have different results.
        let back = self.back.open && first + blocks >= carried_end;
        lanes.marks.push(back.into());
        lanes.marks.extend(halves(digest));
        Some(Batch { reduction, first, blocks, digest })
    }

    /// How a block's contributions become one. None: it cannot be sent before an earlier block's
    /// result is here.
    fn ring_reduction(&self, number: EpochBlock) -> Option<Reduction> {
        let (block, kind) = self.epoch.as_ref()?.locate(number);
        let call = self.calls.iter().find(|call| call.holds(block));
        match kind {
            RunKind::Copy { .. } => Some(Reduction::Add),
            _ => call.filter(|call| call.knows(block)).map(|call| call.reduction(block)),
        }
    }

    /// Appends a block's lanes; its flags, and the digest of its call. A block that is carried over
    /// has none, because its call may be over at some members.
    fn ring_block(
        &mut self,
        number: EpochBlock,
        words: &mut Vec<u64>,
    ) -> Option<(u8, Option<u64>)> {
        let mut payload = [0; MAX_PAYLOAD];
        let epoch = self.epoch.as_ref()?;
        let (block, kind) = epoch.locate(number);
        let call = self.calls.iter_mut().find(|call| call.holds(block));
        let encoded = match (kind, call) {
            (RunKind::Copy { source, .. }, call) => {
                let source = source == self.config.rank;
                let carried = carry(epoch, call.as_deref(), number, source, &mut payload);
                carried.map(|(len, flags)| (len, flags, None))
            }
            (_, Some(call)) => {
                let len = call.payload_len(block);
                let flags = call.encode(block, true, &mut payload[..len]).flags;
                Some((len, flags, Some(call.digest)))
            }
            (_, None) => None,
        };
        let Some((len, flags, call)) = encoded else {
            self.fail(Error::Protocol(format!("block {block} belongs to no call")));
            return None;
        };
        words.extend(payload[..len].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)));
        Some((flags, call))
    }

    /// The results of a batch.
    pub fn handle_ring_result(&mut self, batch: Batch, lanes: &Lanes, now: Duration) {
        if self.phase != Phase::Ring(Some(batch.first)) || self.failed.is_some() {
            return;
        }
        let members = self.members();
        let (mut words, marks) = (&lanes.words[..], &lanes.marks[..]);
        let count = members.count_ones() as i32;
        let Some([back, digest @ ..]) = marks.last_chunk::<3>() else { return };
        if *digest != halves(batch.digest).map(|half| half.wrapping_mul(count)) {
            return self.calls_differ(batch.first);
        }
        let mut payload = [0; MAX_PAYLOAD];
        for (number, mark) in batch.blocks().map(EpochBlock).zip(marks) {
            let Some(epoch) = &self.epoch else { return };
            let (block, kind) = epoch.locate(number);
            let call = self.calls.iter_mut().find(|call| call.holds(block));
            let kept = epoch.history.get(number).map(|(_, lanes)| lanes.len());
            let Some(len) = call.as_ref().map(|call| call.payload_len(block)).or(kept) else {
                return;
            };
            let (block_words, rest) = words.split_at((len / 8).min(words.len()));
            words = rest;
            let members = match kind {
                RunKind::Copy { .. } if epoch.is_mine(block) => continue,
                RunKind::Copy { members, .. } => members,
                _ => members,
            };
            for (bytes, word) in payload.as_chunks_mut().0.iter_mut().zip(block_words) {
                *bytes = word.to_le_bytes();
            }
            if let Some(call) = call {
                if !call.is_of_all(block, &payload[..len], members) {
                    return self.calls_differ(number);
                }
                call.goes_over_ring();
                let flags = if *mark == 0 { 0 } else { flags::NON_FINITE };
                call.decode(block, flags, &payload[..len], members);
                call.times.result(now);
                call.note_done(now);
            }
        }
        let next = batch.first + batch.blocks;
        self.phase = Phase::Ring(Some(next));
        self.release();
        // The sum alone decides: all others see the same one, and this worker's own word is said.
        if *back == count {
            self.leave_ring(next, now);
        }
        self.news = true;
        self.drop_abandoned();
    }

    fn calls_differ(&mut self, number: EpochBlock) {
        let block = self.epoch.as_ref().map(|epoch| epoch.locate(number).0);
        let ours = block.and_then(|block| self.calls.iter().find(|call| call.holds(block)));
        let ours = ours.map_or_else(|| "none".into(), |call| call.describe().to_string());
        let theirs = "at least one other worker made another one".into();
        self.fail(Error::CallMismatch { ours, theirs });
    }
}

/// The digest of some calls and one more. An odd factor loses nothing of those before.
const fn with_next(digest: u64, call: u64) -> u64 {
    digest.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(call)
}

/// A digest as what is summed over a ring: a member's that differs in any bit changes a sum.
const fn halves(digest: u64) -> [i32; 2] {
    [digest as i32, (digest >> 32) as i32]
}

/// Where these members of an epoch meet.
fn ring_of(admitted: &Admitted, members: u64) -> Vec<SocketAddrV4> {
    let all = (0..MAX_WORKERS as u16).filter(|rank| admitted.members & rank_bit(*rank) != 0);
    let all = all.zip(&admitted.ring).filter(|(rank, _)| members & rank_bit(*rank) != 0);
    all.map(|(_, address)| *address).collect()
}
