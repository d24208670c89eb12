//! The kernel program against the sums of the user-space engine: the same packets, the same
//! answers, slots and counters. What a slot holds is worked out once more, lane by lane.

use std::cell::Cell;
use std::net::SocketAddrV4;
use std::time::Duration;

use proptest::prelude::*;
use xdp_agg::engine::JobSetup;
use xdp_agg::engine::xdp::XdpEngine;
use xdp_agg_common::admission::Source;
use xdp_agg_common::frame::PAYLOAD_OFFSET;
use xdp_agg_common::lanes::{Chunk, Lane};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, ResultMode};
use xdp_agg_common::slot::SlotState;
use xdp_agg_common::wire::{EVERYBODY, HEADER_LEN, Header, Kind, Reduction};
use xdp_agg_protocol::sum::{Answer, Sums};

use crate::frames::{Decoded, Frame, OUR_MAC, bytes_of, chunks_of, noise, worker_mac};
use crate::setup::{
    AGGREGATOR, DROP, POOL, PORT, REDIRECT, counters, engine, header, job, start, worker,
};

/// One packet: most are honest, some are not.
#[derive(Clone, Debug)]
struct Step {
    rank: u16,
    block: u64,
    chunks: u16,
    spoil: u8,
    flags: u8,
    padding: u8,
}

fn step(workers: u16) -> impl Strategy<Value = Step> {
    let chunks = prop_oneof![8 => Just(3_u16), 1 => 0_u16..=54];
    let block = 0_u64..u64::from(3 * POOL);
    (0..workers, block, chunks, 0_u8..60, 0_u8..8, 0_u8..40).prop_map(
        |(rank, block, chunks, spoil, flags, padding)| Step {
            rank,
            block,
            chunks,
            spoil,
            flags: u8::from(flags == 0),
            padding: padding.saturating_sub(30),
        },
    )
}

/// The header and source of a step, spoilt in one of the ways that its number says.
fn packet(job: &JobSetup, step: &Step) -> (Header, SocketAddrV4) {
    // Blocks take turns in how they are combined.
    let reduction = Reduction::ALL[(step.block % 8) as usize];
    let mut header = Header { flags: step.flags, reduction, ..header(job, step.rank, step.block) };
    let mut from = worker(step.rank);
    match step.spoil {
        0 => header.cookie ^= 1,
        1 => header.epoch ^= 1,
        2 => header.job += 1,
        3 => header.rank = job.conf.workers,
        4 => header.tag ^= 1,
        10 => header.reduction = Reduction::Min64,
        5 => from.set_port(from.port() + 1),
        6 => from.set_ip([10, 1, 0, 77].into()),
        7 => header.kind = Kind::Result,
        8 => header.kind = Kind::Probe,
        11..=14 if reduction == Reduction::Copy => header.kind = Kind::Ask,
        15 => header.kind = Kind::Ask,
        9 => header.block += 1 << 40,
        _ => {}
    }
    (header, from)
}

/// What goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reaction {
    /// Nothing; the packet is gone.
    Nothing,
    /// Nothing; the packet was counted, and has this payload now, which is not sent. Where lanes
    /// are compared, the packet's lanes change, whether it goes out or not.
    Counted(Vec<u8>),
    /// Header and payload, back to the sender.
    ToSender(Header, Vec<u8>),
    /// Header (without a rank) and payload, to all members.
    ToAll(Header, Vec<u8>),
}

/// The user-space engine's part, beside the program.
struct Model<'a> {
    job: &'a JobSetup,
    sums: Sums,
}

impl<'a> Model<'a> {
    /// Running, with all paths open.
    fn new(job: &'a JobSetup, mode: ResultMode) -> Self {
        let mut sums = Sums::new(32, job.conf.max_chunks);
        sums.prepare(job).expect("the job fits");
        let mut model = Self { job, sums };
        for rank in 0..job.conf.workers {
            let probe = Header { kind: Kind::Probe, ..header(job, rank, 0) };
            model.receive(worker(rank), &probe, &[0; 64]);
        }
        model.sums.start(job.job_id, Some(mode)).expect("all paths are open");
        model
    }

    /// What has been counted since it runs: of the job, and of packets that belong to no job.
    fn counters(&self, mode: ResultMode) -> [JobCounters; 2] {
        let mut own = self.sums.counters()[usize::from(self.job.job_id)];
        own.probes -= u64::from(self.job.conf.workers);
        // The program's egress counts those.
        let copies = if mode == ResultMode::Multicast { 1 } else { self.job.conf.workers };
        own.copies -= own.blocks * u64::from(copies);
        [own, self.sums.counters()[MAX_JOBS]]
    }

    /// A packet to the data port, already read.
    fn receive(&mut self, from: SocketAddrV4, header: &Header, payload: &[u8]) -> Reaction {
        let job = self.job.job_id;
        let source = Source { addr: u32::from(*from.ip()), port: from.port() };
        let mut packet = vec![0; HEADER_LEN];
        header.emit(packet.first_chunk_mut().expect("it is that long"));
        packet.extend(payload);
        let slot = |sums: &Sums| sums.lanes(job, header.block).expect("it is there").to_vec();
        let (before, counted) = (slot(&self.sums), self.sums.counters()[usize::from(job)]);
        let answer = self.sums.handle_packet(source, &mut packet, Duration::ZERO);
        let out = &packet[HEADER_LEN..];
        let is_counted =
            self.sums.counters()[usize::from(job)].contributions > counted.contributions;
        if is_counted {
            let state = self.sums.slot(job, header.block).expect("it is there");
            for ((after, before), packet) in
                slot(&self.sums).iter().zip(&before).zip(chunks_of(payload))
            {
                let is_first = state.seen.is_power_of_two();
                let sum =
                    if is_first { packet } else { combined(header.reduction, before, &packet) };
                assert_eq!(bytes_of(&[*after]), bytes_of(&[sum]), "{header:?}");
            }
        }
        match answer {
            Answer::Nothing if is_counted => Reaction::Counted(out.to_vec()),
            Answer::Nothing => Reaction::Nothing,
            Answer::Sender { header, len } => Reaction::ToSender(header, out[..len].to_vec()),
            Answer::Members { header, len } => {
                Reaction::ToAll(Header { rank: 0, ..header }, out[..len].to_vec())
            }
            other => panic!("a root has no parent: {other:?}"),
        }
    }
}

/// Lane by lane, not as the engines do it.
fn combined(reduction: Reduction, slot: &Chunk, packet: &Chunk) -> Chunk {
    let (bits, pick): (u32, fn(u64, u64) -> u64) = match reduction {
        Reduction::Add => (64, u64::wrapping_add),
        Reduction::Min16 => (16, u64::min),
        Reduction::Min32 => (32, u64::min),
        Reduction::Min64 => (64, u64::min),
        Reduction::Max16 => (16, u64::max),
        Reduction::Max32 => (32, u64::max),
        Reduction::Max64 => (64, u64::max),
        Reduction::Copy => panic!("a copy is combined with nothing"),
    };
    std::array::from_fn(|i| {
        let lane = |word: Lane, at: u32| word.bits() >> (at * bits) & u64::MAX >> (64 - bits);
        let lanes = (0..64 / bits).map(|at| (at, pick(lane(slot[i], at), lane(packet[i], at))));
        Lane::new(lanes.fold(0, |word, (at, lane)| word | lane << (at * bits)))
    })
}

/// What must come out of the program for a reaction of the model.
fn check(
    out: &Frame,
    action: u32,
    step: &Step,
    from: SocketAddrV4,
    reaction: Reaction,
    sent: &Frame,
    multicast: bool,
) {
    let us = SocketAddrV4::new(AGGREGATOR, PORT);
    match reaction {
        Reaction::Nothing => {
            assert_eq!(action, DROP);
            assert_eq!(out, sent, "a packet that is dropped is not changed");
        }
        Reaction::Counted(payload) => {
            let mut left = sent.bytes[..PAYLOAD_OFFSET].to_vec();
            left.extend(payload);
            assert_eq!((action, &out.bytes), (DROP, &left), "counted, without its padding");
        }
        Reaction::ToSender(header, payload) => {
            let mac_to = worker_mac(step.rank);
            let expected =
                Decoded { mac_from: OUR_MAC, mac_to, from: us, to: from, header, payload };
            assert_eq!((action, out.decode()), (REDIRECT, expected));
        }
        Reaction::ToAll(mut header, payload) => {
            let seen = out.decode();
            header.rank = if multicast { EVERYBODY } else { seen.header.rank };
            assert_eq!((action, seen.header, &seen.payload), (REDIRECT, header, &payload));
            if multicast {
                assert!(seen.to.ip().is_multicast(), "{seen:?}");
                let [_, a, b, c] = seen.to.ip().octets();
                assert_eq!(seen.mac_to, [1, 0, 0x5e, a & 0x7f, b, c]);
                assert_eq!((seen.mac_from, seen.from), (OUR_MAC, us));
            }
        }
    }
}

fn run(engine: &mut XdpEngine, job: &JobSetup, mode: ResultMode, steps: &[Step]) -> u64 {
    assert_eq!(start(engine, job, Some(mode)), mode);
    let before = counters(engine, job);
    let mut model = Model::new(job, mode);
    for (at, step) in steps.iter().enumerate() {
        let (header, from) = packet(job, step);
        let data = noise(step.rank, header.block, step.chunks);
        let to = SocketAddrV4::new(AGGREGATOR, PORT);
        let mut sent = Frame::new(worker_mac(step.rank), from, to, &header, &data);
        // What pads a frame is not part of the packet, and must not come back in an answer.
        sent.bytes.extend(vec![0xAA; usize::from(step.padding)]);
        sent.bytes.truncate(3520);
        let mut out = sent.clone();
        let action = engine.test_run(&mut out.bytes, 1).expect("it runs").action;
        let reaction = model.receive(from, &header, &data);
        // What changes nothing leaves as it came, but perhaps for its padding.
        if reaction == Reaction::Nothing && action == DROP && out.bytes.len() < sent.bytes.len() {
            sent.bytes.truncate(out.bytes.len());
        }
        let multicast = mode == ResultMode::Multicast;
        check(&out, action, step, from, reaction, &sent, multicast);
        let (state, lanes) = engine.slot(job.job_id, header.block).expect("the job is there");
        let expected = model.sums.slot(job.job_id, header.block).expect("the job is there");
        let expected_lanes = model.sums.lanes(job.job_id, header.block).expect("the job is there");
        // The model's clock stands still.
        let (timed, model_timed) = (state.timed != 0, expected.timed != 0);
        assert_eq!(timed, model_timed, "timed after packet {at}: {step:?}");
        let (state, same) = (SlotState { timed: 0, ..state }, SlotState { timed: 0, ..*expected });
        assert_eq!(state, same, "state after packet {at}: {step:?}");
        let held = usize::from(expected.chunks);
        assert_eq!(bytes_of(&lanes[..held]), bytes_of(&expected_lanes[..held]), "packet {at}");
    }
    for rank in 0..job.conf.workers {
        let member = engine.member(job.job_id, rank).expect("the job is there");
        let model = model.sums.job(job.job_id).expect("the job is there");
        let expected = model.members[usize::from(rank)].repetitions;
        assert_eq!(member.repetitions, expected, "repetitions of rank {rank}");
    }
    let mut after = counters(engine, job);
    let mut expected = (before.0, before.1);
    let [own, unattributed] = model.counters(mode);
    expected.0.merge(&own);
    expected.1.merge(&unattributed);
    let timed = |counters: &mut JobCounters| std::mem::take(&mut counters.times).total();
    assert_eq!(timed(&mut after.0), timed(&mut expected.0), "timed blocks");
    assert_eq!(after, expected, "counters");
    own.blocks
}

#[test]
fn the_program_does_what_the_model_does() {
    let Some(mut engine) = engine(32) else { return };
    let (epoch, blocks) = (Cell::new(0), Cell::new(0));
    let engine = std::cell::RefCell::new(&mut engine);
    let config = ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() };
    let multicast = any::<bool>();
    let strategy = (1_u16..=4).prop_flat_map(|w| (Just(w), prop::collection::vec(step(w), 1..400)));
    proptest!(config, |((workers, steps) in strategy, multicast in multicast)| {
        epoch.set(epoch.get() + 1);
        let job = job(workers, epoch.get());
        let mode = if multicast { ResultMode::Multicast } else { ResultMode::Fanout };
        blocks.set(blocks.get() + run(&mut engine.borrow_mut(), &job, mode, &steps));
    });
    assert!(blocks.get() > 50, "a property over runs that complete nothing proves little");
}
