//! Workers that come back: to a daemon that was started again, or over a new connection.

use std::mem;
use std::net::SocketAddrV4;

use xdp_agg_common::control::{AbortReason, ErrorCode, Join, Reply, Resume};
use xdp_agg_common::reform::SPAN_MAX;

use super::checks::{self, Refusal};
use super::job::{Job, Life, Member, Wish};
use super::phase::Phase;
use super::trunk::Trunk;
use super::{ConnId, Effect, Happened, Jobs, Session};

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
        if let Phase::Forming(_) = job.phase() {
            checks::same_meeting(join, job)?;
        }
        checks::progress(join.rank, &resume.progress, job)?;
        // A member's data address is its own, but a rank that comes back may have its old one.
        checks::own_address(join.rank, data, job)?;
        let local = checks::local_addr(join.rank, &session.peer, &self.limits, job)?;
        let back = Member {
            progress: Some(resume.progress.clone()),
            ..Member::new(conn, data, local, join)
        };
        let rank = join.rank;
        job.life.origin = job.life.origin.take().or_else(|| join.origin.clone());
        let known = job.life.knows(resume);
        let is_member = job.life.members.contains_key(&rank);
        match job.phase() {
            Phase::Forming(_) => {
                self.expect_return(job_id, join, resume);
                return self.come_back(conn, job_id, rank, resume, back);
            }
            Phase::Returning(_) => return self.come_back(conn, job_id, rank, resume, back),
            _ if job.life.is_overtaken_by(resume) => {
                self.leave_behind(job_id);
                self.expect_return(job_id, join, resume);
                return self.come_back(conn, job_id, rank, resume, back);
            }
            Phase::Running | Phase::Pausing(_) | Phase::RunningTo(..) if known && is_member => {
                self.attach(conn, job_id, rank, back);
            }
            // Its progress counts, also if it was thought to be lost, as long as there is no plan.
            Phase::Collecting(_)
                if known && (is_member || job.life.epoch_members >> rank & 1 == 1) =>
            {
                note!(self, info, job = job.name, rank, "is back while the job reforms");
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

    /// The first worker of a job that another daemon had: all of its epoch may come back. Workers
    /// that have joined anew meanwhile wait.
    fn expect_return(&mut self, job_id: u16, join: &Join, resume: &Resume) {
        let end = self.clock + self.limits.resume_timeout;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let waiting = mem::take(&mut job.life.members);
        job.wanted = job.wanted.or(join.result_mode);
        job.life = Life {
            policy: Some(join.policy),
            origin: join.origin.clone(),
            waiting,
            chunks: resume.chunks,
            epoch: resume.epoch,
            cookie: resume.cookie,
            epoch_members: resume.members,
            rings: resume.rings,
            ran: true,
            span: SPAN_MAX,
            trunk: Trunk { asked: join.tree.clone(), ..Trunk::default() },
            ..Life::default()
        };
        job.enter(Phase::Returning(end));
        note!(
            self,
            info,
            job = job.name,
            epoch = resume.epoch,
            "waiting for the members of another daemon's job"
        );
        if resume.rings > 0 {
            let text = format!("{}: its workers come back from a ring", job.name);
            self.tell(job_id, Happened::RingEnded, None, text);
        }
    }

    /// The members of this very epoch have met on a ring since: what this daemon has of the job is
    /// over. The members that it still lists are old connections, and members that the ring does
    /// without.
    fn leave_behind(&mut self, job_id: u16) {
        self.silence(job_id);
        self.hang_up_all(job_id);
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let waiting = mem::take(&mut job.life.waiting);
        let behind = mem::replace(&mut job.life.members, waiting);
        for conn in behind.into_values().filter_map(|member| member.conn) {
            self.expel(conn);
        }
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
        let order = job.life.order(resume);
        // After a ring members have what others can not be given: they go on among themselves.
        let ring = job.life.rings > 0 || resume.rings > 0;
        if ring && order.is_lt() {
            self.expel(conn);
            return Ok(());
        }
        checks::same_return(rank, resume, job)?;
        let mut expelled = Vec::new();
        if order.is_gt() {
            // The daemon was lost while it told the members of a later epoch: that one holds.
            let is_gone = |rank: &u16| ring || resume.members >> rank & 1 == 0;
            let gone = job.life.members.extract_if(.., |rank, _| is_gone(rank));
            expelled.extend(gone.filter_map(|(_, member)| member.conn));
            job.life.epoch = resume.epoch;
            job.life.cookie = resume.cookie;
            job.life.epoch_members = resume.members;
            job.life.rings = resume.rings;
            if ring {
                job.life.identities.clear();
            }
        }
        let is_member = job.life.epoch_members >> rank & 1 == 1;
        if is_member {
            let identity = (resume.epoch, resume.cookie, resume.rings);
            if !job.life.identities.contains(&identity) {
                job.life.identities.push(identity);
            }
            note!(self, info, job = job.name, rank, epoch = resume.epoch, "is back");
        } else {
            expelled.push(conn);
        }
        for conn in expelled {
            self.expel(conn);
        }
        if is_member {
            self.take_place(conn, job_id, rank, back);
        }
        self.advance(job_id);
        Ok(())
    }

    /// Whether a worker that goes on without this daemon would be taken back: as
    /// [`Self::resume`], without any change.
    pub(super) fn offer(&self, session: &Session, join: &Join) -> Result<(), Refusal> {
        let slots = checks::wish(&Wish::from(join), &self.limits)?;
        let data = checks::worker(join, &session.peer)?;
        let Some(resume) = &join.resume else {
            let why = "an Offer of a worker that was never a member: it names no epoch";
            return Err((ErrorCode::Invalid, why.into()));
        };
        checks::resume(join, resume, &self.limits)?;
        let Some(job) = self.jobs.values().find(|job| job.name == join.job) else {
            self.free_entry().ok_or_else(|| checks::no_entry(&join.job))?;
            let fits = slots <= self.pool.longest();
            return if fits { Ok(()) } else { Err(checks::no_slots(&join.job, slots, &self.pool)) };
        };
        checks::same_job(join, job)?;
        checks::own_address(join.rank, data, job)?;
        let life = &job.life;
        let may = match job.phase() {
            Phase::Forming(_) => {
                checks::same_meeting(join, job)?;
                true
            }
            Phase::Returning(_) => {
                checks::same_return(join.rank, resume, job)?;
                life.order(resume).is_ge()
            }
            _ => life.knows(resume) || life.is_overtaken_by(resume),
        };
        if may { Ok(()) } else { Err(goes_on_without(join.rank, job)) }
    }

    /// A member of a running job has a new connection: the epoch goes on.
    fn attach(&mut self, conn: ConnId, job_id: u16, rank: u16, back: Member) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let Some(old) = job.life.members.get(&rank).cloned() else {
            return;
        };
        note!(self, info, job = job.name, rank, "is back, over a new connection");
        if old.data != back.data {
            // The data path knows it by its address: that changes with the epoch only.
            self.take_place(conn, job_id, rank, back);
            return self.reform(job_id, Vec::new(), &again(rank), Some(rank));
        }
        let (phase, said) = (job.phase(), old.progress.is_some());
        let joining = job.life.waiting.keys().copied().collect();
        let member = Member { conn: Some(conn), paused: None, ..old };
        self.take_place(conn, job_id, rank, member);
        self.reply(conn, Reply::Resumed);
        match phase {
            // Over there the pause is over, and whether it heard of it is not known.
            Phase::Pausing(_) => self.reply(conn, Reply::Pause { joining }),
            Phase::RunningTo(sequence, _) if !said => self.reply(conn, Reply::RunTo { sequence }),
            _ => {}
        }
    }

    /// The job went on without this worker.
    fn expel(&mut self, conn: ConnId) {
        self.discharge(Some(conn));
        self.reply(conn, Reply::Aborted(AbortReason::Expelled));
        self.effects.push_back(Effect::Close(conn));
        self.handle_closed(conn);
    }
}

/// The refusal of an offer.
fn goes_on_without(rank: u16, job: &Job) -> Refusal {
    let message = format!(
        "job {:?} goes on here without what rank {rank} belongs to: wait until it ends",
        job.name
    );
    (ErrorCode::Busy, message)
}

/// Why all begin again.
fn again(rank: u16) -> String {
    format!("rank {rank} is back over a new connection")
}
