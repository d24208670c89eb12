//! Several CPUs in one slot: every interleaving of what they do under its lock, by loom.
//!
//! What runs is [`take_in`], which the kernel program calls under `bpf_spin_lock`. The two variants
//! that the tests must catch show that the lock is needed, and that it must cover the whole.
#![expect(unsafe_code, reason = "a slot that is reached without its lock is what is looked for")]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use xdp_agg_common::lanes::{Chunk, Lane};
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict, move_lanes, take_in};
use xdp_agg_common::wire::Reduction;

const POOL: Pool = Pool::new(8).expect("a power of two");

/// How a CPU goes about it.
#[derive(Clone, Copy)]
enum Care {
    /// As the kernel program does.
    Locked,
    /// Without the lock.
    Unlocked,
    /// Asks the slot machine, lets go of the lock, takes it again and moves the lanes.
    Split,
}

struct Slot {
    lock: Mutex<()>,
    held: UnsafeCell<(SlotState, [Chunk; 1])>,
    members: u64,
    reduction: Reduction,
}

/// A packet, what the slot machine said about it, and what it holds then.
struct Seen {
    rank: u16,
    block: u64,
    verdict: Verdict,
    holds: u64,
}

/// What a packet of this rank adds to this block: no two sums of different packets are equal. Each
/// rank has a lane of 16 bits for itself, so the largest of each lane are the sum, too.
fn worth(rank: u16, block: u64) -> u64 {
    1 << (16 * rank + if block == 0 { 0 } else { 4 })
}

fn sum(members: u64, block: u64) -> u64 {
    (0..3).filter(|rank| members >> rank & 1 == 1).map(|rank| worth(rank, block)).sum()
}

impl Slot {
    fn new(members: u64, reduction: Reduction) -> Arc<Self> {
        let held = UnsafeCell::new(Default::default());
        Arc::new(Self { lock: Mutex::new(()), held, members, reduction })
    }

    /// A packet comes in on some CPU.
    fn receive(&self, rank: u16, block: u64, care: Care) -> Seen {
        let reduction = self.reduction;
        let c = Contribution {
            rank,
            epoch: 1,
            tag: 7,
            chunks: 1,
            flags: 0,
            reduction,
            asks: false,
            block,
        };
        let mut packet = [Chunk::default(); 1];
        packet[0][0] = Lane::new(worth(rank, block));
        let mut whole = |(state, lanes): &mut (SlotState, [Chunk; 1])| {
            take_in((state, lanes), POOL, self.members, (&c, 0), &mut packet[..]).verdict
        };
        let verdict = match care {
            Care::Locked => self.locked(whole),
            Care::Unlocked => self.with(&mut whole),
            Care::Split => {
                let verdict = self.locked(|(state, _)| state.contribute(POOL, self.members, &c));
                let reduction = self.reduction;
                self.locked(|(_, lanes)| move_lanes(lanes, &mut packet[..], verdict, reduction));
                verdict
            }
        };
        Seen { rank, block, verdict, holds: packet[0][0].bits() }
    }

    fn locked<T>(&self, work: impl FnOnce(&mut (SlotState, [Chunk; 1])) -> T) -> T {
        let _guard = self.lock.lock().expect("nobody panics under it");
        self.with(work)
    }

    fn with<T>(&self, work: impl FnOnce(&mut (SlotState, [Chunk; 1])) -> T) -> T {
        // SAFETY: loom runs one thread at a time, and panics where another one is in the cell, or
        // was in it and this one need not see what it left behind.
        self.held.with_mut(|held| unsafe { work(&mut *held) })
    }
}

/// Runs these packets, each on a CPU of its own, in every order. Whatever goes out is the whole sum
/// of its block, and what the slot holds in the end is the sum of the newest.
fn at_once(slot: &Arc<Slot>, packets: &'static [(u16, u64)], care: Care) -> Vec<Seen> {
    let cpu = |&(rank, block): &(u16, u64)| {
        let slot = Arc::clone(slot);
        thread::spawn(move || slot.receive(rank, block, care))
    };
    let threads: Vec<_> = packets.iter().map(cpu).collect();
    let all: Vec<Seen> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
    for Seen { rank, block, verdict, holds } in &all {
        match verdict {
            Verdict::Store { complete: true }
            | Verdict::Add { complete: true }
            | Verdict::Resend => {
                let expected = sum(slot.members, *block);
                assert_eq!(*holds, expected, "not the whole sum: rank {rank}, block {block}");
            }
            Verdict::Reject(reason) => panic!("an honest packet was refused: {reason:?}"),
            Verdict::Forward => panic!("a root has no parent"),
            _ => {}
        }
    }
    let newest = packets.iter().map(|(_, block)| *block).max().expect("some packets");
    let lanes = slot.locked(|(_, lanes)| lanes[0][0].bits());
    assert_eq!(lanes, sum(slot.members, newest), "the slot lost something");
    let completed =
        all.iter().filter(|seen| matches!(seen.verdict, Verdict::Add { complete: true }));
    assert_eq!(completed.count(), 1);
    all
}

/// All ranks' first contributions at once.
fn first_contributions(care: Care, reduction: Reduction) {
    loom::model(move || {
        let slot = Slot::new(0b111, reduction);
        let all = at_once(&slot, &[(0, 0), (1, 0), (2, 0)], care);
        let stored = all.iter().filter(|seen| matches!(seen.verdict, Verdict::Store { .. }));
        assert_eq!(stored.count(), 1);
    });
}

/// The contribution that completes a block, and repetitions of one that is in it already.
fn completion_and_repetitions(care: Care, reduction: Reduction) {
    loom::model(move || {
        let slot = Slot::new(0b11, reduction);
        slot.receive(0, 0, Care::Locked);
        at_once(&slot, &[(1, 0), (0, 0), (0, 0)], care);
    });
}

/// The block of the next generation takes the slot over while a late repetition of the block that
/// it holds comes in.
fn takeover_and_late_duplicate(care: Care, reduction: Reduction) {
    loom::model(move || {
        let slot = Slot::new(0b11, reduction);
        slot.receive(0, 0, Care::Locked);
        slot.receive(1, 0, Care::Locked);
        let all = at_once(&slot, &[(0, 8), (1, 0), (1, 8)], care);
        let late = all[1].verdict;
        assert!(matches!(late, Verdict::Resend | Verdict::Stale), "{late:?}");
    });
}

#[test]
fn first_contributions_sum_exactly() {
    for reduction in [Reduction::Add, Reduction::Max16] {
        first_contributions(Care::Locked, reduction);
    }
}

#[test]
fn a_repetition_gets_the_whole_sum_or_none() {
    for reduction in [Reduction::Add, Reduction::Max16] {
        completion_and_repetitions(Care::Locked, reduction);
    }
}

#[test]
fn a_late_duplicate_meets_its_own_generation_or_nothing() {
    for reduction in [Reduction::Add, Reduction::Max16] {
        takeover_and_late_duplicate(Care::Locked, reduction);
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_lock_first_contributions_race() {
    first_contributions(Care::Unlocked, Reduction::Add);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_lock_a_takeover_races() {
    takeover_and_late_duplicate(Care::Unlocked, Reduction::Add);
}

#[test]
#[should_panic(expected = "not the whole sum")]
fn with_a_lock_around_each_half_contributions_get_lost() {
    first_contributions(Care::Split, Reduction::Add);
}

#[test]
#[should_panic(expected = "not the whole sum")]
fn with_a_lock_around_each_half_a_repetition_gets_a_part() {
    completion_and_repetitions(Care::Split, Reduction::Add);
}

#[test]
#[should_panic(expected = "not the whole sum")]
fn with_a_lock_around_each_half_a_late_duplicate_gets_the_next_generation() {
    takeover_and_late_duplicate(Care::Split, Reduction::Add);
}
