//! Workers, the switch and servers together, over links that lose, repeat and reorder.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::switch::{Onward, Switch};
use super::wire::{HEADER_LEN, Kind, Packet, bit, write};
use super::worker::{Worker, WorkerOptions};
use super::{Counters, LIMIT, Server};

const JOB: u32 = 7;
const BLOCK: usize = 16;
const TRIP_US: u64 = 100;

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Switch { from_server: bool },
    Server(usize),
    Worker(usize),
}

/// When a packet comes, its number, where it goes, and its bytes. The earliest is the greatest.
type Arrival = Reverse<(u64, u64, To, Vec<u8>)>;

/// A network under a virtual clock.
struct Net {
    random: SplitMix64,
    /// Shares of packets that are lost, repeated, and delayed, in per cent.
    faults: [u64; 3],
    now: u64,
    count: u64,
    under_way: BinaryHeap<Arrival>,
    workers: Vec<Worker>,
    switch: Switch,
    servers: Vec<Server>,
    to_servers: u64,
}

impl Net {
    fn new(seed: u64, world: u16, servers: usize, slots: u32, faults: [u64; 3]) -> Self {
        let worker = |rank| {
            let options = WorkerOptions {
                rank,
                world,
                job: JOB,
                block: BLOCK,
                slots,
                window: None,
                scale: 1024.0,
            };
            Worker::new(options).expect("it makes sense")
        };
        Self {
            random: SplitMix64::seed_from_u64(seed),
            faults,
            now: 0,
            count: 0,
            under_way: BinaryHeap::new(),
            workers: (0..world).map(worker).collect(),
            switch: Switch::new(slots),
            servers: (0..servers).map(|_| Server::default()).collect(),
            to_servers: 0,
        }
    }

    fn percent(&mut self, share: u64) -> bool {
        self.random.next_u64() % 100 < share
    }

    fn send(&mut self, to: To, packet: Vec<u8>) {
        if matches!(to, To::Server(_)) {
            self.to_servers += packet.len() as u64;
        }
        let [lost, repeated, delayed] = self.faults;
        let copies = u32::from(!self.percent(lost)) + u32::from(self.percent(repeated));
        for _ in 0..copies {
            let late = if self.percent(delayed) { self.random.next_u64() % 40 } else { 0 };
            self.count += 1;
            let at = self.now + TRIP_US * (1 + late);
            self.under_way.push(Reverse((at, self.count, to, packet.clone())));
        }
    }

    fn send_lanes(&mut self, to: To, packet: &Packet, lanes: &[u32]) {
        let mut bytes = vec![0; HEADER_LEN + lanes.len() * 4];
        packet.emit(bytes.first_chunk_mut().expect("it is long enough"));
        write(lanes, &mut bytes[HEADER_LEN..]);
        self.send(to, bytes);
    }

    fn handle(&mut self, to: To, bytes: &[u8]) {
        let (packet, lanes) = Packet::parse(bytes).expect("all packets here are whole");
        match to {
            To::Worker(rank) => {
                self.workers[rank].handle_packet(bytes, Duration::from_micros(self.now));
            }
            To::Server(server) => {
                let answer = self.servers[server].handle_fragment(&packet, lanes);
                let answer = answer.map(|(packet, lanes)| (packet, lanes.to_vec()));
                if let Some((packet, lanes)) = answer {
                    self.send_lanes(To::Switch { from_server: true }, &packet, &lanes);
                }
            }
            To::Switch { from_server: false } => {
                let server = To::Server(packet.block as usize % self.servers.len());
                let (sum, passed) = match self.switch.handle_fragment(&packet, lanes) {
                    Onward::Kept => (None, false),
                    Onward::Passed => (None, true),
                    Onward::Sum(packet, lanes) => (Some((packet, lanes.to_vec())), false),
                    Onward::SumThenPassed(packet, lanes) => (Some((packet, lanes.to_vec())), true),
                };
                if let Some((packet, lanes)) = sum {
                    self.send_lanes(server, &packet, &lanes);
                }
                if passed {
                    self.send(server, bytes.to_vec());
                }
            }
            To::Switch { from_server: true } => {
                if packet.kind == Kind::Result {
                    self.switch.handle_result(&packet);
                }
                for rank in (0..self.workers.len()).filter(|rank| packet.ranks >> rank & 1 == 1) {
                    self.send(To::Worker(rank), bytes.to_vec());
                }
            }
        }
    }

    /// Sums these vectors, rank `r`'s first, and returns what each rank got.
    fn run(&mut self, vectors: &[Vec<Vec<f32>>]) -> Vec<Vec<Vec<f32>>> {
        for (worker, vectors) in self.workers.iter_mut().zip(vectors) {
            vectors.iter().for_each(|vector| worker.start(vector.clone()));
        }
        let wanted = vectors[0].len();
        let mut sums = vec![Vec::new(); vectors.len()];
        let mut packet = vec![0; self.workers[0].packet_len()];
        for _ in 0..2_000_000 {
            for (rank, sums) in sums.iter_mut().enumerate() {
                let now = Duration::from_micros(self.now);
                self.workers[rank].handle_timeout(now);
                while let Some(len) =
                    self.workers[rank].poll_transmit(now, &mut packet).expect("it fits")
                {
                    self.send(To::Switch { from_server: false }, packet[..len].to_vec());
                }
                sums.extend(std::iter::from_fn(|| self.workers[rank].poll_done()));
            }
            if sums.iter().all(|sums| sums.len() == wanted) {
                return sums;
            }
            let timers = self.workers.iter().filter_map(Worker::poll_timeout).min();
            let timer = timers.map_or(u64::MAX, |timer| timer.as_micros() as u64 + 1);
            let next = self.under_way.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            self.now = self.now.max(timer.min(next));
            while let Some(Reverse((at, ..))) = self.under_way.peek()
                && *at <= self.now
                && let Some(Reverse((_, _, to, bytes))) = self.under_way.pop()
            {
                self.handle(to, &bytes);
            }
        }
        panic!("it does not end: {:?}", sums.iter().map(Vec::len).collect::<Vec<_>>());
    }

    fn server_counters(&self) -> Counters {
        self.servers.iter().fold(Counters::default(), |mut all, server| {
            all.merged += server.counters().merged;
            all.refused += server.counters().refused;
            all
        })
    }
}

/// Vectors of whole numbers, another for each rank, and their sums.
fn vectors(world: u16, lens: &[usize]) -> (Vec<Vec<Vec<f32>>>, Vec<Vec<f32>>) {
    let value =
        |rank: u16, call: usize, i: usize| ((usize::from(rank) + 1) * (i % 97 + call)) as f32;
    let vector = |rank, (call, len): (usize, &usize)| {
        (0..*len).map(|i| value(rank, call, i)).collect::<Vec<_>>()
    };
    let of = |rank| lens.iter().enumerate().map(|call| vector(rank, call)).collect::<Vec<_>>();
    let all: Vec<_> = (0..world).map(of).collect();
    let sum = |(call, len): (usize, &usize)| {
        (0..*len).map(|i| all.iter().map(|vectors| vectors[call][i]).sum()).collect()
    };
    let sums = lens.iter().enumerate().map(sum).collect();
    (all, sums)
}

fn check(net: &mut Net, lens: &[usize]) {
    let (all, sums) = vectors(net.workers.len() as u16, lens);
    for (rank, got) in net.run(&all).iter().enumerate() {
        assert_eq!(*got, sums, "rank {rank}");
    }
}

/// Whatever is lost, repeated or overtaken, sums are exact, and what happens at the switch and the
/// servers did happen.
#[test]
fn sums_are_exact_under_loss_repetition_and_reordering() {
    let (mut at_switch, mut at_servers) = (Counters::default(), Counters::default());
    for seed in 0..40 {
        let faults = [[0, 0, 30], [5, 5, 30], [20, 10, 50], [2, 30, 80]][seed as usize % 4];
        let world = [2, 3, 5, 16][seed as usize / 4 % 4];
        let mut net = Net::new(seed, world, 1 + seed as usize % 3, 4 + seed as u32, faults);
        check(&mut net, &[1000, 1, 0, 333, 12_000]);
        let counters = net.switch.counters();
        at_switch.passed += counters.passed;
        at_switch.whole += counters.whole;
        at_switch.flushed += counters.flushed;
        at_switch.reclaimed += counters.reclaimed;
        at_servers.merged += net.server_counters().merged;
        at_servers.refused += net.server_counters().refused;
    }
    let Counters { passed, whole, flushed, reclaimed, .. } = at_switch;
    assert!(passed > 0 && whole > 0 && flushed > 0 && reclaimed > 0, "{at_switch:?}");
    assert!(at_servers.merged > 0 && at_servers.refused > 0, "{at_servers:?}");
}

/// Without faults and with slots enough each block is summed at the switch, and its server gets one
/// packet for it. Slots are free in the end.
#[test]
fn a_server_gets_one_copy_where_all_blocks_find_slots() {
    let mut net = Net::new(1, 4, 1, 1 << 20, [0; 3]);
    check(&mut net, &[16 * 500]);
    let counters = *net.switch.counters();
    assert_eq!((counters.passed, counters.whole), (0, 500));
    assert_eq!(net.to_servers, 500 * net.workers[0].packet_len() as u64);
    assert_eq!(net.switch.taken(), 0);
    assert_eq!(net.workers[0].counters().gap_retransmissions, 0);
}

/// A window of one job never finds its own slots taken, however few there are. Each server's load
/// is one copy.
#[test]
fn blocks_of_one_job_do_not_collide() {
    for slots in [1024, 32, 100] {
        let mut net = Net::new(1, 4, 1, slots, [0; 3]);
        check(&mut net, &[16 * 5000]);
        let counters = *net.switch.counters();
        assert_eq!((counters.passed, counters.whole, counters.flushed), (0, 5000, 0), "{slots}");
        assert_eq!(net.to_servers, 5000 * net.workers[0].packet_len() as u64);
    }
}

/// With `t` slots of `s` taken by another job, a block finds its own taken with a chance of `t/s`.
#[test]
fn blocks_of_two_jobs_collide_as_hashes_do() {
    let mut switch = Switch::new(1024);
    let lanes = 5_u32.to_le_bytes();
    for block in 0..256 {
        assert_eq!(switch.handle_fragment(&fragment(0, block, false), &lanes), Onward::Kept);
    }
    for block in 0..512 {
        switch.handle_fragment(&Packet { job: JOB + 1, ..fragment(0, block, false) }, &lanes);
    }
    let passed = switch.counters().passed;
    assert!((64..192).contains(&passed), "{passed}");
    assert_eq!(switch.taken() as u64, 256 + 512 - passed);
}

fn fragment(rank: u16, block: u64, again: bool) -> Packet {
    Packet { kind: Kind::Fragment, again, world: 3, job: JOB, block, ranks: bit(rank) }
}

#[test]
fn a_fragment_that_is_repeated_takes_its_part_to_the_server() {
    let mut switch = Switch::new(1);
    let lanes = 5_u32.to_le_bytes();
    assert_eq!(switch.handle_fragment(&fragment(0, 0, false), &lanes), Onward::Kept);
    assert_eq!(switch.handle_fragment(&fragment(1, 0, false), &lanes), Onward::Kept);
    assert_eq!(switch.handle_fragment(&fragment(1, 0, false), &lanes), Onward::Kept, "repeated");
    assert_eq!(switch.handle_fragment(&fragment(2, 1, false), &lanes), Onward::Passed, "another");
    let part = Packet { ranks: 0b11, ..fragment(0, 0, true) };
    let again = switch.handle_fragment(&fragment(2, 0, true), &lanes);
    assert_eq!(again, Onward::SumThenPassed(part, &[10]));
    // The others pass until the result has passed, and then the slot is free.
    assert_eq!(switch.handle_fragment(&fragment(0, 0, false), &lanes), Onward::Passed);
    assert_eq!(switch.taken(), 1);
    switch.handle_result(&Packet { kind: Kind::Result, ..part });
    assert_eq!(switch.taken(), 0);
    // A fragment that is late takes the slot, and a block far ahead takes it back.
    assert_eq!(switch.handle_fragment(&fragment(0, 0, false), &lanes), Onward::Kept);
    assert_eq!(switch.handle_fragment(&fragment(0, LIMIT - 1, false), &lanes), Onward::Passed);
    assert_eq!(switch.handle_fragment(&fragment(0, LIMIT, false), &lanes), Onward::Kept);
    assert_eq!(switch.counters().reclaimed, 1);
    // One that is sent again and finds its slot free takes it from nobody.
    let mut switch = Switch::new(1);
    assert_eq!(switch.handle_fragment(&fragment(0, 0, true), &lanes), Onward::Passed);
    assert_eq!(switch.taken(), 0);
}

/// A slot is a block's of a job: neither another job's block of its number nor another block's
/// result has anything to do with it.
#[test]
fn jobs_and_blocks_are_told_apart() {
    let mut switch = Switch::new(1);
    let lanes = 5_u32.to_le_bytes();
    assert_eq!(switch.handle_fragment(&fragment(0, 0, false), &lanes), Onward::Kept);
    let other = |block| Packet { job: JOB + 1, ..fragment(1, block, false) };
    assert_eq!(switch.handle_fragment(&other(0), &lanes), Onward::Passed, "another job's");
    assert_eq!(switch.handle_fragment(&other(2 * LIMIT), &lanes), Onward::Passed, "far ahead");
    for of in [fragment(0, 1, false), other(0)] {
        switch.handle_result(&Packet { kind: Kind::Result, ranks: 0b111, ..of });
        assert_eq!(switch.taken(), 1, "another block's result");
    }
    switch.handle_result(&Packet { kind: Kind::Result, ranks: 0b111, ..fragment(0, 0, false) });
    assert_eq!(switch.taken(), 0);
    // Blocks of two jobs that run side by side do not follow each other from slot to slot.
    let same = (0..1000).filter(|block| {
        let slot = |job| Packet { job, ..fragment(0, *block, false) }.slot(1024);
        slot(JOB) == slot(JOB + 1)
    });
    assert!(same.count() < 20);
}

/// A whole sum that was lost on its way goes out again, and a fragment that was only repeated by
/// the network takes nothing out.
#[test]
fn a_whole_sum_goes_out_again_when_it_is_asked_for() {
    let mut switch = Switch::new(1);
    let lanes = 5_u32.to_le_bytes();
    for rank in [0, 1] {
        switch.handle_fragment(&fragment(rank, 0, false), &lanes);
    }
    let sum = Packet { ranks: 0b111, ..fragment(2, 0, false) };
    assert_eq!(switch.handle_fragment(&fragment(2, 0, false), &lanes), Onward::Sum(sum, &[15]));
    assert_eq!(switch.handle_fragment(&fragment(1, 0, false), &lanes), Onward::Kept);
    let sum = Packet { again: true, ..sum };
    assert_eq!(switch.handle_fragment(&fragment(1, 0, true), &lanes), Onward::Sum(sum, &[15]));
}

/// A fragment that is late by no more than the window may still ask for its result.
#[test]
fn a_server_keeps_what_may_be_asked_for() {
    let mut server = Server::default();
    let lanes = |value: u32| value.to_le_bytes();
    for block in [0, LIMIT - 1] {
        let all = Packet { ranks: 0b111, ..fragment(0, block, false) };
        let (result, sum) = server.handle_fragment(&all, &lanes(9)).expect("it is whole");
        assert_eq!((result.kind, sum), (Kind::Result, &[9][..]));
    }
    let again = server.handle_fragment(&fragment(1, 0, true), &lanes(3));
    assert_eq!(again.map(|(_, sum)| sum.to_vec()), Some(vec![9]));
    // Lanes of another length are of no call of this block's.
    let long = [1; 8];
    let other = fragment(0, LIMIT, false);
    assert_eq!(server.handle_fragment(&other, &lanes(1)), None);
    assert_eq!(server.handle_fragment(&Packet { ranks: 0b110, ..other }, &long), None);
    let rest = Packet { ranks: 0b110, ..other };
    let whole = server.handle_fragment(&rest, &lanes(2));
    assert_eq!(whole.map(|(_, sum)| sum.to_vec()), Some(vec![3]));
    // A block so far behind that all have its result is not begun again.
    assert_eq!(server.handle_fragment(&fragment(1, 0, true), &lanes(3)), None);
}

/// A worker takes results of its own job, for itself, of a block's own length, and once.
#[test]
fn a_worker_takes_its_own_results_alone() {
    let options = WorkerOptions {
        rank: 1,
        world: 3,
        job: JOB,
        block: 32,
        slots: 8,
        window: None,
        scale: 1.0,
    };
    let mut worker = Worker::new(options).expect("it makes sense");
    worker.start(vec![1.0; 40]);
    let (mut out, now) = (vec![0; worker.packet_len()], Duration::ZERO);
    let mut sent = Vec::new();
    while let Some(len) = worker.poll_transmit(now, &mut out).expect("it fits") {
        sent.push(out[..len].to_vec());
    }
    assert_eq!(sent.len(), 2);
    let mut handle = |change: &dyn Fn(&mut Packet), of: usize, lanes: usize| {
        let (mut packet, bytes) = Packet::parse(&sent[of]).expect("it is one");
        packet.kind = Kind::Result;
        packet.ranks = 0b111;
        change(&mut packet);
        let mut result = vec![0; HEADER_LEN];
        packet.emit(result.first_chunk_mut().expect("it is long enough"));
        result.extend_from_slice(&bytes[..lanes * 4]);
        worker.handle_packet(&result, Duration::from_millis(1))
    };
    assert!(!handle(&|packet| packet.job += 1, 0, 32), "another job's");
    assert!(!handle(&|packet| packet.ranks = 0b101, 0, 32), "for others");
    assert!(!handle(&|packet| packet.kind = Kind::Fragment, 0, 32), "no result");
    assert!(!handle(&|_| (), 0, 16), "too short");
    assert!(!handle(&|packet| packet.block = 1, 0, 32), "longer than the last block");
    assert!(handle(&|_| (), 0, 32));
    assert!(!handle(&|_| (), 0, 32), "twice");
    assert!(handle(&|_| (), 1, 16));
    assert_eq!(worker.poll_done().map(|sum| sum.len()), Some(40));
}

#[test]
fn a_server_counts_no_rank_twice() {
    let mut server = Server::default();
    let lanes = |value: u32| value.to_le_bytes();
    let sum = |ranks, again| Packet { ranks, ..fragment(0, 0, again) };
    assert_eq!(server.handle_fragment(&sum(0b001, false), &lanes(1)), None);
    assert_eq!(server.handle_fragment(&sum(0b001, false), &lanes(1)), None);
    let pending = Packet { kind: Kind::Pending, ..sum(0b001, true) };
    assert_eq!(server.handle_fragment(&sum(0b001, true), &lanes(1)), Some((pending, &[][..])));
    // One rank more, instead of it; then one that overlaps.
    assert_eq!(server.handle_fragment(&sum(0b011, false), &lanes(3)), None);
    assert_eq!(server.handle_fragment(&sum(0b110, false), &lanes(6)), None);
    assert_eq!(server.counters().refused, 1);
    let result = Packet { kind: Kind::Result, ranks: 0b111, ..sum(0b100, false) };
    assert_eq!(server.handle_fragment(&sum(0b100, false), &lanes(4)), Some((result, &[7][..])));
    // A worker that asks again is answered, and no other.
    assert_eq!(server.handle_fragment(&sum(0b010, false), &lanes(2)), None);
    let result = Packet { kind: Kind::Result, ..sum(0b010, true) };
    assert_eq!(server.handle_fragment(&sum(0b010, true), &lanes(2)), Some((result, &[7][..])));
}

#[test]
fn headers_survive_the_wire_and_nonsense_does_not() {
    let packet = fragment(2, 1 << 40, true);
    let mut bytes = [0; HEADER_LEN + 4];
    packet.emit(bytes.first_chunk_mut().expect("it is long enough"));
    assert_eq!(Packet::parse(&bytes), Some((packet, &[0; 4][..])));
    assert_eq!(packet.rank(), Some(2));
    assert_eq!(Packet::parse(&bytes[..HEADER_LEN + 3]), None, "half a lane");
    for (at, value) in [(0, 9), (1, 0), (1, 65), (14, 0xff)] {
        let mut bytes = bytes;
        bytes[at] = value;
        assert_eq!(Packet::parse(&bytes), None, "byte {at} is {value}");
    }
}

/// The first window of a vector: what is asked for, and never more than half of the slots.
#[test]
fn no_more_than_the_window_is_under_way() {
    for (slots, window, sent) in [(1024, None, 32), (1024, Some(16), 16), (32, Some(64), 16)] {
        let options =
            WorkerOptions { rank: 0, world: 2, job: JOB, block: BLOCK, slots, window, scale: 1.0 };
        let mut worker = Worker::new(options).expect("it makes sense");
        worker.start(vec![1.0; 100 * BLOCK]);
        let mut out = vec![0; worker.packet_len()];
        let next = || worker.poll_transmit(Duration::ZERO, &mut out).expect("it fits");
        assert_eq!(std::iter::from_fn(next).count(), sent, "{slots} slots, {window:?}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let options = WorkerOptions {
        rank: 0,
        world: 2,
        job: JOB,
        block: 16,
        slots: 8,
        window: None,
        scale: 1024.0,
    };
    for value in [f32::MAX, f32::NAN] {
        let mut worker = Worker::new(options).expect("it makes sense");
        worker.start(vec![1.0, value]);
        let mut out = vec![0; worker.packet_len()];
        assert!(worker.poll_transmit(Duration::ZERO, &mut out).is_err(), "{value}");
    }
}
