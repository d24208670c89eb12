//! A daemon, its engine, and what its connections hear; and what must hold whatever they say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use xdp_agg_common::control::{
    AbortReason, Admitted, CONTROL_VERSION, ErrorCode, Reply, Request, Stats,
};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, ResultMode};
use xdp_agg_protocol::daemon::{
    Answer, ConnId, Effect, Jobs, Limits, Patience, Peer, Prepare, Snapshot,
};
use xdp_agg_protocol::engine::{JobSetup, Started};

use super::grove::Grove;
use crate::Outcome;

/// Most effects of one event. A job has at most 64 members, and each is told a few things.
const EFFECTS_MAX: usize = 16 * 64 * 8;
const SLOTS: u32 = 64;

pub(super) struct World {
    pub(super) jobs: Jobs,
    pub(super) daemons: u64,
    /// The daemon has a state that no daemon left: its jobs are on no data path.
    pub(super) is_foreign: bool,
    pub(super) now: Instant,
    /// The connection that a digit stands for now.
    pub(super) names: BTreeMap<u8, ConnId>,
    pub(super) next: u64,
    pub(super) open: BTreeSet<ConnId>,
    /// What the engine has on the data path.
    pub(super) engine: BTreeMap<u16, JobSetup>,
    pub(super) admitted: Option<Admitted>,
    pub(super) fails: bool,
    pub(super) grove: Grove,
    /// Answers of a late engine.
    pub(super) held: Option<Vec<Answer>>,
    pub(super) stats: Option<Stats>,
    pub(super) outcome: Outcome,
}

fn limits() -> Limits {
    Limits {
        engine: "fuzz".into(),
        slots: SLOTS,
        job_slots: 16,
        max_chunks: 22,
        single_packets: false,
        data_addr: None,
        data_port: 48_864,
        join_timeout: Duration::from_secs(60),
        join_timeout_max: Duration::from_secs(600),
        probe_timeout: Duration::from_secs(20),
        return_after: Duration::from_secs(1),
        resume_timeout: Duration::from_secs(10),
        patience: Patience(Some(Duration::from_secs(2))),
        straggler_timeout: Some(Duration::from_secs(30)),
        silent_timeout: Some(Duration::from_secs(20)),
        tokens: Vec::new(),
        job_slots_max: Some(32),
        job_packet_rate: Some(1000),
    }
}

impl World {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            jobs: Jobs::new(limits(), StdRng::seed_from_u64(1), now),
            daemons: 1,
            is_foreign: false,
            now,
            names: BTreeMap::new(),
            next: 0,
            open: BTreeSet::new(),
            engine: BTreeMap::new(),
            admitted: None,
            fails: false,
            grove: Grove::default(),
            held: None,
            stats: None,
            outcome: Outcome::default(),
        }
    }

    pub(super) fn line(&mut self, line: &str) {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first {
            "tick" => {
                self.outcome.note(23);
                self.tick(rest.trim().parse().unwrap_or(1));
            }
            "fail" => self.fails = true,
            "mend" => self.fails = false,
            "hold" => drop(self.held.get_or_insert_default()),
            "answer" => self.answer_held(),
            "restart" => {
                let state =
                    serde_json::to_string(&self.jobs.snapshot()).expect("it can be written");
                let state = serde_json::from_str(&state).expect("and read");
                self.outcome.note(26);
                self.restart(state);
            }
            "state" => {
                if let Ok(state) = serde_json::from_str(rest) {
                    self.outcome.note(27);
                    self.is_foreign = true;
                    self.engine.clear();
                    self.restart(state);
                }
            }
            word => match word.as_bytes() {
                [name @ b'0'..=b'9'] => self.connection_line(*name, rest),
                _ => self.grove_line(word, rest),
            },
        }
    }

    pub(super) fn connection_line(&mut self, name: u8, what: &str) {
        match what {
            "open" => drop(self.open(name)),
            "close" => {
                if let Some(conn) = self.names.remove(&name) {
                    self.close(conn);
                }
            }
            "garbled" => {
                let conn = self.conn(name);
                self.outcome.note(24);
                self.jobs.handle_garbled(conn, "it is garbled");
                self.settle();
            }
            what => match self.request(what) {
                Some(request) => {
                    self.outcome.note(0);
                    let conn = self.conn(name);
                    self.say(conn, request);
                }
                None => self.outcome.note(1),
            },
        }
    }

    /// The connection of this name, greeted, opened if need be.
    pub(super) fn conn(&mut self, name: u8) -> ConnId {
        match self.names.get(&name) {
            Some(conn) if self.open.contains(conn) => *conn,
            _ => {
                let conn = self.open(name);
                let agent = "fuzz".into();
                self.say(conn, Request::Hello { version: CONTROL_VERSION, agent, token: None });
                conn
            }
        }
    }

    pub(super) fn open(&mut self, name: u8) -> ConnId {
        if let Some(old) = self.names.remove(&name) {
            self.close(old);
        }
        let conn = ConnId(self.next);
        self.next += 1;
        self.names.insert(name, conn);
        self.open.insert(conn);
        let remote = Ipv4Addr::new(10, 0, 0, name - b'0' + 1);
        let peer = Peer { local: Some(Ipv4Addr::new(10, 0, 0, 254)), remote: Some(remote) };
        self.jobs.handle_connected(conn, peer);
        self.settle();
        conn
    }

    pub(super) fn close(&mut self, conn: ConnId) {
        if self.open.remove(&conn) {
            self.jobs.handle_closed(conn);
            self.settle();
        }
    }

    pub(super) fn say(&mut self, conn: ConnId, mut request: Request) {
        if let Request::Join(join) | Request::Offer(join) = &mut request
            && let (Some(resume), Some(admitted)) = (&mut join.resume, &self.admitted)
        {
            if resume.cookie == 0 {
                resume.cookie = admitted.cookie;
            }
            if resume.epoch == 0 {
                resume.epoch = admitted.epoch;
            }
            if resume.chunks == 0 {
                resume.chunks = admitted.chunks;
            }
        }
        self.jobs.handle_request(conn, request, self.now);
        self.settle();
    }

    /// Another daemon, with the state of the one before and its data path.
    pub(super) fn restart(&mut self, state: Snapshot) {
        self.daemons += 1;
        self.names.clear();
        self.open.clear();
        self.held = None;
        self.grove.restart();
        self.jobs = Jobs::new(limits(), StdRng::seed_from_u64(self.daemons), self.now);
        self.engine.retain(|job_id, _| state.jobs.iter().any(|job| job.job_id == *job_id));
        self.jobs.restore(state, self.now);
        self.settle();
    }

    pub(super) fn tick(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds.min(100_000));
        for _ in 0..100 {
            self.jobs.handle_timeout(self.now);
            self.settle();
            // The end of one wait may begin another that is over, too.
            if self.jobs.poll_timeout().is_none_or(|next| next > self.now) {
                return;
            }
        }
        panic!("a time-out that is over is due again and again");
    }

    pub(super) fn answer_held(&mut self) {
        for answer in self.held.take().unwrap_or_default() {
            self.jobs.handle_answer(answer, self.now);
            self.settle();
        }
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..EFFECTS_MAX {
            let Some(effect) = self.jobs.poll_effect() else { return };
            self.effect(effect);
        }
        panic!("effects without end");
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        let broken = "it broke".to_owned();
        match effect {
            Effect::Reply(conn, reply) => {
                assert!(self.open.contains(&conn), "to a closed connection: {reply:?}");
                self.heard(reply);
            }
            Effect::Close(conn) => assert!(self.open.remove(&conn), "closed twice"),
            Effect::Prepare(Prepare { formation, setup }) => {
                assert_eq!(formation.job_id, setup.job_id);
                assert!(setup.is_consistent(), "{setup:?}");
                self.check_slots(&setup);
                self.engine.insert(formation.job_id, setup);
                let result = if self.fails { Err(broken) } else { Ok(None) };
                self.answer(Answer::Prepared(formation, result));
            }
            Effect::Start(formation, wanted) => {
                assert!(self.engine.contains_key(&formation.job_id), "started, not prepared");
                let started = Started { mode: wanted.unwrap_or(ResultMode::Ports), group: None };
                let result = if self.fails { Err(broken) } else { Ok(started) };
                self.answer(Answer::Started(formation, result));
            }
            Effect::Stop { job_id } => {
                let stopped = self.engine.remove(&job_id).is_some();
                assert!(stopped || self.is_foreign, "stopped without a start");
            }
            Effect::Missing { conn, block, .. } => {
                let ranks = if self.fails { Err(broken) } else { Ok(1) };
                self.answer(Answer::Missing { conn, block, ranks });
            }
            Effect::Counters(purpose) => {
                let counters = vec![JobCounters::default(); MAX_JOBS + 1];
                let counters = if self.fails { Err(broken) } else { Ok(counters) };
                self.answer(Answer::Counters(purpose, counters));
            }
            Effect::Heard { look, jobs } => {
                // Nobody has contributed for a minute.
                let long = Some(Duration::from_secs(60));
                let heard = |job_id: u16| (job_id, (0..4).map(|rank| (rank, long)).collect());
                let heard = if self.fails { vec![] } else { jobs.into_iter().map(heard).collect() };
                self.answer(Answer::Heard { look, heard });
            }
            Effect::ProbeUplink(formation) => {
                let open = if self.fails { Err(broken) } else { Ok(true) };
                self.answer(Answer::Uplink(formation, open));
            }
            Effect::Link(effect) => self.link(effect),
            Effect::Reload(_) => {}
            Effect::Persist => drop(self.jobs.snapshot()),
        }
    }

    pub(super) fn answer(&mut self, answer: Answer) {
        if self.fails {
            self.outcome.note(21);
        }
        match &mut self.held {
            Some(held) => {
                self.outcome.note(22);
                held.push(answer);
            }
            None => self.jobs.handle_answer(answer, self.now),
        }
    }

    /// No two jobs on the data path share a slot.
    pub(super) fn check_slots(&self, setup: &JobSetup) {
        let range =
            |setup: &JobSetup| setup.conf.slot_base..setup.conf.slot_base + setup.conf.slots;
        let mine = range(setup);
        assert!(mine.end <= SLOTS, "{mine:?}");
        for other in self.engine.values().filter(|other| other.job_id != setup.job_id) {
            let theirs = range(other);
            assert!(mine.end <= theirs.start || theirs.end <= mine.start, "{mine:?} {theirs:?}");
        }
    }

    pub(super) fn heard(&mut self, reply: Reply) {
        match reply {
            Reply::Welcome { .. } => self.outcome.note(2),
            Reply::Admitted(admitted) => {
                self.outcome.note(3);
                self.outcome.accepted = true;
                if admitted.plan.is_some() {
                    self.outcome.note(10);
                }
                let before = self.admitted.replace(admitted.clone());
                if before.is_some_and(|b| b.job_id == admitted.job_id && b.epoch != admitted.epoch)
                {
                    self.outcome.note(25);
                }
            }
            Reply::Go { .. } => {
                self.outcome.note(4);
                if self.grove.was_reduced() {
                    self.outcome.note(36);
                }
            }
            Reply::Aborted(reason) => {
                self.outcome.note(5);
                if let AbortReason::Branch { reason, .. } = reason
                    && reason.contains("within")
                {
                    self.outcome.note(35);
                }
            }
            Reply::Reform { .. } => self.outcome.note(6),
            Reply::Pause { .. } => self.outcome.note(7),
            Reply::RunTo { .. } => self.outcome.note(8),
            Reply::Resumed => self.outcome.note(9),
            Reply::Stats(stats) => self.stats = Some(stats),
            Reply::Error { code, message } => {
                assert!(!message.is_empty());
                self.outcome.note(match code {
                    ErrorCode::Version => 11,
                    ErrorCode::Protocol => 12,
                    ErrorCode::Invalid => 13,
                    ErrorCode::RankTaken => 14,
                    ErrorCode::WorldSize => 15,
                    ErrorCode::NoRoom => 16,
                    ErrorCode::NoJob => 17,
                    ErrorCode::Busy => 18,
                    ErrorCode::Engine => 19,
                    _ => 20,
                });
            }
            _ => {}
        }
    }

    /// All go. Nothing of theirs is left.
    pub(super) fn end(&mut self) {
        self.fails = false;
        self.answer_held();
        for conn in self.open.clone() {
            self.close(conn);
        }
        for _ in 0..100 {
            let Some(next) = self.jobs.poll_timeout() else { break };
            self.now = self.now.max(next);
            self.jobs.handle_timeout(self.now);
            self.settle();
        }
        assert_eq!(self.jobs.poll_timeout(), None, "time-outs without end");
        assert_eq!(self.jobs.members(), 0, "members without connections");
        assert!(self.grove.is_empty(), "branches of no job: {:?}", self.grove);
        assert!(self.engine.is_empty(), "on the data path for nobody: {:?}", self.engine);
        let tool = self.conn(b'0');
        self.say(tool, Request::Stats);
        let stats = self.stats.take().expect("it is answered");
        let taken: u32 = stats.jobs.iter().map(|job| job.info.slots).sum();
        assert_eq!(stats.slots_free + taken, SLOTS, "slots of no job: {stats:?}");
        // What is left was made by `Create`.
        for job in stats.jobs {
            assert_eq!((&*job.info.phase, job.info.joined.len()), ("forming", 0));
            self.say(tool, Request::Delete { job: job.info.job });
        }
        self.say(tool, Request::Stats);
        let stats = self.stats.take().expect("it is answered");
        assert_eq!((stats.slots_free, stats.jobs.len()), (SLOTS, 0), "not given back");
    }
}
