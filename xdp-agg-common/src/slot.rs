//! The slot machine: what a contribution does to the slot it falls into.
//!
//! A job owns a pool of `P` slots (a power of two). Block `b` lives in slot `b mod P`. A worker may
//! send block `b` only when it holds the results of all blocks up to `b - P/2` ([`Pool::window`]).
//! From that follows what makes the pool safe to reuse without any message about reuse: when a
//! worker sends `b`, all workers have contributed to `b - P/2`, so all of them hold the result of
//! `b - P`, the one that `b` overwrites (two generations of slots, as in SwitchML; but named by the
//! full block number, so a late packet is never mistaken for a current one).
//!
//! [`take_in`] is all that happens under a slot's lock: [`SlotState::contribute`] decides and
//! changes the slot's state, [`move_lanes`] does with the lanes what the [`Verdict`] says. The
//! kernel program, the user-space engine and the model of several CPUs (`tests/cpus.rs`) all call
//! it.

use crate::lanes::{self, Chunk, Pick};
use crate::maps::Reject;
use crate::wire::Reduction;

/// The slots of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    slots: u32,
}

impl Pool {
    /// A pool of `slots` slots: a power of two, at least 2. `None` for any other number.
    #[must_use]
    pub const fn new(slots: u32) -> Option<Self> {
        if slots >= 2 && slots.is_power_of_two() { Some(Self { slots }) } else { None }
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
}

/// One worker's packet for one block, admitted by [`crate::admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// The worker, below [`crate::wire::MAX_WORKERS`].
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
}

/// What the caller does with the packet and the slot's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Copy the packet's lanes into the slot. If `complete` (a job of one), send the packet to all.
    Store {
        /// All members have contributed.
        complete: bool,
    },
    /// Add the packet's lanes to the slot's, or whatever else the contributions' [`Reduction`] is.
    /// If `complete`, send the sum to all members.
    Add {
        /// All members have contributed.
        complete: bool,
    },
    /// A repetition, and the sum is known: send it to this worker alone.
    Resend,
    /// A repetition, and others are missing: tell this worker that its packet arrived.
    Pending,
    /// Older than what the slot holds: all members have the result; nothing to do.
    Stale,
    /// Against the rules: nothing was changed.
    Reject(Reject),
}

impl SlotState {
    /// Takes in a contribution to a job whose members are the bits of `members`.
    #[inline(always)]
    pub fn contribute(&mut self, pool: Pool, members: u64, c: &Contribution) -> Verdict {
        let bit = 1_u64 << (c.rank & 63);
        if self.epoch == c.epoch {
            if c.block == self.block {
                return self.join(members, bit, c);
            }
            if c.block < self.block {
                return Verdict::Stale;
            }
            // The next generation may take over only a finished one: then all members hold its
            // result (module text). Anything else is a worker that sent beyond its window.
            if self.seen != members || c.block != self.block + pool.slots as u64 {
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
        };
        Verdict::Store { complete: bit == members }
    }

    /// A contribution to the block that the slot holds.
    #[inline(always)]
    fn join(&mut self, members: u64, bit: u64, c: &Contribution) -> Verdict {
        let alike = c.tag == self.tag && c.chunks == self.chunks;
        if !alike || c.reduction as u8 != self.reduction {
            return Verdict::Reject(Reject::Mismatch);
        }
        if self.seen & bit != 0 {
            return if self.seen == members { Verdict::Resend } else { Verdict::Pending };
        }
        self.seen |= bit;
        self.flags |= c.flags;
        Verdict::Add { complete: self.seen == members }
    }

    /// The members whose contribution to `block` is missing, if the slot can still tell: none for a
    /// block that is complete or past, all where the slot has not seen the block.
    #[must_use]
    pub const fn missing(&self, epoch: u16, members: u64, block: u64) -> u64 {
        if self.epoch == epoch && self.block == block {
            members & !self.seen
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
    /// Bit `r`: rank `r` has contributed.
    pub seen: u64,
    /// Union of the flags.
    pub flags: u8,
    /// Tag of the first contribution.
    pub tag: u16,
}

/// The critical section of a slot: asks the slot machine and moves the lanes. The packet holds the
/// sum afterwards where the verdict says that the sum goes out. The caller holds the slot's lock
/// around the whole of it: state and lanes belong together.
#[inline(always)]
pub fn take_in(
    (state, lanes): (&mut SlotState, &mut [Chunk]),
    pool: Pool,
    members: u64,
    c: &Contribution,
    packet: &mut (impl Payload + ?Sized),
) -> Outcome {
    let verdict = state.contribute(pool, members, c);
    let outcome = Outcome { verdict, seen: state.seen, flags: state.flags, tag: state.tag };
    move_lanes(lanes, packet, verdict, c.reduction);
    outcome
}

/// The second half of [`take_in`], which is to be called under the same lock as the first: between
/// the two a slot says that it holds what it does not hold yet.
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
        Verdict::Resend => for_each_chunk(slot, packet, |s, p| lanes::store(p, s)),
        Verdict::Pending | Verdict::Stale | Verdict::Reject(_) => {}
    }
}

/// Combines the packet's lanes with the slot's. The packet holds them, too, if `complete`; where
/// lanes are compared it does in any case, so that there is one loop a width.
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
        Reduction::Add => return for_each_chunk(slot, packet, |s, p| lanes::add(s, p)),
        Reduction::Min16 | Reduction::Min32 | Reduction::Min64 => Pick::MIN,
        Reduction::Max16 | Reduction::Max32 | Reduction::Max64 => Pick::MAX,
    };
    match reduction {
        Reduction::Min16 | Reduction::Max16 => {
            for_each_chunk(slot, packet, |s, p| lanes::extreme_and_return::<16>(s, p, pick));
        }
        Reduction::Min32 | Reduction::Max32 => {
            for_each_chunk(slot, packet, |s, p| lanes::extreme_and_return::<32>(s, p, pick));
        }
        _ => for_each_chunk(slot, packet, |s, p| lanes::extreme_and_return::<64>(s, p, pick)),
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POOL: Pool = match Pool::new(8) {
        Some(pool) => pool,
        None => panic!("8 is a power of two"),
    };

    fn from(rank: u16, block: u64) -> Contribution {
        let reduction = Reduction::Add;
        Contribution { rank, epoch: 1, tag: 7, chunks: 22, flags: 0, reduction, block }
    }

    #[test]
    fn a_block_is_stored_added_and_complete() {
        let mut slot = SlotState::default();
        let members = 0b111;
        assert_eq!(slot.contribute(POOL, members, &from(2, 3)), Verdict::Store { complete: false });
        assert_eq!(slot.contribute(POOL, members, &from(0, 3)), Verdict::Add { complete: false });
        assert_eq!(slot.contribute(POOL, members, &from(2, 3)), Verdict::Pending);
        assert_eq!(slot.missing(1, members, 3), 0b010);
        assert_eq!(slot.contribute(POOL, members, &from(1, 3)), Verdict::Add { complete: true });
        assert_eq!(slot.contribute(POOL, members, &from(0, 3)), Verdict::Resend);
        assert_eq!(slot.missing(1, members, 3), 0);
    }

    #[test]
    fn a_job_of_one_completes_at_once() {
        let mut slot = SlotState::default();
        assert_eq!(slot.contribute(POOL, 1, &from(0, 0)), Verdict::Store { complete: true });
        assert_eq!(slot.contribute(POOL, 1, &from(0, 0)), Verdict::Resend);
        assert_eq!(slot.contribute(POOL, 1, &from(0, 8)), Verdict::Store { complete: true });
        assert_eq!(slot.contribute(POOL, 1, &from(0, 0)), Verdict::Stale);
    }

    /// SwitchML's defect (a late duplicate of an older phase clears live state) must not come back.
    #[test]
    fn a_late_duplicate_changes_nothing() {
        let mut slot = SlotState::default();
        for block in [1, 9] {
            for rank in 0..2 {
                slot.contribute(POOL, 0b11, &from(rank, block));
            }
        }
        slot.contribute(POOL, 0b11, &from(0, 17));
        let before = slot;
        for late in [1, 9] {
            assert_eq!(slot.contribute(POOL, 0b11, &from(1, late)), Verdict::Stale);
        }
        assert_eq!(slot, before);
    }

    #[test]
    fn an_unfinished_block_is_not_taken_over() {
        let mut slot = SlotState::default();
        slot.contribute(POOL, 0b11, &from(0, 1));
        let before = slot;
        assert_eq!(slot.contribute(POOL, 0b11, &from(0, 9)), Verdict::Reject(Reject::Window));
        assert_eq!(slot, before);
        slot.contribute(POOL, 0b11, &from(1, 1));
        let before = slot;
        assert_eq!(slot.contribute(POOL, 0b11, &from(0, 17)), Verdict::Reject(Reject::Window));
        assert_eq!(slot, before);
    }

    #[test]
    fn an_epoch_starts_with_its_first_generation_only() {
        let mut slot = SlotState::default();
        assert_eq!(slot.contribute(POOL, 0b11, &from(0, 9)), Verdict::Reject(Reject::Window));
        slot.contribute(POOL, 0b11, &from(0, 1));
        // A new epoch takes the slot over whatever the old one left unfinished in it.
        let next = Contribution { epoch: 2, ..from(1, 1) };
        assert_eq!(slot.contribute(POOL, 0b11, &next), Verdict::Store { complete: false });
        assert_eq!(slot.seen, 0b10);
    }

    #[test]
    fn another_size_call_or_reduction_is_a_mismatch() {
        let mut slot = SlotState::default();
        slot.contribute(POOL, 0b11, &from(0, 1));
        let before = slot;
        for other in [
            Contribution { tag: 8, ..from(1, 1) },
            Contribution { chunks: 21, ..from(1, 1) },
            Contribution { reduction: Reduction::Max16, ..from(1, 1) },
        ] {
            assert_eq!(slot.contribute(POOL, 0b11, &other), Verdict::Reject(Reject::Mismatch));
            assert_eq!(slot, before);
        }
    }

    /// Every reduction through the critical section: the packet that completes a block and the
    /// answer to a repetition hold what the lanes of all packets give.
    #[test]
    fn every_reduction_is_that_of_its_lanes() {
        let words = [0x0001_8000_ffff_7fff, 0x8000_0001_7fff_ffff, 0x7fff_ffff_0000_8001_u64];
        let of = |bits: u32, least: bool| {
            let mask = u64::MAX >> (64 - bits);
            (0..64 / bits).fold(0, |word, lane| {
                let lanes = words.map(|word| word >> (lane * bits) & mask);
                let one = if least { lanes.iter().min() } else { lanes.iter().max() };
                word | one.expect("three words") << (lane * bits)
            })
        };
        let sum = words.into_iter().fold(0, u64::wrapping_add);
        let expected = [
            sum,
            of(16, true),
            of(32, true),
            of(64, true),
            of(16, false),
            of(32, false),
            of(64, false),
        ];
        for (reduction, expected) in Reduction::ALL.into_iter().zip(expected) {
            let (mut state, mut lanes) = (SlotState::default(), [Chunk::default(); 2]);
            let mut receive = |rank: u16| {
                let c = Contribution { reduction, chunks: 1, ..from(rank, 1) };
                let mut packet = [[lanes::Lane::new(words[usize::from(rank)]); 8]];
                let held = (&mut state, &mut lanes[..]);
                let outcome = take_in(held, POOL, 0b111, &c, &mut packet[..]);
                (outcome.verdict, packet[0][7].bits())
            };
            receive(2);
            receive(0);
            let name = reduction.name();
            assert_eq!(receive(1), (Verdict::Add { complete: true }, expected), "{name}");
            assert_eq!(receive(0), (Verdict::Resend, expected), "{name}");
            assert_eq!(lanes[1], Chunk::default(), "{name}: what is behind the packet stays");
        }
    }

    /// Invariants 1 and 2 on a model network that loses, duplicates, delays and reorders without
    /// limit: workers obey only the window rule, and every block that is delivered is the sum of
    /// exactly one contribution of every member.
    fn run_network(workers: u16, blocks: u64, choices: &[(u8, u16)]) -> Result<u64, TestCaseError> {
        let members = u64::MAX >> (64 - workers);
        let value = |rank: u16, block: u64| (block + 1) * 1000 + u64::from(rank);
        let sum = |block| (0..workers).map(|rank| value(rank, block)).sum::<u64>();
        let mut slots = [(SlotState::default(), 0_u64); 8];
        let mut held = vec![vec![false; blocks as usize]; usize::from(workers)];
        let mut network: Vec<Contribution> = Vec::new();
        let mut delivered = 0;
        for &(action, pick) in choices {
            let rank = pick % workers;
            let mine = &held[usize::from(rank)];
            let base = mine.iter().position(|got| !got).unwrap_or(mine.len()) as u64;
            if action < 120 {
                // Send or repeat any block that the window allows.
                let block = base + u64::from(pick / workers) % u64::from(POOL.window());
                if block < blocks && !mine[block as usize] {
                    network.push(from(rank, block));
                }
                continue;
            }
            if network.is_empty() {
                continue;
            }
            let at = usize::from(pick) % network.len();
            let packet = match action {
                120..=200 => network.swap_remove(at), // delivered, in any order
                201..=240 => network[at],             // delivered, and a copy stays under way
                _ => {
                    network.swap_remove(at); // lost
                    continue;
                }
            };
            let (state, lanes) = &mut slots[POOL.slot_of(packet.block) as usize];
            let worth = value(packet.rank, packet.block);
            let to = match state.contribute(POOL, members, &packet) {
                Verdict::Store { complete } => {
                    *lanes = worth;
                    if complete { members } else { 0 }
                }
                Verdict::Add { complete } => {
                    *lanes += worth;
                    if complete { members } else { 0 }
                }
                Verdict::Resend => 1 << packet.rank,
                Verdict::Pending | Verdict::Stale => 0,
                Verdict::Reject(reason) => {
                    return Err(TestCaseError::fail(format!("an honest packet was {reason:?}")));
                }
            };
            for rank in (0..workers).filter(|rank| to >> rank & 1 == 1) {
                // A result may be lost too: the low bits of `pick` decide.
                if pick >> (rank % 8) & 1 == 1 {
                    prop_assert_eq!(*lanes, sum(packet.block), "block {}", packet.block);
                    held[usize::from(rank)][packet.block as usize] = true;
                    delivered += 1;
                }
            }
        }
        Ok(delivered)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_delivered_sum_is_exact(
            workers in 1_u16..=5,
            choices in prop::collection::vec(any::<(u8, u16)>(), 4000),
        ) {
            run_network(workers, 64, &choices)?;
        }
    }

    #[test]
    fn the_model_network_delivers() {
        // A property over runs that deliver nothing would hold for any machine.
        let choices: Vec<_> = (0..40_000_u32)
            .map(|i| i.wrapping_mul(2_654_435_761))
            .map(|x| ((x >> 24) as u8, (x >> 8) as u16))
            .collect();
        let delivered = run_network(3, 64, &choices).expect("no packet is refused");
        assert!(delivered > 100, "{delivered}");
    }
}
