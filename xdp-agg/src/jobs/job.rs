//! One job: its members and what they wait for.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use xdp_agg_common::control::{Admitted, CreateJob, JobInfo, Join};
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_common::maps::{JobConf, JobCounters, ResultMode};

use super::ConnId;
use crate::engine::JobSetup;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Ranks are missing. The time is the end of the wait, from the first member's join.
    Forming(Option<Instant>),
    /// The engine is registering the members.
    Preparing,
    /// Members try their paths, until then.
    Probing(Instant),
    /// The engine is opening the data path.
    Starting,
    /// Contributions are summed.
    Running,
}

/// A worker that has joined.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) conn: ConnId,
    /// Where it sends from and listens.
    pub(super) data: SocketAddrV4,
    /// Address of this host that it sends to.
    pub(super) local: Ipv4Addr,
    pub(super) max_chunks: u16,
    pub(super) ready: bool,
}

/// What a job is asked to be, by `Create` or by its first `Join`.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) world_size: u16,
    pub(super) slots: Option<u32>,
    pub(super) mode: Option<ResultMode>,
    /// It outlives its members.
    pub(super) reserved: bool,
}

impl From<&Join> for Wish {
    fn from(join: &Join) -> Self {
        Self {
            name: join.job.clone(),
            world_size: join.world_size,
            slots: join.slots,
            mode: join.result_mode,
            reserved: false,
        }
    }
}

impl From<CreateJob> for Wish {
    fn from(create: CreateJob) -> Self {
        let CreateJob { job, world_size, slots, result_mode } = create;
        Self { name: job, world_size, slots, mode: result_mode, reserved: true }
    }
}

/// A job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) job_id: u16,
    pub(super) world_size: u16,
    pub(super) reserved: bool,
    pub(super) slot_base: u32,
    pub(super) slots: u32,
    /// Asked for at its creation; a member may add a wish where there was none.
    pub(super) wanted: Option<ResultMode>,
    pub(super) mode: Option<ResultMode>,
    pub(super) phase: Phase,
    pub(super) members: BTreeMap<u16, Member>,
    pub(super) epoch: u16,
    pub(super) cookie: u64,
    /// 0 until all have joined.
    pub(super) chunks: u16,
    /// The engine's counters of this index when the job was created.
    pub(super) base: JobCounters,
}

impl Job {
    pub(super) fn is_full(&self) -> bool {
        self.members.len() == usize::from(self.world_size)
    }

    /// When a wait of this job ends, and what it waits for.
    pub(super) const fn deadline(&self) -> Option<(Instant, &'static str)> {
        match self.phase {
            Phase::Forming(Some(end)) => Some((end, "join")),
            Phase::Probing(end) => Some((end, "probe")),
            _ => None,
        }
    }

    /// The ranks that everybody else waits for: those that did not join, or are not ready.
    pub(super) fn awaited(&self) -> Vec<u16> {
        (0..self.world_size)
            .filter(|rank| match (self.phase, self.members.get(rank)) {
                (_, None) => true,
                (Phase::Probing(_), Some(member)) => !member.ready,
                _ => false,
            })
            .collect()
    }

    /// Data address of the members: of this host, the same for all.
    fn data_addr(&self) -> Ipv4Addr {
        self.members.values().next().map_or(Ipv4Addr::UNSPECIFIED, |member| member.local)
    }

    /// What the engine needs, once all have joined.
    pub(super) fn setup(&self, data_port: u16) -> JobSetup {
        let conf = JobConf {
            members: u64::MAX >> (64 - u32::from(self.world_size)),
            cookie: self.cookie,
            addr: self.data_addr().into(),
            slot_base: self.slot_base,
            slots: self.slots,
            group: group_of(self.cookie).into(),
            group_port: if data_port == u16::MAX { data_port - 1 } else { data_port + 1 },
            port: data_port,
            epoch: self.epoch,
            workers: self.world_size,
            max_chunks: self.chunks,
            ..JobConf::default()
        };
        let members = self.members.iter().map(|(rank, member)| (*rank, member.data)).collect();
        JobSetup { job_id: self.job_id, conf, members }
    }

    /// What a member needs to know.
    pub(super) fn admitted(&self, data_port: u16) -> Admitted {
        Admitted {
            job_id: self.job_id,
            cookie: self.cookie,
            epoch: self.epoch,
            chunks: self.chunks,
            slots: self.slots,
            data: SocketAddrV4::new(self.data_addr(), data_port),
            members: self.members.keys().fold(0, |bits, rank| bits | 1 << rank),
            plan: None,
            ring: Vec::new(),
        }
    }

    /// For people and tools.
    pub(super) fn info(&self) -> JobInfo {
        let phase = match self.phase {
            Phase::Forming(_) => "forming",
            Phase::Preparing | Phase::Probing(_) | Phase::Starting => "probing",
            Phase::Running => "running",
        };
        JobInfo {
            job: self.name.clone(),
            job_id: self.job_id,
            phase: phase.into(),
            world_size: self.world_size,
            joined: self.members.keys().copied().collect(),
            epoch: self.epoch,
            slots: self.slots,
            block_bytes: u32::from(self.chunks) * CHUNK_LEN as u32,
            mode: self.mode,
        }
    }
}

/// A multicast group for a job's results: of 239.192.0.0/14, which RFC 2365 leaves to an
/// organisation's own use, by the cookie, so that two aggregators on one network rarely share one.
pub(super) fn group_of(cookie: u64) -> Ipv4Addr {
    Ipv4Addr::from(0xefc0_0000 | cookie as u32 & 0x0003_ffff)
}

/// The counts since `base` was taken.
pub(super) fn since(now: &JobCounters, base: &JobCounters) -> JobCounters {
    let mut rejects = [0; xdp_agg_common::maps::Reject::COUNT];
    for ((difference, now), base) in rejects.iter_mut().zip(now.rejects).zip(base.rejects) {
        *difference = now.saturating_sub(base);
    }
    JobCounters {
        contributions: now.contributions.saturating_sub(base.contributions),
        blocks: now.blocks.saturating_sub(base.blocks),
        duplicates: now.duplicates.saturating_sub(base.duplicates),
        resends: now.resends.saturating_sub(base.resends),
        pendings: now.pendings.saturating_sub(base.pendings),
        stale: now.stale.saturating_sub(base.stale),
        probes: now.probes.saturating_sub(base.probes),
        copies: now.copies.saturating_sub(base.copies),
        rejects,
    }
}
