//! Jobs and their members.
//!
//! It is driven as [the crate](crate) says: what is to be done comes out of [`Jobs::poll_effect`],
//! and what came of it goes in by [`Jobs::handle_answer`].
//!
//! The table of a job's phases is in `phase`. A job forms (ranks join), probes (members try their
//! paths), runs, and ends. It finishes when all members have left, or is aborted, which each
//! remaining member is told once. A job made by `Create` then forms again; one made by its first
//! `Join` vanishes. A rank that leaves or dies while the job forms only frees its place.
//!
//! A job that has run may get further epochs (`membership`). One goes on without a lost member,
//! where the policy is to shrink. One takes in the members of another daemon's job that come back
//! (`resume`), or ranks that join anew. One takes back a branch of its tree that was lost
//! (`comeback`). Until it has run once, a loss ends it, whatever its policy.
//!
//! Every epoch has a fresh cookie and a number that no job of this daemon had before (until the
//! numbers have gone round). So nothing in slots that another job used can be mistaken for this
//! one's. A new epoch's number comes after the one that returning workers report. Their number
//! advances the daemon's counter only when their job forms.
//!
//! A member says `Progress` once between two `Admitted`: in answer to `Reform`, or before it, when
//! it had come to the call of `RunTo`. `Resumed` ends a pause; where it is still wanted, `Pause` or
//! `RunTo` is said again.
//!
//! A member may take any time to say its `Progress` or `Paused`, unless
//! [`Limits::straggler_timeout`] is set, or [`Limits::silent_timeout`] and it answers no heartbeat.
//! A stopped process is not dead, and the others' calls have deadlines. After `RunTo` the limit
//! counts from the first `Progress` on. Before that a member may have calls to make, and members
//! that wait for its contributions to them say so.

/// Writes a line about a job or its members, unless a flood of them is running.
macro_rules! note {
    ($jobs:ident, $level:ident, $($line:tt)*) => {
        if let Some(left_out) = $jobs.lines.$level.write($jobs.clock) {
            let left_out = (left_out > 0).then_some(left_out);
            tracing::$level!(left_out, $($line)*);
        }
    };
}

mod away;
mod branch;
mod checks;
mod comeback;
mod effect;
mod handle;
mod heartbeat;
mod job;
mod join;
mod late;
mod meeting;
mod membership;
mod news;
mod numbers;
mod open;
pub mod overview;
mod patience;
mod phase;
mod question;
mod reform;
mod resume;
mod served;
mod setup;
mod slots;
mod snapshot;
mod straggler;
#[cfg(test)]
mod tests;
mod tree;
mod trouble;
mod trunk;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddrV4;
use std::time::Instant;

use rand::Rng;
use rand::rngs::StdRng;
use xdp_agg_common::control::{ErrorCode, Request};

use crate::bucket::{Allowance, Lines};
use crate::engine::Lasting;
use job::Job;
use meeting::Meeting;
use news::Chronicle;
use open::{OpenLook, Question};
use served::Served;
use slots::SlotRanges;

pub use effect::{
    Answer, ConnId, Effect, Formation, Heard, Limits, LinkEffect, LinkId, Look, Peer, Prepare,
    Purpose, Terms,
};
pub use news::{Happened, News};
pub use patience::Patience;
pub use snapshot::{JobSnapshot, MemberSnapshot, Snapshot};

/// Waits that a job can have at a time.
const WAITS_MAX: usize = 6;

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Session {
    peer: Peer,
    /// It has said `Hello`.
    greeted: bool,
    /// Job and rank, if it is a member or waits to become one.
    member: Option<(u16, u16)>,
    /// The job that it leads, and this daemon serves as a branch.
    branch: Option<u16>,
    /// Heartbeats since its last answer to one.
    unanswered: u32,
    /// When that was.
    answered: Option<Instant>,
}

impl Session {
    /// More than a stranger.
    const fn is_bound(&self) -> bool {
        self.member.is_some() || self.branch.is_some()
    }
}

/// Lines about jobs and members: four for each that comes and goes.
const INFO: Allowance = Allowance { rate: 5, burst: 500 };
/// Of these, what went wrong.
const WARN: Allowance = Allowance { rate: 5, burst: 100 };

/// What may be written to the log.
#[derive(Debug)]
struct Log {
    info: Lines,
    warn: Lines,
}

/// All jobs of a daemon. See the module's text for the order of calls.
///
/// Moments are [`Instant`]s, as a daemon's timers want them: it serves others' connections by the
/// same clock. A worker's machine has a clock of its own, which begins with it, and takes
/// [`Duration`](std::time::Duration)s since then.
#[derive(Debug)]
pub struct Jobs {
    limits: Limits,
    rng: StdRng,
    /// A random number by which other daemons know this one, whatever address it is reached at.
    daemon: u64,
    started: Instant,
    /// The latest time that was told.
    clock: Instant,
    next_heartbeat: Instant,
    sessions: BTreeMap<ConnId, Session>,
    jobs: BTreeMap<u16, Job>,
    /// Processes of jobs to come, by the job's name.
    meetings: BTreeMap<String, Meeting>,
    /// Jobs that another daemon leads.
    served: BTreeMap<u16, Served>,
    /// Connections to branches: job, and the branch's control address.
    links: BTreeMap<LinkId, (u16, SocketAddrV4)>,
    next_link: u64,
    /// By the connection that asked: not answered by all aggregators of a tree yet.
    questions: BTreeMap<ConnId, Question>,
    /// Branches are to tell which members contribute, and some have not answered.
    looks: BTreeMap<u64, OpenLook>,
    next_look: u64,
    pool: SlotRanges,
    last_epoch: u16,
    effects: VecDeque<Effect>,
    /// What may be written to the log.
    lines: Log,
    /// What keeps members from the data path.
    troubles: Vec<Lasting>,
    /// What a snapshot shows may have changed since the last [`Effect::Persist`].
    changed: bool,
    /// What has happened, for those that watch.
    chronicle: Chronicle,
}

impl Jobs {
    /// No jobs yet. `rng` makes the cookies: seed it from the system's randomness.
    #[must_use]
    pub fn new(limits: Limits, mut rng: StdRng, now: Instant) -> Self {
        let pool = SlotRanges::new(limits.slots);
        Self {
            limits,
            daemon: rng.random(),
            rng,
            started: now,
            clock: now,
            next_heartbeat: now,
            sessions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            meetings: BTreeMap::new(),
            served: BTreeMap::new(),
            links: BTreeMap::new(),
            next_link: 0,
            questions: BTreeMap::new(),
            looks: BTreeMap::new(),
            next_look: 0,
            pool,
            last_epoch: 0,
            effects: VecDeque::new(),
            lines: Log { info: Lines::new(INFO, now), warn: Lines::new(WARN, now) },
            troubles: Vec::new(),
            changed: false,
            chronicle: Chronicle::default(),
        }
    }

    /// The operator has changed the terms. Connections that said the token of before stay.
    pub fn handle_terms(&mut self, terms: Terms) {
        let Terms { tokens, job_slots, job_slots_max, job_packet_rate } = terms;
        let limits = &mut self.limits;
        (limits.tokens, limits.job_slots) = (tokens, job_slots);
        (limits.job_slots_max, limits.job_packet_rate) = (job_slots_max, job_packet_rate);
    }

    /// How many jobs there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.jobs.len()
    }

    /// A connection came in.
    pub fn handle_connected(&mut self, conn: ConnId, peer: Peer) {
        let session = Session {
            peer,
            greeted: false,
            member: None,
            branch: None,
            unanswered: 0,
            answered: None,
        };
        self.sessions.insert(conn, session);
    }

    /// A connection said something.
    pub fn handle_request(&mut self, conn: ConnId, request: Request, now: Instant) {
        self.clock = now.max(self.clock);
        // A connection that was told to close may have said more before it heard that.
        if let Some(session) = self.sessions.get(&conn).copied() {
            self.handle(conn, session, request);
        }
    }

    /// A connection said something that is not a message: `why` says what was wrong.
    pub fn handle_garbled(&mut self, conn: ConnId, why: &str) {
        if self.sessions.contains_key(&conn) {
            self.refuse_and_close(conn, ErrorCode::Protocol, why);
        }
    }

    /// A connection is beyond the daemon's limits: it is told why, and closed.
    pub fn dismiss(&mut self, conn: ConnId, why: &str) {
        if self.sessions.contains_key(&conn) {
            self.refuse_and_close(conn, ErrorCode::Limit, why);
        }
    }

    /// A connection ended.
    pub fn handle_closed(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        self.questions.remove(&conn);
        self.leave_meetings(conn);
        if let Some((job_id, rank)) = session.member {
            self.connection_lost(job_id, rank, conn);
        }
        if let Some(job_id) = session.branch {
            self.root_lost(job_id);
        }
    }

    /// True while the connection is a member of a job, waits to become one, or leads a job of which
    /// this daemon is a branch.
    #[must_use]
    pub fn is_member(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(Session::is_bound)
    }

    /// Connections that are members of jobs, or wait to become members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.jobs.values().map(|job| job.conns().count()).sum()
    }

    /// When [`Self::handle_timeout`] is due; None: not until the next event.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.jobs.values().filter_map(|job| self.deadline(job));
        let probes = self.served.values().filter_map(Served::due);
        let looks = self.looks.values().map(|look| look.until);
        let others = [self.questions_due(), self.heartbeat_due()].into_iter().flatten();
        waits.chain(probes).chain(looks).chain(others).min()
    }

    /// Ends the waits that are over, and sends heartbeats.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock = now.max(self.clock);
        self.send_heartbeats();
        self.probe_uplinks();
        self.end_looks();
        self.end_questions();
        // A job may have several waits that are over; each is dealt with once.
        for _ in 0..WAITS_MAX {
            let over = |job: &&Job| self.deadline(job).is_some_and(|end| end <= now);
            let over: Vec<_> = self.jobs.values().filter(over).map(|job| job.job_id).collect();
            for job_id in over {
                self.wait_is_over(job_id);
            }
        }
    }

    /// How many lines about jobs and members were left out of the log, if no flood hides that any
    /// more. To be asked every second or so.
    pub fn left_out(&mut self, now: Instant) -> Option<u64> {
        let Log { info, warn } = &mut self.lines;
        let counts = [info.rest(now), warn.rest(now)];
        counts.into_iter().flatten().reduce(|a, b| a + b)
    }

    /// Ends all jobs here, reserved ones too: the daemon is going. Members whose policy is to go on
    /// without it are told by the end of their connections alone.
    pub fn shut_down(&mut self, reason: &str) {
        let all: Vec<_> = self.jobs.keys().copied().collect();
        for job_id in all {
            let Some(job) = self.jobs.get_mut(&job_id) else { continue };
            job.reserved = false;
            let quietly = job.outlives_daemon();
            self.end_for(job_id, reason.into(), quietly);
        }
    }

    /// The next thing to do; None when all is done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        let effect = self.effects.pop_front();
        effect.or_else(|| std::mem::take(&mut self.changed).then_some(Effect::Persist))
    }
}
