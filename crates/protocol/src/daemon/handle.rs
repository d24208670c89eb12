//! What each event does.

use std::time::Instant;

use subtle::{Choice, ConstantTimeEq};
use xdp_agg_common::control::words::{SENTENCE_MAX, clean};
use xdp_agg_common::control::{
    AbortReason, BranchReply, CONTROL_VERSION, ControlCounters, ErrorCode, JobStats, LocalMembers,
    Reply, Request, Stats, Token,
};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS};

use super::branch::Done;
use super::checks::Refusal;
use super::job::{Job, Wish, since};
use super::phase::Phase;
use super::served::Served;
use super::{Answer, ConnId, Effect, Formation, Jobs, Look, Purpose, Session};
use crate::engine::Started;

impl Jobs {
    /// One request of a connection that is there.
    pub(super) fn handle(&mut self, conn: ConnId, session: Session, request: Request) {
        if let Request::Hello { version, agent, token } = request {
            return self.hello(conn, session, version, &agent, token.as_ref());
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
                if let Err(refusal) = self.join(conn, &session, &join) {
                    self.refuse(conn, refusal);
                }
            }
            Request::Meet(meet) => {
                if let Err(refusal) = self.meet(conn, meet) {
                    self.refuse(conn, refusal);
                }
            }
            Request::Offer(join) => {
                let done = self.offer(&session, &join).map(|()| Reply::Done);
                self.reply_or_refuse(conn, done);
            }
            Request::Create(create) => {
                let done = self.create(Wish::from(create)).map(|_| Reply::Done);
                self.reply_or_refuse(conn, done);
            }
            Request::Delete { job } => {
                let done = self.delete(&job).map(|()| Reply::Done);
                self.reply_or_refuse(conn, done);
            }
            Request::Branch(request) => self.branch_request(conn, &session, request),
            Request::Jobs => self.look(Look::Jobs(conn)),
            Request::Stats => self.look(Look::Stats(conn)),
            Request::Reload => self.effects.push_back(Effect::Reload(conn)),
            // A job may have ended since it was sent: no reason to complain.
            Request::Heartbeat => self.heartbeat(conn),
            Request::Doing(doing) => self.does(&session, doing),
            // Leaving without being a member is done at once: the job may have ended meanwhile.
            Request::Leave => {
                if let Some((job_id, rank)) = session.member {
                    self.leave(conn, job_id, rank);
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

    fn hello(
        &mut self,
        conn: ConnId,
        session: Session,
        version: u32,
        agent: &str,
        token: Option<&Token>,
    ) {
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
        if let Some(why) = self.is_stranger(token) {
            return self.refuse_and_close(conn, ErrorCode::Unauthorised, why);
        }
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.greeted = true;
        }
        let engine = self.limits.engine.clone();
        let (version, agent) = (CONTROL_VERSION, agent_name());
        self.reply(conn, Reply::Welcome { version, agent, engine });
    }

    /// Why a connection with this token must go; None: it may stay.
    fn is_stranger(&self, token: Option<&Token>) -> Option<&'static str> {
        let tokens = &self.limits.tokens;
        if tokens.is_empty() {
            return None;
        }
        // How long the comparisons take tells nothing of how much of a guess was right.
        let is_one = |token: &Token| {
            let equal = |one: &Token| one.0.as_bytes().ct_eq(token.0.as_bytes());
            tokens.iter().map(equal).fold(Choice::from(0), |any, this| any | this).into()
        };
        match token {
            Some(token) if is_one(token) => None,
            Some(_) => Some(
                "the token is not this daemon's: XDP_AGG_TOKEN_FILE (or --token-file) must name a \
                 file with the same token as the daemon's",
            ),
            None => Some(
                "this daemon wants a token: set XDP_AGG_TOKEN_FILE (or --token-file) to a file \
                 with the one that its operator gave out",
            ),
        }
    }

    /// A request that only a member may make.
    fn member_request(&mut self, conn: ConnId, job_id: u16, rank: u16, request: Request) {
        let is_member = self.jobs.get(&job_id).is_some_and(|job| job.is_member(rank, conn));
        if !is_member {
            // It waits to become one.
            return match request {
                Request::Abort { .. } => {
                    self.stop_waiting(conn, job_id, rank);
                    self.reply(conn, Reply::Done);
                }
                // It waits for none of the members: these come to it.
                Request::Missing { block, .. } => self.tell_missing(conn, block, 0),
                Request::Standing { of } => self.tell_standing(conn, job_id, of),
                _ => self.protocol_error(conn, "a member's request before Admitted"),
            };
        }
        match request {
            Request::Ready => self.ready(conn, job_id, rank),
            Request::CallMismatch { call } => {
                self.abort(job_id, &AbortReason::CallMismatch { rank, call });
            }
            Request::Abort { reason, cause } => {
                // The member itself knows; what it gets is the answer to its request.
                self.detach(job_id, rank);
                self.reply(conn, Reply::Done);
                self.abort(job_id, &AbortReason::Member { rank, reason, cause });
            }
            Request::Missing { block, of } => self.missing(conn, job_id, (block, of)),
            Request::Standing { of } => self.tell_standing(conn, job_id, of),
            Request::Progress(progress) => self.progress(conn, job_id, rank, progress),
            Request::Paused { next_sequence } => self.paused(job_id, rank, next_sequence),
            // `handle` deals with all others.
            _ => self.protocol_error(conn, "not a member's request"),
        }
    }

    /// The engine has answered. An answer to a formation that is over is ignored.
    pub fn handle_answer(&mut self, answer: Answer, now: Instant) {
        self.clock = now.max(self.clock);
        match answer {
            Answer::Prepared(formation, answer) if self.served.contains_key(&formation.job_id) => {
                self.served_answer(formation, answer.map(Done::Prepared));
            }
            Answer::Started(formation, answer) if self.served.contains_key(&formation.job_id) => {
                self.served_answer(formation, answer.map(Done::Started));
            }
            Answer::Uplink(formation, open) => self.uplink_probed(formation, open),
            Answer::Prepared(formation, Ok(local)) => self.engine_prepared(formation, local),
            Answer::Started(formation, Ok(started)) => self.engine_started(formation, started),
            Answer::Prepared(formation, Err(why)) | Answer::Started(formation, Err(why)) => {
                if self.current(formation).is_some() {
                    note!(self, warn, job_id = formation.job_id, "the engine failed: {why}");
                    let reason = format!("the aggregator's engine failed: {why}");
                    self.abort(formation.job_id, &AbortReason::Operator { reason });
                }
            }
            Answer::Missing { conn, block, ranks } => {
                if self.sessions.get(&conn).is_some_and(|session| session.branch.is_some()) {
                    let ranks = ranks.unwrap_or(0);
                    return self.branch_reply(conn, BranchReply::Missing { block, ranks });
                }
                match ranks {
                    Ok(bits) => self.root_misses(conn, block, bits),
                    Err(why) => {
                        self.questions.remove(&conn);
                        self.refuse(conn, (ErrorCode::Engine, why));
                    }
                }
            }
            Answer::Counters(Purpose::Base { job_id }, counters) => match counters {
                Ok(counters) => {
                    let base = counters.get(usize::from(job_id)).copied().unwrap_or_default();
                    if let Some(job) = self.jobs.get_mut(&job_id) {
                        job.base = base;
                    }
                    if let Some(served) = self.served.get_mut(&job_id) {
                        served.base = base;
                    }
                }
                Err(why) => note!(self, warn, job_id, "counters cannot be read: {why}"),
            },
            Answer::Counters(Purpose::Stats(conn), counters) => {
                let reply = counters.map(|counters| Reply::Stats(self.stats(&counters)));
                self.reply_or_refuse(conn, reply.map_err(|why| (ErrorCode::Engine, why)));
            }
            Answer::Heard { look, heard } => self.heard(look, &heard),
        }
    }

    /// The job of a formation, if it is still the current one.
    fn current(&mut self, formation: Formation) -> Option<&mut Job> {
        let job = self.jobs.get_mut(&formation.job_id);
        // A job that ended and forms again has no epoch yet.
        job.filter(|job| job.life.on_data_path && job.life.epoch == formation.epoch)
    }

    /// This daemon's engine knows the members.
    fn engine_prepared(&mut self, formation: Formation, local: Option<LocalMembers>) {
        if let Some(job) = self.current(formation).filter(|job| job.is_preparing()) {
            job.life.trunk.prepared = true;
            job.life.trunk.local = local;
            self.advance(formation.job_id);
        }
    }

    /// This daemon's engine sums.
    fn engine_started(&mut self, formation: Formation, started: Started) {
        if let Some(job) = self.current(formation).filter(|job| job.is_starting()) {
            job.life.trunk.started = Some(started);
            self.advance(formation.job_id);
        }
    }

    /// All engines of the tree know their members: these try their paths.
    pub(super) fn prepared(&mut self, job_id: u16) {
        let end = self.clock + self.limits.probe_timeout;
        let limits = &self.limits;
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        job.enter(Phase::Probing(end));
        for member in job.life.members.values_mut() {
            // The plan is made, and told to all.
            member.progress = None;
        }
        let members = job.life.members.iter();
        let told = members.filter_map(|(rank, member)| {
            Some((member.conn?, Reply::Admitted(job.admitted(*rank, limits))))
        });
        self.effects.extend(told.map(|(conn, reply)| Effect::Reply(conn, reply)));
    }

    /// All engines of the tree sum.
    pub(super) fn started(&mut self, job_id: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        let Some(Started { mode, .. }) = job.life.trunk.started else {
            return;
        };
        job.enter(Phase::Running);
        job.life.mode = Some(mode);
        job.life.ran = true;
        job.life.left.clear();
        job.life.trunk.contests = 0;
        job.life.identities = vec![(job.life.epoch, job.life.cookie, 0)];
        let members = job.life.members.len();
        note!(
            self,
            info,
            job = job.name,
            epoch = job.life.epoch,
            members,
            mode = mode.name(),
            "running"
        );
        self.changed = true;
        let told = job.life.members.iter().filter_map(|(rank, member)| {
            let Started { mode, group } = job.life.trunk.started_for(*rank)?;
            Some((member.conn?, Reply::Go { mode, group }))
        });
        self.effects.extend(told.map(|(conn, reply)| Effect::Reply(conn, reply)));
        self.advance(job_id);
    }

    fn ready(&mut self, conn: ConnId, job_id: u16, rank: u16) {
        let Some(job) = self.jobs.get_mut(&job_id) else {
            return;
        };
        match job.phase() {
            Phase::Probing(_) => {
                if let Some(member) = job.life.members.get_mut(&rank) {
                    member.ready = true;
                }
                self.advance(job_id);
            }
            Phase::Forming(_) | Phase::Returning(_) => {
                self.protocol_error(conn, "Ready before Admitted");
            }
            Phase::Preparing(_) | Phase::Branching(_) if !job.life.ran => {
                self.protocol_error(conn, "Ready before Admitted");
            }
            // Said twice, or before it heard that this epoch is over.
            _ => {}
        }
    }

    fn stats(&self, counters: &[JobCounters]) -> Stats {
        let now = self.clock;
        let answered = |conn| self.sessions.get(&conn).and_then(|session| session.answered);
        let count = |job: &Job| {
            let all = counters.get(usize::from(job.job_id)).copied().unwrap_or_default();
            JobStats { info: job.info(now, answered), counters: since(&all, &job.base) }
        };
        let serves = |(job_id, served): (&u16, &Served)| {
            let all = counters.get(usize::from(*job_id)).copied().unwrap_or_default();
            JobStats { info: served.info(*job_id), counters: since(&all, &served.base) }
        };
        Stats {
            engine: self.limits.engine.clone(),
            uptime_s: now.saturating_duration_since(self.started).as_secs(),
            slots: self.pool.total(),
            slots_free: self.pool.free(),
            jobs: self.jobs.values().map(count).chain(self.served.iter().map(serves)).collect(),
            unattributed: Box::new(counters.get(MAX_JOBS).copied().unwrap_or_default()),
            // The server's own.
            control: ControlCounters::default(),
        }
    }

    pub(super) fn tell_members(&mut self, job_id: u16, reply: &Reply) {
        if let Some(job) = self.jobs.get(&job_id) {
            let conns = job.life.members.values().filter_map(|member| member.conn);
            self.effects.extend(conns.map(|conn| Effect::Reply(conn, reply.clone())));
        }
    }

    pub(super) fn reply(&mut self, conn: ConnId, reply: Reply) {
        // The connection may have ended while the engine was asked.
        if self.sessions.contains_key(&conn) {
            self.effects.push_back(Effect::Reply(conn, reply));
        }
    }

    pub(super) fn refuse(&mut self, conn: ConnId, (code, message): Refusal) {
        // It may quote what was asked for.
        let message = clean(&message, SENTENCE_MAX);
        self.reply(conn, Reply::Error { code, message });
    }

    /// Tells which ranks have not contributed to a block.
    pub(super) fn tell_missing(&mut self, conn: ConnId, block: u64, bits: u64) {
        let ranks = (0..64).filter(|rank| bits >> rank & 1 == 1).collect();
        self.reply(conn, Reply::Missing { block, ranks });
    }

    fn reply_or_refuse(&mut self, conn: ConnId, reply: Result<Reply, Refusal>) {
        match reply {
            Ok(reply) => self.reply(conn, reply),
            Err(refusal) => self.refuse(conn, refusal),
        }
    }

    pub(super) fn refuse_and_close(&mut self, conn: ConnId, code: ErrorCode, why: &str) {
        self.refuse(conn, (code, why.into()));
        self.effects.push_back(Effect::Close(conn));
        self.handle_closed(conn);
    }
}

/// Name and version of this program, as connections are told it.
pub(super) fn agent_name() -> String {
    format!("xdp-agg {}", env!("CARGO_PKG_VERSION"))
}
