//! Broadcasts: several flows around the slot machine, on a network that loses and reorders.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use xdp_agg_common::copies;
use xdp_agg_common::slot::{Contribution, Outcome, Pool, SlotState, Verdict, take_in};
use xdp_agg_common::wire::Reduction;

use super::{CONFIG, MS, US, send_all};
use crate::worker::EpochBlock;
use crate::worker::flow::{CallRole, Config, Counters, Flow, Role};
use std::time::Duration;

const POOL: Pool = match Pool::new(64) {
    Some(pool) => pool,
    None => panic!("64 is a power of two"),
};

fn config() -> Config {
    let limit = copies::limit(POOL).expect("it is large enough");
    Config { limit, window_max: limit, ..CONFIG }
}

/// A call: its root, if it has one, and its blocks.
#[derive(Clone, Copy, Debug)]
struct Call {
    root: Option<usize>,
    blocks: u64,
}

enum Packet {
    Up(Contribution, u64),
    /// To a rank: a result, or that others are waited for.
    Down(usize, u64, Option<u64>),
}

struct World {
    rng: SmallRng,
    loss: f64,
    now: Duration,
    serial: u64,
    flows: Vec<Flow>,
    /// Most microseconds that a packet takes.
    slow: u64,
    /// When each rank comes to its next call, and which that is.
    next: Vec<(Duration, usize)>,
    calls: Vec<Call>,
    slots: Vec<(SlotState, [xdp_agg_common::lanes::Chunk; 1])>,
    queue: BTreeMap<(Duration, u64), Packet>,
    solo: u64,
}

impl World {
    fn new(ranks: usize, calls: Vec<Call>, loss: f64, seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            loss,
            now: MS,
            serial: 0,
            flows: (0..ranks).map(|_| Flow::new(config())).collect(),
            slow: if loss > 0.0 { 400 } else { 20 },
            next: vec![(MS, 0); ranks],
            calls,
            slots: vec![Default::default(); POOL.slots() as usize],
            queue: BTreeMap::new(),
            solo: 0,
        }
    }

    /// What a rank puts into a block: the root alone has something to say, where there is one.
    fn value(&self, rank: usize, block: u64) -> u64 {
        let mut end = 0;
        let call = self.calls.iter().find(|call| {
            end += call.blocks;
            block < end
        });
        let says = call.expect("its block").root.is_none_or(|root| root == rank);
        if says { block * 100 + rank as u64 + 1 } else { 0 }
    }

    fn result(&self, block: u64) -> u64 {
        (0..self.flows.len()).map(|rank| self.value(rank, block)).max().expect("there are ranks")
    }

    fn put(&mut self, packet: impl Fn() -> Packet) {
        let times = u32::from(!self.rng.random_bool(self.loss))
            + u32::from(self.rng.random_bool(self.loss / 2.0));
        for _ in 0..times {
            self.serial += 1;
            let at = self.now + US * self.rng.random_range(10..self.slow) as u32;
            self.queue.insert((at, self.serial), packet());
        }
    }

    fn begin_calls(&mut self) {
        for (rank, (at, call)) in self.next.iter_mut().enumerate() {
            while *at <= self.now && *call < self.calls.len() {
                let Call { root, blocks } = self.calls[*call];
                self.flows[rank].extend(
                    blocks,
                    match root {
                        None => CallRole::All,
                        Some(root) if root == rank => CallRole::Root,
                        Some(_) => CallRole::Listener,
                    },
                );
                *call += 1;
                // Now and then a rank is late.
                let pause = if self.rng.random_bool(0.2) { 20_000 } else { 300 };
                *at += US * self.rng.random_range(0..pause);
            }
        }
    }

    fn transmit(&mut self) {
        for rank in 0..self.flows.len() {
            self.flows[rank].handle_timeout(self.now);
            for block in send_all(&mut self.flows[rank], self.now) {
                let role = self.flows[rank].role(EpochBlock(block));
                self.solo += u64::from(role == Role::Solo);
                let reduction = match role {
                    Role::Sum | Role::Full => Reduction::Max64,
                    Role::Solo | Role::Listen => Reduction::Copy,
                };
                let asks = role == Role::Listen;
                let value = if asks { 0 } else { self.value(rank, block) };
                let (rank, chunks) = (rank as u16, 1);
                let c = Contribution {
                    rank,
                    epoch: 1,
                    tag: 1,
                    chunks,
                    flags: 0,
                    reduction,
                    asks,
                    block,
                };
                self.put(|| Packet::Up(c, value));
            }
        }
    }

    /// The slot machine, and what becomes of its slots: nobody may need what is overwritten.
    fn sum(&mut self, c: Contribution, value: u64) {
        let members = u64::MAX >> (64 - self.flows.len());
        let (state, lanes) = &mut self.slots[POOL.slot_of(c.block) as usize];
        let before = *state;
        let mut packet = [[xdp_agg_common::lanes::Lane::new(value); 8]];
        let Outcome { verdict, .. } =
            take_in((state, lanes), POOL, members, (&c, 0), &mut packet[..]);
        let taken_over = before.epoch == 1 && state.block != before.block;
        for flow in self.flows.iter().filter(|_| taken_over) {
            assert!(
                flow.is_done(EpochBlock(before.block)),
                "block {} is overwritten too early",
                before.block
            );
        }
        let (to, result) = match verdict {
            Verdict::Store { complete } | Verdict::Add { complete } => {
                (if complete { members } else { 0 }, Some(packet[0][0].bits()))
            }
            Verdict::Resend => (1 << c.rank, Some(packet[0][0].bits())),
            Verdict::Pending => (1 << c.rank, None),
            Verdict::Stale => (0, None),
            Verdict::Forward | Verdict::Reject(_) => panic!("{verdict:?} for {c:?}, {before:?}"),
        };
        for rank in (0..self.flows.len()).filter(|rank| to >> rank & 1 == 1) {
            self.put(|| Packet::Down(rank, c.block, result));
        }
    }

    fn run(mut self) -> (Self, Vec<Counters>) {
        for _ in 0..2_000_000_u32 {
            self.begin_calls();
            self.transmit();
            let begun = self.next.iter().all(|(_, call)| *call == self.calls.len());
            if begun && self.flows.iter().all(Flow::is_idle) {
                let counters = self.flows.iter().map(|flow| *flow.counters()).collect();
                return (self, counters);
            }
            let arrival = self.queue.first_key_value().map(|((at, _), _)| *at);
            let timers = self.flows.iter().filter_map(Flow::poll_timeout);
            let calls = self.next.iter().filter(|(_, call)| *call < self.calls.len());
            let next = arrival.into_iter().chain(timers).chain(calls.map(|(at, _)| *at)).min();
            self.now = next.expect("something will happen").max(self.now);
            while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= self.now) {
                match self.queue.pop_first().expect("there is a first").1 {
                    Packet::Up(c, value) => self.sum(c, value),
                    Packet::Down(rank, block, None) => {
                        self.flows[rank].handle_pending(EpochBlock(block), self.now)
                    }
                    Packet::Down(rank, block, Some(sum)) => {
                        let expected = self.result(block);
                        if self.flows[rank].handle_result(EpochBlock(block), self.now) {
                            assert_eq!(sum, expected, "block {block} at rank {rank}");
                        }
                    }
                }
            }
        }
        panic!("no end: {:?}", self.flows)
    }
}

fn broadcast(root: usize, blocks: u64) -> Call {
    Call { root: Some(root), blocks }
}

#[test]
fn a_broadcast_is_the_roots_packets_and_few_others() {
    let (world, counters) = World::new(4, vec![broadcast(1, 1600)], 0.0, 1).run();
    assert!(world.solo >= 1500, "{}", world.solo);
    assert_eq!(counters[1].sent, 1600);
    for rank in [0, 2, 3] {
        assert_eq!(counters[rank].sent, 100, "every sixteenth block");
        // Nothing was lost; a few packets overtook others by far.
        assert!(counters[rank].questions < 20, "{}", counters[rank].questions);
    }
}

#[test]
fn a_listener_asks_for_what_a_gap_shows_to_be_missing() {
    let mut flow = Flow::new(config());
    flow.extend(16, CallRole::Listener);
    assert_eq!(send_all(&mut flow, US), [0], "the full block");
    for block in [0, 1, 3, 4] {
        assert!(flow.handle_result(EpochBlock(block), US * 50));
    }
    assert_eq!(send_all(&mut flow, US * 300), [0_u64; 0]);
    assert!(flow.handle_result(EpochBlock(5), US * 300));
    assert_eq!(send_all(&mut flow, US * 300), [0_u64; 0], "overtaken just now");
    assert!(flow.handle_result(EpochBlock(6), US * 450));
    assert_eq!(send_all(&mut flow, US * 450), [2]);
    assert_eq!(flow.counters().questions, 1);
    assert!(flow.handle_result(EpochBlock(2), US * 500));
    assert_eq!(flow.base().0, 7);
}

#[test]
fn a_listener_acknowledges_what_it_holds_and_no_more() {
    let mut flow = Flow::new(config());
    flow.extend(40, CallRole::Listener);
    assert_eq!(send_all(&mut flow, US), [0, 16]);
    let window = flow.window();
    for block in (0..16).filter(|block| *block != 7) {
        flow.handle_result(EpochBlock(block), US * 50);
    }
    // As long as block 7 is missing, the full block after next is not sent; nothing comes that
    // would show a gap, so the timer asks.
    assert_eq!(send_all(&mut flow, US * 50), [0_u64; 0]);
    flow.handle_timeout(US * 1100);
    assert_eq!(send_all(&mut flow, US * 1100), [7]);
    assert_eq!(flow.window(), window, "nothing of ours was lost");
    flow.handle_result(EpochBlock(7), US * 1200);
    // What is as old is asked for, too, but for the oldest, which may be on its way. What is held
    // is acknowledged.
    assert_eq!(send_all(&mut flow, US * 1200), [17, 18, 32]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is lost, doubled, reordered or late: all get what they are to get, nothing that
    /// somebody lacks is overwritten, and it ends.
    #[test]
    fn broadcasts_and_sums_end_well(
        seed in any::<u64>(),
        ranks in 2..5_usize,
        loss in prop_oneof![Just(0.0), 0.0..0.3],
        calls in prop::collection::vec((prop::option::of(0..5_usize), 1..200_u64), 1..6),
    ) {
        let calls = calls.into_iter().map(|(root, blocks)| {
            Call { root: root.map(|root| root % ranks), blocks }
        });
        World::new(ranks, calls.collect(), loss, seed).run();
    }
}
