//! Packets: the parser, admission, and the user-space engine with three jobs.
//!
//! An input is a script of packets. The engine's answers are held against a record of which member
//! contributed what, kept here without slots. A sum that goes out must be that of one contribution
//! of every member; a packet that is refused must change nothing.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use xdp_agg_common::admission::{Source, check_job, check_member};
use xdp_agg_common::frame::{IP_LEN, Ipv4};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{JobConf, JobCounters, Member, Reject};
use xdp_agg_common::wire::{HEADER_LEN, Header, Kind, Reduction};
use xdp_agg_protocol::engine::JobSetup;
use xdp_agg_protocol::sum::{Answer, Sums};

use super::{header, packet, source};
use crate::script::Script;
use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "packet",
    about: "data packets: parser, admission, user-space engine against a model",
    run,
    text: false,
    tokens: "",
    features: &FEATURES,
};

const FEATURES: [&str; 20] = [
    "contribution",
    "sum",
    "resend",
    "pending",
    "stale",
    "probe",
    "mismatch",
    "reform",
    "refused: truncated",
    "refused: version",
    "refused: malformed",
    "refused: job",
    "refused: cookie",
    "refused: epoch",
    "refused: member",
    "refused: size",
    "refused: window",
    "refused: mismatch",
    "refused: quota",
    "two epochs",
];
/// The feature of the first reason.
const FIRST_REASON: usize = 8;

const JOBS: usize = 3;
const MAX_CHUNKS: u16 = 3;
/// World size, members, slots, first slot, whether it runs.
const SETUPS: [(u16, u64, u32, u32, bool); JOBS] =
    [(3, 0b111, 4, 0, true), (4, 0b1011, 2, 4, true), (1, 0b1, 2, 8, false)];
/// Most packets of one input.
const PACKETS_MAX: usize = 256;

/// A job as this model knows it.
struct Job {
    setup: JobSetup,
    running: bool,
    /// What each member contributed to each block of the epoch, as it was first taken.
    taken: BTreeMap<u64, BTreeMap<u16, Vec<u8>>>,
    /// Sums that went out.
    sums: BTreeMap<u64, Vec<u8>>,
}

struct World {
    sums: Sums,
    now: Duration,
    jobs: [Job; JOBS],
    outcome: Outcome,
}

fn address(job: usize, rank: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, job as u8, 1 + rank as u8), 4000 + rank)
}

fn setup(index: usize, epoch: u16, members: u64) -> JobSetup {
    let (workers, _, slots, slot_base, _) = SETUPS[index];
    let conf = JobConf {
        members,
        cookie: 0x1234_5678_9abc_def0 + u64::from(epoch) + ((index as u64) << 32),
        addr: 0x0a00_00fe,
        slot_base,
        slots,
        // The second job has a quota.
        packet_interval: if index == 1 { 1000 } else { 0 },
        packet_burst: 12_000,
        port: 48_864,
        epoch,
        workers,
        max_chunks: MAX_CHUNKS,
        ..JobConf::default()
    };
    let ranks = (0..workers).filter(|rank| members >> rank & 1 == 1);
    let members = ranks.map(|rank| (rank, address(index, rank))).collect();
    JobSetup::new(index as u16, conf, members)
}

impl World {
    fn new() -> Self {
        let jobs = std::array::from_fn(|index| Job {
            setup: setup(index, 1 + index as u16, SETUPS[index].1),
            running: false,
            taken: BTreeMap::new(),
            sums: BTreeMap::new(),
        });
        let mut world = Self {
            sums: Sums::new(16, MAX_CHUNKS),
            now: Duration::ZERO,
            jobs,
            outcome: Outcome::default(),
        };
        for (index, (.., runs)) in SETUPS.into_iter().enumerate() {
            world.begin(index, runs);
        }
        world
    }

    /// Begins the job's epoch; with all members' probes if it is to run.
    fn begin(&mut self, index: usize, runs: bool) {
        let job = &mut self.jobs[index];
        self.sums.prepare(&job.setup).expect("the setup is right");
        job.running = runs;
        job.taken.clear();
        job.sums.clear();
        if !runs {
            return;
        }
        for (rank, at) in &job.setup.members {
            let place = (job.setup.job_id, *rank);
            let mut probe = packet(&header(Kind::Probe, &job.setup.conf, place, 0), 1, 0);
            let answer = self.sums.handle_packet(source(*at), &mut probe, self.now);
            assert!(matches!(answer, Answer::Sender { .. }), "a probe was not answered");
        }
        self.sums.start(job.setup.job_id, None).expect("all paths are known");
    }

    /// A new epoch with other members.
    fn reform(&mut self, index: usize, members: u64) {
        let epoch = self.jobs[index].setup.conf.epoch.wrapping_add(JOBS as u16).max(1);
        let all = SETUPS[index].1;
        let members = if members & all == 0 { all } else { members & all };
        self.sums.stop(index as u16);
        self.jobs[index].setup = setup(index, epoch, members);
        self.begin(index, SETUPS[index].4);
        self.outcome.note(7);
        self.outcome.note(19);
    }

    fn counters(&self) -> JobCounters {
        let mut all = JobCounters::default();
        for counters in self.sums.counters() {
            all.merge(counters);
        }
        all
    }

    /// One packet, and everything that has to hold for it.
    fn receive(&mut self, from: Source, bytes: &[u8]) {
        let before = self.sums.clone();
        let counted = self.counters();
        let mut packet = bytes.to_vec();
        let answer = self.sums.handle_packet(from, &mut packet, self.now);
        let now = self.counters();
        let refused: Vec<usize> =
            (0..Reject::COUNT).filter(|i| now.rejects[*i] != counted.rejects[*i]).collect();
        let belongs = self.belongs(from, bytes);
        match refused[..] {
            [] => assert!(belongs.is_some(), "admitted: {bytes:02x?} from {from:?}"),
            [reason] => {
                self.outcome.note(FIRST_REASON + reason);
                let late = [Reject::Window, Reject::Mismatch, Reject::Quota];
                let is_late = late.iter().any(|late| *late as usize == reason);
                assert!(self.sums.sums_are_as(&before), "refused, and it changed a sum");
                // A member's own packets count against its job's quota, a stranger's do not.
                let counts = is_late && reason != Reject::Quota as usize;
                assert!(counts || self.sums.is_as(&before), "refused, and it changed something");
                assert_eq!(belongs.is_some(), is_late, "{reason}: {bytes:02x?} from {from:?}");
                let is_told = reason == Reject::Mismatch as usize;
                assert!(is_told || answer == Answer::Nothing, "an answer to what was refused");
                if is_told {
                    self.outcome.note(6);
                }
                return;
            }
            _ => panic!("two reasons for one packet"),
        }
        let Some((index, header)) = belongs else { return };
        self.outcome.accepted = true;
        let payload = &bytes[HEADER_LEN..];
        if now.contributions != counted.contributions {
            self.outcome.note(0);
            let contributors = self.jobs[index].taken.entry(header.block).or_default();
            let again = contributors.insert(header.rank, payload.to_vec());
            assert!(again.is_none(), "counted twice: {header:?}");
            self.check_contribution(index, &header, &answer, &packet);
        } else {
            assert!(self.sums.sums_are_as(&before), "a repetition changed a sum");
            self.check_repetition(index, &header, &answer, &packet);
        }
    }

    /// What may come out for a contribution that was taken.
    fn check_contribution(&mut self, index: usize, header: &Header, answer: &Answer, out: &[u8]) {
        let job = &mut self.jobs[index];
        let taken = &job.taken[&header.block];
        if let Some(before) = header.block.checked_sub(job.setup.conf.slots.into()) {
            let is_lost = job.taken.contains_key(&before) && !job.sums.contains_key(&before);
            assert!(!is_lost, "block {before} was taken over before it was complete");
        }
        assert_eq!(header.kind, Kind::Contribution, "a question counts");
        let is_copy = header.reduction == Reduction::Copy;
        assert!(!is_copy || taken.len() == 1, "a copy of two: {:?}", taken.keys());
        let is_complete = is_copy || taken.len() == job.setup.members.len();
        let Answer::Members { header: result, len } = answer else {
            assert!(!is_complete, "all have contributed, and nothing goes out");
            assert_eq!(*answer, Answer::Nothing);
            return;
        };
        assert!(is_complete, "a sum without {:?}", job.setup.members.keys());
        self.outcome.note(1);
        let sum = &out[HEADER_LEN..HEADER_LEN + len];
        let mut payloads = taken.values();
        let mut expected = payloads.next().cloned().unwrap_or_default();
        for payload in payloads {
            combine(header.reduction, &mut expected, payload);
        }
        assert_eq!(sum, expected, "block {}", header.block);
        assert_eq!((result.kind, result.block), (Kind::Result, header.block));
        assert_eq!((result.cookie, result.epoch), (header.cookie, header.epoch));
        assert_eq!(result.reduction, header.reduction);
        let again = job.sums.insert(header.block, expected);
        assert!(again.is_none(), "block {} was completed twice", header.block);
    }

    /// What may come out for anything else that is a member's.
    fn check_repetition(&mut self, index: usize, header: &Header, answer: &Answer, out: &[u8]) {
        let job = &self.jobs[index];
        let Answer::Sender { header: said, len } = answer else {
            assert_eq!(*answer, Answer::Nothing, "a repetition goes out to all");
            self.outcome.note(4);
            return;
        };
        let payload = &out[HEADER_LEN..HEADER_LEN + len];
        match said.kind {
            Kind::ProbeReply => self.outcome.note(5),
            Kind::Result => {
                self.outcome.note(2);
                assert_eq!(Some(payload), job.sums.get(&header.block).map(Vec::as_slice));
            }
            Kind::Pending if header.kind == Kind::Ask => {
                self.outcome.note(3);
                assert!(!job.taken.contains_key(&header.block), "it is there");
                assert_eq!(payload[..8], [0; 8]);
            }
            Kind::Pending => {
                self.outcome.note(3);
                let held = job.taken.get(&header.block).expect("it is held");
                assert!(held.contains_key(&header.rank) && !job.sums.contains_key(&header.block));
                let bits = held.keys().fold(0_u64, |bits, rank| bits | 1 << rank);
                assert_eq!(payload[..8], bits.to_le_bytes());
            }
            other => panic!("{other:?} as an answer"),
        }
    }

    /// Whether a packet is one of a member of a job, by the table of ARCHITECTURE.md and not by the
    /// code that is tested: its job and header, if so.
    fn belongs(&self, from: Source, bytes: &[u8]) -> Option<(usize, Header)> {
        let header: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        let payload = bytes.len() - HEADER_LEN;
        let kind = match header[0] {
            0x21 => Kind::Contribution,
            0x24 => Kind::Probe,
            // Copies alone are asked for.
            0x27 if header[1] / 2 == Reduction::Copy as u8 => Kind::Ask,
            _ => return None,
        };
        let job = self.jobs.get(usize::from(header[2]))?;
        let rank = u16::from(header[3]);
        let conf = &job.setup.conf;
        let cookie = u64::from_be_bytes(header[4..12].try_into().ok()?);
        let epoch = u16::from_be_bytes(header[12..14].try_into().ok()?);
        let at = job.setup.members.get(&rank)?;
        // Bit 0 is a flag, the next three are one of eight reductions.
        let reduction = Reduction::ALL.get(usize::from(header[1] / 2)).copied()?;
        let fits = cookie == conf.cookie
            && epoch == conf.epoch
            && source(*at) == from
            && payload > 0
            && payload.is_multiple_of(CHUNK_LEN)
            && payload / CHUNK_LEN <= usize::from(MAX_CHUNKS)
            && (kind == Kind::Probe || job.running);
        let mut block = [0; 8];
        block[2..].copy_from_slice(&header[14..20]);
        let header = Header {
            kind,
            flags: header[1] & 1,
            reduction,
            job: header[2].into(),
            rank,
            cookie,
            epoch,
            block: u64::from_be_bytes(block),
            tag: u16::from_be_bytes([header[20], header[21]]),
        };
        fits.then_some((usize::from(header.job), header))
    }
}

/// Combines lanes one by one. What is added carries on within a word as in the engines: a sender
/// that sends what an honest worker does not, gets what an honest worker would not.
fn combine(reduction: Reduction, held: &mut [u8], payload: &[u8]) {
    let (len, pick): (usize, fn(u64, u64) -> u64) = match reduction {
        Reduction::Add => (8, u64::wrapping_add),
        Reduction::Min16 => (2, u64::min),
        Reduction::Min32 => (4, u64::min),
        Reduction::Min64 => (8, u64::min),
        Reduction::Max16 => (2, u64::max),
        Reduction::Max32 => (4, u64::max),
        Reduction::Max64 => (8, u64::max),
        Reduction::Copy => panic!("a copy is combined with nothing"),
    };
    for (to, from) in held.chunks_exact_mut(len).zip(payload.chunks_exact(len)) {
        let lane = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |w, b| w << 8 | u64::from(*b));
        to.copy_from_slice(&pick(lane(to), lane(from)).to_le_bytes()[..len]);
    }
}

/// The sender of a packet: mostly the member itself.
fn sender(script: &mut Script<'_>, index: usize, rank: u16) -> Source {
    let right = source(address(index, rank));
    match script.byte() {
        0..=239 => right,
        240..=243 => Source { port: right.port + 1, ..right },
        244..=247 => Source { addr: right.addr + 1, ..right },
        248..=251 => source(address((index + 1) % JOBS, rank)),
        _ => Source { addr: 0, port: 0 },
    }
}

fn run(input: &[u8]) -> Outcome {
    parse(input);
    let mut world = World::new();
    let mut script = Script::new(input);
    for _ in 0..PACKETS_MAX {
        if script.is_empty() {
            break;
        }
        let (op, passed) = (script.byte(), script.byte());
        world.now += Duration::from_nanos(u64::from(passed) * 64);
        let op = op % 8;
        if op == 6 {
            let (job, members) = (script.below(JOBS as u8), script.byte());
            world.reform(job.into(), members.into());
            continue;
        }
        let index = usize::from(script.below(JOBS as u8));
        let rank = u16::from(script.below(4));
        let from = sender(&mut script, index, rank);
        if op == 7 {
            let len = usize::from(script.byte());
            let bytes = script.take(len);
            world.receive(from, bytes);
            continue;
        }
        let conf = world.jobs[index].setup.conf;
        let flags = script.below(2);
        let place = (index as u16, rank);
        let mut header = header(Kind::Contribution, &conf, place, script.number());
        header.flags = flags;
        // Mostly as the block's other contributions.
        let odd = script.below(32);
        header.tag = u16::from(odd == 31);
        let reduction = header.block.wrapping_add(u64::from(odd == 30)) % 8;
        header.reduction = Reduction::ALL[reduction as usize];
        header.kind = match script.below(16) {
            15 => Kind::Probe,
            7..=14 if header.reduction == Reduction::Copy => Kind::Ask,
            14 if odd == 29 => Kind::Ask,
            _ => Kind::Contribution,
        };
        let chunks = 1 + u16::from(script.below(MAX_CHUNKS as u8));
        let mut bytes = packet(&header, chunks, script.byte());
        // Half of the rest are damaged in some places.
        for _ in 0..if op >= 4 { 1 + script.below(3) } else { 0 } {
            let (at, change) = (usize::from(script.byte()), script.byte());
            if at == 255 {
                bytes.truncate(usize::from(change));
            } else if let Some(byte) = bytes.get_mut(at % (HEADER_LEN + 2)) {
                *byte ^= change;
            }
        }
        world.receive(from, &bytes);
    }
    world.outcome
}

/// The parsers by themselves, on bytes of any kind.
fn parse(input: &[u8]) {
    if let Some(bytes) = input.first_chunk::<HEADER_LEN>()
        && let Ok(header) = Header::parse(bytes)
    {
        let mut again = [0; HEADER_LEN];
        header.emit(&mut again);
        assert_eq!(again, *bytes);
        let conf = JobConf { workers: 64, max_chunks: u16::MAX, phase: 2, ..JobConf::default() };
        let conf = JobConf { cookie: header.cookie, epoch: header.epoch, ..conf };
        let from = Source { addr: 7, port: 7 };
        let member = Member { addr: 7, port: 7, ..Member::default() };
        let len = input.len() as u16;
        let admitted = check_job(&conf, &header)
            .and_then(|()| check_member(&conf, &member, &header, from, len));
        assert!(admitted.is_err() || header.rank < 64);
    }
    if let Some(bytes) = input.first_chunk::<IP_LEN>() {
        let ip = Ipv4(*bytes);
        if ip.is_plain_udp() {
            let answer = Ipv4::answer(ip.destination(), ip.source(), ip.total_len());
            assert!(answer.is_plain_udp() && answer.checksum() == 0);
        }
    }
}
