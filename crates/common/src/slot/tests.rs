//! The slot machine alone, and under a network that loses, repeats and reorders.

use super::*;
use proptest::prelude::*;

const POOL: Pool = Pool::new(8).expect("a power of two");

fn from(rank: u16, block: u64) -> Contribution {
    let reduction = Reduction::Add;
    Contribution { rank, epoch: 1, tag: 7, chunks: 22, flags: 0, reduction, asks: false, block }
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

/// A copy of rank 2's block, and what another rank asks about it.
fn copy(block: u64) -> Contribution {
    Contribution { reduction: Reduction::Copy, ..from(2, block) }
}

fn ask(rank: u16, block: u64) -> Contribution {
    Contribution { rank, asks: true, ..copy(block) }
}

#[test]
fn a_copy_is_complete_with_its_root_and_answers_who_asks() {
    let mut slot = SlotState::default();
    let members = 0b111;
    assert_eq!(slot.contribute(POOL, members, &ask(0, 3)), Verdict::Pending, "asked too early");
    assert_eq!(slot, SlotState::default(), "a question changes nothing");
    assert_eq!(slot.missing(1, members, 3), members);
    assert_eq!(slot.contribute(POOL, members, &copy(3)), Verdict::Store { complete: true });
    assert_eq!((slot.seen, slot.missing(1, members, 3)), (0b100, 0));
    let before = slot;
    for c in [ask(0, 3), ask(1, 3), copy(3)] {
        assert_eq!(slot.contribute(POOL, members, &c), Verdict::Resend);
    }
    assert_eq!(slot.contribute(POOL, members, &ask(0, 11)), Verdict::Pending);
    assert_eq!(slot.contribute(POOL, members, &ask(0, 19)), Verdict::Reject(Reject::Window));
    assert_eq!(slot, before);
    assert_eq!(slot.contribute(POOL, members, &copy(11)), Verdict::Store { complete: true });
    assert_eq!(slot.contribute(POOL, members, &ask(0, 3)), Verdict::Stale);
    let sum = Contribution { rank: 0, ..from(0, 19) };
    assert_eq!(slot.contribute(POOL, members, &sum), Verdict::Store { complete: false });
    assert_eq!(slot.missing(1, members, 19), 0b110);
}

#[test]
fn a_copy_of_another_root_or_call_is_a_mismatch() {
    let mut slot = SlotState::default();
    slot.contribute(POOL, 0b111, &copy(3));
    let before = slot;
    for other in [
        Contribution { rank: 1, ..copy(3) },
        Contribution { tag: 8, ..copy(3) },
        Contribution { tag: 8, ..ask(1, 3) },
        Contribution { chunks: 21, ..ask(1, 3) },
        from(1, 3),
    ] {
        assert_eq!(slot.contribute(POOL, 0b111, &other), Verdict::Reject(Reject::Mismatch));
        assert_eq!(slot, before);
    }
    slot.contribute(POOL, 0b111, &from(0, 4));
    assert_eq!(slot.contribute(POOL, 0b111, &ask(1, 4)), Verdict::Reject(Reject::Window));
    let mut sum = SlotState::default();
    sum.contribute(POOL, 0b111, &from(0, 4));
    assert_eq!(sum.contribute(POOL, 0b111, &ask(1, 4)), Verdict::Reject(Reject::Mismatch));
}

/// The packet that goes out and the answer to a question hold the root's lanes; an answer that
/// nobody has yet names no contributor.
#[test]
fn a_copy_is_its_roots_lanes() {
    let (mut state, mut lanes) = (SlotState::default(), [Chunk::default(); 2]);
    let mut receive = |c: Contribution, word| {
        let mut packet = [[lanes::Lane::new(word); 8]];
        let c = Contribution { chunks: 1, ..c };
        let held = (&mut state, &mut lanes[..]);
        let outcome = take_in(held, POOL, 0b111, (&c, 0), &mut packet[..]);
        (outcome.verdict, outcome.seen, packet[0][7].bits())
    };
    assert_eq!(receive(copy(1), 77), (Verdict::Store { complete: true }, 0b100, 77));
    assert_eq!(receive(ask(0, 1), 0), (Verdict::Resend, 0, 77));
    assert_eq!(receive(ask(0, 9), 0), (Verdict::Pending, 0, 0));
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
            let outcome = take_in(held, POOL, 0b111, (&c, 0), &mut packet[..]);
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
/// limit. Workers obey only the window rule, and every block that is delivered is the sum of
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
            Verdict::Forward => return Err(TestCaseError::fail("a root has no parent")),
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

/// What a block's outcomes say of its time, for contributions at these times of a job of three.
#[test]
fn a_block_is_timed_from_its_first_contribution_to_its_last() {
    let said = |times: [u64; 3]| {
        let (mut state, mut lanes) = (SlotState::default(), [Chunk::default()]);
        let mut receive = |rank, now| {
            let mut packet = [Chunk::default()];
            let c = Contribution { chunks: 1, ..from(rank, 3) };
            let held = (&mut state, &mut lanes[..]);
            take_in(held, POOL, 0b111, (&c, now), &mut packet[..])
        };
        for (rank, now) in (0..).zip(times) {
            let outcome = receive(rank, now);
            let complete = matches!(outcome.verdict, Verdict::Add { complete: true });
            assert_eq!(complete, rank == 2);
            if complete {
                // A repetition finds the same, at whatever time.
                assert_eq!(receive(0, now + 77).timed, outcome.timed);
                return outcome.timed;
            }
        }
        unreachable!("the last one completes it")
    };
    assert_eq!(said([100, 150, 400]), 300);
    assert_eq!(said([100, 99, 90]), 1, "another CPU's clock was read later");
    assert_eq!(said([0, 0, 0]), 0, "not timed");
}

/// The blocks of a broadcast to which all contribute are never timed.
#[test]
fn one_block_in_sixteen_is_timed_and_one_of_a_smaller_pool() {
    for slots in [2, 4, 8, 16, 32, 4096] {
        let pool = Pool::new(slots).expect("a power of two");
        let every = u64::from(slots.min(TIMED_EVERY));
        let timed: Vec<u64> = (0..10_000).filter(|block| pool.is_timed(*block)).collect();
        let expected: Vec<u64> = (0..10_000).filter(|block| (block + 1) % every == 0).collect();
        assert_eq!(timed, expected, "{slots} slots");
        assert!(timed.iter().all(|block| !crate::copies::is_full(*block)));
    }
}
