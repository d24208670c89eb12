//! A world of connections around a [`Jobs`], with an engine that answers when it is told to.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::SeedableRng;
use xdp_agg_common::control::{Admitted, CONTROL_VERSION, Policy};
use xdp_agg_common::control::{Call, CreateJob, ErrorCode, Join, Stats};
use xdp_agg_common::maps::MAX_JOBS;

use super::*;

const PEER: Peer =
    Peer { local: Some(Ipv4Addr::new(10, 0, 0, 254)), remote: Some(Ipv4Addr::new(10, 0, 0, 1)) };

struct World {
    jobs: Jobs,
    now: Instant,
    next: u64,
    heard: BTreeMap<ConnId, Vec<Reply>>,
    closed: BTreeSet<ConnId>,
    /// What the engine has on the data path: slots by job.
    engine: BTreeMap<u16, JobSetup>,
    missing: u64,
    counters: Vec<JobCounters>,
    contributed: BTreeMap<u16, Heard>,
    saved: Snapshot,
    fails: bool,
}

impl World {
    fn new() -> Self {
        let limits = Limits {
            engine: "test".into(),
            slots: 64,
            job_slots: 16,
            max_chunks: 22,
            data_addr: None,
            data_port: 48864,
            join_timeout: Duration::from_secs(60),
            probe_timeout: Duration::from_secs(20),
            resume_timeout: Duration::from_secs(10),
            dead_after: Duration::from_secs(2),
            straggler_timeout: None,
            token: None,
            job_slots_max: None,
            job_packet_rate: None,
        };
        let now = Instant::now();
        Self {
            jobs: Jobs::new(limits, StdRng::seed_from_u64(1), now),
            now,
            next: 0,
            heard: BTreeMap::new(),
            closed: BTreeSet::new(),
            engine: BTreeMap::new(),
            missing: 0,
            counters: vec![JobCounters::default(); MAX_JOBS + 1],
            contributed: BTreeMap::new(),
            saved: Snapshot::default(),
            fails: false,
        }
    }

    fn connect(&mut self) -> ConnId {
        let conn = ConnId(self.next);
        self.next += 1;
        self.jobs.connected(conn, PEER);
        let hello = Request::Hello { version: CONTROL_VERSION, agent: "test".into(), token: None };
        assert!(matches!(self.say(conn, hello)[..], [Reply::Welcome { .. }]));
        conn
    }

    /// Says something and returns what this connection hears at once.
    fn say(&mut self, conn: ConnId, request: Request) -> Vec<Reply> {
        self.jobs.request(conn, request, self.now);
        self.settle();
        self.heard.remove(&conn).unwrap_or_default()
    }

    fn hear(&mut self, conn: ConnId) -> Vec<Reply> {
        self.heard.remove(&conn).unwrap_or_default()
    }

    fn close(&mut self, conn: ConnId) {
        self.jobs.closed(conn);
        self.settle();
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.jobs.handle_timeout(self.now);
        self.settle();
    }

    /// Does all effects, with the engine's answers.
    fn settle(&mut self) {
        while let Some(effect) = self.jobs.next_effect() {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        let result = || if self.fails { Err("it broke".to_owned()) } else { Ok(()) };
        match effect {
            Effect::Reply(_, Reply::Heartbeat) => {}
            Effect::Reply(conn, reply) => {
                assert!(!self.closed.contains(&conn), "a reply after the close: {reply:?}");
                self.heard.entry(conn).or_default().push(reply);
            }
            Effect::Close(conn) => assert!(self.closed.insert(conn), "closed twice"),
            Effect::Prepare(Prepare { formation, setup }) => {
                let answer = result();
                assert_eq!(formation.job_id, setup.job_id);
                self.engine.insert(formation.job_id, setup);
                self.jobs.answer(Answer::Prepared(formation, answer), self.now);
            }
            Effect::Start(formation, wanted) => {
                let mode = wanted.unwrap_or(ResultMode::Ports);
                let started = result().map(|()| Started { mode, group: None });
                self.jobs.answer(Answer::Started(formation, started), self.now);
            }
            Effect::Stop { job_id } => {
                assert!(self.engine.remove(&job_id).is_some(), "stopped without a start");
            }
            Effect::Missing { conn, block, .. } => {
                let ranks = result().map(|()| self.missing);
                self.jobs.answer(Answer::Missing { conn, block, ranks }, self.now);
            }
            Effect::Counters(purpose) => {
                let counters = result().map(|()| self.counters.clone());
                self.jobs.answer(Answer::Counters(purpose, counters), self.now);
            }
            Effect::Persist => self.saved = self.jobs.snapshot(),
            Effect::Heard { look, jobs } => {
                let known = |job_id: &u16| Some((*job_id, self.contributed.get(job_id)?.clone()));
                let heard = jobs.iter().filter_map(known).collect();
                self.jobs.answer(Answer::Heard { look, heard }, self.now);
            }
        }
    }

    fn infos(&mut self) -> Vec<xdp_agg_common::control::JobInfo> {
        let tool = self.connect();
        let mut heard = self.say(tool, Request::Jobs);
        self.close(tool);
        match heard.pop() {
            Some(Reply::Jobs(all)) => all,
            other => panic!("{other:?}"),
        }
    }

    fn stats(&mut self) -> Stats {
        let tool = self.connect();
        let mut heard = self.say(tool, Request::Stats);
        self.close(tool);
        match heard.pop() {
            Some(Reply::Stats(stats)) => stats,
            other => panic!("{other:?}"),
        }
    }

    /// Joins all ranks of a job.
    fn form(&mut self, job: &str, world_size: u16) -> Vec<ConnId> {
        let join_one = |world: &mut Self, rank| {
            let conn = world.connect();
            assert!(world.say(conn, join(job, rank, world_size)).len() <= 1);
            conn
        };
        (0..world_size).map(|rank| join_one(self, rank)).collect()
    }

    /// Brings a job to its running state; forgets what was heard on the way.
    fn run(&mut self, job: &str, world_size: u16) -> Vec<ConnId> {
        let members = self.form(job, world_size);
        for conn in &members {
            self.say(*conn, Request::Ready);
        }
        self.heard.clear();
        assert!(self.infos().iter().any(|info| info.job == job && info.phase == "running"));
        members
    }
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
        data_addr: None,
        max_chunks: 22,
        slots: None,
        result_mode: None,
        policy: Policy::default(),
        ring_port: None,
        resume: None,
    }
}

fn create(job: &str, world_size: u16) -> CreateJob {
    CreateJob { job: job.into(), world_size, slots: None, result_mode: None, policy: None }
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

#[test]
fn a_job_lives_from_join_to_leave() {
    let mut world = World::new();
    let small = world.connect();
    let wish = Join { max_chunks: 7, ..wish("train", 0, 2) };
    assert_eq!(world.say(small, Request::Join(wish)), []);
    let other = world.connect();
    let heard = world.say(other, join("train", 1, 2));
    let [
        Reply::Admitted(Admitted {
            job_id: 0, epoch: 1, chunks: 7, slots: 16, data, cookie, ..
        }),
    ] = heard[..]
    else {
        panic!("{heard:?}");
    };
    assert_eq!(data.to_string(), "10.0.0.254:48864");
    assert_eq!(world.hear(small), heard);
    let setup = &world.engine[&0];
    assert_eq!((setup.conf.cookie, setup.conf.members), (cookie, 0b11));
    assert_eq!(setup.members[&1].to_string(), "10.0.0.1:4001");

    assert_eq!(world.say(small, Request::Ready), []);
    assert_eq!(world.say(other, Request::Missing { block: 0 }), [missing(0, &[1])]);
    let go = Reply::Go { mode: ResultMode::Ports, group: None };
    assert_eq!(world.say(other, Request::Ready), std::slice::from_ref(&go));
    assert_eq!(world.hear(small), [go]);

    world.missing = 0b10;
    assert_eq!(world.say(small, Request::Missing { block: 9 }), [missing(9, &[1])]);
    assert_eq!(world.say(small, Request::Leave), [Reply::Done]);
    world.close(small);
    assert_eq!(world.hear(other), []);
    assert_eq!(world.infos()[0].joined, [1]);
    assert_eq!(world.say(other, Request::Leave), [Reply::Done]);
    assert!(world.infos().is_empty() && world.engine.is_empty());
    // The same connection may join again.
    assert_eq!(world.say(other, join("next", 0, 1)).len(), 1);
}

fn missing(block: u64, ranks: &[u16]) -> Reply {
    Reply::Missing { block, ranks: ranks.to_vec() }
}

#[test]
fn wrong_joins_say_what_is_expected() {
    let mut world = World::new();
    let first = world.connect();
    assert_eq!(world.say(first, join("train", 0, 2)), []);
    let with = |change: fn(&mut Join)| {
        let mut join = wish("train", 1, 2);
        change(&mut join);
        join
    };
    let cases: [(Join, ErrorCode, &[&str]); 13] = [
        (with(|j| j.rank = 0), ErrorCode::RankTaken, &["rank 0", "10.0.0.1:4000", "0 to 1"]),
        (with(|j| j.world_size = 4), ErrorCode::WorldSize, &["of 2", "says 4", "WORLD_SIZE"]),
        (with(|j| j.rank = 2), ErrorCode::Invalid, &["rank 2", "world of 2", "0 to 1"]),
        (with(|j| j.world_size = 0), ErrorCode::Invalid, &["size of 0", "1 to 64"]),
        (with(|j| j.world_size = 65), ErrorCode::Invalid, &["size of 65", "1 to 64"]),
        (with(|j| j.job = String::new()), ErrorCode::Invalid, &["1 to 64"]),
        (with(|j| j.job = "x".repeat(65)), ErrorCode::Invalid, &["65", "1 to 64"]),
        (with(|j| j.job = "a\nb".into()), ErrorCode::Invalid, &["control characters"]),
        (with(|j| j.slots = Some(12)), ErrorCode::Invalid, &["12 slots", "power of two"]),
        (with(|j| j.slots = Some(32)), ErrorCode::Invalid, &["32 slots", "has 16"]),
        (with(|j| j.max_chunks = 0), ErrorCode::NoRoom, &["MTU", "114"]),
        (with(|j| j.data_port = 0), ErrorCode::Invalid, &["UDP port"]),
        (with(|j| j.data_port = 4000), ErrorCode::Invalid, &["rank 0's", "port of its own"]),
    ];
    for (wrong, code, words) in cases {
        let conn = world.connect();
        let heard = world.say(conn, Request::Join(wrong));
        assert_eq!(refused(&heard, words), code);
        assert!(!world.closed.contains(&conn));
    }
    // None of that harmed the job.
    let second = world.connect();
    assert!(matches!(world.say(second, join("train", 1, 2))[..], [Reply::Admitted(_)]));
    let third = world.connect();
    let heard = world.say(third, join("train", 1, 2));
    assert_eq!(refused(&heard, &["taken"]), ErrorCode::RankTaken);
}

#[test]
fn two_addresses_of_the_aggregator_are_refused() {
    let mut world = World::new();
    let first = world.connect();
    world.say(first, join("train", 0, 2));
    let conn = ConnId(99);
    world.jobs.connected(conn, Peer { local: Some(Ipv4Addr::LOCALHOST), ..PEER });
    world.say(conn, Request::Hello { version: CONTROL_VERSION, agent: String::new(), token: None });
    let heard = world.say(conn, join("train", 1, 2));
    assert_eq!(refused(&heard, &["127.0.0.1", "10.0.0.254", "--data-addr"]), ErrorCode::Invalid);
}

#[test]
fn a_first_join_that_is_refused_leaves_no_job() {
    let mut world = World::new();
    let conn = ConnId(99);
    world.jobs.connected(conn, Peer { local: None, ..PEER });
    world.say(conn, Request::Hello { version: CONTROL_VERSION, agent: String::new(), token: None });
    let heard = world.say(conn, join("train", 0, 2));
    assert_eq!(refused(&heard, &["IPv6", "--data-addr"]), ErrorCode::Invalid);
    assert!(world.infos().is_empty());
    assert_eq!(world.stats().slots_free, 64);
}

#[test]
fn a_death_is_told_to_the_others_by_rank() {
    let mut world = World::new();
    let members = world.run("train", 3);
    world.close(members[1]);
    for conn in [members[0], members[2]] {
        assert_eq!(aborted(&world.hear(conn)), AbortReason::MemberLost { rank: 1 });
        let heard = world.say(conn, Request::Missing { block: 0 });
        assert_eq!(refused(&heard, &["Join"]), ErrorCode::NoJob);
    }
    assert!(world.infos().is_empty() && world.engine.is_empty());
}

#[test]
fn a_death_while_the_job_forms_frees_the_rank() {
    let mut world = World::new();
    let conns = [world.connect(), world.connect(), world.connect(), world.connect()];
    for (conn, rank) in conns.into_iter().zip([0, 1]) {
        world.say(conn, join("train", rank, 3));
    }
    world.close(conns[1]);
    assert_eq!(world.hear(conns[0]), []);
    for (conn, rank) in [(conns[2], 1), (conns[3], 2)] {
        world.say(conn, join("train", rank, 3));
    }
    assert!(matches!(world.hear(conns[0])[..], [Reply::Admitted(_)]));
    // The last one of a forming job takes the job with it.
    let alone = world.connect();
    world.say(alone, join("other", 1, 2));
    world.close(alone);
    assert_eq!(world.infos().len(), 1);
}

#[test]
fn a_mismatch_and_a_surrender_end_the_job() {
    let call =
        Call { sequence: 3, count: 10, element: "f32".into(), operation: "sum".into(), scale: 1.0 };
    let mut world = World::new();
    let members = world.run("train", 2);
    let reason = AbortReason::CallMismatch { rank: 1, call: call.clone() };
    let heard = world.say(members[1], Request::CallMismatch { call: call.clone() });
    assert_eq!(aborted(&heard), reason);
    assert_eq!(aborted(&world.hear(members[0])), reason);
    // The other found out too, and said so before it heard: no second abort.
    let heard = world.say(members[0], Request::CallMismatch { call });
    assert_eq!(refused(&heard, &[]), ErrorCode::NoJob);

    let members = world.run("train", 2);
    let heard = world.say(members[0], Request::Abort { reason: "no memory".into() });
    assert_eq!(heard, [Reply::Done]);
    let reason = AbortReason::Member { rank: 0, reason: "no memory".into() };
    assert_eq!(aborted(&world.hear(members[1])), reason);
}

#[test]
fn waits_end_and_name_the_ranks() {
    let mut world = World::new();
    let first = world.connect();
    world.say(first, join("train", 1, 3));
    world.wait(59);
    assert_eq!(world.hear(first), []);
    world.wait(1);
    let reason = AbortReason::Timeout { ranks: vec![0, 2], step: "join".into() };
    assert_eq!(aborted(&world.hear(first)), reason);
    assert_eq!(world.jobs.poll_timeout(), None);

    let members = world.form("train", 2);
    world.heard.clear();
    world.say(members[0], Request::Ready);
    world.wait(20);
    let reason = AbortReason::Timeout { ranks: vec![1], step: "probe".into() };
    for conn in members {
        assert_eq!(aborted(&world.hear(conn)), reason);
    }
    assert!(world.engine.is_empty());
}

#[test]
fn one_jobs_end_is_not_the_others() {
    let mut world = World::new();
    let (one, two) = (world.run("one", 2), world.run("two", 2));
    let ranges: Vec<_> = world.engine.values().map(|s| (s.conf.slot_base, s.conf.epoch)).collect();
    assert_eq!(ranges, [(0, 1), (16, 2)]);
    world.close(one[0]);
    assert_eq!(aborted(&world.hear(one[1])), AbortReason::MemberLost { rank: 0 });
    assert_eq!(world.hear(two[0]), []);
    assert_eq!(world.infos().len(), 1);
    // The next job takes the slots over, in an epoch of its own.
    world.run("three", 2);
    assert_eq!((world.engine[&0].conf.slot_base, world.engine[&0].conf.epoch), (0, 3));
}

#[test]
fn a_reserved_job_stays_and_forms_again() {
    let mut world = World::new();
    let tool = world.connect();
    assert_eq!(world.say(tool, Request::Create(create("night", 1))), [Reply::Done]);
    let heard = world.say(tool, Request::Create(create("night", 1)));
    assert_eq!(refused(&heard, &["exists", "delete"]), ErrorCode::Busy);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let members = world.form("night", 1);
        let setup = &world.engine[&0];
        seen.push((setup.conf.epoch, setup.conf.cookie));
        world.say(members[0], Request::Leave);
    }
    assert_eq!((seen[0].0, seen[1].0), (1, 2));
    assert_ne!(seen[0].1, seen[1].1);
    assert_eq!(world.infos()[0].phase, "forming");

    let member = world.run("night", 1)[0];
    assert_eq!(world.say(tool, Request::Delete { job: "night".into() }), [Reply::Done]);
    assert!(matches!(aborted(&world.hear(member)), AbortReason::Operator { .. }));
    let heard = world.say(tool, Request::Delete { job: "night".into() });
    assert_eq!(refused(&heard, &["night", "xdp-agg jobs"]), ErrorCode::NoJob);
    assert_eq!(world.stats().slots_free, 64);
}

#[test]
fn slots_run_out_with_numbers() {
    let mut world = World::new();
    let tool = world.connect();
    for (i, slots) in [(0, 32), (1, 16)] {
        let wish = CreateJob { slots: Some(slots), ..create(&format!("job{i}"), 2) };
        assert_eq!(world.say(tool, Request::Create(wish)), [Reply::Done]);
    }
    let wish = CreateJob { slots: Some(32), ..create("big", 2) };
    let heard = world.say(tool, Request::Create(wish));
    assert_eq!(refused(&heard, &["32 slots", "16 of 64", "--slots"]), ErrorCode::NoRoom);
    let wish = |i| CreateJob { slots: Some(2), ..create(&format!("small{i}"), 2) };
    for i in 0..8 {
        assert_eq!(world.say(tool, Request::Create(wish(i))), [Reply::Done]);
    }
    assert_eq!(world.stats().slots_free, 0);

    let mut world = World::new();
    let tool = world.connect();
    for i in 0..MAX_JOBS {
        assert_eq!(world.say(tool, Request::Create(wish(i))), [Reply::Done]);
    }
    let heard = world.say(tool, Request::Create(wish(16)));
    assert_eq!(refused(&heard, &["16 jobs"]), ErrorCode::NoRoom);
}

#[test]
fn counters_start_with_the_job() {
    let mut world = World::new();
    world.counters[0].blocks = 100;
    world.counters[0].rejects[3] = 5;
    world.counters[MAX_JOBS].rejects[1] = 7;
    world.form("train", 2);
    world.counters[0].blocks = 130;
    world.counters[0].rejects[3] = 6;
    let stats = world.stats();
    assert_eq!(stats.jobs[0].counters.blocks, 30);
    assert_eq!(stats.jobs[0].counters.rejects[3], 1);
    assert_eq!(stats.unattributed.rejects[1], 7);
    assert_eq!((stats.slots, stats.slots_free), (64, 48));
}

#[test]
fn an_engine_that_fails_ends_the_job_with_its_words() {
    let mut world = World::new();
    world.fails = true;
    let members = world.form("train", 2);
    for conn in members {
        let AbortReason::Operator { reason } = aborted(&world.hear_or(conn)) else {
            panic!("the engine's failure is told");
        };
        assert!(reason.contains("it broke"), "{reason}");
    }
    assert!(world.infos().is_empty() && world.engine.is_empty());
}

impl World {
    /// What was heard in `form` is gone for the last rank; then ask for its state instead.
    fn hear_or(&mut self, conn: ConnId) -> Vec<Reply> {
        let heard = self.hear(conn);
        if heard.is_empty() {
            let again = self.say(conn, Request::Ready);
            assert_eq!(refused(&again, &[]), ErrorCode::NoJob);
            return vec![Reply::Aborted(AbortReason::Operator { reason: "it broke".into() })];
        }
        heard
    }
}

#[test]
fn what_breaks_the_protocol_is_told_and_closed() {
    let mut world = World::new();
    let early = ConnId(90);
    world.jobs.connected(early, PEER);
    let heard = world.say(early, Request::Jobs);
    assert_eq!(refused(&heard, &["Hello"]), ErrorCode::Protocol);
    let other = ConnId(91);
    world.jobs.connected(other, PEER);
    let heard =
        world.say(other, Request::Hello { version: 99, agent: "old 0.0".into(), token: None });
    assert_eq!(refused(&heard, &["99", "version 2", "same release"]), ErrorCode::Version);
    let foreign = world.connect();
    world.jobs.garbled(foreign, "not JSON");
    world.settle();
    assert_eq!(refused(&world.hear(foreign), &["not JSON"]), ErrorCode::Protocol);
    let hasty = world.connect();
    world.say(hasty, join("train", 0, 2));
    let heard = world.say(hasty, Request::Ready);
    assert_eq!(refused(&heard, &["Admitted"]), ErrorCode::Protocol);
    for conn in [early, other, foreign, hasty] {
        assert!(world.closed.contains(&conn));
        assert_eq!(world.say(conn, Request::Jobs), []);
    }
    assert!(world.infos().is_empty());
}

#[test]
fn a_member_that_joins_twice_is_lost_to_the_others() {
    let mut world = World::new();
    let members = world.run("train", 2);
    let heard = world.say(members[0], join("more", 0, 1));
    assert_eq!(refused(&heard, &["second Join"]), ErrorCode::Protocol);
    assert_eq!(aborted(&world.hear(members[1])), AbortReason::MemberLost { rank: 0 });
}

#[test]
fn going_down_tells_every_member() {
    let mut world = World::new();
    let members = [world.run("one", 2), world.run("two", 1)].concat();
    let tool = world.connect();
    world.say(tool, Request::Create(create("three", 4)));
    world.jobs.shut_down("the aggregator is shutting down");
    world.settle();
    for conn in members {
        let reason = AbortReason::Operator { reason: "the aggregator is shutting down".into() };
        assert_eq!(aborted(&world.hear(conn)), reason);
    }
    assert!(world.infos().is_empty() && world.engine.is_empty());
}

/// One step of a random run; the numbers choose among what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Connect,
    Join { conn: usize, job: u8, rank: u16, slots: u8 },
    Ready(usize),
    Mismatch(usize),
    Surrender(usize),
    Leave(usize),
    Close(usize),
    Create(u8),
    Delete(u8),
    Wait(u64),
    EngineBreaks(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let conn = 0_usize..12;
    let one = prop_oneof![
        3 => Just(Step::Connect),
        8 => (conn.clone(), 0_u8..3, 0_u16..3, 0_u8..4)
            .prop_map(|(conn, job, rank, slots)| Step::Join { conn, job, rank, slots }),
        8 => conn.clone().prop_map(Step::Ready),
        1 => conn.clone().prop_map(Step::Mismatch),
        1 => conn.clone().prop_map(Step::Surrender),
        2 => conn.clone().prop_map(Step::Leave),
        2 => conn.prop_map(Step::Close),
        1 => (0_u8..3).prop_map(Step::Create),
        1 => (0_u8..3).prop_map(Step::Delete),
        1 => (1_u64..70).prop_map(Step::Wait),
        1 => prop::bool::weighted(0.2).prop_map(Step::EngineBreaks),
    ];
    prop::collection::vec(one, 1..200)
}

/// The model: which connection is a member of what, by what it heard and did.
#[derive(Default)]
struct Model {
    conns: Vec<ConnId>,
    members: BTreeMap<ConnId, (String, u16)>,
}

impl Model {
    /// Does a step; returns the connection whose own doing it was, and that then is no member.
    fn step(&mut self, world: &mut World, step: Step) -> Option<ConnId> {
        let pick = |i: usize| self.conns.get(i % self.conns.len().max(1)).copied();
        let size = |job: u8| u16::from(job) + 1;
        let name = |job: u8| format!("job{job}");
        match step {
            Step::Connect => {
                let conn = world.connect();
                self.conns.push(conn);
                return None;
            }
            Step::Create(job) => {
                let tool = world.connect();
                world.say(tool, Request::Create(create(&name(job), size(job))));
                world.close(tool);
                return None;
            }
            Step::Delete(job) => {
                let tool = world.connect();
                world.say(tool, Request::Delete { job: name(job) });
                world.close(tool);
                return None;
            }
            Step::Wait(seconds) => {
                world.wait(seconds);
                return None;
            }
            Step::EngineBreaks(fails) => {
                world.fails = fails;
                return None;
            }
            _ => {}
        }
        let (index, request) = match step {
            Step::Join { conn, job, rank, slots } => {
                let slots = [None, None, Some(8), Some(32)][usize::from(slots)];
                (conn, join_with(&name(job), rank, size(job), slots))
            }
            Step::Ready(conn) => (conn, Request::Ready),
            Step::Mismatch(conn) => (conn, Request::CallMismatch { call: any_call() }),
            Step::Surrender(conn) => (conn, Request::Abort { reason: "enough".into() }),
            Step::Leave(conn) => (conn, Request::Leave),
            Step::Close(conn) => (conn, Request::Leave),
            _ => return None,
        };
        let conn = pick(index)?;
        if matches!(step, Step::Close(_)) {
            self.conns.retain(|c| *c != conn);
            world.close(conn);
            return Some(conn);
        }
        let own = matches!(step, Step::Surrender(_) | Step::Leave(_));
        world.jobs.request(conn, request.clone(), world.now);
        world.settle();
        if let Request::Join(join) = request
            && world.jobs.is_member(conn)
        {
            self.members.entry(conn).or_insert((join.job, join.rank));
        }
        own.then_some(conn)
    }
}

fn join_with(job: &str, rank: u16, world_size: u16, slots: Option<u32>) -> Request {
    Request::Join(Join { slots, ..wish(job, rank, world_size) })
}

fn any_call() -> Call {
    Call { sequence: 0, count: 1, element: "i32".into(), operation: "sum".into(), scale: 1.0 }
}

/// No rank twice, no slot in two jobs, the engine and the jobs agree on what is on the data path.
fn check_state(world: &World) -> Result<(), TestCaseError> {
    let mut taken = BTreeSet::new();
    for job in world.jobs.jobs.values() {
        for slot in job.slot_base..job.slot_base + job.slots {
            prop_assert!(slot < 64 && taken.insert(slot), "slot {} has two owners", slot);
        }
        let conns: BTreeSet<_> = job.life.members.values().map(|m| m.conn).collect();
        prop_assert_eq!(conns.len(), job.life.members.len());
        for (rank, member) in &job.life.members {
            prop_assert!(*rank < job.world_size);
            let session =
                member.conn.and_then(|conn| world.jobs.sessions.get(&conn)).map(|s| s.member);
            prop_assert_eq!(session, Some(Some((job.job_id, *rank))));
        }
        let forming = matches!(job.phase, job::Phase::Forming(_));
        prop_assert_eq!(world.engine.contains_key(&job.job_id), !forming);
        prop_assert!(job.reserved || !job.life.members.is_empty(), "an empty job lingers");
    }
    prop_assert!(world.engine.keys().all(|id| world.jobs.jobs.contains_key(id)));
    prop_assert_eq!(world.jobs.pool.free() as usize, 64 - taken.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn random_runs_keep_their_promises(steps in steps()) {
        let mut world = World::new();
        let mut model = Model::default();
        for step in steps {
            world.heard.clear();
            let before = model.members.clone();
            let own = model.step(&mut world, step);
            check_state(&world)?;
            // Who is no member any more was told once, or asked for it, or was closed as it broke
            // the rules; who still is one was told nothing of an end.
            for (conn, _) in before.iter().chain(&model.members.clone()) {
                let heard = world.heard.get(conn).map_or(&[][..], Vec::as_slice);
                let told = heard.iter().filter(|r| matches!(r, Reply::Aborted(_))).count();
                let still = world.jobs.is_member(*conn);
                let itself = own == Some(*conn) || world.closed.contains(conn);
                let expected = usize::from(!still && !itself);
                prop_assert_eq!(told, expected, "{:?} at {:?}: {:?}", conn, step, heard);
            }
            model.members.retain(|conn, _| world.jobs.is_member(*conn));
            model.conns.retain(|conn| !world.closed.contains(conn));
        }
    }
}
