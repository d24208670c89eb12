//! What the kernel program should do with a frame, whatever is in it.
//!
//! Frames are taken apart here once more, byte by byte, as ARCHITECTURE.md tells it; admission and
//! slot machine are those of `xdp-agg-common`, which have tests of their own.

use std::net::{Ipv4Addr, SocketAddrV4};

use etherparse::UdpHeader;
use xdp_agg::engine::xdp::testing::RawSlot;
use xdp_agg::engine::{self, JobSetup};
use xdp_agg_common::admission::{
    Reply, Request, Source, check_job, check_member, check_parent, is_from_above,
};
use xdp_agg_common::answer::{Reaction, take_reply};
use xdp_agg_common::frame::Ipv4;
use xdp_agg_common::lanes::{Chunk, Lane};
use xdp_agg_common::maps::{
    JobConf, JobCounters, Member, Phase, Reject, ResultMode, UNADDRESSED, Uplink,
};
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict, take_in};
use xdp_agg_common::times::Times;
use xdp_agg_common::wire::{EVERYBODY, Header, HeaderError, Kind};

use crate::FuzzReport;

/// The data path's port.
pub(crate) const PORT: u16 = 0xBEE0;
/// The jobs, and how their results go out.
pub(crate) const JOBS: [u16; 3] = [3, 0, 7];
pub(crate) const MODES: [ResultMode; 3] =
    [ResultMode::Fanout, ResultMode::Multicast, ResultMode::Fanout];
/// The one of them that has a parent.
pub(crate) const FORWARDER: usize = 2;
/// Slots of all; a job has a third of them.
pub(crate) const SLOTS: u32 = 12;
pub(crate) const POOL: u32 = SLOTS / 3;
/// World size of all jobs; one rank is not a member of the first.
pub(crate) const WORKERS: u16 = 4;
pub(crate) const MAX_CHUNKS: u16 = 3;
const AGGREGATOR: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 254);

/// What a test run returns.
const DROP: u32 = 1;
const PASS: u32 = 2;
const REDIRECT: u32 = 4;

/// Of each of [`JOBS`], and of what belongs to no job.
pub(crate) type Counters = [JobCounters; 4];

/// All that the program may write, but for counters.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) confs: [JobConf; 3],
    pub(crate) members: [[Member; WORKERS as usize]; 3],
    pub(crate) uplink: Uplink,
    pub(crate) slots: [RawSlot; SLOTS as usize],
}

impl Default for World {
    fn default() -> Self {
        Self {
            confs: Default::default(),
            members: Default::default(),
            uplink: Uplink::default(),
            slots: [RawSlot::empty(); SLOTS as usize],
        }
    }
}

/// What should come of a frame.
pub(crate) struct Expected {
    pub(crate) action: u32,
    pub(crate) frame: Vec<u8>,
    /// Job and rank that may have been heard.
    heard: Option<(usize, usize)>,
}

/// The state that the program should have.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) world: World,
    pub(crate) counters: Counters,
    pub(crate) setups: Vec<JobSetup>,
}

/// A job of this epoch.
pub(crate) fn setup(job_id: u16, epoch: u16) -> JobSetup {
    let at = JOBS.iter().position(|job| *job == job_id).unwrap_or_default();
    let members: u64 = if at == 0 { 0b1011 } else { 0b1111 };
    let conf = JobConf {
        members,
        cookie: 0x0123_4567_89ab_cdef ^ u64::from(job_id),
        addr: AGGREGATOR.into(),
        slot_base: at as u32 * POOL,
        slots: POOL,
        port: PORT,
        epoch,
        workers: WORKERS,
        max_chunks: MAX_CHUNKS,
        ..JobConf::default()
    };
    let address = |rank: u16| {
        let host = Ipv4Addr::new(10, 1, job_id as u8, 1 + rank as u8);
        (rank, SocketAddrV4::new(host, 40_000 + rank))
    };
    let ranks = (0..WORKERS).filter(|rank| members >> rank & 1 == 1);
    let setup = JobSetup::new(job_id, conf, ranks.map(address).collect());
    let parent = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 253), PORT);
    let uplink = engine::Uplink { addr: parent, job: 5, rank: 2 };
    JobSetup { uplink: (at == FORWARDER).then_some(uplink), ..setup }
}

/// Takes the way that a frame came for the sender's, unless it comes from a group. True: it was
/// another one before.
fn learn(frame: &[u8], known: (&mut u32, &mut [u8; 6], &mut [u8; 6])) -> bool {
    let address = |at: usize| std::array::from_fn(|i| frame[at + i]);
    let (local_mac, mac) = (address(0), address(6));
    let is_new = (&*known.0, &*known.1, &*known.2) != (&1, &mac, &local_mac) && mac[0] & 1 == 0;
    if is_new {
        (*known.0, *known.1, *known.2) = (1, mac, local_mac);
    }
    is_new
}

impl Model {
    pub(crate) fn new(setups: &[JobSetup; 3], world: World) -> Self {
        Self { world, counters: Counters::default(), setups: setups.to_vec() }
    }

    /// What should come of this frame.
    pub(crate) fn receive(&mut self, frame: &[u8], report: &mut FuzzReport) -> Expected {
        let unchanged = |action| Expected { action, frame: frame.to_vec(), heard: None };
        match self.judge(frame, report) {
            Ok(expected) => expected,
            Err(None) => {
                report.passed += 1;
                unchanged(PASS)
            }
            Err(Some((counter, reason))) => {
                report.refused[reason as usize] += 1;
                self.counters[counter].rejects[reason as usize] += 1;
                unchanged(DROP)
            }
        }
    }

    /// The error is a refusal and where it is counted, or that the frame is not ours.
    fn judge(
        &mut self,
        frame: &[u8],
        report: &mut FuzzReport,
    ) -> Result<Expected, Option<(usize, Reject)>> {
        const NONE: usize = 3;
        let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
        let plain = frame.len() >= 42
            && half(12) == 0x0800
            && frame[14] == 0x45
            && half(20) & 0x3fff == 0
            && frame[23] == 17
            && half(36) == PORT;
        if !plain {
            return Err(None);
        }
        // A packet to an address that no job here has is another host's.
        let known = self.world.confs.iter().any(|conf| conf.addr == word(30));
        let stray = |reason| known.then_some((NONE, reason));
        let (ip_len, udp_len) = (usize::from(half(16)), usize::from(half(38)));
        if ip_len < 50 || udp_len != ip_len - 20 || frame.len() < 14 + ip_len {
            return Err(stray(Reject::Truncated));
        }
        let ours = frame[42..].first_chunk().expect("22 bytes of the packet are a header");
        let header = Header::parse(ours).map_err(|error| match error {
            HeaderError::Version(_) => stray(Reject::Version),
            HeaderError::Malformed => stray(Reject::Malformed),
        })?;
        let is_ours = |conf: &JobConf| header.kind.is_answer() && is_from_above(conf, &header);
        if let Some(at) = self.world.confs.iter().position(is_ours) {
            if word(30) != self.world.confs[at].addr {
                return Err(None);
            }
            let source = Source { addr: word(26), port: half(34) };
            let packet = Packet { bytes: frame[..14 + ip_len].to_vec(), header };
            let judged = self.take_answer(at, source, packet, report);
            return judged.map_err(|reason| Some((at, reason)));
        }
        let at = JOBS.iter().position(|job| *job == header.job);
        let at = at.ok_or_else(|| stray(Reject::Job))?;
        let conf = self.world.confs[at];
        if word(30) != conf.addr {
            return Err(None);
        }
        let source = Source { addr: word(26), port: half(34) };
        let admitted = check_job(&conf, &header).and_then(|()| {
            let member = &self.world.members[at][usize::from(header.rank)];
            check_member(&conf, member, &header, source, (ip_len - 50) as u16)
        });
        let mut packet = Packet { bytes: frame[..14 + ip_len].to_vec(), header };
        match admitted.map_err(|reason| Some((at, reason)))? {
            Request::Probe => {
                report.probes += 1;
                let member = &mut self.world.members[at][usize::from(header.rank)];
                let moved =
                    learn(frame, (&mut member.ifindex, &mut member.mac, &mut member.local_mac));
                let before = std::mem::replace(&mut member.learned_epoch, conf.epoch);
                let counters = &mut self.counters[at];
                counters.probes += 1;
                counters.moves += u64::from(moved && before == conf.epoch);
                packet.answer_sender(Header { kind: Kind::ProbeReply, flags: 0, ..header });
                Ok(Expected { action: REDIRECT, frame: packet.bytes, heard: None })
            }
            Request::Contribute(c) => self.contribute(at, &c, packet, report),
        }
    }

    fn contribute(
        &mut self,
        at: usize,
        c: &Contribution,
        mut packet: Packet,
        report: &mut FuzzReport,
    ) -> Result<Expected, Option<(usize, Reject)>> {
        let conf = self.world.confs[at];
        let counters = &mut self.counters[at];
        let pool = Pool::of(&conf).ok_or(None)?;
        let slot = &mut self.world.slots[(conf.slot_base + pool.slot_of(c.block)) as usize];
        let mut chunks = packet.chunks();
        let held = (&mut slot.head.state, &mut slot.lanes[..]);
        // The program's clock is another one: which blocks are timed is compared, and how many.
        let now = u64::from(pool.is_timed(c.block));
        let outcome = take_in(held, pool, conf.members, (c, now), &mut chunks[..]);
        counters.note(&outcome, c.asks, pool);
        let rank = usize::from(c.rank);
        let mut heard = Some((at, rank));
        match outcome.verdict {
            Verdict::Store { complete } | Verdict::Add { complete } => {
                report.contributions += 1;
                report.blocks += u64::from(complete);
            }
            Verdict::Reject(reason) => {
                report.refused[reason as usize] += 1;
                counters.rejects[reason as usize] += 1;
                heard = None;
            }
            _ => report.repetitions += 1,
        }
        if heard.is_some() {
            let member = &mut self.world.members[at][rank];
            member.repetitions += u64::from(outcome.verdict.is_repetition(c.asks));
            let way = (&mut member.ifindex, &mut member.mac, &mut member.local_mac);
            counters.moves += u64::from(learn(&packet.bytes, way));
        }
        // Nobody sees the lanes while other contributions are missing, but where lanes are compared
        // the packet was changed.
        packet.set_chunks(&chunks);
        packet.header.flags = outcome.flags;
        let action = self.send(at, &mut packet, (outcome.reaction(pool), outcome.word()));
        Ok(Expected { action, frame: packet.bytes, heard })
    }

    /// Makes a packet what goes out.
    fn send(&self, at: usize, packet: &mut Packet, (reaction, word): (Reaction, u64)) -> u32 {
        let World { confs, members, uplink, .. } = &self.world;
        let (conf, header) = (&confs[at], packet.header);
        match reaction {
            Reaction::Nothing => return DROP,
            Reaction::Resend => packet.answer_sender(Header { kind: Kind::Result, ..header }),
            Reaction::Pending => packet.tell_sender(Kind::Pending, word),
            Reaction::Mismatch => packet.tell_sender(Kind::Mismatch, word),
            Reaction::All => packet.answer_all(conf),
            Reaction::Parent => {
                let Uplink { job, rank, addr, port, mac, local_mac, .. } = *uplink;
                let header = Header { kind: Kind::Contribution, job, rank, ..header };
                packet.send_to(conf, (addr, port), (mac, local_mac), header);
            }
            Reaction::Member => {
                let member = members[at][usize::from(header.rank)];
                let Member { addr, port, mac, local_mac, .. } = member;
                packet.send_to(conf, (addr, port), (mac, local_mac), header);
            }
        }
        REDIRECT
    }

    /// What should come of a packet that may be the parent's.
    fn take_answer(
        &mut self,
        at: usize,
        source: Source,
        mut packet: Packet,
        report: &mut FuzzReport,
    ) -> Result<Expected, Reject> {
        let World { confs, uplink, slots, .. } = &mut self.world;
        let conf = &confs[at];
        let header = packet.header;
        let len = (packet.bytes.len() - 64) as u16;
        let (reply, said) = check_parent(conf, uplink, &header, source, len)?;
        let way = (&mut uplink.ifindex, &mut uplink.mac, &mut uplink.local_mac);
        let moved = learn(&packet.bytes, way);
        if reply == Reply::Path {
            let before = std::mem::replace(&mut uplink.learned_epoch, conf.epoch);
            self.counters[at].moves += u64::from(moved && before == conf.epoch);
            return Ok(Expected { action: DROP, frame: packet.bytes, heard: None });
        }
        let pool = Pool::of(conf).ok_or(Reject::Job)?;
        let slot = &mut slots[(conf.slot_base + pool.slot_of(said.block)) as usize];
        let held = (&mut slot.head.state, &mut slot.lanes[..]);
        let mut chunks = packet.chunks();
        let (reaction, rank) =
            take_reply(held, pool, conf.members, (reply, &said), &mut chunks[..]);
        self.counters[at].note_reply(reaction);
        self.counters[at].moves += u64::from(moved);
        report.deliveries += u64::from(reaction == Reaction::All);
        report.relays += u64::from(reaction == Reaction::Member);
        packet.header = Header { job: JOBS[at], rank, ..header };
        let action = self.send(at, &mut packet, (reaction, 0));
        Ok(Expected { action, frame: packet.bytes, heard: None })
    }

    /// What is otherwise in the kernel's maps than here.
    pub(crate) fn compare(&mut self, found: &World, expected: &Expected) -> Option<String> {
        for (at, job) in JOBS.into_iter().enumerate() {
            if found.confs[at] != self.world.confs[at] {
                return Some(format!("the entry of job {job} was changed: {:?}", found.confs[at]));
            }
            for rank in 0..usize::from(WORKERS) {
                let (found, ours) = (found.members[at][rank], &mut self.world.members[at][rank]);
                if expected.heard == Some((at, rank)) && found.heard >= ours.heard {
                    ours.heard = found.heard;
                }
                if found != *ours {
                    return Some(format!(
                        "rank {rank} of job {job} is {found:?}, expected {ours:?}"
                    ));
                }
            }
        }
        if found.uplink != self.world.uplink {
            return Some(format!("the parent is {:?}", found.uplink));
        }
        for (index, (found, ours)) in found.slots.iter().zip(&self.world.slots).enumerate() {
            let untimed =
                |state: SlotState| SlotState { timed: u64::from(state.timed != 0), ..state };
            let (found_state, ours_state) = (untimed(found.head.state), untimed(ours.head.state));
            if found_state != ours_state {
                let (found, ours) = (found_state, ours_state);
                return Some(format!("slot {index} holds {found:?}, expected {ours:?}"));
            }
            if found.lanes != ours.lanes {
                return Some(format!("the lanes of slot {index} differ"));
            }
            if found.head.pad2 != 0 || found.head.pad != 0 {
                return Some(format!("slot {index} has something where there should be nothing"));
            }
        }
        debug_assert!(self.world.confs.iter().all(|conf| conf.phase == Phase::Running as u16));
        None
    }
}

/// Counters without durations, which are of another clock. Their number is left.
pub(crate) fn untimed(mut all: Counters) -> Counters {
    for counters in &mut all {
        let total = counters.times.total();
        counters.times = Times::default();
        counters.times.counts[0] = total;
    }
    all
}

/// A packet of ours that is being answered in place, cut to its length.
struct Packet {
    bytes: Vec<u8>,
    header: Header,
}

impl Packet {
    fn chunks(&self) -> Vec<Chunk> {
        let lane = |bytes: &[u8; 8]| Lane::new(u64::from_le_bytes(*bytes));
        let chunk = |bytes: &[u8; 64]| {
            let mut lanes = bytes.as_chunks::<8>().0.iter().map(lane);
            std::array::from_fn(|_| lanes.next().unwrap_or_default())
        };
        self.bytes[64..].as_chunks::<64>().0.iter().map(chunk).collect()
    }

    fn set_chunks(&mut self, chunks: &[Chunk]) {
        self.bytes.truncate(64);
        let lanes = chunks.iter().flatten();
        self.bytes.extend(lanes.flat_map(|lane| lane.bits().to_le_bytes()));
    }

    fn tell_sender(&mut self, kind: Kind, word: u64) {
        let mut chunk = Chunk::default();
        chunk[0] = Lane::new(word);
        self.set_chunks(&[chunk]);
        self.answer_sender(Header { kind, flags: 0, ..self.header });
    }

    fn answer_sender(&mut self, header: Header) {
        let (a, b) = self.bytes.split_at_mut(6);
        a.swap_with_slice(&mut b[..6]);
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| self.bytes[at + i]));
        let (source, destination) = (word(26), word(30));
        let (port, other) = (self.bytes[34..36].to_vec(), self.bytes[36..38].to_vec());
        self.address(destination, source);
        self.bytes[34..36].copy_from_slice(&other);
        self.bytes[36..38].copy_from_slice(&port);
        self.header(header);
    }

    fn send_to(
        &mut self,
        conf: &JobConf,
        (addr, port): (u32, u16),
        (mac, local_mac): ([u8; 6], [u8; 6]),
        header: Header,
    ) {
        self.bytes[..6].copy_from_slice(&mac);
        self.bytes[6..12].copy_from_slice(&local_mac);
        self.address(conf.addr, addr);
        self.bytes[34..36].copy_from_slice(&conf.port.to_be_bytes());
        self.bytes[36..38].copy_from_slice(&port.to_be_bytes());
        self.header(header);
    }

    fn answer_all(&mut self, conf: &JobConf) {
        let mut result = Header { kind: Kind::Result, rank: UNADDRESSED, ..self.header };
        if conf.mode == ResultMode::Multicast as u16 {
            result.rank = EVERYBODY;
            let [_, a, b, c] = conf.group.to_be_bytes();
            let ours: [u8; 6] = std::array::from_fn(|i| self.bytes[i]);
            self.bytes[..6].copy_from_slice(&[1, 0, 0x5e, a & 0x7f, b, c]);
            self.bytes[6..12].copy_from_slice(&ours);
            self.address(conf.addr, conf.group);
            self.bytes[34..36].copy_from_slice(&conf.port.to_be_bytes());
            self.bytes[36..38].copy_from_slice(&conf.group_port.to_be_bytes());
        }
        self.header(result);
    }

    /// IP header and lengths of an answer.
    fn address(&mut self, source: u32, destination: u32) {
        let payload = (self.bytes.len() - 64) as u16;
        let ip = Ipv4::answer(source, destination, payload);
        self.bytes[14..34].copy_from_slice(&ip.0);
        self.bytes[38..40].copy_from_slice(&(payload + 30).to_be_bytes());
    }

    fn header(&mut self, header: Header) {
        let mut ours = [0; 22];
        header.emit(&mut ours);
        self.bytes[42..64].copy_from_slice(&ours);
        let recipient = (header.kind, header.rank) != (Kind::Result, UNADDRESSED);
        let field = if recipient { self.checksum() } else { self.shared() };
        self.bytes[40..42].copy_from_slice(&field.to_be_bytes());
    }

    /// The UDP checksum, as another implementation works it out.
    fn checksum(&self) -> u16 {
        let half = |at: usize| u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        let length = (self.bytes.len() - 34) as u16;
        let udp =
            UdpHeader { source_port: half(34), destination_port: half(36), length, checksum: 0 };
        let address = |at: usize| std::array::from_fn(|i| self.bytes[at + i]);
        udp.calc_checksum_ipv4_raw(address(26), address(30), &self.bytes[42..]).unwrap_or_default()
    }

    /// What stands in the checksum's place of a result that has no recipient yet: the sum of all
    /// but rank, addresses and ports.
    fn shared(&self) -> u16 {
        let mut nobody = Self { bytes: self.bytes.clone(), header: self.header };
        nobody.bytes[26..38].fill(0);
        nobody.bytes[45] = 0;
        !nobody.checksum()
    }
}
