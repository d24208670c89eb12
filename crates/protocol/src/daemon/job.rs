//! One job: its members and what they wait for.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use xdp_agg_common::control::{
    AggregatorLoss, Chosen, CreateJob, Doing, Join, Origin, Plan, Policy, Progress, Resume,
    WorkerLoss,
};
use xdp_agg_common::maps::{JobCounters, ResultMode};
use xdp_agg_common::reform::SPAN_MAX;

use super::effect::ConnId;
use super::numbers::is_later;
use super::phase::{Current, Phase};
use super::trunk::Trunk;

/// A worker that has joined.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// None: the daemon was restarted, and it has not come back yet.
    pub(super) conn: Option<ConnId>,
    /// Where it sends from and listens.
    pub(super) data: SocketAddrV4,
    /// Address of this host that it sends to.
    pub(super) local: Ipv4Addr,
    pub(super) max_chunks: u16,
    pub(super) ring_port: Option<u16>,
    /// How long it waits for others to join, where it has said that.
    pub(super) patience: Option<Duration>,
    /// What it has last said that it does.
    pub(super) doing: Option<Doing>,
    pub(super) ready: bool,
    /// What it has of the epoch that is over. Nothing changes it until the next one starts.
    pub(super) progress: Option<Progress>,
    /// The call that it would start next.
    pub(super) paused: Option<u64>,
    /// Its last contribution that the data path told of.
    pub(super) contributed: Option<Instant>,
    /// Others have been waiting for its contribution at least since then.
    pub(super) awaited: Option<Instant>,
}

impl Member {
    pub(super) fn new(conn: ConnId, data: SocketAddrV4, local: Ipv4Addr, join: &Join) -> Self {
        let absent = Self::absent(data, local, join.max_chunks, join.ring_port);
        let patience = join.patience_s.map(|seconds| Duration::from_secs(seconds.into()));
        Self { conn: Some(conn), patience, ..absent }
    }

    /// One that has no connection (yet).
    pub(super) const fn absent(
        data: SocketAddrV4,
        local: Ipv4Addr,
        max_chunks: u16,
        ring_port: Option<u16>,
    ) -> Self {
        Self {
            conn: None,
            data,
            local,
            max_chunks,
            ring_port,
            patience: None,
            doing: None,
            ready: false,
            progress: None,
            paused: None,
            contributed: None,
            awaited: None,
        }
    }
}

/// What a job is asked to be, by `Create` or by its first `Join`.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) world_size: u16,
    pub(super) slots: Option<u32>,
    pub(super) mode: Option<ResultMode>,
    pub(super) policy: Option<Policy>,
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
            policy: Some(join.policy),
            reserved: false,
        }
    }
}

impl From<CreateJob> for Wish {
    fn from(create: CreateJob) -> Self {
        let CreateJob { job, world_size, slots, result_mode, policy } = create;
        Self { name: job, world_size, slots, mode: result_mode, policy, reserved: true }
    }
}

/// What is forgotten of a job when it ends, even if the job itself stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) mode: Option<ResultMode>,
    /// As its first member wants, where its creator left it open.
    pub(super) policy: Option<Policy>,
    /// As the first member that has words for it says.
    pub(super) chosen: Option<Chosen>,
    /// Of which processes it is made, as its first member says.
    pub(super) origin: Option<Box<Origin>>,
    pub(super) members: BTreeMap<u16, Member>,
    /// Ranks that will join in a later epoch.
    pub(super) waiting: BTreeMap<u16, Member>,
    /// Members of the epoch when it began. While members return: of the epoch that they had.
    pub(super) epoch_members: u64,
    pub(super) epoch: u16,
    pub(super) cookie: u64,
    /// 0 until all have joined for the first time; from then on blocks keep their size.
    pub(super) chunks: u16,
    /// Epochs that a member may go on from: the last epoch that ran, and those after it. By number
    /// and cookie, and how often their members have met on a ring since.
    pub(super) identities: Vec<(u16, u64, u32)>,
    /// While members return: how often those of that epoch have met on a ring since.
    pub(super) rings: u32,
    /// It was running once: calls may be in flight.
    pub(super) ran: bool,
    /// Why it is being ended before its members have left.
    pub(super) aborted: Option<String>,
    /// The engine knows it.
    pub(super) on_data_path: bool,
    /// What this epoch began with; the default one in a job's first epoch.
    pub(super) plan: Plan,
    /// The job's blocks that two members may be apart at most.
    pub(super) span: u64,
    pub(super) lost: BTreeSet<u16>,
    pub(super) left: BTreeSet<u16>,
    pub(super) reforms: u32,
    /// Until then the members of a job that outlived its daemon may come back.
    pub(super) restored: Option<Instant>,
    /// The engine was asked who is late, and has not answered yet.
    pub(super) looking: bool,
    /// The aggregators besides this one.
    pub(super) trunk: Trunk,
}

impl Life {
    /// How a worker's memory compares with the latest that is known of its members: epoch, and
    /// rings since.
    pub(super) fn order(&self, resume: &Resume) -> Ordering {
        match resume.epoch {
            epoch if epoch == self.epoch => resume.rings.cmp(&self.rings),
            epoch if is_later(epoch, self.epoch) => Ordering::Greater,
            _ => Ordering::Less,
        }
    }

    /// Whether a worker remembers an epoch of this job that it may go on from.
    pub(super) fn knows(&self, resume: &Resume) -> bool {
        self.identities.contains(&(resume.epoch, resume.cookie, resume.rings))
    }

    /// Whether the members of its epoch have met on a ring that this daemon does not know of. Of an
    /// epoch that it has formed another one after, they have not all heard: others may be in that.
    pub(super) fn is_overtaken_by(&self, resume: &Resume) -> bool {
        let (epoch, cookie, rings) = (resume.epoch, resume.cookie, resume.rings);
        let known = self.identities.iter().rfind(|known| (known.0, known.1) == (epoch, cookie));
        epoch == self.epoch && known.is_some_and(|known| known.2 < rings)
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
    /// Asked for at its creation.
    pub(super) policy: Option<Policy>,
    pub(super) phase: Current,
    pub(super) life: Life,
    /// The engine's counters of this index when the job was created.
    pub(super) base: JobCounters,
}

impl Job {
    /// Where it stands.
    pub(super) const fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Moves it on, along the table of [`phase`](super::phase).
    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase.enter(phase);
    }

    pub(super) fn is_full(&self) -> bool {
        self.life.members.len() == usize::from(self.world_size)
    }

    /// The policy that holds: its creator's, else its first member's.
    pub(super) fn policy(&self) -> Policy {
        self.policy.or(self.life.policy).unwrap_or_default()
    }

    /// Whether the loss of a member leaves the others in a job. A job that has never run has
    /// nothing to save: its other members are told, and all workers can be started again.
    pub(super) fn shrinks(&self) -> bool {
        self.life.ran && self.policy().worker_loss == WorkerLoss::Shrink
    }

    /// Whether the loss of the daemon leaves the members in a job.
    pub(super) fn outlives_daemon(&self) -> bool {
        self.life.ran && self.policy().aggregator_loss != AggregatorLoss::Fail
    }

    /// Contributions are summed.
    pub(super) const fn is_summing(&self) -> bool {
        matches!(self.phase(), Phase::Running | Phase::Pausing(_) | Phase::RunningTo(..))
    }

    pub(super) const fn is_preparing(&self) -> bool {
        matches!(self.phase(), Phase::Preparing(_))
    }

    pub(super) const fn is_starting(&self) -> bool {
        matches!(self.phase(), Phase::Starting(_))
    }

    pub(super) fn is_member(&self, rank: u16, conn: ConnId) -> bool {
        self.life.members.get(&rank).is_some_and(|member| member.conn == Some(conn))
    }

    pub(super) fn all_connected(&self) -> bool {
        self.life.members.values().all(|member| member.conn.is_some())
    }

    pub(super) fn has_all_progress(&self) -> bool {
        self.life.members.values().all(|member| member.progress.is_some())
    }

    /// Connections of members and of those that wait.
    pub(super) fn conns(&self) -> impl Iterator<Item = ConnId> {
        let all = self.life.members.values().chain(self.life.waiting.values());
        all.filter_map(|member| member.conn)
    }

    pub(super) fn member_bits(&self) -> u64 {
        bits_of(self.life.members.keys())
    }

    /// The ranks that everybody else waits for. They did not join or come back, are not ready, or
    /// did not tell what they have or which call they would start next.
    pub(super) fn awaited(&self) -> Vec<u16> {
        let life = &self.life;
        let awaited = |rank: &u16| match (self.phase(), life.members.get(rank)) {
            (Phase::Forming(_), None) => true,
            (Phase::Returning(_), None) => {
                // A new worker in its place shows that it is not going to come back.
                let replaced = self.shrinks() && life.waiting.contains_key(rank);
                life.epoch_members >> rank & 1 == 1 && !replaced
            }
            (Phase::Collecting(_), Some(member)) => member.progress.is_none(),
            (Phase::Probing(_), Some(member)) => !member.ready,
            (Phase::Pausing(_), Some(member)) => member.paused.is_none(),
            (Phase::RunningTo(_, Some(_)), Some(member)) => member.progress.is_none(),
            (Phase::Running | Phase::RunningTo(_, None), Some(member)) => member.conn.is_none(),
            _ => false,
        };
        (0..self.world_size).filter(awaited).collect()
    }

    /// Members that have not come back after the daemon's restart.
    pub(super) fn absent(&self) -> Vec<u16> {
        let absent = self.life.members.iter().filter(|(_, member)| member.conn.is_none());
        absent.map(|(rank, _)| *rank).collect()
    }

    /// A member whose progress cannot be true beside the others': a window apart is possible, and
    /// what was finished before this epoch cannot be lacking.
    pub(super) fn liar(&self) -> Option<u16> {
        let members = &self.life.members;
        let mut bases: Vec<_> =
            members.values().filter_map(|member| Some(member.progress.as_ref()?.base)).collect();
        bases.sort_unstable();
        let middle = *bases.get(bases.len() / 2)?;
        let near = middle.saturating_sub(self.life.span)..=middle.saturating_add(self.life.span);
        let lies = |progress: &Progress| {
            let end = progress.held.last().map_or(0, |held| held.from.saturating_add(held.len));
            let strangers = |bits: u64| self.world_size < 64 && bits >> self.world_size != 0;
            progress.base < self.life.plan.from
                || !near.contains(&progress.base)
                || end > *near.end()
                || progress.held.iter().any(|held| strangers(held.members))
        };
        let liar = members.iter().find(|(_, member)| member.progress.as_ref().is_some_and(lies));
        liar.map(|(rank, _)| *rank)
    }

    /// How far apart members may be in an epoch that begins with `plan`: a pool's blocks, and those
    /// in between without a number in it.
    pub(super) fn span_of(&self, plan: &Plan) -> u64 {
        let planned = plan.runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.len));
        planned.saturating_add(self.slots.into()).min(SPAN_MAX)
    }
}

/// Ranks as a bitmap: bit `r` for rank `r`, below 64.
pub(super) fn bits_of<'a>(ranks: impl IntoIterator<Item = &'a u16>) -> u64 {
    ranks.into_iter().fold(0, |bits, rank| bits | 1 << (rank & 63))
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
        moves: now.moves.saturating_sub(base.moves),
        copies: now.copies.saturating_sub(base.copies),
        forwards: now.forwards.saturating_sub(base.forwards),
        forwards_again: now.forwards_again.saturating_sub(base.forwards_again),
        deliveries: now.deliveries.saturating_sub(base.deliveries),
        late: now.late.saturating_sub(base.late),
        relays: now.relays.saturating_sub(base.relays),
        rejects,
        times: now.times.since(&base.times),
    }
}
