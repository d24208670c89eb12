//! What each event does.

use std::collections::BTreeMap;
use std::time::Instant;

use rand::Rng;
use tracing::{info, warn};
use xdp_agg_common::control::{
    AbortReason, CONTROL_VERSION, ControlCounters, ErrorCode, JobStats, Join, Reply, Request, Stats,
};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS};
use xdp_agg_common::wire::BLOCK_MASK;

use super::checks::{self, Refusal};
use super::job::{Job, Member, Phase, Wish, group_of, since};
use super::{Answer, ConnId, Effect, Formation, Jobs, Prepare, Purpose, Session};
use crate::engine::Started;

/// Longest reason of `Abort` that is passed on, in characters.
const REASON_MAX: usize = 1000;

impl Jobs {
    /// One request of a connection that is there.
    pub(super) fn handle(
        &mut self,
        conn: ConnId,
        session: Session,
        request: Request,
        now: Instant,
    ) {
        if let Request::Hello { version, agent, token: _ } = request {
            return self.hello(conn, session, version, &agent);
        }
        if !session.greeted {
            let why = "the first message must be Hello; does the peer speak to the right port?";
            return self.protocol_error(conn, why);
        }
        match request {
            Request::Join(join) => {
                if session.member.is_some() {
                    let why = "this connection is a member already; a second Join needs its own";
                    return self.protocol_error(conn, why);
                }
                if let Err(refusal) = self.join(conn, &session, &join, now) {
                    self.refuse(conn, refusal);
                }
            }
            Request::Create(create) => {
                let done = self.create(Wish::from(create)).map(|_| Reply::Done);
                self.reply_or_refuse(conn, done);
            }
            Request::Delete { job } => {
                let done = self.delete(&job).map(|()| Reply::Done);
                self.reply_or_refuse(conn, done);
            }
            Request::Jobs => {
                let all = self.jobs.values().map(Job::info).collect();
                self.reply(conn, Reply::Jobs(all));
            }
            Request::Stats => self.effects.push_back(Effect::Counters(Purpose::Stats(conn))),
            // To leave what one is not in is done at once: the job may have ended meanwhile.
            Request::Leave => {
                if let Some((job_id, rank)) = session.member {
                    self.leave(job_id, rank);
                }
                self.reply(conn, Reply::Done);
            }
            other => match session.member {
                Some((job_id, rank)) => self.member_request(conn, job_id, rank, other),
                None => {
                    let why = "this connection is no member of a job (any more): Join first";
                    self.refuse(conn, (ErrorCode::NoJob, why.into()));
                }
            },
        }
    }

    fn hello(&mut self, conn: ConnId, session: Session, version: u32, agent: &str) {
        if session.greeted {
            return self.protocol_error(conn, "a second Hello");
        }
        if version != CONTROL_VERSION {
            let message = format!(
                "{agent:?} speaks version {version} of the control protocol, this daemon ({}) \
                 version {CONTROL_VERSION}: use the same release on all hosts",
                agent_name()
            );
            return self.refuse_and_close(conn, ErrorCode::Version, &message);
        }
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.greeted = true;
        }
        let engine = self.limits.engine.clone();
        let (version, agent) = (CONTROL_VERSION, agent_name());
        self.reply(conn, Reply::Welcome { version, agent, engine });
    }

    /// A request that only a member may make.
    fn member_request(&mut self, conn: ConnId, job_id: u16, rank: u16, request: Request) {
        match request {
            Request::Ready => self.ready(conn, job_id, rank),
            Request::CallMismatch { call } => {
                self.abort(job_id, &AbortReason::CallMismatch { rank, call });
            }
            Request::Abort { reason } => {
                // The member itself knows; what it gets is the answer to its request.
                self.detach(job_id, rank);
                self.reply(conn, Reply::Done);
                let reason = reason.chars().take(REASON_MAX).collect();
                self.abort(job_id, &AbortReason::Member { rank, reason });
            }
            Request::Missing { block } => self.missing(conn, job_id, block),
            // `handle` deals with all others.
            _ => self.protocol_error(conn, "not a member's request"),
        }
    }

    fn join(
        &mut self,
        conn: ConnId,
        session: &Session,
        join: &Join,
        now: Instant,
    ) -> Result<(), Refusal> {
        // The job's name and size are checked even where the job exists: a wrong message is wrong.
        checks::wish(&Wish::from(join), &self.limits)?;
        let data = checks::worker(join, &session.peer)?;
        let named = self.jobs.values().find(|job| job.name == join.job).map(|job| job.job_id);
        let (job_id, new) = match named {
            Some(job_id) => (job_id, false),
            None => (self.create(Wish::from(join))?, true),
        };
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return Err(checks::no_entry(&join.job));
        };
        let local = match checks::fit(join, data, &session.peer, &self.limits, job) {
            Ok(local) => local,
            Err(refusal) => {
                if new {
                    self.forget(job_id);
                }
                return Err(refusal);
            }
        };
        job.wanted = job.wanted.or(join.result_mode);
        let max_chunks = join.max_chunks;
        job.members.insert(join.rank, Member { conn, data, local, max_chunks, ready: false });
        if job.phase == Phase::Forming(None) {
            job.phase = Phase::Forming(Some(now + self.limits.join_timeout));
        }
        let full = job.is_full();
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.member = Some((job_id, join.rank));
        }
        info!(job = join.job, rank = join.rank, %data, "joined");
        if full {
            self.form(job_id);
        }
        Ok(())
    }

    /// Makes a job; its index.
    fn create(&mut self, wish: Wish) -> Result<u16, Refusal> {
        let slots = checks::wish(&wish, &self.limits)?;
        let Wish { name, world_size, mode, reserved, .. } = wish;
        if let Some(job) = self.jobs.values().find(|job| job.name == name) {
            let message = format!(
                "job {name:?} exists already, with a world size of {}: choose another name, or \
                 delete it first (`xdp-agg jobs delete`)",
                job.world_size
            );
            return Err((ErrorCode::Busy, message));
        }
        let free = (0..MAX_JOBS as u16).find(|job_id| !self.jobs.contains_key(job_id));
        let job_id = free.ok_or_else(|| checks::no_entry(&name))?;
        let slot_base =
            self.pool.take(slots).ok_or_else(|| checks::no_slots(&name, slots, &self.pool))?;
        info!(job = name, job_id, world_size, slots, reserved, "created");
        let job = Job {
            name,
            job_id,
            world_size,
            reserved,
            slot_base,
            slots,
            wanted: mode,
            mode: None,
            phase: Phase::Forming(None),
            members: BTreeMap::new(),
            epoch: 0,
            cookie: 0,
            chunks: 0,
            base: JobCounters::default(),
        };
        self.jobs.insert(job_id, job);
        self.effects.push_back(Effect::Counters(Purpose::Base { job_id }));
        Ok(job_id)
    }

    fn delete(&mut self, name: &str) -> Result<(), Refusal> {
        let Some(job) = self.jobs.values_mut().find(|job| job.name == name) else {
            let message = format!("no job named {name:?} here; `xdp-agg jobs` lists them");
            return Err((ErrorCode::NoJob, message));
        };
        let job_id = job.job_id;
        job.reserved = false;
        let reason = format!("job {name:?} was deleted by an operator");
        self.abort(job_id, &AbortReason::Operator { reason });
        Ok(())
    }

    /// All ranks are there: a new epoch.
    fn form(&mut self, job_id: u16) {
        let groups: Vec<_> = self.jobs.values().map(|job| group_of(job.cookie)).collect();
        let mut cookie = self.rng.random();
        while groups.contains(&group_of(cookie)) {
            cookie = self.rng.random();
        }
        self.last_epoch = self.last_epoch.checked_add(1).unwrap_or(1);
        let epoch = self.last_epoch;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let theirs = job.members.values().map(|member| member.max_chunks).min().unwrap_or(0);
        job.chunks = theirs.min(self.limits.max_chunks);
        job.cookie = cookie;
        job.epoch = epoch;
        job.phase = Phase::Preparing;
        let setup = job.setup(self.limits.data_port);
        let formation = Formation { job_id, epoch };
        self.effects.push_back(Effect::Prepare(Prepare { formation, setup }));
    }

    /// The engine has answered. An answer to a formation that is over is ignored.
    pub fn answer(&mut self, answer: Answer, now: Instant) {
        match answer {
            Answer::Prepared(formation, Ok(())) => self.prepared(formation, now),
            Answer::Started(formation, Ok(started)) => self.started(formation, started),
            Answer::Prepared(formation, Err(why)) | Answer::Started(formation, Err(why)) => {
                if self.current(formation).is_some() {
                    warn!(job_id = formation.job_id, "the engine failed: {why}");
                    let reason = format!("the aggregator's engine failed: {why}");
                    self.abort(formation.job_id, &AbortReason::Operator { reason });
                }
            }
            Answer::Missing { conn, block, ranks } => {
                let ranks = ranks.map(|bits| (0..64).filter(|r| bits >> r & 1 == 1).collect());
                let reply = ranks.map(|ranks| Reply::Missing { block, ranks });
                self.reply_or_refuse(conn, reply.map_err(|why| (ErrorCode::Engine, why)));
            }
            Answer::Counters(Purpose::Base { job_id }, counters) => match counters {
                Ok(counters) => {
                    if let Some(job) = self.jobs.get_mut(&job_id) {
                        job.base = counters.get(usize::from(job_id)).copied().unwrap_or_default();
                    }
                }
                Err(why) => warn!(job_id, "counters cannot be read: {why}"),
            },
            Answer::Counters(Purpose::Stats(conn), counters) => {
                let reply = counters.map(|counters| Reply::Stats(self.stats(&counters, now)));
                self.reply_or_refuse(conn, reply.map_err(|why| (ErrorCode::Engine, why)));
            }
        }
    }

    /// The job of a formation, if it is still the current one.
    fn current(&mut self, formation: Formation) -> Option<&mut Job> {
        self.jobs.get_mut(&formation.job_id).filter(|job| job.epoch == formation.epoch)
    }

    fn prepared(&mut self, formation: Formation, now: Instant) {
        let end = now + self.limits.probe_timeout;
        let data_port = self.limits.data_port;
        let Some(job) = self.current(formation).filter(|job| job.phase == Phase::Preparing) else {
            return;
        };
        job.phase = Phase::Probing(end);
        let admitted = job.admitted(data_port);
        self.tell_all(formation.job_id, &Reply::Admitted(admitted));
    }

    fn started(&mut self, formation: Formation, started: Started) {
        let Started { mode, group } = started;
        let Some(job) = self.current(formation).filter(|job| job.phase == Phase::Starting) else {
            return;
        };
        job.phase = Phase::Running;
        job.mode = Some(mode);
        info!(job = job.name, epoch = job.epoch, mode = mode.name(), "running");
        self.tell_all(formation.job_id, &Reply::Go { mode, group });
    }

    fn ready(&mut self, conn: ConnId, job_id: u16, rank: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        match job.phase {
            Phase::Probing(_) => {}
            // Said twice.
            Phase::Starting | Phase::Running => return,
            Phase::Forming(_) | Phase::Preparing => {
                return self.protocol_error(conn, "Ready before Admitted");
            }
        }
        if let Some(member) = job.members.get_mut(&rank) {
            member.ready = true;
        }
        if job.members.values().all(|member| member.ready) {
            job.phase = Phase::Starting;
            let formation = Formation { job_id, epoch: job.epoch };
            self.effects.push_back(Effect::Start(formation, job.wanted));
        }
    }

    fn missing(&mut self, conn: ConnId, job_id: u16, block: u64) {
        if block > BLOCK_MASK {
            let message = format!("block {block}: block numbers are below 2^48");
            return self.refuse(conn, (ErrorCode::Invalid, message));
        }
        match self.jobs.get(&job_id) {
            Some(job) if job.phase != Phase::Running => {
                let ranks = job.awaited();
                self.reply(conn, Reply::Missing { block, ranks });
            }
            _ => self.effects.push_back(Effect::Missing { conn, job_id, block }),
        }
    }

    fn leave(&mut self, job_id: u16, rank: u16) {
        self.detach(job_id, rank);
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        info!(job = job.name, rank, "left");
        match job.phase {
            Phase::Forming(_) if job.members.is_empty() => self.end(job_id),
            Phase::Forming(_) => {}
            // Others may still ask for results that they lost: the job ends with its last member.
            Phase::Running if !job.members.is_empty() => {}
            Phase::Running => self.end(job_id),
            Phase::Preparing | Phase::Probing(_) | Phase::Starting => {
                let reason = "it left before all paths were open".into();
                self.abort(job_id, &AbortReason::Member { rank, reason });
            }
        }
    }

    /// A member's connection ended without `Leave`.
    pub(super) fn member_lost(&mut self, job_id: u16, rank: u16) {
        self.detach(job_id, rank);
        let Some(job) = self.jobs.get(&job_id) else {
            return;
        };
        info!(job = job.name, rank, "connection lost");
        match job.phase {
            Phase::Forming(_) if job.members.is_empty() => self.end(job_id),
            Phase::Forming(_) => {}
            _ => self.abort(job_id, &AbortReason::MemberLost { rank }),
        }
    }

    /// Takes a rank out of its job.
    fn detach(&mut self, job_id: u16, rank: u16) {
        let member = self.jobs.get_mut(&job_id).and_then(|job| job.members.remove(&rank));
        if let Some(session) = member.and_then(|member| self.sessions.get_mut(&member.conn)) {
            session.member = None;
        }
    }

    /// Tells all remaining members why, and ends the job.
    pub(super) fn abort(&mut self, job_id: u16, reason: &AbortReason) {
        let Some(job) = self.jobs.get(&job_id) else {
            return;
        };
        if !job.members.is_empty() {
            warn!(job = job.name, "aborted: {reason}");
        }
        self.tell_all(job_id, &Reply::Aborted(reason.clone()));
        self.end(job_id);
    }

    /// The job is over: it goes, or forms again.
    fn end(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        if !matches!(job.phase, Phase::Forming(_)) {
            self.effects.push_back(Effect::Stop { job_id });
        }
        job.phase = Phase::Forming(None);
        job.mode = None;
        job.chunks = 0;
        for member in std::mem::take(&mut job.members).into_values() {
            if let Some(session) = self.sessions.get_mut(&member.conn) {
                session.member = None;
            }
        }
        if !job.reserved {
            self.forget(job_id);
        }
    }

    fn forget(&mut self, job_id: u16) {
        if let Some(job) = self.jobs.remove(&job_id) {
            info!(job = job.name, job_id, "gone");
            self.pool.give_back(job.slot_base);
        }
    }

    fn stats(&self, counters: &[JobCounters], now: Instant) -> Stats {
        let count = |job: &Job| {
            let all = counters.get(usize::from(job.job_id)).copied().unwrap_or_default();
            JobStats { info: job.info(), counters: since(&all, &job.base) }
        };
        Stats {
            engine: self.limits.engine.clone(),
            uptime_s: now.saturating_duration_since(self.started).as_secs(),
            slots: self.pool.total(),
            slots_free: self.pool.free(),
            jobs: self.jobs.values().map(count).collect(),
            unattributed: counters.get(MAX_JOBS).copied().unwrap_or_default(),
            // The server's own.
            control: ControlCounters::default(),
        }
    }

    fn tell_all(&mut self, job_id: u16, reply: &Reply) {
        if let Some(job) = self.jobs.get(&job_id) {
            let all = job.members.values().map(|m| Effect::Reply(m.conn, reply.clone()));
            self.effects.extend(all);
        }
    }

    fn reply(&mut self, conn: ConnId, reply: Reply) {
        // The connection may have ended while the engine was asked.
        if self.sessions.contains_key(&conn) {
            self.effects.push_back(Effect::Reply(conn, reply));
        }
    }

    fn refuse(&mut self, conn: ConnId, (code, message): Refusal) {
        self.reply(conn, Reply::Error { code, message });
    }

    fn reply_or_refuse(&mut self, conn: ConnId, reply: Result<Reply, Refusal>) {
        match reply {
            Ok(reply) => self.reply(conn, reply),
            Err(refusal) => self.refuse(conn, refusal),
        }
    }

    fn protocol_error(&mut self, conn: ConnId, why: &str) {
        self.refuse_and_close(conn, ErrorCode::Protocol, why);
    }

    pub(super) fn refuse_and_close(&mut self, conn: ConnId, code: ErrorCode, why: &str) {
        self.refuse(conn, (code, why.into()));
        self.effects.push_back(Effect::Close(conn));
        self.closed(conn);
    }
}

/// Name and version of this program, as connections are told it.
fn agent_name() -> String {
    format!("xdp-agg {}", env!("CARGO_PKG_VERSION"))
}
