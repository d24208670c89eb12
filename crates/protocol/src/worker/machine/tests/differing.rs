//! Calls that differ: an error at every rank, and no sum at any.
//!
//! Some ranks make calls, and one of them makes one of these otherwise. The data path is the one
//! of the user-space engine, and a daemon hands on what a rank has found out.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_common::admission::Source;
use xdp_agg_common::control::{AbortReason, Admitted, Reply, Request};
use xdp_agg_common::maps::{JobConf, ResultMode};
use xdp_agg_common::wire::{HEADER_LEN, Header};
use xdp_agg_quantize::{ElementType, Format, LaneWidth, Op, Scaling};

use super::by_hand::NOW;
use crate::engine::JobSetup;
use crate::sum::{Answer, Sums};
use crate::worker::{Blocks, Buffer, Config, Control, Error, Local, Machine, Purpose, State};

const CHUNKS: u16 = 2;
const SLOTS: u32 = 16;
const JOB: &str = "differing";

/// A call's arguments.
#[derive(Clone, Debug, PartialEq)]
struct Made {
    len: usize,
    float: bool,
    op: Op,
    scaling: Scaling,
    lanes: LaneWidth,
    name: Option<String>,
}

impl Made {
    /// What all workers make alike.
    fn random(rng: &mut SmallRng) -> Self {
        let ops = [Op::Sum, Op::Average, Op::Min, Op::Max];
        let float = rng.random_bool(0.7);
        let op = ops[rng.random_range(0..4)];
        Self {
            len: rng.random_range(1..200),
            float,
            op: if float || op != Op::Average { op } else { Op::Sum },
            scaling: if rng.random() { Scaling::Block } else { Scaling::Fixed(1e6) },
            lanes: LaneWidth::W32,
            name: rng.random_bool(0.3).then(|| format!("layer{}", rng.random_range(0..1000))),
        }
    }

    /// The same but for one argument.
    fn otherwise(&self, argument: u32) -> Self {
        let mut other = self.clone();
        match argument {
            0 => other.len += 1,
            1 => {
                other.float ^= true;
                other.op = if other.op == Op::Average { Op::Sum } else { other.op };
            }
            2 => other.op = if other.op == Op::Max { Op::Min } else { Op::Max },
            // As numbers travel in sums of floats.
            3 | 4 => {
                (other.float, other.op) = (true, Op::Sum);
                other.scaling = if argument == 3 { Scaling::Fixed(1e5) } else { other.scaling };
                other.lanes = if argument == 4 { LaneWidth::W16 } else { other.lanes };
            }
            _ => other.name = Some("another".into()),
        }
        other
    }

    fn blocks(&self, rank: u16, world: u16) -> Box<dyn Blocks> {
        let adds = matches!(self.op, Op::Sum | Op::Average);
        let lanes = (self.float && adds).then_some(self.lanes);
        let purpose = self.name.as_ref().map_or_else(Purpose::default, |name| {
            Purpose::of(&Arc::from(format!("{} {name:?}", self.op.name())))
        });
        let format = |element| {
            Format::new(element, self.op, self.scaling, lanes, world).expect("it makes sense")
        };
        let value = i32::from(rank) + 1;
        if self.float {
            let data = Buffer::owned(vec![value as f32; self.len]);
            Box::new(Local::new(data, format(ElementType::F32)).with_purpose(&purpose))
        } else {
            let data = Buffer::owned(vec![value; self.len]);
            Box::new(Local::new(data, format(ElementType::I32)).with_purpose(&purpose))
        }
    }
}

/// Workers, a data path and a daemon.
struct Job {
    machines: Vec<Machine>,
    sums: Sums,
    now: Duration,
}

impl Job {
    fn new(size: u16) -> Self {
        let conf = JobConf {
            members: (1 << size) - 1,
            cookie: 77,
            slots: SLOTS,
            epoch: 1,
            workers: size,
            max_chunks: CHUNKS,
            ..JobConf::default()
        };
        let mut sums = Sums::new(SLOTS, CHUNKS);
        let members = (0..size).map(|rank| (rank, address(rank))).collect();
        sums.prepare(&JobSetup::new(0, conf, members)).expect("it fits");
        let machine = |rank| {
            let config = Config { max_chunks: CHUNKS, ..Config::new(JOB, rank, size) };
            Machine::new(config, NOW)
        };
        let mut job = Self { machines: (0..size).map(machine).collect(), sums, now: NOW };
        job.turn();
        let admitted = Admitted {
            job_id: 0,
            cookie: conf.cookie,
            epoch: 1,
            members: conf.members,
            chunks: CHUNKS,
            slots: SLOTS,
            data: address(99),
            single_packets: false,
            plan: None,
            ring: Vec::new(),
        };
        job.tell(&Reply::Admitted(admitted));
        job.turn();
        job.sums.start(0, None).expect("all have probed");
        job.tell(&Reply::Go { mode: ResultMode::Fanout, group: None });
        assert!(job.machines.iter().all(|machine| machine.state() == State::Running));
        job
    }

    fn tell(&mut self, reply: &Reply) {
        let now = self.now;
        self.machines.iter_mut().for_each(|machine| machine.handle_reply(reply.clone(), now));
    }

    /// Carries what they send and say, until there is nothing more for now.
    fn turn(&mut self) {
        self.now += Duration::from_millis(1);
        let now = self.now;
        loop {
            let mut packets = Vec::new();
            let mut differs = None;
            let mut moved = false;
            for (rank, machine) in (0..).zip(&mut self.machines) {
                machine.handle_timeout(now);
                while let Some(control) = machine.poll_control(now) {
                    match control {
                        Control::Connect => machine.handle_connected(now),
                        Control::Send(Request::CallMismatch { call }) if differs.is_none() => {
                            differs = Some(AbortReason::CallMismatch { rank, call });
                        }
                        _ => {}
                    }
                }
                let mut packet = [0; 2048];
                while let Some(len) = machine.poll_transmit(now, &mut packet) {
                    packets.push((rank, packet[..len].to_vec()));
                }
            }
            if let Some(reason) = differs {
                self.tell(&Reply::Aborted(reason));
                moved = true;
            }
            for (rank, packet) in packets {
                moved = true;
                self.carry(rank, packet);
            }
            if !moved {
                return;
            }
        }
    }

    fn carry(&mut self, rank: u16, mut packet: Vec<u8>) {
        let from = address(rank);
        let source = Source { addr: u32::from(*from.ip()), port: from.port() };
        let (to, mut header, len) = match self.sums.handle_packet(source, &mut packet, self.now) {
            Answer::Nothing => return,
            Answer::Sender { header, len } => (vec![rank], header, len),
            Answer::Members { header, len } => {
                ((0..self.machines.len() as u16).collect(), header, len)
            }
            other => panic!("a root answers {other:?}"),
        };
        for rank in to {
            header.rank = rank;
            let head: &mut [u8; HEADER_LEN] = packet.first_chunk_mut().expect("whole");
            Header::emit(&header, head);
            self.machines[usize::from(rank)].handle_packet(&packet[..HEADER_LEN + len], self.now);
        }
    }

    /// Each rank makes its calls, all at once; how each of them ended.
    fn make(&mut self, all: &[Vec<Made>]) -> Vec<Vec<Result<(), Error>>> {
        let size = all.len() as u16;
        let mut sequences: Vec<Vec<u64>> = Vec::new();
        for ((rank, machine), calls) in (0..).zip(&mut self.machines).zip(all) {
            let start = |made: &Made| machine.start(made.blocks(rank, size)).expect("it runs");
            sequences.push(calls.iter().map(start).collect());
        }
        let mut ends: Vec<Vec<_>> = all.iter().map(|calls| vec![None; calls.len()]).collect();
        for _ in 0..1000 {
            self.turn();
            for ((machine, sequences), ends) in
                self.machines.iter_mut().zip(&sequences).zip(&mut ends)
            {
                for (sequence, end) in sequences.iter().zip(ends) {
                    if end.is_none() {
                        let ended = machine.poll_call(*sequence);
                        *end = ended.map(|call| call.map(drop));
                    }
                }
            }
            if ends.iter().flatten().all(Option::is_some) {
                return ends.into_iter().map(|ends| ends.into_iter().flatten().collect()).collect();
            }
        }
        panic!("a hang of {all:?}: {ends:?}");
    }
}

fn address(rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, rank as u8 + 1), 4000)
}

/// No call that differs ends well, at any rank; all are made at once, so those that are alike may.
fn check(all: &[Vec<Made>], first: usize) {
    assert!(all.iter().any(|calls| calls[first] != all[0][first]));
    let ends = Job::new(all.len() as u16).make(all);
    for (rank, ends) in ends.iter().enumerate() {
        for (index, end) in ends.iter().enumerate() {
            let is_alike = all.iter().all(|calls| calls[index] == all[0][index]);
            match end {
                Ok(()) if is_alike => {}
                Err(Error::CallMismatch { .. }) => {}
                other => panic!("rank {rank}, call {index}, {first} differs: {other:?} of {all:?}"),
            }
        }
    }
}

#[test]
fn equal_calls_end_well() {
    let mut rng = SmallRng::seed_from_u64(1);
    for size in [1, 2, 3, 5] {
        for _ in 0..20 {
            let calls: Vec<_> = (0..4).map(|_| Made::random(&mut rng)).collect();
            let ends = Job::new(size).make(&vec![calls.clone(); usize::from(size)]);
            assert!(ends.iter().flatten().all(Result::is_ok), "{size} {calls:?}: {ends:?}");
        }
    }
}

/// One argument of one call differs at one rank.
#[test]
fn one_argument_is_enough() {
    for seed in 0..600 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let size = rng.random_range(2..5);
        let mut calls: Vec<_> =
            (0..rng.random_range(1..4)).map(|_| Made::random(&mut rng)).collect();
        let (first, odd) = (rng.random_range(0..calls.len()), rng.random_range(0..size));
        let argument = seed as u32 % 6;
        if matches!(argument, 3 | 4) {
            (calls[first].float, calls[first].op) = (true, Op::Sum);
        }
        let mut all = vec![calls; size];
        all[odd][first] = all[odd][first].otherwise(argument);
        check(&all, first);
    }
}

/// One rank makes two calls in another order; of one shape they must have names.
#[test]
fn another_order_is_enough() {
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let size = rng.random_range(2..5);
        let mut calls: Vec<_> =
            (0..rng.random_range(2..5)).map(|_| Made::random(&mut rng)).collect();
        let first = rng.random_range(0..calls.len() - 1);
        if seed % 2 == 0 {
            calls[first + 1] = Made { name: Some("next".into()), ..calls[first].clone() };
        }
        let mut all = vec![calls; size];
        let odd = rng.random_range(0..size);
        all[odd].swap(first, first + 1);
        check(&all, first);
    }
}

/// Calls that the first block's tag does not tell apart. Without the seal, those of one block would
/// have a sum.
#[test]
fn tags_that_collide_are_not_enough() {
    for (len, op, scaling) in [
        (1, Op::Sum, Scaling::Fixed(1e6)),
        (16, Op::Max, Scaling::Block),
        (32, Op::Average, Scaling::Fixed(1e6)),
        (200, Op::Sum, Scaling::Fixed(1e6)),
    ] {
        let made = |name: u32| Made {
            len,
            float: true,
            op,
            scaling,
            lanes: LaneWidth::W32,
            name: Some(format!("layer{name}")),
        };
        let machine = Machine::new(Config::new(JOB, 0, 2), NOW);
        let digest = |name: u32| machine.make(0, made(name).blocks(0, 2)).digest;
        let first = digest(0);
        let other = (1..).find(|name| digest(*name) as u16 == first as u16).expect("numbers go on");
        assert_ne!(digest(other), first);
        check(&[vec![made(0)], vec![made(other)]], 0);
    }
}
