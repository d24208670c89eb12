//! A world of connections around a [`Jobs`], with an engine that answers when it is told to. It
//! checks in every test that each connection is told things in an order that makes sense.

mod comeback;
mod contest;
mod late;
mod life;
mod loss;
mod meetings;
mod random;
mod refusals;
mod rejoin;
mod restart;
mod resume;
mod stragglers;
mod told;
mod tree;
mod trouble;
mod watch;
mod woods;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use rand::SeedableRng;
use xdp_agg_common::control::{
    AbortReason, Admitted, AggregatorLoss, CONTROL_VERSION, Call, Cause, Chosen, CreateJob,
    ErrorCode, Held, Join, Policy, Progress, Reply, Resume, Stats, Token, Tree, WorkerLoss,
};
use xdp_agg_common::maps::{JobConf, JobCounters, MAX_JOBS, ResultMode};

use super::*;
use crate::engine::{JobSetup, Started};
use told::Told;

const PEER: Peer =
    Peer { local: Some(Ipv4Addr::new(10, 0, 0, 254)), remote: Some(Ipv4Addr::new(10, 0, 0, 1)) };

/// Goes on after any loss.
const SHRINK: Policy =
    Policy { worker_loss: WorkerLoss::Shrink, aggregator_loss: AggregatorLoss::Resume };
/// Goes on when the daemon is lost, but not when a worker is.
const RESUME: Policy = Policy { worker_loss: WorkerLoss::Fail, ..SHRINK };

struct World {
    jobs: Jobs,
    now: Instant,
    next: u64,
    heard: BTreeMap<ConnId, Vec<Reply>>,
    told: BTreeMap<ConnId, Told>,
    /// Closed by the daemon.
    closed: BTreeSet<ConnId>,
    /// Closed by the peer.
    gone: BTreeSet<ConnId>,
    /// What the engine has on the data path, by job.
    engine: BTreeMap<u16, JobSetup>,
    missing: u64,
    counters: Vec<JobCounters>,
    contributed: BTreeMap<u16, Heard>,
    saved: Snapshot,
    fails: bool,
    /// The engine takes its time: its answers wait here.
    slow: bool,
    answers: VecDeque<Answer>,
    heartbeats: BTreeMap<ConnId, u32>,
}

fn limits() -> Limits {
    Limits {
        engine: "test".into(),
        slots: 64,
        job_slots: 16,
        max_chunks: 22,
        data_port: 48864,
        join_timeout: Duration::from_secs(60),
        join_timeout_max: Duration::from_secs(600),
        probe_timeout: Duration::from_secs(20),
        return_after: Duration::from_secs(1),
        resume_timeout: Duration::from_secs(10),
        patience: Patience(Some(Duration::from_secs(2))),
        ..Limits::default()
    }
}

impl World {
    fn new() -> Self {
        Self::with(limits())
    }

    fn with(limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            jobs: Jobs::new(limits, StdRng::seed_from_u64(1), now),
            now,
            next: 0,
            heard: BTreeMap::new(),
            told: BTreeMap::new(),
            closed: BTreeSet::new(),
            gone: BTreeSet::new(),
            engine: BTreeMap::new(),
            missing: 0,
            counters: vec![JobCounters::default(); MAX_JOBS + 1],
            contributed: BTreeMap::new(),
            saved: Snapshot::default(),
            fails: false,
            slow: false,
            answers: VecDeque::new(),
            heartbeats: BTreeMap::new(),
        }
    }

    fn connect(&mut self) -> ConnId {
        let conn = ConnId(self.next);
        self.next += 1;
        self.jobs.handle_connected(conn, PEER);
        assert!(matches!(self.say(conn, hello(None))[..], [Reply::Welcome { .. }]));
        conn
    }

    /// Says something and returns what this connection hears at once.
    fn say(&mut self, conn: ConnId, request: Request) -> Vec<Reply> {
        self.told.entry(conn).or_default().says(&request);
        self.jobs.handle_request(conn, request, self.now);
        self.settle();
        self.heard.remove(&conn).unwrap_or_default()
    }

    fn hear(&mut self, conn: ConnId) -> Vec<Reply> {
        self.heard.remove(&conn).unwrap_or_default()
    }

    fn close(&mut self, conn: ConnId) {
        self.gone.insert(conn);
        self.told.remove(&conn);
        self.jobs.handle_closed(conn);
        self.settle();
    }

    fn wait(&mut self, seconds: u64) {
        self.wait_for(Duration::from_secs(seconds));
    }

    fn wait_for(&mut self, time: Duration) {
        self.now += time;
        self.jobs.handle_timeout(self.now);
        assert!(self.jobs.poll_timeout().is_none_or(|due| due > self.now), "it would spin");
        self.settle();
    }

    /// Does all effects, with the engine's answers.
    fn settle(&mut self) {
        while let Some(effect) = self.jobs.poll_effect() {
            if let Some(answer) = self.effect(effect) {
                if self.slow {
                    self.answers.push_back(answer);
                } else {
                    self.jobs.handle_answer(answer, self.now);
                }
            }
        }
    }

    /// The engine has got round to it.
    fn engine_answers(&mut self) {
        while let Some(answer) = self.answers.pop_front() {
            self.jobs.handle_answer(answer, self.now);
            self.settle();
        }
    }

    fn effect(&mut self, effect: Effect) -> Option<Answer> {
        let result = || if self.fails { Err("it broke".to_owned()) } else { Ok(()) };
        match effect {
            Effect::Reply(conn, reply) => {
                assert!(!self.closed.contains(&conn), "a reply after the close: {reply:?}");
                assert!(!self.gone.contains(&conn), "a reply to nobody: {reply:?}");
                if reply == Reply::Heartbeat {
                    *self.heartbeats.entry(conn).or_default() += 1;
                    return None;
                }
                self.told.entry(conn).or_default().hears(&reply, &self.engine);
                self.heard.entry(conn).or_default().push(reply);
            }
            Effect::Close(conn) => {
                assert!(!self.gone.contains(&conn), "closed twice");
                assert!(self.closed.insert(conn), "closed twice");
                self.told.remove(&conn);
            }
            Effect::Prepare(Prepare { formation, setup }) => {
                let answer = result();
                assert_eq!(formation.job_id, setup.job_id);
                assert!(setup.is_consistent(), "{setup:?}");
                let job_id = formation.job_id;
                assert!(self.engine.insert(job_id, setup).is_none(), "two epochs at a time");
                return Some(Answer::Prepared(formation, answer.map(|()| None)));
            }
            Effect::Start(formation, wanted) => {
                let mode = wanted.unwrap_or(ResultMode::Ports);
                let started = result().map(|()| Started { mode, group: None });
                return Some(Answer::Started(formation, started));
            }
            Effect::Stop { job_id } => {
                assert!(self.engine.remove(&job_id).is_some(), "stopped without a start");
            }
            Effect::Missing { conn, block, of, .. } => {
                let ranks = result().map(|()| self.missing & of);
                return Some(Answer::Missing { conn, block, ranks });
            }
            Effect::Counters(purpose) => {
                let counters = result().map(|()| self.counters.clone());
                return Some(Answer::Counters(purpose, counters));
            }
            Effect::ProbeUplink(_) | Effect::Link(_) => {
                panic!("{effect:?} in a job without a tree")
            }
            Effect::Reload(_) => {}
            Effect::Persist => self.saved = self.jobs.snapshot(),
            Effect::Heard { look, jobs } => {
                let known = |job_id: &u16| Some((*job_id, self.contributed.get(job_id)?.clone()));
                let heard = jobs.iter().filter_map(known).collect();
                return Some(Answer::Heard { look, heard });
            }
        }
        None
    }

    /// What a tool is told.
    fn asked(&mut self, request: Request) -> Option<Reply> {
        let tool = self.connect();
        let mut heard = self.say(tool, request);
        self.close(tool);
        heard.pop()
    }

    fn infos(&mut self) -> Vec<xdp_agg_common::control::JobInfo> {
        let Some(Reply::Jobs(all)) = self.asked(Request::Jobs) else { panic!("no jobs") };
        all
    }

    fn stats(&mut self) -> Stats {
        let Some(Reply::Stats(stats)) = self.asked(Request::Stats) else { panic!("no stats") };
        stats
    }

    /// Joins over a connection of its own, and what that hears.
    fn come(&mut self, join: Join) -> (ConnId, Vec<Reply>) {
        let conn = self.connect();
        let heard = self.say(conn, Request::Join(join));
        (conn, heard)
    }

    /// What a member of the first job's epoch would say over a new connection.
    fn remembered(&self) -> Resume {
        let JobConf { epoch, cookie, members, max_chunks: chunks, .. } = self.engine[&0].conf;
        Resume { epoch, cookie, members, chunks, progress: progress(10, 3), rings: 0 }
    }

    /// Joins all ranks of a job.
    fn form(&mut self, job: &str, world_size: u16) -> Vec<ConnId> {
        self.form_with(job, world_size, Policy::default())
    }

    fn form_with(&mut self, job: &str, world_size: u16, policy: Policy) -> Vec<ConnId> {
        let join_one = |world: &mut Self, rank| {
            let conn = world.connect();
            let join = Join { policy, ..wish(job, rank, world_size) };
            assert!(world.say(conn, Request::Join(join)).len() <= 1);
            conn
        };
        (0..world_size).map(|rank| join_one(self, rank)).collect()
    }

    /// Brings a job to its running state; forgets what was heard on the way.
    fn run(&mut self, job: &str, world_size: u16) -> Vec<ConnId> {
        self.run_with(job, world_size, Policy::default())
    }

    fn run_with(&mut self, job: &str, world_size: u16, policy: Policy) -> Vec<ConnId> {
        let members = self.form_with(job, world_size, policy);
        self.ready(&members);
        self.heard.clear();
        assert_eq!(self.phase(job), "running");
        members
    }

    /// All say that their paths are open.
    fn ready(&mut self, members: &[ConnId]) {
        for conn in members {
            let heard = self.say(*conn, Request::Ready);
            self.heard.entry(*conn).or_default().extend(heard);
        }
    }

    fn phase(&mut self, job: &str) -> String {
        let infos = self.infos();
        let info = infos.iter().find(|info| info.job == job);
        info.map_or_else(|| "gone".into(), |info| info.phase.clone())
    }
}

fn hello(token: Option<&str>) -> Request {
    let token = token.map(|token| Token(token.into()));
    Request::Hello { version: CONTROL_VERSION, agent: "test".into(), token }
}

fn join(job: &str, rank: u16, world_size: u16) -> Request {
    Request::Join(wish(job, rank, world_size))
}

fn wish(job: &str, rank: u16, world_size: u16) -> Join {
    Join {
        job: job.into(),
        rank,
        world_size,
        data_port: 4000 + rank,
        max_chunks: 22,
        ..Join::default()
    }
}

fn create(job: &str, world_size: u16) -> CreateJob {
    CreateJob { job: job.into(), world_size, slots: None, result_mode: None, policy: None }
}

fn missing(block: u64, ranks: &[u16]) -> Reply {
    Reply::Missing { block, ranks: ranks.to_vec() }
}

fn any_call() -> Call {
    Call {
        sequence: 0,
        count: 1,
        element: "i32".into(),
        operation: "sum".into(),
        numbers: "block".into(),
    }
}

/// Has all blocks before `base`, and can hand on the last two of them.
fn progress(base: u64, next_sequence: u64) -> Progress {
    let held = Held { from: base - 2, len: 2, members: 0b1 };
    Progress { base, next_sequence, held: vec![held] }
}

/// The single refusal in `heard`: its code, after a look whether its sentence holds `words`.
fn refused(heard: &[Reply], words: &[&str]) -> ErrorCode {
    let [Reply::Error { code, message }] = heard else {
        panic!("one refusal is expected: {heard:?}");
    };
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in {message:?}");
    }
    *code
}

fn aborted(heard: &[Reply]) -> AbortReason {
    match heard {
        [Reply::Aborted(reason)] => reason.clone(),
        other => panic!("one Aborted is expected: {other:?}"),
    }
}

fn admitted(heard: &[Reply]) -> Admitted {
    match heard {
        [Reply::Admitted(admitted)] => admitted.clone(),
        other => panic!("one Admitted is expected: {other:?}"),
    }
}

/// The ranks that a single `Reform` names.
fn reform(heard: &[Reply]) -> Vec<u16> {
    match heard {
        [Reply::Reform { lost, reason }] if !reason.is_empty() => lost.clone(),
        other => panic!("one Reform is expected: {other:?}"),
    }
}
