//! Heartbeats: something to deliver, so that a dead host or link shows.

use std::time::Instant;

use xdp_agg_common::control::Reply;

use super::{ConnId, Effect, Jobs, Session};

/// Heartbeats in the time in which a dead host is to be noticed.
const PER_DEAD_AFTER: u32 = 8;
/// Heartbeats without an answer after which no more are sent: a stopped process must not find its
/// receive buffer full. From then on TCP's own probes tell whether its host is there.
const UNANSWERED_MAX: u32 = 64;

impl Jobs {
    /// When the next heartbeats are due, if there is anybody to send them to.
    pub(super) fn heartbeat_due(&self) -> Option<Instant> {
        let anybody = self.sessions.values().any(Session::is_bound);
        anybody.then_some(self.next_heartbeat)
    }

    pub(super) fn send_heartbeats(&mut self) {
        if self.next_heartbeat > self.clock {
            return;
        }
        self.next_heartbeat = self.clock + self.limits.patience.least() / PER_DEAD_AFTER;
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
            self.next_heartbeat = self.clock + self.limits.patience.least() / PER_DEAD_AFTER;
        }
    }

    /// A connection is neither a member any more, nor waiting.
    pub(super) fn discharge(&mut self, conn: Option<ConnId>) {
        if let Some(session) = conn.and_then(|conn| self.sessions.get_mut(&conn)) {
            session.member = None;
        }
    }
}
