//! What a daemon has to remember for the one after it, where the data path outlives both.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use xdp_agg_common::control::{AggregatorLoss, Plan, Policy, Tree};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, ResultMode};
use xdp_agg_common::slot::Pool;
use xdp_agg_common::wire::MAX_WORKERS;

use super::job::{Job, Life, Member};
use super::numbers::latest;
use super::phase::{Current, Phase};
use super::trunk::Trunk;
use super::{Effect, Jobs};

/// The jobs that are running, and what no later epoch may repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The number of the last epoch.
    pub last_epoch: u16,
    /// The running jobs.
    pub jobs: Vec<JobSnapshot>,
}

/// A running job. Contains its cookie: a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSnapshot {
    /// Name.
    pub job: String,
    /// Index on the data path.
    pub job_id: u16,
    /// Number of workers.
    pub world_size: u16,
    /// It outlives its members.
    pub reserved: bool,
    /// First slot of its pool.
    pub slot_base: u32,
    /// Slots of its pool.
    pub slots: u32,
    /// How its members want their results.
    pub wanted: Option<ResultMode>,
    /// How results go out.
    pub mode: Option<ResultMode>,
    /// The policy that its creator named.
    pub created_with: Option<Policy>,
    /// The policy that holds.
    pub policy: Policy,
    /// Membership number.
    pub epoch: u16,
    /// The epoch's random number.
    pub cookie: u64,
    /// Members when the epoch began.
    pub epoch_members: u64,
    /// Block size.
    pub chunks: u16,
    /// First block of the job that was not finished when the epoch began.
    pub from: u64,
    /// Blocks that two members may be apart.
    pub span: u64,
    /// How often it has reformed.
    pub reforms: u32,
    /// Ranks that were lost.
    pub lost: Vec<u16>,
    /// Ranks that left in this epoch.
    pub left: Vec<u16>,
    /// Its members.
    pub members: Vec<MemberSnapshot>,
    /// The branches that its members named. Of these, none is in the epoch.
    #[serde(default)]
    pub tree: Tree,
    /// The data path's counters when the job was created.
    pub base: JobCounters,
}

/// A member of a running job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberSnapshot {
    /// Rank.
    pub rank: u16,
    /// Where it sends from and listens.
    pub data: SocketAddrV4,
    /// Address of this host that it sends to.
    pub local: Ipv4Addr,
    /// Most chunks that it can send.
    pub max_chunks: u16,
    /// Where it takes part in a ring.
    pub ring_port: Option<u16>,
}

impl JobSnapshot {
    fn of(job: &Job) -> Self {
        let life = &job.life;
        let members = life.members.iter().map(|(rank, member)| MemberSnapshot {
            rank: *rank,
            data: member.data,
            local: member.local,
            max_chunks: member.max_chunks,
            ring_port: member.ring_port,
        });
        Self {
            job: job.name.clone(),
            job_id: job.job_id,
            world_size: job.world_size,
            reserved: job.reserved,
            slot_base: job.slot_base,
            slots: job.slots,
            wanted: job.wanted,
            mode: life.mode,
            created_with: job.policy,
            policy: job.policy(),
            epoch: life.epoch,
            cookie: life.cookie,
            epoch_members: life.epoch_members,
            chunks: life.chunks,
            from: life.plan.from,
            span: life.span,
            reforms: life.reforms,
            lost: life.lost.iter().copied().collect(),
            left: life.left.iter().copied().collect(),
            members: members.collect(),
            tree: life.trunk.asked.clone(),
            base: job.base,
        }
    }

    /// Whether it can have been written by a daemon: a file may hold anything.
    fn is_possible(&self) -> bool {
        let ranks = self.members.iter().fold(0_u64, |bits, m| bits | 1 << (m.rank & 63));
        let below = self.members.iter().all(|member| member.rank < self.world_size);
        usize::from(self.job_id) < MAX_JOBS
            && (1..=MAX_WORKERS).contains(&usize::from(self.world_size))
            && below
            && ranks != 0
            && ranks & !self.epoch_members == 0
            && ranks.count_ones() as usize == self.members.len()
            && self.tree.check(self.world_size).is_ok()
            && Pool::new(self.slots).is_some()
            && self.epoch != 0
            && self.chunks != 0
    }

    /// Whether its members will come to the next daemon. Under [`AggregatorLoss::Fail`] their calls
    /// have ended with the daemon before.
    fn is_awaited(&self) -> bool {
        self.policy.aggregator_loss != AggregatorLoss::Fail
    }

    /// The job without the life that it had: only its name, number and slots are kept.
    fn into_reservation(self) -> Job {
        Job {
            name: self.job,
            job_id: self.job_id,
            world_size: self.world_size,
            reserved: true,
            slot_base: self.slot_base,
            slots: self.slots,
            wanted: self.wanted,
            policy: self.created_with,
            phase: Current::first(Phase::Forming(None)),
            life: Life { policy: self.created_with, ..Life::default() },
            base: self.base,
        }
    }

    fn into_job(self, until: Instant) -> Job {
        let members = self.members.into_iter().map(|member| {
            let MemberSnapshot { rank, data, local, max_chunks, ring_port } = member;
            (rank, Member::absent(data, local, max_chunks, ring_port))
        });
        let life = Life {
            mode: self.mode,
            policy: Some(self.policy),
            members: members.collect(),
            epoch_members: self.epoch_members,
            epoch: self.epoch,
            cookie: self.cookie,
            chunks: self.chunks,
            identities: vec![(self.epoch, self.cookie, 0)],
            ran: true,
            on_data_path: true,
            plan: Plan { from: self.from, ..Plan::default() },
            span: self.span,
            lost: self.lost.into_iter().collect(),
            left: self.left.into_iter().collect(),
            reforms: self.reforms,
            restored: Some(until),
            trunk: Trunk { asked: self.tree, ..Trunk::default() },
            ..Life::default()
        };
        Job {
            name: self.job,
            job_id: self.job_id,
            world_size: self.world_size,
            reserved: self.reserved,
            slot_base: self.slot_base,
            slots: self.slots,
            wanted: self.wanted,
            policy: self.created_with,
            phase: Current::first(Phase::Running),
            life,
            base: self.base,
        }
    }
}

impl Jobs {
    /// What the next daemon needs to go on. Jobs of several aggregators are left out (the branches
    /// end with the connection to this daemon), and so are jobs that are not running. Their workers
    /// know all that is needed to form them again. So are jobs that end with this daemon, unless
    /// they are reserved.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let single = |job: &&Job| job.life.trunk.tree.is_single();
        let goes_on = |job: &&Job| job.outlives_daemon() || job.reserved;
        let running = self.jobs.values().filter(|job| job.is_summing());
        let running = running.filter(single).filter(goes_on);
        Snapshot { last_epoch: self.last_epoch, jobs: running.map(JobSnapshot::of).collect() }
    }

    /// Takes on the jobs of the daemon before, whose data path is still running them. Members have
    /// [`super::Limits::resume_timeout`] to come back. Of a job that cannot be, or whose members
    /// will not come back, the data path is told to stop.
    pub fn restore(&mut self, snapshot: Snapshot, now: Instant) {
        self.clock = now.max(self.clock);
        self.changed = true;
        self.last_epoch = latest([self.last_epoch, snapshot.last_epoch]);
        for job in snapshot.jobs {
            let named = self.jobs.values().any(|other| other.name == job.job);
            let (job_id, slots) = (job.job_id, (job.slot_base, job.slots));
            let fits = job.is_possible()
                && !named
                && !self.jobs.contains_key(&job_id)
                && job.chunks <= self.limits.max_chunks
                && self.pool.take_at(slots.0, slots.1);
            if !fits {
                warn!(job = job.job, "cannot be taken on from the daemon before: it does not fit");
                self.effects.push_back(Effect::Stop { job_id });
                continue;
            }
            self.last_epoch = latest([self.last_epoch, job.epoch]);
            if !job.is_awaited() {
                info!(job = job.job, job_id, "has ended with the daemon before");
                self.effects.push_back(Effect::Stop { job_id });
                if job.reserved {
                    self.jobs.insert(job_id, job.into_reservation());
                } else {
                    self.pool.give_back(slots.0);
                }
                continue;
            }
            info!(job = job.job, job_id, epoch = job.epoch, "taken on from the daemon before");
            let until = self.clock + self.limits.resume_timeout;
            self.jobs.insert(job_id, job.into_job(until));
        }
    }
}
