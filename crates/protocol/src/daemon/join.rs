//! How jobs come into being, and how ranks join them.

use std::net::SocketAddrV4;

use xdp_agg_common::control::{AbortReason, ErrorCode, Join, MAX_JOB_NAME, Request};
use xdp_agg_common::maps::JobCounters;

use super::checks::{self, Refusal};
use super::job::{Job, Life, Member, Wish};
use super::meeting::Meeting;
use super::phase::{Current, Phase};
use super::{ConnId, Effect, Jobs, Purpose, Session};

impl Jobs {
    /// The connections that decide whether a `Join` or a `Meet` is refused: those of the job that
    /// it names, and of the processes that meet for it. None for any other request.
    ///
    /// A worker that died and was started again may ask before the end of its old connection was
    /// told by [`Self::handle_closed`]. That end belongs before its request.
    #[must_use]
    pub fn beside(&self, request: &Request) -> Vec<ConnId> {
        let (name, meets) = match request {
            Request::Join(join) => (&join.job, None),
            Request::Meet(meet) => (&meet.job, self.meetings.get(&meet.job)),
            _ => return Vec::new(),
        };
        let is_of = |job: &&Job| {
            job.name == *name || job.life.origin.as_ref().is_some_and(|origin| origin.name == *name)
        };
        let members = self.jobs.values().filter(is_of).flat_map(Job::conns);
        members.chain(meets.into_iter().flat_map(Meeting::conns)).collect()
    }

    /// A worker wants to become a member, or to be one again.
    pub(super) fn join(
        &mut self,
        conn: ConnId,
        session: &Session,
        join: &Join,
    ) -> Result<(), Refusal> {
        // The job's name and size are checked even where the job exists: a wrong message is wrong.
        checks::wish(&Wish::from(join), &self.limits)?;
        let data = checks::worker(join, &session.peer)?;
        if let Some(resume) = &join.resume {
            checks::resume(join, resume, &self.limits)?;
        }
        let named = self.jobs.values().find(|job| job.name == join.job).map(|job| job.job_id);
        let (job_id, new) = match named {
            Some(job_id) => (job_id, false),
            None => (self.create(Wish::from(join))?, true),
        };
        let joined = match &join.resume {
            Some(resume) => self.resume(conn, session, job_id, join, resume, data),
            None => self.join_anew(conn, session, job_id, join, data),
        };
        if joined.is_err() && new {
            self.forget(job_id);
        }
        self.call_in(job_id);
        joined
    }

    fn join_anew(
        &mut self,
        conn: ConnId,
        session: &Session,
        job_id: u16,
        join: &Join,
        data: SocketAddrV4,
    ) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get(&job_id) else {
            return Err(checks::no_entry(&join.job));
        };
        let local = checks::fit(join, data, &session.peer, &self.limits, job)?;
        let gone = job.life.members.get(&join.rank).is_some_and(|member| member.conn.is_none());
        if gone && job.shrinks() {
            // A new process has its rank: the one that was to come back does not.
            self.lose(job_id, &[join.rank], "another process has come in its place");
        }
        let Some(job) = self.jobs.get_mut(&job_id) else {
            // It was the last one: now the job is another.
            return self.join(conn, session, join);
        };
        job.wanted = job.wanted.or(join.result_mode);
        job.life.policy.get_or_insert(join.policy);
        job.life.chosen = job.life.chosen.take().or_else(|| Some(join.chosen.as_ref()?.clipped()));
        job.life.origin = job.life.origin.take().or_else(|| join.origin.clone());
        job.plant(&join.tree);
        let member = Member::new(conn, data, local, join);
        if let Phase::Forming(end) = job.phase() {
            let own = self.clock + self.limits.join_time(&member);
            job.life.members.insert(join.rank, member);
            job.enter(Phase::Forming(Some(end.map_or(own, |end| end.max(own)))));
            note!(self, info, job = join.job, rank = join.rank, %data, "joined");
        } else {
            job.life.waiting.insert(join.rank, member);
            let (job, rank) = (&join.job, join.rank);
            note!(self, info, job, rank, %data, "waits to join a running job");
        }
        self.enrol(conn, job_id, join.rank);
        self.advance(job_id);
        Ok(())
    }

    /// Makes a job; its index.
    pub(super) fn create(&mut self, wish: Wish) -> Result<u16, Refusal> {
        let slots = checks::wish(&wish, &self.limits)?;
        let Wish { name, world_size, mode, policy, reserved, .. } = wish;
        if let Some(job) = self.jobs.values().find(|job| job.name == name) {
            let message = format!(
                "job {name:?} exists already, with a world size of {}: choose another name, or \
                 delete it first (`xdp-agg jobs delete`)",
                job.world_size
            );
            return Err((ErrorCode::Busy, message));
        }
        let job_id = self.free_entry().ok_or_else(|| checks::no_entry(&name))?;
        let slot_base =
            self.pool.take(slots).ok_or_else(|| checks::no_slots(&name, slots, &self.pool))?;
        note!(self, info, job = name, job_id, world_size, slots, reserved, "created");
        let job = Job {
            name,
            job_id,
            world_size,
            reserved,
            slot_base,
            slots,
            wanted: mode,
            policy: policy.filter(|_| reserved),
            phase: Current::first(Phase::Forming(None)),
            life: Life { policy, ..Life::default() },
            base: JobCounters::default(),
        };
        self.jobs.insert(job_id, job);
        self.effects.push_back(Effect::Counters(Purpose::Base { job_id }));
        Ok(job_id)
    }

    pub(super) fn delete(&mut self, name: &str) -> Result<(), Refusal> {
        let Some(job) = self.jobs.values_mut().find(|job| job.name == name) else {
            // An answer must not be much longer because the question was.
            let name: String = name.chars().take(MAX_JOB_NAME).collect();
            let message = format!("no job named {name:?} here; `xdp-agg jobs` lists them");
            return Err((ErrorCode::NoJob, message));
        };
        let job_id = job.job_id;
        job.reserved = false;
        let reason = format!("job {name:?} was deleted by an operator");
        self.abort(job_id, &AbortReason::Operator { reason });
        Ok(())
    }
}
