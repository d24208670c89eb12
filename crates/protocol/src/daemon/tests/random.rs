//! Random runs: whatever comes in whatever order, the promises are kept.

use proptest::prelude::*;

use super::told::State;
use super::*;

/// One step of a random run; the numbers choose among what there is.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A worker connects and joins.
    Arrive {
        job: u8,
        rank: u16,
        odd: u8,
    },
    /// All ranks that are not there do, and all obey.
    Assemble(u8),
    /// A worker connects and resumes.
    Return(usize),
    /// All do that can.
    AllReturn,
    /// A connection does what it is expected to do next.
    Obey(usize),
    /// All do, this number of times.
    AllObey(u8),
    Lie(usize),
    Out(usize, Out),
    Missing(usize, u64),
    Close(usize),
    Create(u8),
    Delete(u8),
    Wait(u64),
    EngineBreaks(bool),
    EngineIsSlow(bool),
    EngineAnswers,
    Restart {
        pinned: bool,
    },
}

/// What a member may say out of turn.
#[derive(Clone, Copy, Debug)]
enum Out {
    Ready,
    Paused,
    Mismatch,
    Surrender,
    Leave,
    Heartbeat,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let conn = 0_usize..16;
    let out = prop_oneof![
        4 => Just(Out::Ready),
        2 => Just(Out::Paused),
        1 => Just(Out::Mismatch),
        1 => Just(Out::Surrender),
        4 => Just(Out::Leave),
        2 => Just(Out::Heartbeat),
    ];
    let one = prop_oneof![
        8 => (0_u8..3, 0_u16..4, 0_u8..16)
            .prop_map(|(job, rank, odd)| Step::Arrive { job, rank, odd }),
        6 => (0_u8..3).prop_map(Step::Assemble),
        6 => (0_usize..8).prop_map(Step::Return),
        3 => Just(Step::AllReturn),
        20 => conn.clone().prop_map(Step::Obey),
        8 => (1_u8..4).prop_map(Step::AllObey),
        1 => conn.clone().prop_map(Step::Lie),
        4 => (conn.clone(), out).prop_map(|(conn, out)| Step::Out(conn, out)),
        2 => (conn.clone(), 0_u64..16).prop_map(|(conn, bits)| Step::Missing(conn, bits)),
        6 => conn.prop_map(Step::Close),
        1 => (0_u8..3).prop_map(Step::Create),
        1 => (0_u8..3).prop_map(Step::Delete),
        3 => (1_u64..30).prop_map(Step::Wait),
        1 => prop::bool::weighted(0.1).prop_map(Step::EngineBreaks),
        2 => prop::bool::weighted(0.4).prop_map(Step::EngineIsSlow),
        4 => Just(Step::EngineAnswers),
        1 => prop::bool::ANY.prop_map(|pinned| Step::Restart { pinned }),
    ];
    prop::collection::vec(one, 1..150)
}

const POLICIES: [Policy; 3] = [
    Policy { worker_loss: WorkerLoss::Fail, aggregator_loss: AggregatorLoss::Resume },
    SHRINK,
    SHRINK,
];

fn name(job: u8) -> String {
    format!("job{job}")
}

fn size(job: u8) -> u16 {
    u16::from(job) + 2
}

/// The connections, and what workers without one remember.
#[derive(Default)]
struct Model {
    conns: Vec<ConnId>,
    memories: Vec<Join>,
}

impl Model {
    fn step(&mut self, world: &mut World, step: Step) {
        match step {
            Step::Arrive { job, rank, odd } => self.arrive(world, job, rank, odd),
            Step::Assemble(job) => {
                for rank in 0..size(job) {
                    let is_there = |conn: &&ConnId| {
                        let told = world.told.get(conn).and_then(|told| told.join.as_ref());
                        told.is_some_and(|join| join.job == name(job) && join.rank == rank)
                    };
                    if !self.conns.iter().any(|conn| is_there(&conn)) {
                        self.arrive(world, job, rank, u8::MAX);
                    }
                }
                self.step(world, Step::AllObey(6));
            }
            Step::Return(memory) => {
                if !self.memories.is_empty() {
                    let join = self.memories.swap_remove(memory % self.memories.len());
                    self.come(world, join);
                }
            }
            Step::AllReturn => {
                for join in std::mem::take(&mut self.memories) {
                    self.come(world, join);
                }
            }
            Step::Create(job) => {
                let tool = world.connect();
                world.say(tool, Request::Create(create(&name(job), size(job))));
                world.close(tool);
            }
            Step::Delete(job) => {
                let tool = world.connect();
                world.say(tool, Request::Delete { job: name(job) });
                world.close(tool);
            }
            Step::Wait(seconds) => world.wait(seconds),
            Step::EngineBreaks(fails) => world.fails = fails,
            Step::EngineIsSlow(slow) => {
                world.slow = slow;
                if !slow {
                    world.engine_answers();
                }
            }
            Step::EngineAnswers => world.engine_answers(),
            Step::Restart { pinned } => self.restart(world, pinned),
            Step::AllObey(rounds) => {
                for _ in 0..rounds {
                    world.engine_answers();
                    for conn in self.conns.clone() {
                        obey(world, conn);
                    }
                }
            }
            Step::Obey(conn)
            | Step::Lie(conn)
            | Step::Out(conn, _)
            | Step::Missing(conn, _)
            | Step::Close(conn) => {
                if let Some(conn) = self.conns.get(conn % self.conns.len().max(1)).copied() {
                    self.step_of(world, conn, step);
                }
            }
        }
        self.conns.retain(|conn| !world.closed.contains(conn) && !world.gone.contains(conn));
    }

    fn arrive(&mut self, world: &mut World, job: u8, rank: u16, odd: u8) {
        let mut join = wish(&name(job), rank % size(job), size(job));
        join.policy = POLICIES[usize::from(job)];
        match odd {
            0 => join.max_chunks = 20,
            1 => join.policy = Policy::default(),
            2 => join.slots = Some(32),
            3 => join.data_port = 6000 + rank,
            _ => {}
        }
        self.come(world, join);
    }

    fn come(&mut self, world: &mut World, join: Join) {
        let conn = world.connect();
        self.conns.push(conn);
        world.say(conn, Request::Join(join));
    }

    fn step_of(&mut self, world: &mut World, conn: ConnId, step: Step) {
        match step {
            Step::Obey(_) => obey(world, conn),
            Step::Lie(_) => {
                let lie = Progress { base: 1 << 40, ..progress(10, 1) };
                world.say(conn, Request::Progress(lie));
            }
            Step::Missing(_, bits) => {
                world.missing = bits;
                world.say(conn, Request::Missing { block: 3, of: None });
            }
            Step::Out(_, out) => {
                let request = match out {
                    Out::Ready => Request::Ready,
                    Out::Paused => Request::Paused { next_sequence: 2 },
                    Out::Mismatch => Request::CallMismatch { call: any_call() },
                    Out::Surrender => Request::Abort { reason: "enough".into(), cause: None },
                    Out::Leave => Request::Leave,
                    Out::Heartbeat => Request::Heartbeat,
                };
                world.say(conn, request);
            }
            Step::Close(_) => {
                self.remember(world, conn);
                world.close(conn);
            }
            _ => {}
        }
    }

    /// What the worker at this connection will say when it comes back.
    fn remember(&mut self, world: &World, conn: ConnId) {
        let Some(told) = world.told.get(&conn) else {
            return;
        };
        let Some(join) = told.join.clone() else {
            return;
        };
        let latest = told.admitted.as_ref().map(|admitted| Resume {
            epoch: admitted.epoch,
            cookie: admitted.cookie,
            members: admitted.members,
            chunks: admitted.chunks,
            progress: progress(10, 1),
            rings: 0,
        });
        if let Some(resume) = latest.or_else(|| join.resume.clone()) {
            self.memories.push(Join { resume: Some(resume), ..join });
        }
    }

    /// The daemon is killed, and another one starts.
    fn restart(&mut self, world: &mut World, pinned: bool) {
        for conn in std::mem::take(&mut self.conns) {
            self.remember(world, conn);
            world.gone.insert(conn);
        }
        world.told.clear();
        world.heard.clear();
        world.answers.clear();
        world.jobs = Jobs::new(limits(), StdRng::seed_from_u64(world.next), world.now);
        let mut saved = std::mem::take(&mut world.saved);
        saved.jobs.retain(|job| {
            let conf = world.engine.get(&job.job_id).map(|setup| setup.conf);
            pinned && conf.is_some_and(|c| (c.epoch, c.cookie) == (job.epoch, job.cookie))
        });
        world.engine.retain(|job_id, _| saved.jobs.iter().any(|job| job.job_id == *job_id));
        if pinned {
            world.jobs.restore(saved, world.now);
            world.settle();
        }
    }
}

/// Does what the protocol expects of a connection in its state.
fn obey(world: &mut World, conn: ConnId) {
    let Some(told) = world.told.get(&conn) else {
        return;
    };
    let request = match told.state {
        State::Admitted => Request::Ready,
        State::Paused => Request::Paused { next_sequence: 1 },
        State::Frozen | State::RunTo if !told.said => Request::Progress(progress(10, 1)),
        _ => return,
    };
    world.say(conn, request);
}

/// No rank twice, no slot in two jobs, the engine and the jobs agree on what is on the data path.
fn check_state(world: &World) -> Result<(), TestCaseError> {
    let mut taken = BTreeSet::new();
    for job in world.jobs.jobs.values() {
        for slot in job.slot_base..job.slot_base + job.slots {
            prop_assert!(slot < 64 && taken.insert(slot), "slot {} has two owners", slot);
        }
        let conns: Vec<_> = job.conns().collect();
        prop_assert_eq!(conns.iter().collect::<BTreeSet<_>>().len(), conns.len());
        for (rank, member) in job.life.members.iter().chain(&job.life.waiting) {
            prop_assert!(*rank < job.world_size);
            if let Some(conn) = member.conn {
                let session = world.jobs.sessions.get(&conn).map(|s| s.member);
                prop_assert_eq!(session, Some(Some((job.job_id, *rank))));
            }
        }
        prop_assert_eq!(world.engine.contains_key(&job.job_id), job.life.on_data_path);
        prop_assert!(job.reserved || !job.life.members.is_empty(), "an empty job lingers");
        if job.is_summing() {
            let conf = world.engine[&job.job_id].conf;
            prop_assert_eq!((conf.epoch, conf.cookie), (job.life.epoch, job.life.cookie));
            prop_assert_eq!(job.member_bits() & !conf.members, 0);
        }
    }
    prop_assert!(world.engine.keys().all(|id| world.jobs.jobs.contains_key(id)));
    prop_assert_eq!(world.jobs.pool.free() as usize, 64 - taken.len());
    let members = world.jobs.sessions.values().filter(|s| s.member.is_some()).count();
    prop_assert_eq!(world.jobs.members(), members);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn random_runs_keep_their_promises(steps in steps()) {
        let mut world = World::new();
        let mut model = Model::default();
        for step in steps {
            world.heard.clear();
            let before: Vec<_> =
                model.conns.iter().copied().filter(|conn| world.jobs.is_member(*conn)).collect();
            model.step(&mut world, step);
            check_state(&world)?;
            for conn in before {
                let heard = world.heard.get(&conn).map_or(&[][..], Vec::as_slice);
                let told = heard.iter().filter(|r| matches!(r, Reply::Aborted(_))).count();
                prop_assert!(told <= 1, "{:?} at {:?}: {:?}", conn, step, heard);
                // A connection that is still a member was told nothing of an end.
                let several = matches!(step, Step::AllObey(_) | Step::Assemble(_));
                if world.jobs.is_member(conn) && !several {
                    prop_assert_eq!(told, 0, "{:?} at {:?}: {:?}", conn, step, heard);
                }
            }
            // A connection takes itself for a member as long as it is one.
            for conn in &model.conns {
                let stranger = world.told.get(conn).is_none_or(|t| t.state == State::Stranger);
                prop_assert_eq!(stranger, !world.jobs.is_member(*conn), "{:?} at {:?}", conn, step);
            }
        }
        // Nothing hangs: with a working engine and members that obey, all waits end.
        model.step(&mut world, Step::EngineBreaks(false));
        model.step(&mut world, Step::EngineIsSlow(false));
        for _ in 0..3 {
            model.step(&mut world, Step::AllObey(12));
            model.step(&mut world, Step::Wait(61));
        }
        for job in world.jobs.jobs.values() {
            let idle = job.reserved && job.life.members.is_empty();
            prop_assert!(idle || job.phase() == phase::Phase::Running, "{:?}", job);
        }
    }
}
