//! The slot machine: what a contribution does to the slot it falls into.
//!
//! A job owns a pool of `P` slots (a power of two). Block `b` lives in slot `b mod P`. A worker may
//! send block `b` only when it holds the results of all blocks up to `b - P/2` ([`Pool::window`]).
//! This rule makes the pool safe to reuse without any message about reuse. When a worker sends `b`,
//! all workers have contributed to `b - P/2`, so all of them hold the result of `b - P`, the one
//! that `b` overwrites. These are two generations of slots, as in SwitchML, but named by the full
//! block number, so a late packet is never mistaken for a current one.
//!
//! [`take_in`] is all that happens under a slot's lock: [`SlotState::contribute`] decides and
//! changes the slot's state, [`move_lanes`] does with the lanes what the [`Verdict`] says. The
//! kernel program, the user-space engine and the model of several CPUs (`tests/cpus.rs`) all call
//! it.
//!
//! # Trees
//!
//! Aggregators may form a tree: a *forwarder* sends the sum of a complete slot up to its parent, as
//! one contribution, and hands the parent's result down. All of them share the pool's size and the
//! blocks' numbers. At a forwarder a complete slot is not finished before the parent's result is in
//! it ([`SlotState::settled`]). Only then may it be taken over.
//!
//! The argument above holds for the tree as a whole. A forwarder sends `b` after all its members
//! did. So when a worker or forwarder contributes `b`, all workers below it have sent `b`, and
//! hold the results up to `b - P/2`. A result exists when the root's slot is complete, that is when
//! all workers of the tree have sent its block. So when some worker sends `b`, all workers of the
//! tree have sent `b - P/2`, and hold the result of `b - P`. A worker holds a result only if every
//! aggregator between it and the root was settled before. So the slots of `b - P` are settled in
//! all of the tree, and may be overwritten, at the forwarders as at the root.
//!
//! No message says so, and no clock is needed either. A worker that misses a result repeats its
//! contribution; that sends the sum up again ([`Verdict::Forward`]), and the answer comes down to
//! all that wait. Several members that miss one result send it up once, not each: the others
//! are told that it is being asked for (`PENDING`). If that repetition is lost too, a member that
//! asks for the second time sends it up again.
//!
//! # Copies
//!
//! A block of a broadcast is complete with the contribution of its root ([`Reduction::Copy`]); the
//! others send nothing, and a member that misses the result asks for it ([`Contribution::asks`]).
//! [`crate::copies`] says what then becomes of the argument above.

use crate::lanes::{self, Chunk, Pick};
use crate::maps::{JobConf, Reject};
use crate::wire::Reduction;

/// The slots of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    slots: u32,
    forwards: bool,
}

impl Pool {
    /// A pool of `slots` slots: a power of two, at least 2. `None` for any other number. Its sums
    /// are the results.
    #[inline(always)]
    #[must_use]
    pub const fn new(slots: u32) -> Option<Self> {
        let forwards = false;
        if slots >= 2 && slots.is_power_of_two() { Some(Self { slots, forwards }) } else { None }
    }

    /// This pool, at an aggregator whose sums go up to a parent if `forwards`.
    #[inline(always)]
    #[must_use]
    pub const fn forwarding(self, forwards: bool) -> Self {
        Self { forwards, ..self }
    }

    /// The pool of a job; `None` if its number of slots makes none.
    #[inline(always)]
    #[must_use]
    pub const fn of(conf: &JobConf) -> Option<Self> {
        match Self::new(conf.slots) {
            Some(pool) => Some(pool.forwarding(conf.forwards != 0)),
            None => None,
        }
    }

    /// Whether the sums go up to a parent.
    #[inline(always)]
    #[must_use]
    pub const fn forwards(self) -> bool {
        self.forwards
    }

    /// Slots in the pool.
    #[inline(always)]
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Most blocks of one worker that may be under way: half the pool.
    #[must_use]
    pub const fn window(self) -> u32 {
        self.slots / 2
    }

    /// The slot of a block.
    #[inline(always)]
    #[must_use]
    pub const fn slot_of(self, block: u64) -> u32 {
        (block & (self.slots - 1) as u64) as u32
    }

    /// Whether the time that this block takes is measured: that of the last slot of every
    /// [`TIMED_EVERY`]. These are not the blocks of a broadcast to which all contribute
    /// ([`crate::copies::is_full`]): their members wait for one another by intent.
    #[inline(always)]
    #[must_use]
    pub const fn is_timed(self, block: u64) -> bool {
        (self.slot_of(block) + 1) & (self.slots - 1) & (TIMED_EVERY - 1) == 0
    }
}

/// Of this many blocks, the time of one is measured; of a smaller pool's, that of one a pool. Most
/// packets then read no clock.
pub const TIMED_EVERY: u32 = 16;

/// One member's packet for one block, or the parent's, admitted by [`crate::admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// The member, below [`crate::wire::MAX_WORKERS`]; ours at the parent.
    pub rank: u16,
    /// Membership of the job, not 0.
    pub epoch: u16,
    /// Digest of the call.
    pub tag: u16,
    /// Payload length in chunks of 64 bytes.
    pub chunks: u16,
    /// See [`crate::wire::flags`].
    pub flags: u8,
    /// What becomes of the lanes.
    pub reduction: Reduction,
    /// Nothing is contributed: the sender wants the result of a block that is another member's.
    pub asks: bool,
    /// Block number.
    pub block: u64,
}

/// What a slot remembers besides its lanes. Zeroed memory is a slot that was never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SlotState {
    /// Block that the slot holds, if `epoch` is the job's.
    pub block: u64,
    /// Bit `r`: the contribution of rank `r` is in the lanes.
    pub seen: u64,
    /// Epoch of that block; 0 in memory that was never used.
    pub epoch: u16,
    /// Tag of the first contribution; the others must have the same.
    pub tag: u16,
    /// Length of the first contribution in chunks; the others must have the same.
    pub chunks: u16,
    /// Union of the contributions' flags.
    pub flags: u8,
    /// The [`Reduction`] of the first contribution as a number; the others must have the same.
    pub reduction: u8,
    /// Bit `r`: rank `r` repeated its contribution since the sum last went up to the parent again,
    /// or was the reason for that. 0: it went up once.
    pub asked: u64,
    /// The rank that was the reason, if `asked` is not 0.
    pub asker: u8,
    /// 1: the lanes are the parent's result, and the members were sent it. At a root always 0.
    pub settled: u8,
    /// Zero.
    pub pad: [u8; 6],
    /// Of a block that is timed ([`Pool::is_timed`]): when its first contribution was taken in, in
    /// nanoseconds; once the last one is, how long that took. 0: it is not timed.
    pub timed: u64,
}

/// What the caller does with the packet and the slot's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Copy the packet's lanes into the slot. If `complete` (a job of one), send the packet to all,
    /// or up to the parent.
    Store {
        /// All members have contributed.
        complete: bool,
    },
    /// Add the packet's lanes to the slot's, or whatever else the contributions' [`Reduction`] is.
    /// If `complete`, send the sum to all members, or up to the parent.
    Add {
        /// All members have contributed.
        complete: bool,
    },
    /// A repetition or a question, and the sum is known: send it to this worker alone.
    Resend,
    /// A repetition or a question, and others are missing, or the result has been asked for
    /// already: tell this worker that its packet arrived.
    Pending,
    /// A repetition, and the sum is complete here, but not the parent's result: send it up again.
    Forward,
    /// Older than what the slot holds: all members have the result; nothing to do.
    Stale,
    /// Against the rules: nothing was changed.
    Reject(Reject),
}

impl SlotState {
    /// Takes in a contribution to a job whose members are the bits of `members`.
    #[inline(always)]
    pub fn contribute(&mut self, pool: Pool, members: u64, c: &Contribution) -> Verdict {
        if c.asks {
            return self.answer(pool, c);
        }
        let bit = 1_u64 << (c.rank & 63);
        if self.epoch == c.epoch {
            if c.block == self.block {
                return self.join(pool, members, bit, c);
            }
            if c.block < self.block {
                return Verdict::Stale;
            }
            // The next generation may take over only a finished one: then all members hold its
            // result (module text). Anything else is a worker that sent beyond its window.
            if !self.is_finished(pool, members) || c.block != self.block + pool.slots as u64 {
                return Verdict::Reject(Reject::Window);
            }
        } else if c.block >= pool.slots as u64 {
            // The first block of an epoch in this slot is the slot's own number.
            return Verdict::Reject(Reject::Window);
        }
        *self = Self {
            block: c.block,
            seen: bit,
            epoch: c.epoch,
            tag: c.tag,
            chunks: c.chunks,
            flags: c.flags,
            reduction: c.reduction as u8,
            asked: 0,
            asker: 0,
            settled: 0,
            pad: [0; 6],
            timed: 0,
        };
        Verdict::Store { complete: self.is_complete(members) }
    }

    /// A question for a block that its root alone contributes. It changes nothing.
    #[inline(always)]
    fn answer(&self, pool: Pool, c: &Contribution) -> Verdict {
        let slots = pool.slots as u64;
        let known = self.epoch == c.epoch;
        if known && c.block == self.block {
            return if self.is_like(c) {
                Verdict::Resend
            } else {
                Verdict::Reject(Reject::Mismatch)
            };
        }
        if known && c.block < self.block {
            return Verdict::Stale;
        }
        // The asker holds the results before the generation that the slot holds, or waits for.
        let next = if known { self.block + slots } else { c.block & (slots - 1) };
        if c.block == next { Verdict::Pending } else { Verdict::Reject(Reject::Window) }
    }

    /// Notes when a timed block began or how long it took, after the contribution that `verdict`
    /// is about. `now` is the time when that packet came, in nanoseconds; 0: it is not timed.
    #[inline(always)]
    fn time(&mut self, verdict: Verdict, now: u64) {
        if now == 0 {
            return;
        }
        match verdict {
            Verdict::Store { .. } => self.timed = now,
            // Another CPU may have read its clock later and been here before.
            Verdict::Add { complete: true } if self.timed != 0 => {
                self.timed = now.saturating_sub(self.timed).max(1);
            }
            _ => {}
        }
    }

    /// A contribution to the block that the slot holds.
    #[inline(always)]
    fn join(&mut self, pool: Pool, members: u64, bit: u64, c: &Contribution) -> Verdict {
        if !self.is_like(c) {
            return Verdict::Reject(Reject::Mismatch);
        }
        if self.seen & bit != 0 {
            return self.repeat(pool, members, bit, c.rank);
        }
        if self.is_copy() {
            // A block has one root.
            return Verdict::Reject(Reject::Mismatch);
        }
        self.seen |= bit;
        self.flags |= c.flags;
        Verdict::Add { complete: self.seen == members }
    }

    /// A repetition of a contribution that is in the lanes.
    #[inline(always)]
    fn repeat(&mut self, pool: Pool, members: u64, bit: u64, rank: u16) -> Verdict {
        if self.is_finished(pool, members) {
            return Verdict::Resend;
        }
        if self.seen != members {
            return Verdict::Pending;
        }
        // Many members miss the same result at the same time. The first one asks for all; that it
        // asks again tells that an answer is overdue.
        if self.asked != 0 && self.asked & bit == 0 {
            self.asked |= bit;
            return Verdict::Pending;
        }
        self.asked = bit;
        self.asker = rank as u8;
        Verdict::Forward
    }

    /// Takes in the parent's result. True: the slot waited for it; the packet's lanes are to be
    /// stored, and the packet goes to all members. False: nothing was changed.
    #[inline(always)]
    #[must_use]
    pub fn deliver(&mut self, pool: Pool, members: u64, result: &Contribution) -> bool {
        let waits = self.waits(pool, members, result.epoch, result.block);
        if !waits || !self.is_like(result) {
            return false;
        }
        self.flags = result.flags;
        self.settled = 1;
        true
    }

    /// The member that the parent's answer about a block is for, if the slot waits for the block's
    /// result and a member asked for it.
    #[inline(always)]
    #[must_use]
    pub fn waiting(&self, pool: Pool, members: u64, epoch: u16, block: u64) -> Option<u16> {
        let asked = self.asked != 0 && self.waits(pool, members, epoch, block);
        asked.then_some(self.asker.into())
    }

    /// Whether the block's sum is complete here and its result has not come down.
    #[inline(always)]
    fn waits(&self, pool: Pool, members: u64, epoch: u16, block: u64) -> bool {
        pool.forwards
            && self.epoch == epoch
            && self.block == block
            && self.seen == members
            && self.settled == 0
    }

    /// Whether the lanes are the block's result.
    #[inline(always)]
    fn is_finished(&self, pool: Pool, members: u64) -> bool {
        self.is_complete(members) && (!pool.forwards || self.settled != 0)
    }

    /// Whether every member has contributed whose contribution the result needs.
    #[inline(always)]
    fn is_complete(&self, members: u64) -> bool {
        self.seen == members || self.is_copy()
    }

    /// Whether the block's root alone contributes to it.
    #[inline(always)]
    const fn is_copy(&self) -> bool {
        self.reduction == Reduction::Copy as u8
    }

    /// Whether a packet is of the same call as the first contribution.
    #[inline(always)]
    fn is_like(&self, c: &Contribution) -> bool {
        let alike = c.tag == self.tag && c.chunks == self.chunks;
        alike && c.reduction as u8 == self.reduction
    }

    /// The members whose contribution to `block` is missing, if the slot can still tell. None for a
    /// block that is complete or past; all where the slot has not seen the block. (Of a block that
    /// is its root's alone, the asker knows the root.)
    #[must_use]
    pub const fn missing(&self, epoch: u16, members: u64, block: u64) -> u64 {
        if self.epoch == epoch && self.block == block {
            if self.is_copy() { 0 } else { members & !self.seen }
        } else if self.epoch == epoch && self.block > block {
            0
        } else {
            members
        }
    }
}

/// The payload of a packet, by chunks: memory of a frame in the kernel, of a buffer elsewhere.
pub trait Payload {
    /// The `index`-th chunk; none behind the end of the packet.
    fn chunk(&mut self, index: usize) -> Option<&mut Chunk>;
}

impl Payload for [Chunk] {
    #[inline(always)]
    fn chunk(&mut self, index: usize) -> Option<&mut Chunk> {
        self.get_mut(index)
    }
}

/// What the slot machine said, and the slot's state as of then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What became of the packet.
    pub verdict: Verdict,
    /// Bit `r`: rank `r` has contributed. 0 in the outcome of a question.
    pub seen: u64,
    /// Union of the flags.
    pub flags: u8,
    /// Tag of the first contribution.
    pub tag: u16,
    /// [`SlotState::timed`]: of a block that this packet has completed, how long that took.
    pub timed: u64,
}

impl Verdict {
    /// Whether the packet is one that a member has sent before. A question (`asks`) is none.
    #[inline(always)]
    #[must_use]
    pub const fn is_repetition(self, asks: bool) -> bool {
        match self {
            Self::Resend | Self::Pending => !asks,
            Self::Forward => true,
            Self::Store { .. } | Self::Add { .. } | Self::Stale | Self::Reject(_) => false,
        }
    }
}

/// The critical section of a slot: asks the slot machine and moves the lanes. The packet holds the
/// sum afterwards where the verdict says that the sum goes out. The caller holds the slot's lock
/// around the whole of it: state and lanes belong together. `now` is when the packet came, in
/// nanoseconds of a clock that does not go back; 0: its block is not timed ([`Pool::is_timed`]).
#[inline(always)]
pub fn take_in(
    (state, lanes): (&mut SlotState, &mut [Chunk]),
    pool: Pool,
    members: u64,
    (c, now): (&Contribution, u64),
    packet: &mut (impl Payload + ?Sized),
) -> Outcome {
    let verdict = state.contribute(pool, members, c);
    state.time(verdict, now);
    move_lanes(lanes, packet, verdict, c.reduction);
    // Nobody has contributed to a block that is asked for too early.
    let seen = if c.asks { 0 } else { state.seen };
    // Read behind the loop over the lanes, which the kernel program runs faster with nothing to
    // carry through it.
    Outcome { verdict, seen, flags: state.flags, tag: state.tag, timed: state.timed }
}

/// As [`take_in`], for the parent's result: see [`SlotState::deliver`]. The packet holds the result
/// before and after.
#[inline(always)]
#[must_use]
pub fn take_result(
    (state, lanes): (&mut SlotState, &mut [Chunk]),
    pool: Pool,
    members: u64,
    result: &Contribution,
    packet: &mut (impl Payload + ?Sized),
) -> bool {
    let taken = state.deliver(pool, members, result);
    if taken {
        for_each_chunk(lanes, packet, |s, p| lanes::store(s, p));
    }
    taken
}

/// The second half of [`take_in`], to be called under the same lock as the first. Between the two
/// a slot claims to hold what it does not hold yet.
#[inline(always)]
pub fn move_lanes(
    slot: &mut [Chunk],
    packet: &mut (impl Payload + ?Sized),
    verdict: Verdict,
    reduction: Reduction,
) {
    match verdict {
        Verdict::Store { .. } => for_each_chunk(slot, packet, |s, p| lanes::store(s, p)),
        Verdict::Add { complete } => combine(slot, packet, complete, reduction),
        Verdict::Resend | Verdict::Forward => {
            for_each_chunk(slot, packet, |s, p| lanes::store(p, s));
        }
        Verdict::Pending | Verdict::Stale | Verdict::Reject(_) => {}
    }
}

/// Combines the packet's lanes with the slot's. The packet holds them, too, if `complete`.
#[inline(always)]
fn combine(
    slot: &mut [Chunk],
    packet: &mut (impl Payload + ?Sized),
    complete: bool,
    reduction: Reduction,
) {
    let pick = match reduction {
        Reduction::Add if complete => {
            return for_each_chunk(slot, packet, lanes::add_and_return);
        }
        // A copy is stored or sent, and never combined.
        Reduction::Add | Reduction::Copy => {
            return for_each_chunk(slot, packet, |s, p| lanes::add(s, p));
        }
        // A number and no constant, so that a width has one loop for both: the verifier walks
        // through every loop, and its patience is limited.
        Reduction::Min16 | Reduction::Min32 | Reduction::Min64 => Pick::MIN,
        Reduction::Max16 | Reduction::Max32 | Reduction::Max64 => Pick::MAX,
    };
    match reduction {
        Reduction::Min16 | Reduction::Max16 => compare::<16>(slot, packet, complete, pick),
        Reduction::Min32 | Reduction::Max32 => compare::<32>(slot, packet, complete, pick),
        _ => compare::<64>(slot, packet, complete, pick),
    }
}

#[inline(always)]
fn compare<const BITS: u32>(
    slot: &mut [Chunk],
    packet: &mut (impl Payload + ?Sized),
    complete: bool,
    pick: Pick,
) {
    if complete {
        for_each_chunk(slot, packet, |s, p| lanes::pick_and_return::<BITS>(s, p, pick));
    } else {
        for_each_chunk(slot, packet, |s, p| lanes::pick::<BITS>(s, p, pick));
    }
}

#[inline(always)]
fn for_each_chunk(
    slot: &mut [Chunk],
    packet: &mut (impl Payload + ?Sized),
    work: impl Fn(&mut Chunk, &mut Chunk),
) {
    for (index, lanes) in slot.iter_mut().enumerate() {
        let Some(chunk) = packet.chunk(index) else { break };
        work(lanes, chunk);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree;
