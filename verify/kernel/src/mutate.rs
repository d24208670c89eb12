//! Frames: honest ones, honest ones that were spoilt, and noise.

use etherparse::PacketBuilder;
use rand::Rng as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use xdp_agg::engine::JobSetup;
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};
use xdp_agg_fuzz::targets::header;

use crate::model::{MAX_CHUNKS, Model, POOL, PORT, WORKERS};

/// The longest frame that fits a test run's page.
const LONGEST: usize = 3500;
/// The shortest that a test run takes.
const SHORTEST: usize = 14;
/// Where fields begin: Ethernet, IPv4, UDP, ours; and where ours end.
const FIELDS: [usize; 23] =
    [0, 6, 12, 14, 16, 20, 22, 23, 26, 30, 34, 36, 38, 40, 42, 43, 44, 45, 46, 54, 56, 62, 64];
/// Where the epoch is in a frame.
const EPOCH: std::ops::Range<usize> = 54..56;
/// The aggregator's link-layer address.
const AGGREGATOR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
/// Frames that are kept to take fields from.
const KEPT: usize = 64;

/// Makes frames.
pub(crate) struct Mutator {
    rng: SmallRng,
    kept: Vec<Vec<u8>>,
}

impl Mutator {
    pub(crate) fn new(rng: SmallRng) -> Self {
        Self { rng, kept: Vec::new() }
    }

    /// The next frame, of jobs in the model's state: so that some get deep.
    pub(crate) fn frame(&mut self, model: &Model) -> Vec<u8> {
        if self.rng.random_ratio(1, 50) {
            let len = self.rng.random_range(SHORTEST..200);
            return (0..len).map(|_| self.rng.random()).collect();
        }
        let mut frame = self.honest(model);
        if self.kept.len() < KEPT {
            self.kept.push(frame.clone());
        } else {
            let at = self.rng.random_range(0..KEPT);
            self.kept[at].clone_from(&frame);
        }
        for _ in 0..[0, 0, 1, 1, 1, 2, 4].choose(&mut self.rng).copied().unwrap_or(1) {
            self.spoil(&mut frame);
        }
        frame.resize(frame.len().clamp(SHORTEST, LONGEST), 0);
        frame
    }

    /// What a member sends, within its window or not far from it.
    fn honest(&mut self, model: &Model) -> Vec<u8> {
        let Some(setup) = model.setups.choose(&mut self.rng) else { return Vec::new() };
        let conf = &setup.conf;
        let rank = self.rng.random_range(0..WORKERS);
        let index = self.rng.random_range(0..POOL);
        let state = model.world.slots[(conf.slot_base + index) as usize].head.state;
        let pool = u64::from(POOL);
        let held = if state.epoch == conf.epoch { state.block } else { index.into() };
        let copied = state.reduction == Reduction::Copy as u8;
        let whole = state.epoch == conf.epoch && (state.seen == conf.members || copied);
        let complete = whole && (setup.uplink.is_none() || state.settled != 0);
        let block = match self.rng.random_range(0..12) {
            0 => held.wrapping_sub(pool) & ((1 << 48) - 1),
            1 => held + 2 * pool,
            2 if !complete => held + pool,
            3..=9 if complete => held + pool,
            _ => held,
        };
        // Most contributions to a block are as the first one was; the first are of all lengths.
        let joins = state.epoch == conf.epoch && block == held;
        let first = (1 + (block % u64::from(MAX_CHUNKS)) as u16, 7);
        let (usual, tag) = if joins { (state.chunks, state.tag) } else { first };
        let kinds = Reduction::ALL.len() as u8;
        // Forwarders have no copies.
        let usual_kinds = kinds - u8::from(setup.uplink.is_some());
        let first = (block % u64::from(usual_kinds)) as u8;
        let mut reduction = if joins { state.reduction } else { first };
        if self.rng.random_ratio(1, 40) {
            reduction = self.rng.random_range(0..kinds);
        }
        let odd = self.rng.random_ratio(1, 40);
        let chunks = if odd { self.rng.random_range(0..=MAX_CHUNKS + 1) } else { usual };
        let kind = match self.kind(setup, whole && !complete && joins) {
            Kind::Contribution if self.asks(reduction) => Kind::Ask,
            other => other,
        };
        let mut header = from_parent(setup, header(kind, conf, (setup.job_id, rank), block));
        header.flags = u8::from(self.rng.random_ratio(1, 8));
        header.reduction = Reduction::from_number(reduction).unwrap_or_default();
        header.tag = tag ^ u16::from(self.rng.random_ratio(1, 40));
        let payload: Vec<u8> = (0..chunks * 64).map(|_| self.rng.random()).collect();
        let mut frame = build(setup, &header, &payload);
        if self.rng.random_ratio(1, 10) {
            // Padding of a frame does not belong to its packet.
            frame.extend(vec![0xAA; self.rng.random_range(1..40)]);
        }
        frame
    }

    /// Most often a kind that brings the slot on: a contribution or, where the slot waits for it,
    /// the parent's result.
    fn kind(&mut self, setup: &JobSetup, waits: bool) -> Kind {
        let others = [Kind::Result, Kind::Pending, Kind::Mismatch, Kind::ProbeReply];
        let below = setup.uplink.is_some();
        match self.rng.random_range(0..20) {
            0 => Kind::Probe,
            1 | 2 if below => others.choose(&mut self.rng).copied().unwrap_or(Kind::Result),
            3..=8 if waits => Kind::Result,
            9 | 10 if waits => Kind::Pending,
            _ => Kind::Contribution,
        }
    }

    /// Half of the packets of a copy's block are questions, and a few of others.
    fn asks(&mut self, reduction: u8) -> bool {
        let (some, of) = if reduction == Reduction::Copy as u8 { (1, 2) } else { (1, 40) };
        self.rng.random_ratio(some, of)
    }

    fn spoil(&mut self, frame: &mut Vec<u8>) {
        let rng = &mut self.rng;
        let any = frame.len();
        let front = any.min(64);
        if any == 0 {
            return;
        }
        let at = rng.random_range(1..FIELDS.len());
        let field = FIELDS[at - 1].min(any)..FIELDS[at].min(any);
        match rng.random_range(0..9) {
            0 => frame[rng.random_range(0..front)] ^= 1 << rng.random_range(0..8),
            1 => frame[rng.random_range(0..any)] ^= 1 << rng.random_range(0..8),
            2 => frame[field].fill([0, 0xff, 0x7f, 0x80].choose(rng).copied().unwrap_or(0)),
            3 => rng.fill(&mut frame[field]),
            4 => {
                // A field a little off: ranks, blocks, lengths, ports next to real ones.
                if let Some(last) = frame[field].last_mut() {
                    *last =
                        last.wrapping_add([1, 2, 4, 64, 0xff].choose(rng).copied().unwrap_or(1));
                }
            }
            5 => {
                let other = self.kept.choose(rng).cloned().unwrap_or_default();
                if let (Some(to), Some(from)) = (frame.get_mut(field.clone()), other.get(field)) {
                    to.copy_from_slice(from);
                }
            }
            6 => frame.truncate(rng.random_range(0..=any)),
            7 => {
                let most = if rng.random_ratio(1, 10) { LONGEST } else { 200 };
                let more = rng.random_range(1..=most);
                frame.resize((any + more).min(LONGEST), rng.random());
            }
            _ => {
                // Lengths that agree with each other, and perhaps not with the frame.
                let len: u16 = rng.random_range(0..400);
                for (at, len) in [(16, len), (38, len.wrapping_sub(20))] {
                    if let Some(field) = frame.get_mut(at..at + 2) {
                        field.copy_from_slice(&len.to_be_bytes());
                    }
                }
            }
        }
    }
}

/// A member's probe of one chunk.
pub(crate) fn probe(setup: &JobSetup, rank: u16) -> Vec<u8> {
    build(setup, &header(Kind::Probe, &setup.conf, (setup.job_id, rank), 0), &[0; 64])
}

/// The parent's answer to our probe.
pub(crate) fn probe_reply(setup: &JobSetup) -> Vec<u8> {
    let header = header(Kind::ProbeReply, &setup.conf, (setup.job_id, 0), 0);
    build(setup, &from_parent(setup, header), &[0; 64])
}

/// What only an aggregator sends has the parent's number of the job, and our rank there.
fn from_parent(setup: &JobSetup, header: Header) -> Header {
    match setup.uplink {
        Some(up) if header.kind.is_answer() => Header { job: up.job, rank: up.rank, ..header },
        _ => header,
    }
}

/// A frame of one epoch, as it is in another.
pub(crate) fn exchange(frame: &[u8], from: u16, to: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Some(field) = frame.get_mut(EPOCH)
        && *field == from.to_be_bytes()
    {
        field.copy_from_slice(&to.to_be_bytes());
    }
    frame
}

fn build(setup: &JobSetup, header: &Header, payload: &[u8]) -> Vec<u8> {
    // A rank that is not a member speaks from an address of its own.
    let nobody = std::net::SocketAddrV4::new([10, 1, 9, 9].into(), 49_999);
    let from = match setup.uplink {
        Some(up) if header.kind.is_answer() => up.addr,
        _ => setup.members.get(&header.rank).copied().unwrap_or(nobody),
    };
    let mut ours = [0; HEADER_LEN];
    header.emit(&mut ours);
    let data = [&ours, payload].concat();
    let frame = PacketBuilder::ethernet2([2, 0, 0, 0, 1, header.rank as u8], AGGREGATOR_MAC)
        .ipv4(from.ip().octets(), setup.conf.addr.to_be_bytes(), 64)
        .udp(from.port(), PORT);
    let mut bytes = Vec::with_capacity(frame.size(data.len()));
    frame.write(&mut bytes, &data).expect("a vector takes it, and it is shorter than 64 KiB");
    bytes
}
