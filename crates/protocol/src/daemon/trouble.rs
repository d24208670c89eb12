//! Members that the data path does not reach: an interface is down or gone, or its MTU is too small
//! for their blocks.
//!
//! For a while that costs time only. After half of the time in which a dead host is noticed, the
//! members are given up, with the reason in words.

use std::time::Instant;

use tracing::{info, warn};
use xdp_agg_common::control::{AbortReason, Reply};

use super::job::Job;
use super::{Effect, Jobs};
use crate::engine::{Lasting, Trouble};

impl Jobs {
    /// The engine has looked after its interfaces: these are all troubles that there are now.
    pub fn handle_troubles(&mut self, troubles: Vec<Trouble>, now: Instant) {
        self.clock = now.max(self.clock);
        let mut before = std::mem::take(&mut self.troubles);
        for trouble in troubles {
            let known = before.iter().position(|lasting| lasting.trouble.what == trouble.what);
            let since = known.map(|at| before.swap_remove(at).since);
            if since.is_none() {
                warn!("the data path is in trouble: {}", trouble.what);
            }
            self.troubles.push(Lasting { trouble, since: since.unwrap_or(self.clock) });
        }
        for Lasting { trouble, .. } in before {
            info!("this trouble of the data path is over: {}", trouble.what);
        }
    }

    /// The troubles of a job's members, and when it does without these members.
    fn troubles_of(&self, job: &Job) -> impl Iterator<Item = (&Lasting, Instant)> {
        let (job_id, members) = (job.job_id, job.member_bits());
        let patience = self.limits.patience.with_members(job.policy()) / 2;
        let its = self.troubles.iter().filter(move |it| it.ranks(job_id) & members != 0);
        its.map(move |it| (it, it.since + patience))
    }

    /// When members of a job have been out of the data path's reach for too long.
    pub(super) fn trouble_due(&self, job: &Job) -> Option<Instant> {
        self.troubles_of(job).map(|(_, due)| due).min()
    }

    /// Gives up the members whose time is over. False: there are none.
    pub(super) fn end_troubles(&mut self, job_id: u16) -> bool {
        let Some(job) = self.jobs.get(&job_id) else {
            return false;
        };
        let (mut bits, mut what) = (0, Vec::new());
        for (lasting, _) in self.troubles_of(job).filter(|(_, due)| *due <= self.clock) {
            bits |= lasting.ranks(job_id) & job.member_bits();
            what.push(lasting.trouble.what.as_str());
        }
        if what.is_empty() {
            return false;
        }
        let ranks: Vec<u16> = (0..64).filter(|rank| bits >> rank & 1 == 1).collect();
        let reason = format!("results do not reach ranks {ranks:?}: {}", what.join("; "));
        let all = bits == job.member_bits();
        if all || !job.shrinks() {
            let quietly = all && job.outlives_daemon();
            self.end_for(job_id, reason, quietly);
            return true;
        }
        let told = AbortReason::Operator { reason: reason.clone() };
        let lost = ranks.iter().filter_map(|rank| job.life.members.get(rank)?.conn);
        for conn in lost.collect::<Vec<_>>() {
            self.reply(conn, Reply::Aborted(told.clone()));
        }
        self.lose(job_id, &ranks, &reason);
        true
    }

    /// Ends a job here. With `quietly` its members are told by the end of their connections alone:
    /// to them the daemon is lost.
    pub(super) fn end_for(&mut self, job_id: u16, reason: String, quietly: bool) {
        let members = self.jobs.get_mut(&job_id).filter(|_| quietly);
        let members = members.into_iter().flat_map(|job| job.life.members.values_mut());
        let conns: Vec<_> = members.filter_map(|member| member.conn.take()).collect();
        for conn in conns {
            self.sessions.remove(&conn);
            self.effects.push_back(Effect::Close(conn));
        }
        self.abort(job_id, &AbortReason::Operator { reason });
    }
}
