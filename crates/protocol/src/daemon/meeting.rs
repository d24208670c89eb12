//! The processes of a job before it is one: they tell each other where they are.
//!
//! A meeting keeps what its processes said, as long as they are connected, and gives all of it to
//! all when the last one has come. It has no time limit: each process has its own. A connection is
//! in one meeting, so there are no more of them than connections. A job keeps its origin, so that a
//! process that comes later finds out whether it may take part.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::Rng;
use xdp_agg_common::control::{ErrorCode, Meet, Reply};

use super::checks::{self, Refusal};
use super::job::Job;
use super::phase::Phase;
use super::{ConnId, Jobs};

/// A process that has not asked for so long is dead: its host went without a word.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Names of other jobs that a process is told of.
const ELSEWHERE_MAX: usize = 4;

/// Processes that wait for the others.
#[derive(Debug)]
pub(super) struct Meeting {
    run: Option<String>,
    world_size: u16,
    /// By rank.
    seats: BTreeMap<u16, Seat>,
}

#[derive(Debug)]
struct Seat {
    conn: ConnId,
    words: String,
    came: Instant,
    /// When it asked last: every 2 s, as long as it lives.
    asked: Instant,
}

impl Meeting {
    pub(super) fn conns(&self) -> impl Iterator<Item = ConnId> {
        self.seats.values().map(|seat| seat.conn)
    }

    fn missing(&self) -> impl Iterator<Item = u16> {
        (0..self.world_size).filter(|rank| !self.seats.contains_key(rank))
    }
}

impl Jobs {
    /// A process has come.
    pub(super) fn meet(&mut self, conn: ConnId, meet: Meet) -> Result<(), Refusal> {
        checks::meet(&meet)?;
        let seat = self.meetings.get(&meet.job).and_then(|meeting| meeting.seats.get(&meet.rank));
        let came = seat.filter(|seat| seat.conn == conn).map_or(self.clock, |seat| seat.came);
        self.leave_meetings(conn);
        // A process alone makes a job without a meeting; a reserved job has no members yet.
        let made_of = |job: &&Job| match &job.life.origin {
            Some(at) => at.name == meet.job,
            None => job.name == meet.job && !job.life.members.is_empty(),
        };
        if let Some(job) = self.jobs.values().find(made_of) {
            let origin = may_enter(job, &meet)?;
            self.reply(conn, Reply::Underway(origin));
            return Ok(());
        }
        let Meet { job, run, rank, world_size, words } = meet;
        let meeting = self.meetings.entry(job.clone()).or_insert_with(|| Meeting {
            run: run.clone(),
            world_size,
            seats: BTreeMap::new(),
        });
        if meeting.run != run {
            return Err(checks::other_run(&job, rank, &run, &meeting.run));
        }
        if meeting.world_size != world_size {
            return Err(other_size(&job, (rank, world_size), meeting.world_size));
        }
        let asked = self.clock;
        let is_alive = |seat: &Seat| asked.saturating_duration_since(seat.asked) < SILENCE_MAX;
        if meeting.seats.get(&rank).is_some_and(is_alive) {
            let message = format!(
                "rank {rank} of job {job:?} is taken by another process, which waits for the \
                 others: every process needs a RANK of its own, and every run a job name or a run \
                 of its own (XDP_AGG_JOB, XDP_AGG_RUN)"
            );
            return Err((ErrorCode::RankTaken, message));
        }
        meeting.seats.insert(rank, Seat { conn, words, came, asked });
        if meeting.seats.len() < usize::from(world_size) {
            let missing: Vec<_> = meeting.missing().collect();
            let most = self.limits.join_timeout_max;
            if asked.saturating_duration_since(came) > most {
                self.leave_meetings(conn);
                let message = format!(
                    "ranks {missing:?} of job {job:?} did not come within {most:?}, the longest \
                     that this daemon lets a job wait: raise its `--join-timeout-max` \
                     (XDP_AGG_JOIN_TIMEOUT_MAX)"
                );
                return Err((ErrorCode::Busy, message));
            }
            let elsewhere = self.elsewhere(&job, &missing);
            self.reply(conn, Reply::Meeting { missing, elsewhere });
            return Ok(());
        }
        let seats = self.meetings.remove(&job).map(|meeting| meeting.seats).unwrap_or_default();
        note!(self, info, job, world_size, "all processes have come");
        let seats = seats.into_values().map(|seat| (seat.conn, seat.words));
        let (conns, words): (Vec<_>, Vec<_>) = seats.unzip();
        let number = self.rng.random();
        for conn in conns {
            self.reply(conn, Reply::Met { words: words.clone(), number });
        }
        Ok(())
    }

    /// A job is there: processes that wait for one of its name may have come too late for its
    /// meeting.
    pub(super) fn call_in(&mut self, job_id: u16) {
        let origin = self.jobs.get(&job_id).and_then(|job| job.life.origin.as_ref());
        let Some(origin) = origin else { return };
        let Some(meeting) = self.meetings.remove(&origin.name) else { return };
        let (job, world_size) = (origin.name.clone(), meeting.world_size);
        for (rank, Seat { conn, words, .. }) in meeting.seats {
            let (job, run) = (job.clone(), meeting.run.clone());
            if let Err(refusal) = self.meet(conn, Meet { job, run, rank, world_size, words }) {
                self.refuse(conn, refusal);
            }
        }
    }

    /// A connection has ended.
    pub(super) fn leave_meetings(&mut self, conn: ConnId) {
        for meeting in self.meetings.values_mut() {
            meeting.seats.retain(|_, seat| seat.conn != conn);
        }
        self.meetings.retain(|_, meeting| !meeting.seats.is_empty());
    }

    /// Meetings of other names that have ranks which are missing here: a name that reached only
    /// some of a run's processes makes two halves of it.
    fn elsewhere(&self, job: &str, missing: &[u16]) -> Vec<String> {
        let here = self.meetings.get(job);
        let alike = |(name, other): &(&String, &Meeting)| {
            name.as_str() != job
                && here.is_some_and(|here| {
                    here.world_size == other.world_size && here.run == other.run
                })
        };
        let says = |(name, other): (&String, &Meeting)| {
            let theirs: Vec<_> = other.seats.keys().filter(|rank| missing.contains(rank)).collect();
            (!theirs.is_empty()).then(|| format!("ranks {theirs:?} wait in job {name:?}"))
        };
        self.meetings.iter().filter(alike).filter_map(says).take(ELSEWHERE_MAX).collect()
    }
}

/// Whether a job that is there may take a process in.
fn may_enter(job: &Job, meet: &Meet) -> Result<xdp_agg_common::control::Origin, Refusal> {
    let Some(origin) = &job.life.origin else {
        let message = format!(
            "a job {:?} is there, and its workers met nobody: wait until it ends, or use another \
             job name (XDP_AGG_JOB)",
            meet.job
        );
        return Err((ErrorCode::Busy, message));
    };
    if origin.run != meet.run {
        return Err(checks::other_run(&meet.job, meet.rank, &meet.run, &origin.run));
    }
    if origin.world_size != meet.world_size {
        return Err(other_size(&meet.job, (meet.rank, meet.world_size), origin.world_size));
    }
    if job.shrinks() || matches!(job.phase(), Phase::Returning(_) | Phase::Forming(_)) {
        return Ok((**origin).clone());
    }
    let (name, rank) = (&meet.job, meet.rank);
    let message = format!(
        "job {name:?} is running without this process of rank {rank}: wait until it ends, or use \
         another job name (XDP_AGG_JOB)"
    );
    Err((ErrorCode::RankTaken, message))
}

fn other_size(job: &str, (rank, theirs): (u16, u16), ours: u16) -> Refusal {
    let message = format!(
        "job {job:?} has a world size of {ours}, rank {rank} says {theirs}: all processes need the \
         same WORLD_SIZE; another job needs another name (XDP_AGG_JOB)"
    );
    (ErrorCode::WorldSize, message)
}
