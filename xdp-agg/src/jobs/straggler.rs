//! Who contributes, as the data path tells: for people, and to end the wait for one that does not.
//!
//! A straggler is a member whose contribution the others lack. They say so by asking for the ranks
//! that a block misses. Without [`super::Limits::straggler_timeout`] nothing follows from it.

use std::time::{Duration, Instant};

use xdp_agg_common::control::{ErrorCode, Reply};
use xdp_agg_common::wire::BLOCK_MASK;

use super::job::Job;
use super::{ConnId, Effect, Heard, Jobs, Look, Purpose};

impl Jobs {
    /// A member asks who has not contributed to a block, of those that it waits for.
    pub(super) fn missing(&mut self, conn: ConnId, job_id: u16, (block, of): (u64, Option<u64>)) {
        if block > BLOCK_MASK {
            let message = format!("block {block}: block numbers are below 2^48");
            return self.refuse(conn, (ErrorCode::Invalid, message));
        }
        match self.jobs.get(&job_id) {
            Some(job) if !job.is_summing() => {
                let ranks = job.awaited();
                self.reply(conn, Reply::Missing { block, ranks });
            }
            job => {
                if job.is_some_and(|job| !job.life.trunk.tree.is_single()) {
                    self.ask_tree(conn, job_id, block);
                }
                let of = of.unwrap_or(u64::MAX);
                self.effects.push_back(Effect::Missing { conn, job_id, block, of });
            }
        }
    }

    /// The engine has answered: these ranks keep the one that asked waiting.
    pub(super) fn keep_waiting(&mut self, conn: ConnId, bits: u64) {
        let now = self.clock;
        let asker = self.sessions.get(&conn).and_then(|session| session.member);
        let Some((job_id, rank)) = asker else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&job_id).filter(|job| job.is_summing()) else {
            return;
        };
        for (other, member) in &mut job.life.members {
            if bits >> other & 1 == 1 && *other != rank {
                member.awaited.get_or_insert(now);
            }
        }
        // Who has left contributes no more: under a policy to shrink the others need not wait.
        let left: Vec<_> =
            job.life.left.iter().copied().filter(|left| bits >> left & 1 == 1).collect();
        if job.shrinks() && !left.is_empty() {
            self.reform(job_id, left, "it left, and the others make another call", None);
        }
    }

    /// When the data path is to be asked about members that others wait for.
    pub(super) fn straggler_due(&self, job: &Job, limit: Duration) -> Option<Instant> {
        if job.life.looking || !job.is_summing() {
            return None;
        }
        job.life
            .members
            .values()
            .filter_map(|member| member.awaited)
            .min()
            .map(|since| since + limit)
    }

    pub(super) fn look_for_stragglers(&mut self, job_id: u16) {
        let now = self.clock;
        let limit = self.limits.straggler_timeout;
        let Some(job) = self.jobs.get(&job_id) else {
            return;
        };
        let due = limit.and_then(|limit| self.straggler_due(job, limit));
        if due.is_some_and(|due| due <= now)
            && let Some(job) = self.jobs.get_mut(&job_id)
        {
            job.life.looking = true;
            let look = Look::Straggler { job_id };
            self.effects.push_back(Effect::Heard { look, jobs: vec![job_id] });
        }
    }

    /// Asks the data path who contributes, for somebody who wants to see it.
    pub(super) fn look(&mut self, look: Look) {
        let summing = self.jobs.values().filter(|job| job.is_summing()).map(|job| job.job_id);
        let jobs = summing.collect();
        self.effects.push_back(Effect::Heard { look, jobs });
    }

    /// The data path has told who contributes.
    pub(super) fn heard(&mut self, look: Look, heard: Vec<(u16, Heard)>) {
        let now = self.clock;
        for (job_id, ranks) in &heard {
            let Some(job) = self.jobs.get_mut(job_id) else {
                continue;
            };
            for (rank, ago) in ranks {
                if let Some(member) = job.life.members.get_mut(rank) {
                    member.contributed = ago.and_then(|ago| now.checked_sub(ago));
                }
            }
        }
        match look {
            Look::Jobs(conn) => {
                let answered = |conn| self.sessions.get(&conn).and_then(|s| s.answered);
                let led = self.jobs.values().map(|job| job.info(now, answered));
                let served = self.served.iter().map(|(job_id, served)| served.info(*job_id));
                let all = led.chain(served).collect();
                self.reply(conn, Reply::Jobs(all));
            }
            Look::Stats(conn) => self.effects.push_back(Effect::Counters(Purpose::Stats(conn))),
            Look::Straggler { job_id } => {
                let ranks = heard.iter().find(|(id, _)| *id == job_id).map(|(_, ranks)| &ranks[..]);
                self.judge(job_id, ranks.unwrap_or_default());
            }
        }
    }

    /// Ends the wait for members that have contributed nothing since others wait for them.
    fn judge(&mut self, job_id: u16, told: &[(u16, Option<Duration>)]) {
        let now = self.clock;
        let Some(limit) = self.limits.straggler_timeout else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        // Whatever has become of the epoch meanwhile: stragglers of the next one are looked for.
        job.life.looking = false;
        if !job.is_summing() {
            return;
        }
        let mut late = Vec::new();
        for (rank, member) in &mut job.life.members {
            let Some(since) = member.awaited else {
                continue;
            };
            // Without knowledge nobody is condemned.
            let known = told.iter().any(|(other, _)| other == rank);
            if !known || member.contributed.is_some_and(|at| at >= since) {
                member.awaited = None;
            } else if since + limit <= now {
                late.push(*rank);
            }
        }
        if !late.is_empty() {
            self.give_up_on(job_id, &late, "contribute");
        }
    }
}
