//! The user-space data path without its sockets: a packet in, what to answer out.
//!
//! Admission, slot machine and lane adds are those of `xdp-agg-common`, the same that the kernel
//! program runs. One thread at a time calls in: the engine holds a lock around a [`Sums`]. The
//! caller says what time it is; there is no clock in here.

mod bytes;
mod error;
mod parent;
pub mod uplink;

use std::net::SocketAddrV4;
use std::time::Duration;

use xdp_agg_common::admission::{Request, Source, check_job, check_member, cost};
use xdp_agg_common::answer::Reaction;
use xdp_agg_common::lanes::{self, CHUNK_LEN, Chunk};
use xdp_agg_common::maps::{
    Event, JobConf, JobCounters, MAX_JOBS, Member, Pace, Phase, Reject, ResultMode, Uplink,
};
use xdp_agg_common::slot::{Contribution, Pool, SlotState, Verdict, take_in};
use xdp_agg_common::wire::{HEADER_LEN, Header, HeaderError, Kind};

use crate::engine::{JobSetup, Started};
use bytes::chunks_mut;
pub use error::Error;

/// Most events kept until they are taken; beyond that, the counters tell.
const EVENTS_MAX: usize = 64;

/// What goes out for a packet. The payload is the packet's own memory, changed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// One packet back to the sender.
    Sender {
        /// Its header.
        header: Header,
        /// Its payload's length in bytes.
        len: usize,
    },
    /// A result for all members of the job; the rank in the header is theirs to fill in.
    Members {
        /// Its header.
        header: Header,
        /// Its payload's length in bytes.
        len: usize,
    },
    /// One packet to the member of the job whose rank the header has.
    Member {
        /// Its header.
        header: Header,
        /// Its payload's length in bytes.
        len: usize,
    },
    /// A sum, to the parent of a job.
    Parent {
        /// Index of the job here; the header has the parent's.
        job_id: u16,
        /// Its header.
        header: Header,
        /// Its payload's length in bytes.
        len: usize,
    },
}

/// A job that is on the data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// As the workers know it.
    pub conf: JobConf,
    /// By rank; the default for a rank that is not a member.
    pub members: Vec<Member>,
    /// The parent, where the sums go up.
    pub uplink: Uplink,
    /// Bit `r`: member `r` is an aggregator.
    forwarders: u64,
    pool: Pool,
    pace: Pace,
}

/// Slots, jobs and counters of the engine.
#[derive(Clone, Debug)]
pub struct Sums {
    jobs: [Option<Job>; MAX_JOBS],
    slots: Vec<SlotState>,
    lanes: Vec<Chunk>,
    max_chunks: usize,
    counters: Vec<JobCounters>,
    refused: [u32; Reject::COUNT],
    events: Vec<Event>,
}

impl Sums {
    /// Room for `slots` slots of `max_chunks` chunks.
    pub fn new(slots: u32, max_chunks: u16) -> Self {
        let max_chunks = usize::from(max_chunks);
        Self {
            jobs: [const { None }; MAX_JOBS],
            slots: vec![SlotState::default(); slots as usize],
            lanes: vec![Chunk::default(); slots as usize * max_chunks],
            max_chunks,
            counters: vec![JobCounters::default(); MAX_JOBS + 1],
            refused: [0; Reject::COUNT],
            events: Vec::new(),
        }
    }

    /// A job that is on the data path.
    pub fn job(&self, job_id: u16) -> Option<&Job> {
        self.jobs.get(usize::from(job_id))?.as_ref()
    }

    /// Of every job index, and of what belongs to none at index `MAX_JOBS`.
    pub fn counters(&self) -> &[JobCounters] {
        &self.counters
    }

    /// All slots of all jobs, without their lanes: what the simulation compares.
    pub fn slots(&self) -> &[SlotState] {
        &self.slots
    }

    /// The lanes of all slots.
    pub fn all_lanes(&self) -> &[Chunk] {
        &self.lanes
    }

    /// The slot that a block of a job falls into.
    pub fn slot(&self, job_id: u16, block: u64) -> Option<&SlotState> {
        self.slots.get(self.index(job_id, block)?)
    }

    /// The lanes of that slot: room for the largest block, so that those behind a shorter one are
    /// of an earlier block.
    pub fn lanes(&self, job_id: u16, block: u64) -> Option<&[Chunk]> {
        let first = self.index(job_id, block)? * self.max_chunks;
        self.lanes.get(first..first + self.max_chunks)
    }

    fn index(&self, job_id: u16, block: u64) -> Option<usize> {
        let Job { conf, pool, .. } = self.job(job_id)?;
        Some((conf.slot_base + pool.slot_of(block)) as usize)
    }

    /// Whether everything but counters is as it is there: what a stranger's packet must not change.
    pub fn is_as(&self, other: &Self) -> bool {
        self.jobs == other.jobs && self.sums_are_as(other)
    }

    /// Whether slots and sums are as they are there: what a member's repetition must not change.
    pub fn sums_are_as(&self, other: &Self) -> bool {
        self.slots == other.slots && self.lanes == other.lanes
    }

    /// Takes the events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// See `Engine::prepare`.
    pub fn prepare(&mut self, setup: &JobSetup) -> Result<(), Error> {
        let forwards = setup.uplink.is_some();
        let phase = Phase::Probing as u16;
        let conf = JobConf { phase, mode: 0, forwards: forwards.into(), ..setup.conf };
        let end = u64::from(conf.slot_base) + u64::from(conf.slots);
        let pool = Pool::of(&conf).filter(|_| end <= self.slots.len() as u64);
        let place = self.jobs.get_mut(usize::from(setup.job_id));
        let (Some(pool), Some(place)) = (pool, place) else {
            return Err(Error::Setup(format!(
                "job {} with {} slots from {} does not fit {} slots and {MAX_JOBS} jobs",
                setup.job_id,
                conf.slots,
                conf.slot_base,
                self.slots.len()
            )));
        };
        if !setup.is_consistent() || usize::from(conf.max_chunks) > self.max_chunks {
            return Err(Error::Setup(format!(
                "{} members for {} workers that are not the ones named, or blocks of {} \
                 chunks where {} fit",
                setup.members.len(),
                conf.workers,
                conf.max_chunks,
                self.max_chunks
            )));
        }
        let base = conf.slot_base as usize;
        self.slots[base..base + conf.slots as usize].fill(SlotState::default());
        let register = |rank| match setup.members.get(&rank) {
            Some(at) => Member { addr: u32::from(*at.ip()), port: at.port(), ..Member::default() },
            None => Member::default(),
        };
        let members = (0..conf.workers).map(register).collect();
        let uplink = setup.uplink.map_or_else(Uplink::default, |up| up.registered());
        let (forwarders, pace) = (setup.forwarders, Pace::default());
        *place = Some(Job { conf, members, uplink, forwarders, pool, pace });
        Ok(())
    }

    /// See `Engine::start`.
    pub fn start(&mut self, job_id: u16, wanted: Option<ResultMode>) -> Result<Started, Error> {
        let job = self.running(job_id)?;
        let epoch = job.conf.epoch;
        let unheard = job.members.iter().position(|m| m.addr != 0 && m.learned_epoch != epoch);
        if let Some(rank) = unheard {
            return Err(Error::NoPath(rank as u16));
        }
        uplink::check(&job.conf, &job.uplink, |_| true)?;
        let mode = wanted.unwrap_or(ResultMode::Fanout);
        uplink::check_mode(mode, job.forwarders)?;
        job.conf.mode = mode as u16;
        job.conf.phase = Phase::Running as u16;
        let group = SocketAddrV4::new(job.conf.group.into(), job.conf.group_port);
        Ok(Started { mode, group: (mode == ResultMode::Multicast).then_some(group) })
    }

    /// See `Engine::stop`.
    pub fn stop(&mut self, job_id: u16) {
        if let Some(place) = self.jobs.get_mut(usize::from(job_id)) {
            *place = None;
        }
    }

    /// See `Engine::missing`.
    pub fn missing(&mut self, job_id: u16, block: u64) -> Result<u64, Error> {
        let Job { conf, pool, .. } = self.running(job_id)?;
        let slot = conf.slot_base + pool.slot_of(block);
        let (epoch, members) = (conf.epoch, conf.members);
        Ok(self.slots[slot as usize].missing(epoch, members, block))
    }

    /// See `Engine::heard`.
    pub fn heard(
        &mut self,
        job_id: u16,
        now: Duration,
    ) -> Result<Vec<(u16, Option<Duration>)>, Error> {
        let members = (0..).zip(&self.running(job_id)?.members);
        let members = members.filter(|(_, member)| member.addr != 0);
        Ok(members.map(|(rank, member)| (rank, since(member.heard, now))).collect())
    }

    fn running(&mut self, job_id: u16) -> Result<&mut Job, Error> {
        let job = self.jobs.get_mut(usize::from(job_id)).and_then(Option::as_mut);
        job.ok_or_else(|| Error::Setup(format!("job {job_id} is not on the data path")))
    }

    /// Takes in one packet, header and payload, at the time `now` of a clock that does not go back.
    pub fn handle_packet(&mut self, source: Source, packet: &mut [u8], now: Duration) -> Answer {
        let version = packet.first().map_or(0, |byte| byte >> 4);
        let Some((header, payload)) = packet.split_first_chunk_mut::<HEADER_LEN>() else {
            let event = Event { version, job: u16::MAX, ..Event::default() };
            return self.refuse(MAX_JOBS, source, event, Reject::Truncated);
        };
        let header = match Header::parse(header) {
            Ok(header) => header,
            Err(error) => {
                // A value that this version does not define leaves no field to be believed.
                let version = if let HeaderError::Version(other) = error { other } else { version };
                let event = Event { version, job: u16::MAX, ..Event::default() };
                return self.refuse(MAX_JOBS, source, event, error.into());
            }
        };
        let event = Event {
            version,
            job: header.job,
            rank: header.rank,
            block: header.block,
            ..Event::default()
        };
        if let Some(at) = self.job_below(&header) {
            let event = Event { job: at as u16, ..event };
            return match self.take_answer(at, &header, source, payload) {
                Ok(answer) => answer,
                Err(reason) => self.refuse(at, source, event, reason),
            };
        }
        let Some(job) = self.jobs.get_mut(usize::from(header.job)).and_then(Option::as_mut) else {
            return self.refuse(MAX_JOBS, source, event, Reject::Job);
        };
        let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        let admitted = check_job(&job.conf, &header).and_then(|()| {
            let member = &job.members[usize::from(header.rank)];
            let request = check_member(&job.conf, member, &header, source, len)?;
            let paced = job.pace.admit(&job.conf, cost(&job.conf, &header), nanos(now));
            if paced { Ok(request) } else { Err(Reject::Quota) }
        });
        let counter = usize::from(header.job);
        match admitted {
            Ok(Request::Probe) => {
                job.members[usize::from(header.rank)].learned_epoch = job.conf.epoch;
                self.counters[counter].probes += 1;
                let header = Header { kind: Kind::ProbeReply, flags: 0, ..header };
                Answer::Sender { header, len: payload.len() }
            }
            Ok(Request::Contribute(contribution)) => {
                let (refused, answer) =
                    self.answer_contribution(&header, &contribution, payload, now);
                if let Some(reason) = refused {
                    self.refuse(counter, source, event, reason);
                }
                answer
            }
            Err(reason) => self.refuse(counter, source, event, reason),
        }
    }

    /// A contribution to a job that is there, admitted. A refusal may come with an answer too.
    fn answer_contribution(
        &mut self,
        header: &Header,
        contribution: &Contribution,
        payload: &mut [u8],
        now: Duration,
    ) -> (Option<Reject>, Answer) {
        let job_id = usize::from(header.job);
        let Some(job) = &mut self.jobs[job_id] else {
            return (Some(Reject::Job), Answer::Nothing);
        };
        let (pool, members) = (job.pool, job.conf.members);
        let index = (job.conf.slot_base + pool.slot_of(contribution.block)) as usize;
        let first = index * self.max_chunks;
        let lanes = &mut self.lanes[first..first + usize::from(contribution.chunks)];
        let slot = (&mut self.slots[index], lanes);
        let time = if pool.is_timed(contribution.block) { nanos(now) } else { 0 };
        let outcome = take_in(slot, pool, members, (contribution, time), chunks_mut(payload));
        let header = Header { flags: outcome.flags, ..*header };
        let refused = if let Verdict::Reject(reason) = outcome.verdict {
            Some(reason)
        } else {
            let member = &mut job.members[usize::from(header.rank)];
            member.heard = nanos(now);
            let again = outcome.verdict.is_repetition(contribution.asks);
            member.repetitions += u64::from(again);
            self.counters[job_id].note(&outcome, contribution.asks, pool);
            None
        };
        let answer = (outcome.reaction(pool), outcome.word());
        (refused, self.send(job_id, header, answer, payload))
    }

    /// Puts together what goes out. The packet has a result's lanes. The header has its flags, and
    /// the rank of a member that is told something. `word` is what one chunk tells.
    fn send(
        &mut self,
        job_id: usize,
        header: Header,
        (reaction, word): (Reaction, u64),
        payload: &mut [u8],
    ) -> Answer {
        let Some(Job { conf, uplink, .. }) = &self.jobs[job_id] else { return Answer::Nothing };
        let packet = chunks_mut(payload);
        let len = packet.len() * CHUNK_LEN;
        let mut tell = |kind| {
            if let Some(chunk) = packet.first_mut() {
                *chunk = Chunk::default();
                chunk[0] = lanes::Lane::new(word);
            }
            Answer::Sender { header: Header { kind, flags: 0, ..header }, len: CHUNK_LEN }
        };
        match reaction {
            Reaction::Nothing => Answer::Nothing,
            Reaction::Resend => {
                Answer::Sender { header: Header { kind: Kind::Result, ..header }, len }
            }
            Reaction::Pending => tell(Kind::Pending),
            Reaction::Mismatch => tell(Kind::Mismatch),
            Reaction::All => {
                let multicast = conf.mode == ResultMode::Multicast as u16;
                let copies = if multicast { 1 } else { conf.members.count_ones() };
                self.counters[job_id].copies += u64::from(copies);
                Answer::Members { header: Header { kind: Kind::Result, ..header }, len }
            }
            Reaction::Parent => {
                let Uplink { job, rank, .. } = *uplink;
                let header = Header { kind: Kind::Contribution, job, rank, ..header };
                Answer::Parent { job_id: job_id as u16, header, len }
            }
            Reaction::Member => Answer::Member { header, len },
        }
    }

    /// Counts a refused packet, and keeps the 1st, 2nd, 4th, 8th, … of a reason for the log.
    fn refuse(&mut self, counter: usize, source: Source, event: Event, reason: Reject) -> Answer {
        self.counters[counter].rejects[reason as usize] += 1;
        let count = &mut self.refused[reason as usize];
        *count = count.wrapping_add(1);
        if count.is_power_of_two() && self.events.len() < EVENTS_MAX {
            let Source { addr, port } = source;
            self.events.push(Event { addr, port, count: *count, reason: reason as u8, ..event });
        }
        Answer::Nothing
    }
}

/// A time as a [`Member`] and a [`Pace`] hold it; 0 is kept for: never.
fn nanos(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// How long ago a [`Member`] was heard; None: not in this epoch.
pub fn since(heard: u64, now: Duration) -> Option<Duration> {
    (heard != 0).then(|| now.saturating_sub(Duration::from_nanos(heard)))
}

#[cfg(test)]
mod tests;
