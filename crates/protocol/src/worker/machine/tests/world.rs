//! Machines, a network that loses, doubles and reorders, and a small daemon, all in memory.

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_common::control::{AggregatorLoss, Join, Policy, Progress, Reply, WorkerLoss};
use xdp_agg_common::slot::SlotState;

use xdp_agg_common::wire::Reduction;
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};

use crate::worker::{Blocks, Buffer, Config, Control, Lanes, Local, Machine, Path, State};

pub(super) const SLOTS: u32 = 16;
pub(super) const CHUNKS: u16 = 2;
/// Elements of a block.
pub(super) const BLOCK: usize = CHUNKS as usize * 16;
/// Longest life of a world, in its own time: beyond it is a hang.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Forming,
    Probing,
    Running,
    Reforming,
}

/// What a finished call gave: contributors by block, and the sums.
pub(super) type Outcome = (Vec<u64>, Vec<i32>);

pub(super) struct World {
    pub(super) rng: SmallRng,
    pub(super) now: Duration,
    pub(super) machines: Vec<Option<Machine>>,
    /// Share of packets that are lost, and doubled.
    pub(super) loss: f64,
    pub(super) stage: Stage,
    pub(super) epoch: u16,
    pub(super) members: u64,
    pub(super) policy: Policy,
    /// The daemon answers nothing and sums nothing.
    pub(super) dead: bool,
    /// It sums although the daemon is dead, and takes members back into their epoch.
    pub(super) pinned: bool,
    pub(super) slots: Vec<(SlotState, Vec<u8>)>,
    /// To the aggregator (none) or a rank.
    pub(super) packets: Vec<(Option<u16>, Vec<u8>)>,
    pub(super) replies: Vec<(u16, Reply)>,
    pub(super) connected: u64,
    pub(super) joins: BTreeMap<u16, Join>,
    pub(super) joining: u64,
    pub(super) ready: u64,
    pub(super) progress: BTreeMap<u16, Progress>,
    pub(super) paused: BTreeMap<u16, u64>,
    pub(super) outcomes: BTreeMap<(u64, u16), Outcome>,
    pub(super) paths: BTreeMap<(u64, u16), Path>,
    /// Bit `r`: rank `r` does not reach the daemon.
    pub(super) apart: u64,
    /// The members sum over a ring.
    ring: bool,
    /// Rings that were left for the daemon.
    pub(super) returns: u32,
    /// Rank, number and length of calls in flight.
    pub(super) calls: Vec<(u16, u64)>,
}

/// Element `i` of a rank's input to a call.
pub(super) fn element(sequence: u64, rank: u16, i: usize) -> i32 {
    (sequence as i32 + 1) * (i as i32 + 1) * (i32::from(rank) + 1) - 999
}

/// A call's integers, to be summed by a world of this size.
pub(super) fn integers(data: Vec<i32>, world: u16) -> Box<dyn Blocks> {
    let format = Format::new(ElementType::I32, Op::Sum, Scaling::Block, None, world);
    Box::new(Local::new(Buffer::owned(data), format.expect("it makes sense")))
}

impl World {
    pub(super) fn new(seed: u64, size: u16, policy: Policy) -> Self {
        let now = Duration::from_secs(1);
        let mut world = Self {
            rng: SmallRng::seed_from_u64(seed),
            now,
            machines: Vec::new(),
            loss: 0.0,
            stage: Stage::Forming,
            epoch: 0,
            members: 0,
            policy,
            dead: false,
            pinned: false,
            slots: Vec::new(),
            packets: Vec::new(),
            replies: Vec::new(),
            connected: 0,
            joins: BTreeMap::new(),
            joining: 0,
            ready: 0,
            progress: BTreeMap::new(),
            paused: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            paths: BTreeMap::new(),
            apart: 0,
            ring: false,
            returns: 0,
            calls: Vec::new(),
        };
        for rank in 0..size {
            world.machines.push(Some(world.machine(rank, size)));
        }
        world
    }

    pub(super) fn machine(&self, rank: u16, size: u16) -> Machine {
        let config =
            Config { policy: self.policy, max_chunks: CHUNKS, ..Config::new("world", rank, size) };
        Machine::new(config, self.now)
    }

    pub(super) fn shrink() -> Policy {
        Policy { worker_loss: WorkerLoss::Shrink, aggregator_loss: AggregatorLoss::Resume }
    }

    pub(super) fn at(&mut self, rank: u16) -> &mut Machine {
        self.machines[usize::from(rank)].as_mut().expect("it lives")
    }

    pub(super) fn alive(&self) -> Vec<u16> {
        let ranks = 0..self.machines.len();
        ranks.filter(|r| self.machines[*r].is_some()).map(|r| r as u16).collect()
    }

    /// A rank starts its next call, of `len` elements.
    pub(super) fn call(&mut self, rank: u16, len: usize) -> u64 {
        let sequence = self.at(rank).next_sequence();
        let size = self.machines.len() as u16;
        let data: Vec<i32> = (0..len).map(|i| element(sequence, rank, i)).collect();
        let started = self.at(rank).start(integers(data, size)).expect("it runs");
        assert_eq!(started, sequence);
        self.calls.push((rank, sequence));
        sequence
    }

    pub(super) fn call_all(&mut self, len: usize) -> u64 {
        self.alive().into_iter().map(|rank| self.call(rank, len)).max().expect("somebody lives")
    }

    /// Runs until this is so.
    pub(super) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = self.now + LIMIT;
        while !done(self) {
            assert!(self.now < end, "a hang: {:?}, {:?}", self.states(), self.machines);
            self.turn();
        }
    }

    pub(super) fn states(&self) -> Vec<Option<State>> {
        self.machines.iter().map(|machine| machine.as_ref().map(Machine::state)).collect()
    }

    pub(super) fn all(&self, state: State) -> bool {
        self.machines.iter().flatten().all(|machine| machine.state() == state)
    }

    /// Runs until all calls have ended well, and checks them.
    pub(super) fn finish(&mut self) {
        self.run_until(|world| world.calls.is_empty());
        self.check();
    }

    /// The same, and then until all are members that run.
    pub(super) fn finish_and_run(&mut self) {
        self.finish();
        self.run_until(|world| world.all(State::Running));
    }

    /// The daemon dies, and the members meet on a ring.
    pub(super) fn go_over_to_a_ring(&mut self, pinned: bool) {
        self.kill_daemon(pinned);
        self.run_until(|world| world.all(State::OnRing));
        self.build_ring();
    }

    /// Some turns, fewer than this.
    pub(super) fn run_up_to(&mut self, most: u32) {
        let turns = self.rng.random_range(0..most);
        self.run_turns(turns);
    }

    pub(super) fn run_turns(&mut self, turns: u32) {
        for _ in 0..turns {
            self.turn();
        }
    }

    /// A little of everything.
    fn turn(&mut self) {
        let mut moved = false;
        for rank in self.alive() {
            moved |= self.serve(rank);
        }
        moved |= self.say_something();
        moved |= self.ring && self.sum_over_ring();
        for _ in 0..self.packets.len().min(8) {
            self.carry_a_packet();
            moved = true;
        }
        self.collect();
        if !moved {
            let next = self.machines.iter().flatten().filter_map(Machine::poll_timeout).min();
            let nap = self.now + Duration::from_millis(50);
            self.now = next.unwrap_or(nap).clamp(self.now + Duration::from_micros(1), nap);
        } else {
            self.now += Duration::from_micros(20);
        }
    }

    fn serve(&mut self, rank: u16) -> bool {
        let now = self.now;
        self.at(rank).handle_timeout(now);
        let mut moved = false;
        while let Some(control) = self.at(rank).poll_control(now) {
            moved = true;
            match control {
                Control::Connect if self.dead || self.apart & 1 << rank != 0 => {
                    self.at(rank).handle_connect_failed("refused".into(), now);
                    moved = false;
                }
                Control::Connect => {
                    self.connected |= 1 << rank;
                    self.at(rank).handle_connected(now);
                }
                Control::Disconnect => self.drop_connection(rank),
                Control::Send(request) => self.on_request(rank, request),
            }
        }
        let mut out = [0; 2048];
        while let Some(len) = self.at(rank).poll_transmit(now, &mut out) {
            moved = true;
            self.packets.push((None, out[..len].to_vec()));
        }
        moved
    }

    fn carry_a_packet(&mut self) {
        let index = self.rng.random_range(0..self.packets.len());
        let lost = self.rng.random_bool(self.loss);
        let doubled = self.rng.random_bool(self.loss);
        let (to, packet) =
            if doubled { self.packets[index].clone() } else { self.packets.swap_remove(index) };
        if lost {
            return;
        }
        let now = self.now;
        match to {
            None => self.sum(packet),
            Some(rank) => {
                if let Some(machine) = &mut self.machines[usize::from(rank)] {
                    machine.handle_packet(&packet, now);
                }
            }
        }
    }

    fn collect(&mut self) {
        let mut calls = std::mem::take(&mut self.calls);
        calls.retain(|(rank, sequence)| {
            let Some(machine) = &mut self.machines[usize::from(*rank)] else { return false };
            let Some(ended) = machine.poll_call(*sequence) else { return true };
            let call = ended.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
            self.paths.insert((*sequence, *rank), call.report().path);
            let contributors = call.contributors();
            let each = contributors.iter().flat_map(|held| (0..held.len).map(|_| held.members));
            let each = each.collect();
            let blocks: Box<dyn Any> = call.into_blocks();
            let local = blocks.downcast::<Local<i32>>();
            let sums = local.expect("integers went in").into_buffer().into_owned();
            self.outcomes.insert((*sequence, *rank), (each, sums));
            false
        });
        self.calls.append(&mut calls);
    }

    /// Every delivered sum is that of one contribution of each named contributor, and all members
    /// got the same.
    pub(super) fn check(&self) {
        for ((sequence, rank), (contributors, sums)) in &self.outcomes {
            let data = sums.len().div_ceil(BLOCK);
            // The seal of a short call has a block of its own where the last one is full.
            let alone = (1..4).contains(&data) && sums.len().div_ceil(16) == 2 * data;
            assert_eq!(contributors.len(), data + usize::from(alone));
            for (i, sum) in sums.iter().enumerate() {
                let members = contributors[i / BLOCK];
                let ranks = (0..64_u16).filter(|rank| members & (1 << rank) != 0);
                let exact: i32 = ranks.map(|rank| element(*sequence, rank, i)).sum();
                assert_eq!(*sum, exact, "call {sequence}, rank {rank}, element {i}");
            }
            let of_call = self.outcomes.range((*sequence, 0)..=(*sequence, u16::MAX));
            for (_, other) in of_call {
                assert_eq!(other.0, *contributors, "call {sequence}: not the same contributors");
            }
        }
    }
}

// The ring.
impl World {
    /// All that live meet.
    pub(super) fn build_ring(&mut self) {
        let (alive, now) = (self.alive(), self.now);
        let progress: Vec<_> =
            alive.iter().map(|rank| (*rank, self.at(*rank).progress())).collect();
        for rank in &alive {
            let seat = self.at(*rank).ring_seat(0).expect("it wants a ring");
            assert_eq!(seat.members, alive);
            self.at(*rank).handle_ring_formed(&progress, now).expect("it fits");
        }
        self.ring = true;
    }

    /// One batch, if all have one.
    fn sum_over_ring(&mut self) -> bool {
        let mut batches = Vec::new();
        let mut sums = Lanes::default();
        for rank in self.alive() {
            let mut lanes = Lanes::default();
            let Some(batch) = self.at(rank).poll_ring_batch(&mut lanes) else { return false };
            assert_eq!(batch.reduction, Reduction::Add, "integers are summed");
            sums.words.resize(lanes.words.len(), 0);
            sums.marks.resize(lanes.marks.len(), 0);
            let words = sums.words.iter_mut().zip(&lanes.words);
            words.for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            let marks = sums.marks.iter_mut().zip(&lanes.marks);
            marks.for_each(|(sum, mark)| *sum = sum.wrapping_add(*mark));
            batches.push((rank, batch));
        }
        if self.rng.random_bool(self.loss / 5.0) {
            // Its word is said: that it lost its connection since must not matter.
            let (rank, _) = batches[self.rng.random_range(0..batches.len())];
            self.cut(rank);
        }
        let now = self.now;
        for (rank, batch) in &batches {
            self.at(*rank).handle_ring_result(*batch, &sums, now);
        }
        self.ring = self.all(State::OnRing);
        if !self.ring {
            assert!(batches.iter().all(|(rank, _)| self.at(*rank).state() == State::Reconnecting));
            let mut left = batches.iter().map(|(rank, _)| self.at(*rank).progress().base);
            let first = left.next();
            assert!(left.all(|base| Some(base) == first), "they have different results");
            self.returns += 1;
        }
        true
    }

    /// Makes calls until the members have left their ring.
    pub(super) fn call_until_back(&mut self, len: usize) {
        for _ in 0..1000 {
            self.call_all(len);
            self.run_until(|world| world.calls.is_empty() || !world.ring);
            if !self.ring {
                return;
            }
            self.now += Duration::from_millis(50);
        }
        panic!("nobody leaves the ring: {:?}", self.states());
    }
}
