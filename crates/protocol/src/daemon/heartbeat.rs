//! Heartbeats: something to deliver, so that a dead host or link shows. Their answers, and what
//! members say with them, tell the members of each other.

use std::time::{Duration, Instant};

use xdp_agg_common::control::{Doing, Presence, Reply, Standing};

use super::job::{Job, Member};
use super::{ConnId, Effect, Jobs, Limits, Session};

/// Heartbeats in the time in which a dead host is to be noticed.
const PER_DEAD_AFTER: u32 = 8;
/// Longest pause between two: members say with their answers what they do.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Heartbeats without an answer after which no more are sent: a stopped process must not find its
/// receive buffer full. From then on TCP's own probes tell whether its host is there.
const UNANSWERED_MAX: u32 = 64;

/// Heartbeats without an answer, and how long, until a process counts as stopped: a busy host's
/// processes may be late by as much.
const SILENT: u32 = 3;
/// See [`SILENT`].
const SILENCE: Duration = Duration::from_secs(2);

impl Limits {
    /// How long the others may take to join a member.
    pub(super) fn join_time(&self, member: &Member) -> Duration {
        let most = self.join_timeout_max.max(self.join_timeout);
        member.patience.unwrap_or(self.join_timeout).min(most)
    }
}

impl Jobs {
    /// Time between two heartbeats.
    fn beat(&self) -> Duration {
        (self.limits.patience.least() / PER_DEAD_AFTER).min(PAUSE_MAX)
    }

    /// When the next heartbeats are due, if there is anybody to send them to.
    pub(super) fn heartbeat_due(&self) -> Option<Instant> {
        let anybody = self.sessions.values().any(Session::is_bound);
        anybody.then_some(self.next_heartbeat)
    }

    pub(super) fn send_heartbeats(&mut self) {
        if self.next_heartbeat > self.clock {
            return;
        }
        self.next_heartbeat = self.clock + self.beat();
        for (conn, session) in &mut self.sessions {
            if session.is_bound() && session.unanswered < UNANSWERED_MAX {
                session.unanswered += 1;
                self.effects.push_back(Effect::Reply(*conn, Reply::Heartbeat));
            }
        }
    }

    /// A connection has answered.
    pub(super) fn heartbeat(&mut self, conn: ConnId) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.unanswered = 0;
            session.answered = Some(self.clock);
        }
    }

    /// A member has said what it does.
    pub(super) fn does(&mut self, session: &Session, doing: Doing) {
        let job =
            session.member.and_then(|(job_id, rank)| Some((self.jobs.get_mut(&job_id)?, rank)));
        if let Some((job, rank)) = job
            && let Some(member) = job.life.members.get_mut(&rank)
        {
            member.doing = Some(doing.clipped());
        }
    }

    /// Tells how these ranks are, and what they do.
    pub(super) fn tell_standing(&mut self, conn: ConnId, job_id: u16, of: u64) {
        let Some(job) = self.jobs.get(&job_id) else {
            return;
        };
        let ranks = (0..job.world_size).filter(|rank| of >> rank & 1 == 1);
        let all = ranks.map(|rank| self.standing(job, rank)).collect();
        self.reply(conn, Reply::Standing(all));
    }

    fn standing(&self, job: &Job, rank: u16) -> Standing {
        let member = job.life.members.get(&rank);
        let session = member.and_then(|member| self.sessions.get(&member.conn?));
        let presence = match session {
            Some(session) if self.is_silent(session) => Presence::Silent,
            Some(_) => Presence::Alive,
            None if job.life.left.contains(&rank) => Presence::Left,
            None => Presence::Absent,
        };
        let answered = session.and_then(|session| session.answered);
        let age = answered.map(|at| self.clock.saturating_duration_since(at));
        Standing {
            rank,
            presence,
            heartbeat_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            doing: member.and_then(|member| member.doing.clone()),
        }
    }

    /// A process that has not answered for long. Its host is there: its kernel takes what is sent.
    fn is_silent(&self, session: &Session) -> bool {
        let unanswered = session.unanswered;
        let since = self.beat() * unanswered;
        unanswered >= SILENT && (unanswered == UNANSWERED_MAX || since >= SILENCE)
    }

    /// A connection becomes a member, or waits to become one.
    pub(super) fn enrol(&mut self, conn: ConnId, job_id: u16, rank: u16) {
        self.begin_heartbeats();
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.member = Some((job_id, rank));
        }
    }

    /// A connection leads a job that this daemon serves as a branch.
    pub(super) fn enrol_branch(&mut self, conn: ConnId, job_id: u16) {
        self.begin_heartbeats();
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.branch = Some(job_id);
        }
    }

    fn begin_heartbeats(&mut self) {
        if self.heartbeat_due().is_none() {
            self.next_heartbeat = self.clock + self.beat();
        }
    }

    /// A connection is neither a member any more, nor waiting.
    pub(super) fn discharge(&mut self, conn: Option<ConnId>) {
        if let Some(session) = conn.and_then(|conn| self.sessions.get_mut(&conn)) {
            session.member = None;
        }
    }
}
