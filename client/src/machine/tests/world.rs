//! Machines, a network that loses, doubles and reorders, and a small daemon, all in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_common::control::{
    AbortReason, Admitted, AggregatorLoss, Join, Plan, Policy, Progress, Reply, Request, WorkerLoss,
};
use xdp_agg_common::maps::ResultMode;
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind};

use crate::collective::Op;
use crate::machine::{Config, Control, Machine, Path, State};

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
    slots: Vec<(SlotState, Vec<u8>)>,
    /// To the aggregator (none) or a rank.
    packets: Vec<(Option<u16>, Vec<u8>)>,
    replies: Vec<(u16, Reply)>,
    connected: u64,
    joins: BTreeMap<u16, Join>,
    joining: u64,
    ready: u64,
    progress: BTreeMap<u16, Progress>,
    paused: BTreeMap<u16, u64>,
    pub(super) outcomes: BTreeMap<(u64, u16), Outcome>,
    pub(super) paths: BTreeMap<(u64, u16), Path>,
    /// The members sum over a ring.
    ring: bool,
    /// Rank, number and length of calls in flight.
    calls: Vec<(u16, u64)>,
}

/// Element `i` of a rank's input to a call.
pub(super) fn element(sequence: u64, rank: u16, i: usize) -> i32 {
    (sequence as i32 + 1) * (i as i32 + 1) * (i32::from(rank) + 1) - 999
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
            ring: false,
            calls: Vec::new(),
        };
        for rank in 0..size {
            world.machines.push(Some(world.machine(rank, size)));
        }
        world
    }

    fn machine(&self, rank: u16, size: u16) -> Machine {
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
        let data: Vec<i32> = (0..len).map(|i| element(sequence, rank, i)).collect();
        let started = self.at(rank).start(data.into(), Op::Sum).expect("it runs");
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
        self.at(rank).on_timeout(now);
        let mut moved = false;
        while let Some(control) = self.at(rank).poll_control(now) {
            moved = true;
            match control {
                Control::Connect if self.dead => {
                    self.at(rank).connect_failed("refused".into(), now);
                    moved = false;
                }
                Control::Connect => {
                    self.connected |= 1 << rank;
                    self.at(rank).connected(now);
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
                    machine.on_packet(&packet, now);
                }
            }
        }
    }

    fn collect(&mut self) {
        let mut calls = std::mem::take(&mut self.calls);
        calls.retain(|(rank, sequence)| {
            let Some(machine) = &mut self.machines[usize::from(*rank)] else { return false };
            let Some(ended) = machine.take(*sequence) else { return true };
            let call = ended.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
            self.paths.insert((*sequence, *rank), call.report().path);
            let contributors = call.contributors();
            let each = contributors.iter().flat_map(|held| (0..held.len).map(|_| held.members));
            let each = each.collect();
            let crate::machine::Elements::I32(sums) = call.into_elements() else {
                panic!("integers went in")
            };
            self.outcomes.insert((*sequence, *rank), (each, sums.into_owned()));
            false
        });
        self.calls.append(&mut calls);
    }

    /// Every delivered sum is that of one contribution of each named contributor, and all members
    /// got the same.
    pub(super) fn check(&self) {
        for ((sequence, rank), (contributors, sums)) in &self.outcomes {
            assert_eq!(contributors.len(), sums.len().div_ceil(BLOCK));
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
        let alive = self.alive();
        let progress: Vec<_> =
            alive.iter().map(|rank| (*rank, self.at(*rank).progress())).collect();
        for rank in &alive {
            let seat = self.at(*rank).ring_seat().expect("it wants a ring");
            assert_eq!(seat.members, alive);
            self.at(*rank).enter_ring(&progress).expect("it fits");
        }
        self.ring = true;
    }

    /// One batch, if all have one.
    fn sum_over_ring(&mut self) -> bool {
        let mut batches = Vec::new();
        let mut sums: Vec<i32> = Vec::new();
        for rank in self.alive() {
            let mut lanes = Vec::new();
            let Some(batch) = self.at(rank).ring_batch(&mut lanes) else { return false };
            sums.resize(lanes.len(), 0);
            sums.iter_mut().zip(&lanes).for_each(|(sum, lane)| *sum = sum.wrapping_add(*lane));
            batches.push((rank, batch));
        }
        for (rank, batch) in batches {
            self.at(rank).ring_result(batch, &sums);
        }
        true
    }
}

// The data path.
impl World {
    fn sum(&mut self, mut packet: Vec<u8>) {
        if self.dead && !self.pinned {
            return;
        }
        let (header, payload) = packet.split_first_chunk::<HEADER_LEN>().expect("whole");
        let header = Header::parse(header).expect("ours");
        if header.epoch != self.epoch || header.cookie != self.cookie() {
            return;
        }
        if header.kind == Kind::Probe {
            let reply = Header { kind: Kind::ProbeReply, ..header };
            reply.emit(packet.first_chunk_mut().expect("whole"));
            self.packets.push((Some(header.rank), packet));
            return;
        }
        if self.stage != Stage::Running {
            return;
        }
        let pool = Pool::new(SLOTS).expect("a power of two");
        let (state, lanes) = &mut self.slots[pool.slot_of(header.block) as usize];
        let chunks = (payload.len() / 64) as u16;
        let Header { rank, epoch, tag, flags, block, .. } = header;
        let contribution = Contribution { rank, epoch, tag, chunks, flags, block };
        let to = match state.contribute(pool, self.members, &contribution) {
            Verdict::Store { complete } => {
                *lanes = payload.to_vec();
                if complete { self.members } else { 0 }
            }
            Verdict::Add { complete } => {
                for (sum, lane) in lanes.as_chunks_mut().0.iter_mut().zip(payload.as_chunks().0) {
                    let total = u32::from_le_bytes(*sum).wrapping_add(u32::from_le_bytes(*lane));
                    *sum = total.to_le_bytes();
                }
                if complete { self.members } else { 0 }
            }
            Verdict::Resend => 1 << rank,
            Verdict::Pending => {
                let answer = Header { kind: Kind::Pending, ..header };
                answer.emit(packet.first_chunk_mut().expect("whole"));
                self.packets.push((Some(rank), packet));
                return;
            }
            Verdict::Stale => return,
            Verdict::Reject(reason) => panic!("{reason:?}: {header:?}"),
        };
        for rank in (0..64_u16).filter(|rank| to & (1 << rank) != 0) {
            let mut answer = vec![0; HEADER_LEN];
            let fields = Header { kind: Kind::Result, rank, flags: state.flags, ..header };
            fields.emit(answer.first_chunk_mut().expect("whole"));
            answer.extend_from_slice(lanes);
            self.packets.push((Some(rank), answer));
        }
    }

    fn cookie(&self) -> u64 {
        0xabcd_0000 + u64::from(self.epoch)
    }
}

// The daemon.
impl World {
    fn say(&mut self, to: u64, reply: &Reply) {
        for rank in (0..64_u16).filter(|rank| to & self.connected & (1 << rank) != 0) {
            self.replies.push((rank, reply.clone()));
        }
    }

    /// Delivers the first reply of a random rank.
    fn say_something(&mut self) -> bool {
        if self.replies.is_empty() {
            return false;
        }
        let rank = self.replies[self.rng.random_range(0..self.replies.len())].0;
        let first = self.replies.iter().position(|(to, _)| *to == rank).expect("there is one");
        let (_, reply) = self.replies.remove(first);
        let now = self.now;
        if let Some(machine) = &mut self.machines[usize::from(rank)] {
            machine.on_reply(reply, now);
        }
        true
    }

    fn on_request(&mut self, rank: u16, request: Request) {
        let bit = 1 << rank;
        if self.dead || self.connected & bit == 0 {
            return;
        }
        match request {
            Request::Join(join) => self.on_join(rank, join),
            Request::Ready if self.stage == Stage::Probing => {
                self.ready |= bit;
                if self.ready == self.members {
                    self.stage = Stage::Running;
                    let go = Reply::Go { mode: ResultMode::Ports, group: None };
                    self.say(self.members, &go);
                    self.pause();
                }
            }
            Request::Progress(progress) => {
                if self.stage != Stage::Reforming {
                    assert!(self.joining != 0, "a progress that nobody asked for");
                }
                self.progress.insert(rank, progress);
                self.reform();
            }
            Request::Paused { next_sequence } => {
                self.paused.insert(rank, next_sequence);
                if self.paused.len() == self.members.count_ones() as usize {
                    let sequence = *self.paused.values().max().expect("not empty");
                    self.say(self.members, &Reply::RunTo { sequence });
                }
            }
            Request::Abort { reason } => panic!("rank {rank} gave up: {reason}"),
            _ => {}
        }
    }

    fn on_join(&mut self, rank: u16, join: Join) {
        let bit = 1 << rank;
        let resume = join.resume.clone();
        self.joins.insert(rank, join);
        let Some(resume) = resume else {
            self.joining |= bit;
            match self.stage {
                Stage::Forming if self.joining.count_ones() as usize == self.machines.len() => {
                    self.members = self.joining;
                    self.joining = 0;
                    self.admit(None);
                }
                Stage::Running => self.pause(),
                _ => {}
            }
            return;
        };
        let same = resume.epoch == self.epoch && resume.cookie == self.cookie();
        if self.stage == Stage::Running && same {
            self.say(bit, &Reply::Resumed);
        } else if self.members & bit == 0 {
            self.say(bit, &Reply::Aborted(AbortReason::Expelled));
        } else {
            self.stage = Stage::Reforming;
            self.progress.insert(rank, resume.progress);
            self.reform();
        }
    }

    fn pause(&mut self) {
        if self.joining != 0 {
            self.paused.clear();
            self.progress.clear();
            self.say(self.members, &Reply::Pause { joining: vec![] });
        }
    }

    /// A new epoch, if all members have said what they have.
    fn reform(&mut self) {
        let all = (0..64_u16).filter(|rank| self.members & (1 << rank) != 0);
        let progress: Option<Vec<_>> =
            all.map(|rank| Some((rank, self.progress.get(&rank)?.clone()))).collect();
        let Some(progress) = progress else { return };
        let plan = Plan::new(&progress).expect("somebody can hand on each block");
        self.progress.clear();
        // Only where all have stopped at the same call may another rank begin with it.
        if self.stage == Stage::Running {
            assert!(plan.runs.is_empty());
            self.members |= std::mem::take(&mut self.joining);
        }
        self.paused.clear();
        self.admit(Some(plan));
    }

    fn admit(&mut self, plan: Option<Plan>) {
        self.epoch += 1;
        self.stage = Stage::Probing;
        self.ready = 0;
        // What an earlier epoch left in the slots must not matter.
        self.slots.resize(SLOTS as usize, (SlotState::default(), vec![]));
        let admitted = Admitted {
            job_id: 1,
            cookie: self.cookie(),
            epoch: self.epoch,
            members: self.members,
            chunks: CHUNKS,
            slots: SLOTS,
            data: "10.0.0.1:48864".parse().expect("an address"),
            plan,
            ring: vec![
                "10.0.0.1:1".parse().expect("an address");
                self.members.count_ones() as usize
            ],
        };
        self.say(self.members, &Reply::Admitted(admitted));
    }

    /// Rank `rank`'s process is gone.
    pub(super) fn kill(&mut self, rank: u16) {
        self.machines[usize::from(rank)] = None;
        self.calls.retain(|(of, _)| *of != rank);
        // What only the dead had seen is nobody's result.
        self.outcomes.retain(|(_, of), _| *of != rank);
        self.drop_connection(rank);
        if self.members & (1 << rank) == 0 || self.dead {
            return;
        }
        self.members &= !(1 << rank);
        self.progress.remove(&rank);
        if self.stage == Stage::Reforming {
            self.reform();
        } else {
            self.stage = Stage::Reforming;
            self.progress.clear();
            let reform = Reply::Reform { lost: vec![rank], reason: "killed".into() };
            self.say(self.members, &reform);
        }
    }

    /// A new process of this rank.
    pub(super) fn rejoin(&mut self, rank: u16) {
        let machine = self.machine(rank, self.machines.len() as u16);
        self.machines[usize::from(rank)] = Some(machine);
    }

    fn drop_connection(&mut self, rank: u16) {
        self.connected &= !(1 << rank);
        self.replies.retain(|(to, _)| *to != rank);
    }

    /// The control connection of a rank breaks.
    pub(super) fn cut(&mut self, rank: u16) {
        self.drop_connection(rank);
        let now = self.now;
        if let Some(machine) = &mut self.machines[usize::from(rank)] {
            machine.disconnected("cut".into(), now);
        }
    }

    /// The daemon's process is gone; with `pinned`, its data path goes on.
    pub(super) fn kill_daemon(&mut self, pinned: bool) {
        self.dead = true;
        self.pinned = pinned;
        self.progress.clear();
        self.joins.clear();
        (0..self.machines.len() as u16).for_each(|rank| self.cut(rank));
        if !pinned {
            self.slots.clear();
            self.stage = Stage::Reforming;
            // A new daemon draws its own numbers.
            self.epoch += 7;
        }
    }

    pub(super) fn start_daemon(&mut self) {
        self.dead = false;
    }
}
