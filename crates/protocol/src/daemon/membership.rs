//! How ranks become members and cease to be members, and what follows for the job.

use std::collections::BTreeMap;
use std::mem;
use std::time::Instant;

use xdp_agg_common::control::{AbortReason, BranchRequest, ErrorCode, Reply};

use super::job::{Job, Life, Member};
use super::phase::Phase;
use super::trunk::Trunk;
use super::{ConnId, Effect, Formation, Happened, Jobs};

impl Jobs {
    /// Goes on if the event that the job waits for has come.
    pub(super) fn advance(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let members = &job.life.members;
        if members.is_empty() {
            return;
        }
        match job.phase() {
            Phase::Forming(_) if job.is_full() => self.form(job_id),
            Phase::Returning(_) if job.awaited().is_empty() => self.replan(job_id),
            Phase::Branching(_) => self.form(job_id),
            Phase::Preparing(_) if job.life.trunk.is_prepared() => self.prepared(job_id),
            Phase::Probing(_)
                if members.values().all(|member| member.ready) && job.life.trunk.is_linked() =>
            {
                job.enter(Phase::Starting(self.clock + self.limits.probe_timeout));
                let (epoch, mode) = (job.life.epoch, job.wanted);
                self.effects.push_back(Effect::Start(Formation { job_id, epoch }, mode));
                self.tell_branches(job_id, &BranchRequest::Start { epoch, mode });
            }
            Phase::Starting(_) if job.life.trunk.has_started() => self.started(job_id),
            Phase::Running if !job.life.waiting.is_empty() && job.all_connected() => {
                self.pause(job_id);
            }
            Phase::Pausing(_) => {
                let paused: Option<Vec<_>> = members.values().map(|member| member.paused).collect();
                if let Some(sequence) = paused.and_then(|paused| paused.into_iter().max()) {
                    job.enter(Phase::RunningTo(sequence, None));
                    self.tell_members(job_id, &Reply::RunTo { sequence });
                }
            }
            Phase::RunningTo(..) | Phase::Collecting(_) if job.has_all_progress() => {
                self.replan(job_id);
            }
            _ => {}
        }
    }

    /// Ranks wait to join: the members are asked which call they would start next.
    fn pause(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        if !job.shrinks() {
            return self.turn_away(job_id, "its policy is to fail when a worker is lost");
        }
        let taken = |rank: &u16| job.life.members.contains_key(rank);
        if job.life.waiting.keys().any(taken) {
            return self.turn_away(job_id, "the member that had this rank has come back");
        }
        job.enter(Phase::Pausing(self.clock));
        let joining: Vec<_> = job.life.waiting.keys().copied().collect();
        note!(self, info, job = job.name, ?joining, "pausing for ranks that want to join");
        self.tell_members(job_id, &Reply::Pause { joining });
    }

    /// Turns away all that wait for a rank, because one of these will not be free. This is rare,
    /// and a worker that still has a chance may ask again.
    pub(super) fn turn_away(&mut self, job_id: u16, why: &str) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let name = job.name.clone();
        for (rank, member) in mem::take(&mut job.life.waiting) {
            self.discharge(member.conn);
            let message = format!(
                "job {name:?} goes on without this worker as rank {rank}: {why}; wait until it \
                 ends, or use another job name (XDP_AGG_JOB)"
            );
            if let Some(conn) = member.conn {
                self.refuse(conn, (ErrorCode::Busy, message));
            }
        }
    }

    /// A member says farewell.
    pub(super) fn leave(&mut self, conn: ConnId, job_id: u16, rank: u16) {
        if self.stop_waiting(conn, job_id, rank) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&job_id).filter(|job| job.is_member(rank, conn)) else {
            return;
        };
        note!(self, info, job = job.name, rank, "left");
        let (phase, shrinks) = (job.phase(), job.shrinks());
        let text = format!("rank {rank} has left {}", job.name);
        self.tell(job_id, Happened::RankLeft, Some(rank), text);
        self.detach(job_id, rank);
        match phase {
            Phase::Forming(_) => self.end_if_empty(job_id),
            // Others may still ask for results that they lost: the epoch goes on without it.
            Phase::Running | Phase::Pausing(_) | Phase::RunningTo(..) => {
                if let Some(job) = self.jobs.get_mut(&job_id) {
                    job.life.left.insert(rank);
                }
                self.end_if_empty(job_id);
                self.advance(job_id);
            }
            _ if shrinks => {
                if let Some(job) = self.jobs.get_mut(&job_id) {
                    job.life.left.insert(rank);
                    job.life.epoch_members &= !(1 << rank);
                }
                self.go_on_without(job_id, &[rank], "it left");
            }
            _ => {
                let reason = "it left before all paths were open".into();
                self.abort(job_id, &AbortReason::Member { rank, reason, cause: None });
            }
        }
    }

    /// A member's connection ended without `Leave`.
    pub(super) fn connection_lost(&mut self, job_id: u16, rank: u16, conn: ConnId) {
        if self.stop_waiting(conn, job_id, rank) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&job_id).filter(|job| job.is_member(rank, conn)) else {
            return;
        };
        note!(self, info, job = job.name, rank, "connection lost");
        match job.phase() {
            // It may come (back) as long as the job waits for others anyway.
            Phase::Forming(_) | Phase::Returning(_) => {
                self.detach(job_id, rank);
                self.end_if_empty(job_id);
            }
            _ => self.lose(job_id, &[rank], "its connection ended"),
        }
    }

    /// Members are gone for good: what follows is the job's policy. `reason` continues the
    /// sentence "rank 3 is lost: ".
    pub(super) fn lose(&mut self, job_id: u16, ranks: &[u16], reason: &str) {
        for rank in ranks {
            self.detach(job_id, *rank);
            if let Some(job) = self.jobs.get(&job_id) {
                let text = format!("rank {rank} of {} is lost: {reason}", job.name);
                self.tell(job_id, Happened::RankLost, Some(*rank), text);
            }
        }
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let Some(first) = ranks.first() else {
            return;
        };
        if !job.shrinks() {
            return self.abort(job_id, &AbortReason::MemberLost { rank: *first });
        }
        note!(self, warn, job = job.name, ?ranks, "lost: {reason}");
        job.life.lost.extend(ranks);
        self.go_on_without(job_id, ranks, reason);
    }

    /// The others go on without ranks that are members no more.
    fn go_on_without(&mut self, job_id: u16, ranks: &[u16], reason: &str) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        if job.life.members.is_empty() {
            return self.end(job_id);
        }
        match job.phase() {
            Phase::Running
            | Phase::Pausing(_)
            | Phase::RunningTo(..)
            | Phase::Probing(_)
            | Phase::Starting(_) => self.reform(job_id, ranks.to_vec(), reason, None),
            Phase::Preparing(_) | Phase::Branching(_) => self.plan_again(job_id),
            Phase::Collecting(_) | Phase::Returning(_) => self.advance(job_id),
            Phase::Forming(_) => {}
        }
    }

    /// A rank that waits does so no more; false if it does not wait.
    pub(super) fn stop_waiting(&mut self, conn: ConnId, job_id: u16, rank: u16) -> bool {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return false;
        };
        match job.life.waiting.get(&rank) {
            Some(member) if member.conn == Some(conn) => {
                note!(self, info, job = job.name, rank, "waits no more");
                job.life.waiting.remove(&rank);
                self.discharge(Some(conn));
                true
            }
            _ => false,
        }
    }

    /// Takes a rank out of its job.
    pub(super) fn detach(&mut self, job_id: u16, rank: u16) {
        let members = self.jobs.get_mut(&job_id).map(|job| &mut job.life.members);
        let member = members.and_then(|members| members.remove(&rank));
        self.discharge(member.and_then(|member| member.conn));
        self.changed = true;
    }

    /// Puts a connection in a rank's place. One that had it before is closed: it is the same
    /// worker's, and dead without our knowledge.
    pub(super) fn take_place(&mut self, conn: ConnId, job_id: u16, rank: u16, member: Member) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        job.life.lost.remove(&rank);
        self.changed = true;
        let old = job.life.members.insert(rank, member).and_then(|member| member.conn);
        if let Some(old) = old.filter(|old| *old != conn)
            && self.sessions.remove(&old).is_some()
        {
            self.effects.push_back(Effect::Close(old));
        }
        self.enrol(conn, job_id, rank);
    }

    /// Tells all that are left why, and ends the job.
    pub(super) fn abort(&mut self, job_id: u16, reason: &AbortReason) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        // Members of an epoch before did not come back in time. Those that have joined anew did
        // nothing wrong, and form without them.
        let stay = matches!(job.phase(), Phase::Returning(_))
            && matches!(reason, AbortReason::Timeout { .. });
        let waiting = if stay { BTreeMap::new() } else { mem::take(&mut job.life.waiting) };
        if !job.life.members.is_empty() {
            note!(self, warn, job = job.name, "aborted: {reason}");
            job.life.aborted = Some(reason.to_string());
        }
        self.tell_members(job_id, &Reply::Aborted(reason.clone()));
        for conn in waiting.into_values().filter_map(|member| member.conn) {
            self.discharge(Some(conn));
            self.reply(conn, Reply::Aborted(reason.clone()));
        }
        self.end(job_id);
    }

    fn end_if_empty(&mut self, job_id: u16) {
        if self.jobs.get(&job_id).is_some_and(|job| job.life.members.is_empty()) {
            self.end(job_id);
        }
    }

    /// The job is over: it goes, or forms again, of those that waited.
    pub(super) fn end(&mut self, job_id: u16) {
        self.silence(job_id);
        self.hang_up_all(job_id);
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let policy = job.life.policy;
        let why = job.life.aborted.take().or_else(|| job.life.ran.then(|| "all have left".into()));
        let text = why.map(|why| format!("{} has ended: {why}", job.name));
        let Life { members, waiting, trunk, chosen, .. } = mem::take(&mut job.life);
        job.enter(Phase::Forming(None));
        for member in members.into_values() {
            self.discharge(member.conn);
        }
        if let Some(text) = text {
            self.tell(job_id, Happened::JobEnded, None, text);
        }
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        if !waiting.is_empty() {
            note!(self, info, job = job.name, "forms again, of the ranks that waited");
            let times = waiting.values().map(|member| self.limits.join_time(member));
            let end = times.max().map(|time| self.clock + time);
            job.enter(Phase::Forming(end));
            let trunk = Trunk { asked: trunk.asked, ..Trunk::default() };
            job.life = Life { members: waiting, policy, chosen, trunk, ..Life::default() };
            self.advance(job_id);
        } else if !job.reserved {
            self.forget(job_id);
        }
    }

    pub(super) fn forget(&mut self, job_id: u16) {
        if let Some(job) = self.jobs.remove(&job_id) {
            self.changed = true;
            note!(self, info, job = job.name, job_id, "gone");
            self.pool.give_back(job.slot_base);
        }
    }

    /// When a wait of this job ends.
    pub(super) fn deadline(&self, job: &Job) -> Option<Instant> {
        let wait = match job.phase() {
            Phase::Forming(end) => end,
            Phase::Returning(end) | Phase::Branching(end) | Phase::Probing(end) => Some(end),
            // This daemon's engine answers at once.
            Phase::Preparing(end) | Phase::Starting(end) => job.awaits_branches().then_some(end),
            Phase::Collecting(since) | Phase::Pausing(since) | Phase::RunningTo(_, Some(since)) => {
                job.awaited().iter().filter_map(|rank| self.given_up_at(job, *rank, since)).min()
            }
            _ => None,
        };
        let restored = job.life.restored.filter(|_| !job.all_connected());
        let late = self.straggler_due(job);
        let all = [wait, restored, late, self.trouble_due(job), job.comeback_due()];
        all.into_iter().flatten().min()
    }

    /// A wait of this job is over: each in turn that may be.
    pub(super) fn wait_is_over(&mut self, job_id: u16) {
        let now = self.clock;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        if job.life.restored.is_some_and(|end| end <= now) {
            job.life.restored = None;
            let absent = job.absent();
            if !absent.is_empty() {
                return self.give_up_on(job_id, &absent, "resume");
            }
        }
        if self.end_troubles(job_id) || self.look_for_lost_branches(job_id) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let ranks = job.awaited();
        match job.phase() {
            Phase::Forming(Some(end)) if end <= now => {
                self.abort(job_id, &AbortReason::Timeout { ranks, step: "join".into() });
            }
            Phase::Returning(end) if end <= now => {
                for rank in &ranks {
                    job.life.epoch_members &= !(1 << rank);
                }
                self.give_up_on(job_id, &ranks, "resume");
            }
            Phase::Branching(end) | Phase::Probing(end) if end <= now => {
                if !self.branches_are_late(job_id) {
                    self.give_up_on(job_id, &ranks, "probe");
                }
            }
            Phase::Preparing(end) | Phase::Starting(end) if end <= now => {
                self.branches_are_late(job_id);
            }
            phase => {
                let (since, step) = match phase {
                    Phase::Pausing(since) => (Some(since), "pause"),
                    Phase::Collecting(since) | Phase::RunningTo(_, Some(since)) => {
                        (Some(since), "report its progress")
                    }
                    _ => (None, ""),
                };
                let is_late = |rank: &u16| {
                    let job = self.jobs.get(&job_id);
                    let at = job.zip(since).and_then(|(job, at)| self.given_up_at(job, *rank, at));
                    at.is_some_and(|at| at <= now)
                };
                let late: Vec<_> = ranks.into_iter().filter(is_late).collect();
                match late[..] {
                    [] => self.look_for_stragglers(job_id),
                    _ => self.give_up_on(job_id, &late, step),
                }
            }
        }
    }

    /// Ranks have not done a step in time: they are told, and the others go on if they may.
    pub(super) fn give_up_on(&mut self, job_id: u16, ranks: &[u16], step: &str) {
        let Some(job) = self.jobs.get(&job_id) else {
            return;
        };
        let reason = AbortReason::Timeout { ranks: ranks.to_vec(), step: step.into() };
        let all = job.life.members.keys().all(|rank| ranks.contains(rank));
        if !job.shrinks() || all {
            return self.abort(job_id, &reason);
        }
        let late = ranks.iter().filter_map(|rank| job.life.members.get(rank)?.conn);
        for conn in late.collect::<Vec<_>>() {
            self.reply(conn, Reply::Aborted(reason.clone()));
        }
        self.lose(job_id, ranks, &format!("it did not {step} in time"));
    }
}
