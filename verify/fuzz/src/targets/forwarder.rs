//! Packets at an aggregator that has a parent, and another aggregator among its members.
//!
//! An input is a script of members' and the parent's packets. What comes out is held against a
//! record of each block: which member contributed what, what went up, and what came down.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use xdp_agg_common::admission::Source;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::JobConf;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};
use xdp_agg_protocol::engine::{JobSetup, Uplink};
use xdp_agg_protocol::sum::{Answer, Sums};

use super::{packet, source};
use crate::script::Script;
use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "forwarder",
    about: "data packets at an aggregator with a parent: from members and from above",
    run,
    text: false,
    tokens: "",
    features: &FEATURES,
};

const FEATURES: [&str; 11] = [
    "contribution",
    "a sum goes up",
    "a sum goes up again",
    "a result comes down",
    "a result that is not awaited",
    "resend",
    "pending",
    "the parent's pending, handed on",
    "the parent's mismatch, handed on",
    "a probe's answer",
    "refused",
];

/// Our number of the job, and the parent's.
const JOB: u16 = 2;
const ABOVE: u16 = 5;
/// Our rank at the parent.
const RANK: u16 = 0;
const MEMBERS: [u16; 3] = [0, 2, 3];
const PARENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 9, 1), 48_864);
const CONF: JobConf = JobConf {
    members: 0b1101,
    cookie: 0x1234_5678_9abc_def0,
    addr: 0x0a00_00fe,
    slot_base: 4,
    slots: 4,
    group: 0,
    packet_interval: 0,
    packet_burst: 0,
    group_port: 0,
    port: 48_864,
    epoch: 7,
    workers: 6,
    max_chunks: 2,
    phase: 0,
    mode: 0,
    forwards: 0,
};
/// Most packets of one input.
const PACKETS_MAX: usize = 256;

/// A block.
#[derive(Default)]
struct Block {
    taken: BTreeMap<u16, Vec<u8>>,
    sum: Option<Vec<u8>>,
    result: Option<Vec<u8>>,
    asker: Option<u16>,
}

struct World {
    sums: Sums,
    blocks: BTreeMap<u64, Block>,
    outcome: Outcome,
}

fn address(rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 1 + rank as u8), 4000 + rank)
}

fn header(kind: Kind, job: u16, rank: u16, block: u64) -> Header {
    super::header(kind, &CONF, (job, rank), block)
}

impl World {
    fn new() -> Self {
        let mut sums = Sums::new(8, 2);
        let uplink = Some(Uplink { addr: PARENT, job: ABOVE, rank: RANK });
        let members = MEMBERS.map(|rank| (rank, address(rank))).into();
        let setup = JobSetup { uplink, forwarders: 0b1000, ..JobSetup::new(JOB, CONF, members) };
        sums.prepare(&setup).expect("the setup is right");
        let mut world = Self { sums, blocks: BTreeMap::new(), outcome: Outcome::default() };
        for rank in MEMBERS {
            let probe = packet(&header(Kind::Probe, JOB, rank, 0), 2, 0);
            world.receive(source(address(rank)), &probe);
        }
        let (_, probe) = world.sums.probe_up(JOB).expect("it is there").expect("not learned yet");
        assert_eq!(probe.len(), HEADER_LEN + 2 * CHUNK_LEN);
        world.receive(source(PARENT), &packet(&header(Kind::ProbeReply, ABOVE, RANK, 0), 2, 0));
        assert_eq!(world.sums.probe_up(JOB).expect("it is there"), None, "it is learned");
        world.sums.start(JOB, None).expect("all paths are known");
        world.outcome = Outcome::default();
        world
    }

    /// One packet, and everything that has to hold for it.
    fn receive(&mut self, from: Source, bytes: &[u8]) {
        let before = self.sums.clone();
        let mut out = bytes.to_vec();
        let answer = self.sums.handle_packet(from, &mut out, Duration::ZERO);
        let Some(said) = belongs(from, bytes) else {
            self.outcome.note(10);
            assert!(self.sums.is_as(&before), "refused, and it changed something: {bytes:02x?}");
            assert_eq!(answer, Answer::Nothing, "an answer to what was refused");
            return;
        };
        self.outcome.accepted = true;
        let counted = |sums: &Sums| sums.counters()[usize::from(JOB)];
        let (old, new) = (counted(&before), counted(&self.sums));
        let payload = &bytes[HEADER_LEN..];
        if new.rejects != old.rejects {
            // A block that has no slot now, or one that does not go with the others.
            assert!(self.sums.sums_are_as(&before), "refused, and it changed a sum");
            self.outcome.note(10);
            return;
        }
        let block = self.blocks.entry(said.block).or_default();
        if new.contributions != old.contributions {
            self.outcome.note(0);
            assert!(block.taken.insert(said.rank, payload.to_vec()).is_none(), "counted twice");
        }
        if new.deliveries != old.deliveries {
            assert!(block.sum.is_some() && block.result.is_none(), "not awaited: {said:?}");
            block.result = Some(payload.to_vec());
        }
        match answer {
            Answer::Nothing => self.quiet(&said, &before),
            Answer::Parent { job_id, header, len } => {
                assert_eq!((job_id, header.kind), (JOB, Kind::Contribution));
                assert_eq!((header.job, header.rank), (ABOVE, RANK));
                self.goes_up(&said, &out[HEADER_LEN..HEADER_LEN + len]);
            }
            Answer::Members { header, len } => {
                self.outcome.note(3);
                assert_eq!((header.kind, said.kind), (Kind::Result, Kind::Result));
                assert_eq!(self.result(said.block), &out[HEADER_LEN..HEADER_LEN + len]);
                assert!(new.deliveries != old.deliveries, "nothing came down");
            }
            Answer::Sender { header, len } => self.answered(&header, &out[HEADER_LEN..][..len]),
            Answer::Member { header, .. } => self.relayed(&said, &header),
        }
    }

    fn result(&self, block: u64) -> &[u8] {
        let block = self.blocks.get(&block).and_then(|block| block.result.as_deref());
        block.expect("a result goes out that never came down")
    }

    /// Nothing came out.
    fn quiet(&mut self, said: &Header, before: &Sums) {
        match said.kind {
            Kind::ProbeReply => self.outcome.note(9),
            Kind::Result | Kind::Pending => {
                assert!(self.sums.sums_are_as(before), "not awaited, and it changed a sum");
                self.outcome.note(4);
            }
            Kind::Contribution => {
                let block = &self.blocks[&said.block];
                let complete = block.taken.len() == MEMBERS.len();
                let first = block.taken.contains_key(&said.rank) && block.sum.is_none();
                assert!(!(complete && first), "complete, and nothing goes up");
            }
            other => panic!("no word about {other:?}"),
        }
    }

    /// The sum of all members, once and again.
    fn goes_up(&mut self, said: &Header, payload: &[u8]) {
        let block = self.blocks.entry(said.block).or_default();
        assert_eq!(block.taken.len(), MEMBERS.len(), "a part goes up as the sum");
        assert!(block.result.is_none(), "the result is here, and the sum goes up");
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
        };
        let mut sum = vec![0_u64; payload.len() / 8];
        for part in block.taken.values() {
            for (sum, word) in sum.iter_mut().zip(words(part)) {
                *sum = sum.wrapping_add(word);
            }
        }
        // Other reductions are the packet target's.
        let adds = said.reduction == Reduction::Add;
        assert!(!adds || words(payload) == sum, "block {} is wrong", said.block);
        if block.sum.is_some() {
            self.outcome.note(2);
            assert_eq!(block.sum.as_deref(), Some(payload), "another sum than before");
            block.asker = Some(said.rank);
        } else {
            self.outcome.note(1);
            block.sum = Some(payload.to_vec());
        }
    }

    /// A member that repeats is told what is known.
    fn answered(&mut self, header: &Header, payload: &[u8]) {
        match header.kind {
            Kind::Result => {
                self.outcome.note(5);
                assert_eq!(self.result(header.block), payload);
            }
            Kind::Pending => {
                self.outcome.note(6);
                let block = &self.blocks[&header.block];
                assert!(block.taken.contains_key(&header.rank) && block.result.is_none());
            }
            Kind::ProbeReply => {}
            other => panic!("{other:?} as an answer"),
        }
    }

    /// The parent's word is handed on to the one that it is for.
    fn relayed(&mut self, said: &Header, header: &Header) {
        assert_eq!((header.kind, header.job), (said.kind, JOB));
        match said.kind {
            Kind::Pending => {
                self.outcome.note(7);
                let block = &self.blocks[&said.block];
                assert!(block.result.is_none(), "the result is here");
                assert_eq!(Some(header.rank), block.asker, "it is for who asked last");
            }
            Kind::Mismatch => {
                self.outcome.note(8);
                assert_eq!(header.rank, MEMBERS[0]);
            }
            other => panic!("{other:?} is handed on"),
        }
    }
}

/// Whether a packet is a member's or the parent's, and is to be looked at.
fn belongs(from: Source, bytes: &[u8]) -> Option<Header> {
    let header = Header::parse(bytes.first_chunk()?).ok()?;
    let payload = bytes.len() - HEADER_LEN;
    let fits = (header.cookie, header.epoch) == (CONF.cookie, CONF.epoch)
        && payload > 0
        && payload.is_multiple_of(CHUNK_LEN)
        && payload / CHUNK_LEN <= usize::from(CONF.max_chunks);
    let known = match header.kind {
        // A forwarder has no copies.
        Kind::Ask => false,
        Kind::Contribution if header.reduction == Reduction::Copy => false,
        Kind::Contribution | Kind::Probe => {
            let is_member = MEMBERS.contains(&header.rank);
            header.job == JOB && is_member && source(address(header.rank)) == from
        }
        _ => (header.job, header.rank) == (ABOVE, RANK) && source(PARENT) == from,
    };
    (fits && known).then_some(header)
}

fn run(input: &[u8]) -> Outcome {
    let mut world = World::new();
    let mut script = Script::new(input);
    for _ in 0..PACKETS_MAX {
        if script.is_empty() {
            break;
        }
        let (op, who, block) = (script.below(16), script.byte(), script.number());
        let rank = MEMBERS[usize::from(who) % MEMBERS.len()];
        let (mut at, mut said) = match op {
            0..8 => (address(rank), header(Kind::Contribution, JOB, rank, block)),
            8..11 => (PARENT, header(Kind::Result, ABOVE, RANK, block)),
            11 => (PARENT, header(Kind::Pending, ABOVE, RANK, block)),
            12 => (PARENT, header(Kind::Mismatch, ABOVE, RANK, block)),
            13 => (PARENT, header(Kind::ProbeReply, ABOVE, RANK, block)),
            14 => (address(rank), header(Kind::Probe, JOB, rank, block)),
            _ => (address(rank), header(Kind::Result, ABOVE, RANK, block)),
        };
        let odd = script.byte();
        match odd {
            240 => at = PARENT,
            241 => at = address(rank),
            242 => said.job ^= 1,
            243 => said.rank ^= 1,
            244 => said.cookie ^= 1 << 40,
            245 => said.epoch += 1,
            246 => said.tag = 1,
            247 => said.reduction = Reduction::Max32,
            248 => said.reduction = Reduction::Copy,
            249 => (said.kind, said.reduction) = (Kind::Ask, Reduction::Copy),
            _ => {}
        }
        let mut bytes = packet(&said, 1 + u16::from(odd & 1), script.byte());
        if odd >= 250 {
            let (place, change) = (usize::from(script.byte()), script.byte());
            if place == 255 {
                bytes.truncate(change.into());
            } else if let Some(byte) = bytes.get_mut(place % (HEADER_LEN + 2)) {
                *byte ^= change;
            }
        }
        world.receive(source(at), &bytes);
    }
    world.outcome
}
