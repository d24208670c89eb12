//! Workers that come back: to a daemon that was started again, or over a new connection.

use std::mem;
use std::net::SocketAddrV4;

use tracing::info;
use xdp_agg_common::control::{AbortReason, Join, Reply, Resume};
use xdp_agg_common::reform::SPAN_MAX;

use super::checks::{self, Refusal};
use super::job::{Life, Member, Phase};
use super::tree::Trunk;
use super::{ConnId, Effect, Jobs, Session};

impl Jobs {
    /// A worker that was a member wants to go on.
    pub(super) fn resume(
        &mut self,
        conn: ConnId,
        session: &Session,
        job_id: u16,
        join: &Join,
        resume: &Resume,
        data: SocketAddrV4,
    ) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return Err(checks::no_entry(&join.job));
        };
        checks::same_job(join, job)?;
        // A member's data address is its own, but a rank that comes back may have its old one.
        checks::own_address(join.rank, data, job)?;
        let local = checks::local_addr(join.rank, &session.peer, &self.limits, job)?;
        let back = Member {
            progress: Some(resume.progress.clone()),
            ..Member::new(conn, data, local, join)
        };
        let rank = join.rank;
        let known = job.life.identities.contains(&(resume.epoch, resume.cookie));
        let is_member = job.life.members.contains_key(&rank);
        match job.phase {
            Phase::Forming(_) => {
                self.expect_return(job_id, join, resume);
                return self.come_back(conn, job_id, rank, resume, back);
            }
            Phase::Returning(_) => return self.come_back(conn, job_id, rank, resume, back),
            Phase::Running | Phase::Pausing | Phase::RunningTo(_) if known && is_member => {
                self.attach(conn, job_id, rank, back);
            }
            // Its progress counts, also if it was thought to be lost, as long as there is no plan.
            Phase::Collecting(_)
                if known && (is_member || job.life.epoch_members >> rank & 1 == 1) =>
            {
                info!(job = job.name, rank, "is back while the job reforms");
                self.take_place(conn, job_id, rank, back);
            }
            // It may have more than it said over its last connection: another plan.
            Phase::Preparing(_) | Phase::Branching(_) if known && is_member && job.life.ran => {
                self.take_place(conn, job_id, rank, back);
                self.plan_again(job_id);
            }
            // What it heard of this epoch is not known: all begin again.
            Phase::Probing(_) | Phase::Starting(_) if known && is_member && job.life.ran => {
                self.take_place(conn, job_id, rank, back);
                self.reform(job_id, Vec::new(), &again(rank), Some(rank));
            }
            _ => {
                self.expel(conn);
                return Ok(());
            }
        }
        self.advance(job_id);
        Ok(())
    }

    /// The first worker of a job that another daemon had: all of its epoch may come back. Those who
    /// have joined anew meanwhile wait.
    fn expect_return(&mut self, job_id: u16, join: &Join, resume: &Resume) {
        let end = self.clock + self.limits.resume_timeout;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let waiting = mem::take(&mut job.life.members);
        job.wanted = job.wanted.or(join.result_mode);
        job.life = Life {
            policy: Some(join.policy),
            waiting,
            chunks: resume.chunks,
            epoch: resume.epoch,
            cookie: resume.cookie,
            epoch_members: resume.members,
            ran: true,
            span: SPAN_MAX,
            trunk: Trunk { asked: join.tree.clone(), ..Trunk::default() },
            ..Life::default()
        };
        job.phase = Phase::Returning(end);
        info!(
            job = job.name,
            epoch = resume.epoch,
            "waiting for the members of another daemon's job"
        );
    }

    /// One more of them.
    fn come_back(
        &mut self,
        conn: ConnId,
        job_id: u16,
        rank: u16,
        resume: &Resume,
        back: Member,
    ) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return Ok(());
        };
        checks::same_return(rank, resume, job)?;
        let mut expelled = Vec::new();
        if resume.epoch > job.life.epoch {
            // The daemon was lost while it told the members of a later epoch: that one holds.
            let gone = job.life.members.extract_if(.., |rank, _| resume.members >> rank & 1 == 0);
            expelled.extend(gone.filter_map(|(_, member)| member.conn));
            job.life.epoch = resume.epoch;
            job.life.cookie = resume.cookie;
            job.life.epoch_members = resume.members;
        }
        let is_member = job.life.epoch_members >> rank & 1 == 1;
        if is_member {
            let identity = (resume.epoch, resume.cookie);
            if !job.life.identities.contains(&identity) {
                job.life.identities.push(identity);
            }
            info!(job = job.name, rank, epoch = resume.epoch, "is back");
        } else {
            expelled.push(conn);
        }
        self.last_epoch = self.last_epoch.max(resume.epoch);
        for conn in expelled {
            self.expel(conn);
        }
        if is_member {
            self.take_place(conn, job_id, rank, back);
        }
        self.advance(job_id);
        Ok(())
    }

    /// A member of a running job has a new connection: the epoch goes on.
    fn attach(&mut self, conn: ConnId, job_id: u16, rank: u16, back: Member) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let Some(old) = job.life.members.get(&rank).cloned() else {
            return;
        };
        info!(job = job.name, rank, "is back, over a new connection");
        if old.data != back.data {
            // The data path knows it by its address: that changes with the epoch only.
            self.take_place(conn, job_id, rank, back);
            return self.reform(job_id, Vec::new(), &again(rank), Some(rank));
        }
        let (phase, said) = (job.phase, old.progress.is_some());
        let joining = job.life.waiting.keys().copied().collect();
        let member = Member { conn: Some(conn), paused: None, ..old };
        self.take_place(conn, job_id, rank, member);
        self.reply(conn, Reply::Resumed);
        match phase {
            // Over there the pause is over, and whether it heard of it is not known.
            Phase::Pausing => self.reply(conn, Reply::Pause { joining }),
            Phase::RunningTo(sequence) if !said => self.reply(conn, Reply::RunTo { sequence }),
            _ => {}
        }
    }

    /// The job went on without this worker.
    fn expel(&mut self, conn: ConnId) {
        self.discharge(Some(conn));
        self.reply(conn, Reply::Aborted(AbortReason::Expelled));
        self.effects.push_back(Effect::Close(conn));
        self.closed(conn);
    }
}

/// Why all begin again.
fn again(rank: u16) -> String {
    format!("rank {rank} is back over a new connection")
}
