//! Several CPUs in one slot of a forwarder: contributions and repetitions on some, the parent's
//! answers on others, in every interleaving, by loom.
#![expect(unsafe_code, reason = "what is checked is that a lock is around it")]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use xdp_agg_common::lanes::{self, Chunk, Lane};
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict, take_in, take_result};
use xdp_agg_common::wire::Reduction;

const POOL: Pool = Pool::new(8).expect("a power of two").forwarding(true);
/// Ranks 0 and 1.
const MEMBERS: u64 = 0b11;

/// What comes in on a CPU.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// Of a member, for a block.
    Member(u16, u64),
    /// The parent's result of a block.
    Result(u64),
    /// The same, by a CPU that lets go of the lock between the slot's state and its lanes.
    Split(u64),
    /// The parent's `PENDING`.
    Pending(u64),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// What the slot machine said, and what the packet holds then.
    Said(Verdict, u64),
    /// The result was taken in, or not.
    Taken(bool),
    /// To whom the answer is handed on.
    Told(Option<u16>),
}

#[derive(Default)]
struct Held {
    state: SlotState,
    lanes: [Chunk; 1],
}

struct Slot {
    lock: Mutex<()>,
    held: UnsafeCell<Held>,
}

/// What a rank adds to a block; 3 stands for all that is not below this forwarder.
fn worth(rank: u16, block: u64) -> u64 {
    1 << (16 * rank + if block == 0 { 0 } else { 4 })
}

/// The sum that goes up.
fn sum(block: u64) -> u64 {
    worth(0, block) + worth(1, block)
}

/// The result.
fn total(block: u64) -> u64 {
    sum(block) + worth(3, block)
}

fn of(rank: u16, block: u64) -> Contribution {
    let reduction = Reduction::Add;
    Contribution { rank, epoch: 1, tag: 7, chunks: 1, flags: 0, reduction, asks: false, block }
}

impl Slot {
    /// A slot that has seen these packets.
    fn after(packets: &[Packet]) -> Arc<Self> {
        let held = UnsafeCell::new(Held::default());
        let slot = Arc::new(Self { lock: Mutex::new(()), held });
        for packet in packets {
            slot.receive(*packet);
        }
        slot
    }

    fn receive(&self, packet: Packet) -> Fate {
        let mut bytes = [Chunk::default(); 1];
        let mut put = |value| {
            bytes[0][0] = Lane::new(value);
            bytes
        };
        match packet {
            Packet::Member(rank, block) => {
                let mut bytes = put(worth(rank, block));
                let outcome = self.locked(|Held { state, lanes }| {
                    take_in((state, lanes), POOL, MEMBERS, (&of(rank, block), 0), &mut bytes[..])
                });
                Fate::Said(outcome.verdict, bytes[0][0].bits())
            }
            Packet::Result(block) => {
                let mut bytes = put(total(block));
                Fate::Taken(self.locked(|Held { state, lanes }| {
                    take_result((state, lanes), POOL, MEMBERS, &of(0, block), &mut bytes[..])
                }))
            }
            Packet::Split(block) => {
                let bytes = put(total(block));
                let taken = self.locked(|held| held.state.deliver(POOL, MEMBERS, &of(0, block)));
                if taken {
                    self.locked(|held| lanes::store(&mut held.lanes[0], &bytes[0]));
                }
                Fate::Taken(taken)
            }
            Packet::Pending(block) => {
                Fate::Told(self.locked(|held| held.state.waiting(POOL, MEMBERS, 1, block)))
            }
        }
    }

    fn locked<T>(&self, work: impl FnOnce(&mut Held) -> T) -> T {
        let _guard = self.lock.lock().expect("nobody panics under it");
        // SAFETY: the lock is held; loom would panic if another thread were in the cell.
        self.held.with_mut(|held| unsafe { work(&mut *held) })
    }
}

/// These packets, each on a CPU of its own, in every order. What goes up is the whole sum, what
/// goes to a member that repeats is the result.
fn at_once(slot: &Arc<Slot>, packets: &[Packet]) -> Vec<Fate> {
    let cpu = |packet: &Packet| {
        let (slot, packet) = (Arc::clone(slot), *packet);
        thread::spawn(move || slot.receive(packet))
    };
    let threads: Vec<_> = packets.iter().map(cpu).collect();
    let all: Vec<Fate> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
    for (packet, fate) in packets.iter().zip(&all) {
        let (Packet::Member(_, block), Fate::Said(verdict, holds)) = (packet, fate) else {
            continue;
        };
        match verdict {
            Verdict::Add { complete: true } | Verdict::Forward => {
                assert_eq!(*holds, sum(*block), "not the whole sum goes up: {packet:?}");
            }
            Verdict::Resend => assert_eq!(*holds, total(*block), "not the result: {packet:?}"),
            Verdict::Reject(reason) => panic!("an honest packet was refused: {reason:?}"),
            _ => {}
        }
    }
    all
}

fn count(all: &[Fate], fits: impl Fn(Verdict) -> bool) -> usize {
    all.iter().filter(|fate| matches!(fate, Fate::Said(verdict, _) if fits(*verdict))).count()
}

const COMPLETE: [Packet; 2] = [Packet::Member(0, 0), Packet::Member(1, 0)];

#[test]
fn one_sum_goes_up() {
    loom::model(|| {
        let slot = Slot::after(&[]);
        let again = Packet::Member(0, 0);
        let all = at_once(&slot, &[again, Packet::Member(1, 0), again]);
        let complete = |verdict| matches!(verdict, Verdict::Add { complete: true });
        assert_eq!(count(&all, complete), 1);
        assert!(count(&all, |verdict| verdict == Verdict::Forward) <= 1);
        assert_eq!(slot.receive(Packet::Result(0)), Fate::Taken(true));
    });
}

/// The result comes twice, while a member repeats that has not got it.
#[test]
fn a_result_is_taken_once() {
    loom::model(|| {
        let slot = Slot::after(&COMPLETE);
        let all = at_once(&slot, &[Packet::Result(0), Packet::Result(0), Packet::Member(1, 0)]);
        let taken = all.iter().filter(|fate| **fate == Fate::Taken(true)).count();
        assert_eq!(taken, 1);
        let resend = Fate::Said(Verdict::Resend, total(0));
        assert_eq!(slot.receive(Packet::Member(0, 0)), resend);
    });
}

/// Both members miss the result: one of them asks for both, and the parent's word is for that one.
#[test]
fn one_asks_for_all_and_is_told() {
    loom::model(|| {
        let slot = Slot::after(&COMPLETE);
        let ask = [Packet::Member(0, 0), Packet::Member(1, 0)];
        let all = at_once(&slot, &[ask[0], ask[1], Packet::Pending(0)]);
        assert_eq!(count(&all, |verdict| verdict == Verdict::Forward), 1);
        let asker =
            (0..2).find(|rank| matches!(all[usize::from(*rank)], Fate::Said(Verdict::Forward, _)));
        assert!(matches!(all[2], Fate::Told(told) if told.is_none() || told == asker));
        assert_eq!(slot.receive(Packet::Pending(0)), Fate::Told(asker));
    });
}

/// The next generation comes as soon as the result is here, beside late copies of both.
#[test]
fn a_takeover_meets_late_copies() {
    loom::model(|| {
        let slot = Slot::after(&[COMPLETE[0], COMPLETE[1], Packet::Result(0)]);
        let all = at_once(&slot, &[Packet::Member(0, 8), Packet::Result(0), Packet::Member(1, 0)]);
        assert_eq!(all[1], Fate::Taken(false));
        let late = |verdict| matches!(verdict, Verdict::Resend | Verdict::Stale);
        assert_eq!(count(&all, late), 1, "{all:?}");
        let last = slot.receive(Packet::Member(1, 8));
        assert_eq!(last, Fate::Said(Verdict::Add { complete: true }, sum(8)));
    });
}

#[test]
#[should_panic(expected = "not the result")]
fn with_a_lock_around_each_half_a_repetition_gets_the_sum() {
    loom::model(|| {
        let slot = Slot::after(&COMPLETE);
        at_once(&slot, &[Packet::Split(0), Packet::Member(1, 0)]);
    });
}
