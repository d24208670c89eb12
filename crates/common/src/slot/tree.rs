//! Forwarders: one of them alone, and whole trees under a network that loses, repeats and reorders
//! in all directions.

use std::collections::BTreeSet;

use super::*;
use crate::lanes::Lane;
use crate::wire::flags;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

const POOL: Pool = Pool::new(8).expect("a power of two");
const BELOW: Pool = POOL.forwarding(true);
const BLOCKS: u64 = 40;

fn of(rank: u16, block: u64) -> Contribution {
    let reduction = Reduction::Add;
    Contribution {
        rank,
        epoch: 1,
        tag: block as u16,
        chunks: 1,
        flags: 0,
        reduction,
        asks: false,
        block,
    }
}

/// A forwarder's slot with members 0 and 1, whose contributions to block 3 are in.
fn complete() -> SlotState {
    let mut slot = SlotState::default();
    assert_eq!(slot.contribute(BELOW, 0b11, &of(0, 3)), Verdict::Store { complete: false });
    assert_eq!(slot.contribute(BELOW, 0b11, &of(1, 3)), Verdict::Add { complete: true });
    slot
}

#[test]
fn a_sum_is_no_result_before_the_parent_says_so() {
    let mut slot = complete();
    assert_eq!(slot.contribute(BELOW, 0b11, &of(1, 3)), Verdict::Forward);
    assert!(slot.deliver(BELOW, 0b11, &Contribution { flags: 1, ..of(0, 3) }));
    assert_eq!(slot.flags, 1, "the parent's flags are those of all");
    assert_eq!(slot.contribute(BELOW, 0b11, &of(0, 3)), Verdict::Resend);
    assert_eq!(slot.contribute(BELOW, 0b11, &of(1, 3)), Verdict::Resend);
}

/// A job of one member, worker or forwarder, is forwarded as any other.
#[test]
fn a_forwarder_of_one_waits_too() {
    let mut slot = SlotState::default();
    assert_eq!(slot.contribute(BELOW, 0b10, &of(1, 3)), Verdict::Store { complete: true });
    assert_eq!(slot.contribute(BELOW, 0b10, &of(1, 3)), Verdict::Forward);
    assert_eq!(slot.contribute(BELOW, 0b10, &of(1, 11)), Verdict::Reject(Reject::Window));
    assert!(slot.deliver(BELOW, 0b10, &of(1, 3)));
    assert_eq!(slot.contribute(BELOW, 0b10, &of(1, 11)), Verdict::Store { complete: true });
    assert_eq!((slot.settled, slot.asked, slot.asker), (0, 0, 0), "nothing of block 3 is left");
}

#[test]
fn what_was_not_settled_is_not_taken_over() {
    let mut slot = complete();
    let before = slot;
    assert_eq!(slot.contribute(BELOW, 0b11, &of(0, 11)), Verdict::Reject(Reject::Window));
    assert_eq!(slot, before);
}

/// Many miss one result: one repetition goes up, until one of them asks again.
#[test]
fn one_loss_is_asked_for_once() {
    let members = 0b1111;
    let mut slot = SlotState::default();
    for rank in 0..4 {
        assert_eq!(slot.waiting(BELOW, members, 1, 3), None, "it is not complete");
        slot.contribute(BELOW, members, &of(rank, 3));
    }
    assert_eq!(slot.waiting(BELOW, members, 1, 3), None, "nobody has asked");
    let mut ask = |rank| {
        let verdict = slot.contribute(BELOW, members, &of(rank, 3));
        (verdict, slot.waiting(BELOW, members, 1, 3))
    };
    assert_eq!(ask(2), (Verdict::Forward, Some(2)));
    assert_eq!(ask(0), (Verdict::Pending, Some(2)));
    assert_eq!(ask(3), (Verdict::Pending, Some(2)));
    assert_eq!(ask(0), (Verdict::Forward, Some(0)), "it asks again: the answer is overdue");
    assert_eq!(ask(2), (Verdict::Pending, Some(0)));
    assert_eq!(ask(3), (Verdict::Pending, Some(0)));
    assert_eq!(ask(3), (Verdict::Forward, Some(3)));
    assert_eq!(slot.waiting(BELOW, members, 2, 3), None, "another epoch");
    assert_eq!(slot.waiting(BELOW, members, 1, 11), None, "another block");
    assert_eq!(slot.waiting(POOL, members, 1, 3), None, "a root waits for nobody");
    assert!(slot.deliver(BELOW, members, &of(0, 3)));
    assert_eq!(slot.waiting(BELOW, members, 1, 3), None, "it is here");
}

#[test]
fn only_the_result_that_is_awaited_is_taken() {
    let mut whole = complete();
    let awaited = of(0, 3);
    let others = [
        Contribution { epoch: 2, ..awaited },
        Contribution { block: 11, ..awaited },
        Contribution { tag: 9, ..awaited },
        Contribution { chunks: 2, ..awaited },
        Contribution { reduction: Reduction::Max16, ..awaited },
    ];
    let before = whole;
    for other in others {
        assert!(!whole.deliver(BELOW, 0b11, &other), "{other:?}");
    }
    assert!(!whole.deliver(POOL, 0b11, &awaited), "a root has no parent");
    assert!(!whole.deliver(BELOW, 0b111, &awaited), "one contribution is missing");
    assert_eq!(whole, before);
    assert!(whole.deliver(BELOW, 0b11, &awaited));
    let before = whole;
    assert!(!whole.deliver(BELOW, 0b11, &awaited), "it is here already");
    assert_eq!(whole, before);
}

/// An aggregator of a tree.
struct Node {
    parent: Option<usize>,
    pool: Pool,
    /// Its rank at the parent: the lowest one below it.
    rank: u16,
    members: u64,
    /// Its members that are aggregators, by rank.
    children: Vec<(u16, usize)>,
    slots: Vec<(SlotState, [Chunk; 1])>,
    completed: BTreeSet<u64>,
    settled: BTreeSet<u64>,
}

#[derive(Clone, Copy)]
enum Packet {
    /// A contribution to a node.
    Up { node: usize, c: Contribution, lanes: [Chunk; 1] },
    /// A node's answer to a member.
    Down { node: usize, rank: u16, answer: Option<Contribution>, block: u64, lanes: [Chunk; 1] },
}

struct Tree {
    nodes: Vec<Node>,
    /// Of each rank, the node that it sends to.
    home: Vec<usize>,
    held: Vec<Vec<bool>>,
    sent: Vec<u64>,
    network: Vec<Packet>,
    delivered: usize,
}

type Outcome = Result<(), TestCaseError>;

fn value(rank: u16, block: u64) -> u64 {
    (block + 1) * 100_003_u64.pow(u32::from(rank) % 3) * (u64::from(rank) + 1)
}

fn flags_of(rank: u16, block: u64) -> u8 {
    if (u64::from(rank) + block).is_multiple_of(9) { flags::NON_FINITE } else { 0 }
}

fn lanes_of(word: u64) -> [Chunk; 1] {
    let mut lanes = [Chunk::default()];
    lanes[0][0] = Lane::new(word);
    lanes
}

impl Tree {
    /// A tree of `parents.len() + 1` nodes; the workers of `homes` come on top of one a node.
    fn new(parents: &[usize], homes: &[usize]) -> Self {
        let count = parents.len() + 1;
        let extra = homes.iter().map(|home| home % count);
        // Not in the order of the nodes: the lowest rank below a node may be anywhere below it.
        let home: Vec<usize> = extra.chain((0..count).rev()).collect();
        let mut nodes: Vec<Node> = (0..count)
            .map(|at| Node {
                parent: at.checked_sub(1).map(|before| parents[before] % at),
                pool: POOL.forwarding(at > 0),
                rank: u16::MAX,
                members: 0,
                children: Vec::new(),
                slots: vec![Default::default(); POOL.slots() as usize],
                completed: BTreeSet::new(),
                settled: BTreeSet::new(),
            })
            .collect();
        for (rank, node) in (0..).zip(&home) {
            nodes[*node].members |= 1 << rank;
        }
        for at in (0..count).rev() {
            let rank = nodes[at].members.trailing_zeros() as u16;
            nodes[at].rank = rank;
            if let Some(parent) = nodes[at].parent {
                nodes[parent].members |= 1 << rank;
                nodes[parent].children.push((rank, at));
            }
        }
        let held = vec![vec![false; BLOCKS as usize]; home.len()];
        let sent = vec![0; home.len()];
        Self { nodes, home, held, sent, network: Vec::new(), delivered: 0 }
    }

    /// A worker sends its next block, as far as the pool's rule lets it.
    fn send_next(&mut self, rank: usize) {
        let block = self.sent[rank];
        let window = u64::from(POOL.window());
        let before = (block + 1).saturating_sub(window) as usize;
        if block < BLOCKS && self.held[rank][..before].iter().all(|held| *held) {
            self.sent[rank] += 1;
            self.send(rank, block);
        }
    }

    fn send(&mut self, rank: usize, block: u64) {
        let (node, rank) = (self.home[rank], rank as u16);
        let c = Contribution { flags: flags_of(rank, block), ..of(rank, block) };
        self.network.push(Packet::Up { node, c, lanes: lanes_of(value(rank, block)) });
    }

    /// A worker repeats a block whose result it does not have.
    fn repeat(&mut self, rank: usize, pick: usize) {
        let open = (0..self.sent[rank]).filter(|block| !self.held[rank][*block as usize]);
        let open: Vec<u64> = open.collect();
        if let Some(block) = open.get(pick % open.len().max(1)) {
            self.send(rank, *block);
        }
    }

    fn deliver(&mut self, packet: Packet) -> Outcome {
        match packet {
            Packet::Up { node, c, lanes } => self.up(node, c, lanes),
            Packet::Down { node, rank, answer, block, lanes } => {
                let child = self.nodes[node].children.iter().find(|(other, _)| *other == rank);
                match child {
                    Some((_, child)) => self.down(*child, answer, block, lanes),
                    None => self.arrive(usize::from(rank), answer, lanes),
                }
            }
        }
    }

    /// A contribution comes in at a node.
    fn up(&mut self, at: usize, c: Contribution, mut lanes: [Chunk; 1]) -> Outcome {
        let node = &mut self.nodes[at];
        let (state, held) = &mut node.slots[node.pool.slot_of(c.block) as usize];
        let outcome = take_in((state, held), node.pool, node.members, (&c, 0), &mut lanes[..]);
        let sum = Contribution { flags: outcome.flags, ..c };
        let (rank, block) = (c.rank, c.block);
        match outcome.verdict {
            Verdict::Store { complete: false } | Verdict::Add { complete: false } => {}
            Verdict::Stale => {}
            Verdict::Store { complete: true } | Verdict::Add { complete: true } => {
                prop_assert!(node.completed.insert(block), "block {} is complete again", block);
                self.forward(at, sum, lanes);
            }
            Verdict::Forward => {
                prop_assert!(!node.settled.contains(&block));
                self.forward(at, sum, lanes);
            }
            Verdict::Resend => {
                let answer = Some(sum);
                self.network.push(Packet::Down { node: at, rank, answer, block, lanes });
            }
            Verdict::Pending => {
                self.network.push(Packet::Down { node: at, rank, answer: None, block, lanes });
            }
            Verdict::Reject(reason) => {
                return Err(TestCaseError::fail(format!("an honest packet was {reason:?}")));
            }
        }
        Ok(())
    }

    /// A sum leaves a node: up, or to all where there is no parent.
    fn forward(&mut self, at: usize, sum: Contribution, lanes: [Chunk; 1]) {
        let Node { parent, rank, .. } = self.nodes[at];
        match parent {
            None => self.broadcast(at, sum, lanes),
            Some(node) => {
                self.network.push(Packet::Up { node, c: Contribution { rank, ..sum }, lanes });
            }
        }
    }

    fn broadcast(&mut self, node: usize, result: Contribution, lanes: [Chunk; 1]) {
        let block = result.block;
        for rank in (0..64).filter(|rank| self.nodes[node].members >> rank & 1 == 1) {
            let answer = Some(result);
            self.network.push(Packet::Down { node, rank, answer, block, lanes });
        }
    }

    /// The parent's answer comes in at a node: a result, or that others are missing.
    fn down(
        &mut self,
        at: usize,
        answer: Option<Contribution>,
        block: u64,
        mut lanes: [Chunk; 1],
    ) -> Outcome {
        let node = &mut self.nodes[at];
        let (state, held) = &mut node.slots[node.pool.slot_of(block) as usize];
        let Some(result) = answer else {
            if let Some(rank) = state.waiting(node.pool, node.members, 1, block) {
                self.network.push(Packet::Down { node: at, rank, answer, block, lanes });
            }
            return Ok(());
        };
        if take_result((state, held), node.pool, node.members, &result, &mut lanes[..]) {
            prop_assert!(node.settled.insert(block), "block {} came down again", block);
            self.broadcast(at, result, lanes);
        } else {
            prop_assert!(node.settled.contains(&block), "the result of {} was lost", block);
        }
        Ok(())
    }

    /// An answer comes in at a worker.
    fn arrive(&mut self, rank: usize, answer: Option<Contribution>, lanes: [Chunk; 1]) -> Outcome {
        let Some(result) = answer else { return Ok(()) };
        let ranks = || (0..self.home.len() as u16).map(|rank| (rank, result.block));
        let sum = ranks().map(|(rank, block)| value(rank, block)).fold(0, u64::wrapping_add);
        let flags = ranks().fold(0, |flags, (rank, block)| flags | flags_of(rank, block));
        prop_assert_eq!(lanes[0][0].bits(), sum, "block {}", result.block);
        prop_assert_eq!(result.flags, flags, "block {}", result.block);
        self.held[rank][result.block as usize] = true;
        self.delivered += 1;
        Ok(())
    }

    /// What the choices say: sending, repeating, losing, delivering in any order, twice.
    fn run(&mut self, choices: &[(u8, u16)]) -> Outcome {
        for (action, pick) in choices {
            let pick = usize::from(*pick);
            let worker = pick % self.home.len();
            match action {
                0..=69 => self.send_next(worker),
                70..=89 => self.repeat(worker, pick / self.home.len()),
                _ if self.network.is_empty() => {}
                90..=219 => {
                    let packet = self.network.swap_remove(pick % self.network.len());
                    self.deliver(packet)?;
                }
                220..=237 => self.deliver(self.network[pick % self.network.len()])?,
                _ => _ = self.network.swap_remove(pick % self.network.len()),
            }
        }
        Ok(())
    }

    /// The network behaves from now on: everybody gets everything.
    fn settle(&mut self) -> Outcome {
        for _ in 0..8 * BLOCKS {
            for rank in 0..self.home.len() {
                self.send_next(rank);
                self.repeat(rank, 0);
            }
            while !self.network.is_empty() {
                let packet = self.network.remove(0);
                self.deliver(packet)?;
            }
        }
        for (rank, held) in self.held.iter().enumerate() {
            let missing = held.iter().position(|held| !held);
            prop_assert_eq!(missing, None, "rank {} never gets a result", rank);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_tree_delivers_exact_sums_once(
        parents in prop::collection::vec(0_usize..8, 0..5),
        homes in prop::collection::vec(0_usize..8, 0..5),
        choices in prop::collection::vec(any::<(u8, u16)>(), 3000),
    ) {
        let mut tree = Tree::new(&parents, &homes);
        tree.run(&choices)?;
        tree.settle()?;
    }
}

/// A property over runs in which nothing happens would hold for any machine: in these runs results
/// come down through chains and forks while packets are lost.
#[test]
fn the_trees_of_the_property_deliver_under_loss() {
    for parents in [&[0, 1, 2][..], &[0, 0, 1], &[0; 4]] {
        let mut tree = Tree::new(parents, &[3, 1]);
        let choices: Vec<_> = (0..40_000_u32)
            .map(|i| i.wrapping_mul(2_654_435_761))
            .map(|x| ((x >> 24) as u8, (x >> 8) as u16))
            .collect();
        tree.run(&choices).expect("no packet is refused and no sum is wrong");
        assert!(tree.delivered > 100, "{}", tree.delivered);
        tree.settle().expect("it ends");
    }
}
