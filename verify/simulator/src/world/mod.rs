//! All parties, what is between them, and the loop that lets one event happen after the other.

mod away;
mod branch;
mod caller;
mod control;
mod daemon;
mod data;
mod faults;
mod place;
mod ring;
mod standing;
mod worker;

use std::collections::VecDeque;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_common::admission::Source;

use crate::check::{Checker, Origin};
use crate::scenario::{Fault, Scenario, When};
use crate::stats::Stats;
use crate::time::{MILLI, Nanos, Queue, SECOND};
use crate::trace::Trace;
use control::Connection;
use daemon::Daemon;
use worker::Worker;

/// Events of one run, at most: more means that a party talks without end.
const EVENTS_MAX: u64 = 3_000_000;

/// Events of one moment, at most: more means that a party wants to be woken in the past.
const MOMENT_MAX: u64 = 20_000;

/// Something that happens.
#[derive(Debug)]
enum Event {
    /// A data packet reaches an aggregator.
    ToDaemon { daemon: usize, source: Source, bytes: Vec<u8>, origin: Origin },
    /// A data packet reaches a worker's host.
    ToWorker { worker: usize, source: Source, port: u16, bytes: Vec<u8> },
    /// Something happens on a control connection, at one of its ends.
    Control(control::Event),
    /// A worker's timer.
    WorkerTimer(usize),
    /// A daemon's timer.
    DaemonTimer(usize),
    /// Something happens to a process that is on a ring.
    Ring(ring::Event),
    /// A process takes the place of one that is gone.
    StartWorker(usize),
    /// A fault of the scenario, by index.
    Fault(usize),
    /// A worker gets SIGCONT.
    Continue(usize),
    /// A daemon gets SIGCONT.
    ContinueDaemon(usize),
    /// A daemon starts again.
    StartDaemon(usize),
    /// A root tries once more to reach a branch, in place of this connection.
    DialAgain(usize),
    /// A daemon's engine sees that an interface is back.
    IsBack(usize),
    /// A worker has been away for so long that it may be given up.
    MayBeGivenUp(usize),
    /// A stranger sends something.
    Hostile,
    /// All is well from now on.
    Heal,
}

/// One run.
pub(crate) struct World {
    now: Nanos,
    rng: SmallRng,
    scenario: Scenario,
    queue: Queue<Event>,
    workers: Vec<Worker>,
    daemons: Vec<Daemon>,
    /// The virtual zero of all clocks.
    zero: Instant,
    connections: Vec<Connection>,
    rings: Vec<ring::Ring>,
    /// Workers whose interfaces are away, as engines know.
    away: Vec<away::Away>,
    checker: Checker,
    stats: Stats,
    trace: Trace,
    healed: bool,
    /// All is well, and every worker was told how many calls are left.
    closing: bool,
    /// Workers leave as soon as they are done.
    leave: bool,
    /// Faults that wait for a number of packets to be sent.
    pending: Vec<(When, usize)>,
    /// Packets with keys that were sent.
    key_packets: u64,
    /// Packets that a stranger might have seen.
    seen: VecDeque<data::Seen>,
    buffer: Vec<u8>,
}

impl World {
    pub(crate) fn new(scenario: Scenario, trace: bool) -> Self {
        // Not the generator that drew the scenario: that one would repeat itself.
        let mut rng = SmallRng::seed_from_u64(scenario.seed ^ 0x5eed_0f7e_3b1d_2c4a);
        let mut workers = Vec::new();
        for (job, plan) in scenario.jobs.iter().enumerate() {
            workers.extend((0..plan.world).map(|rank| Worker::new(job, rank)));
        }
        let leave = rng.random_bool(0.5);
        let checker = Checker::new(&scenario);
        let mut world = Self {
            now: 0,
            queue: Queue::new(),
            workers,
            daemons: (0..scenario.daemons).map(|_| Daemon::default()).collect(),
            zero: Instant::now(),
            connections: Vec::new(),
            rings: Vec::new(),
            away: Vec::new(),
            checker,
            stats: Stats::default(),
            trace: Trace::new(trace),
            healed: false,
            closing: false,
            leave,
            pending: Vec::new(),
            key_packets: 0,
            seen: VecDeque::new(),
            buffer: vec![0; 4096],
            rng,
            scenario,
        };
        world.set_up();
        world
    }

    fn set_up(&mut self) {
        for daemon in 0..self.daemons.len() {
            self.start_daemon(daemon);
        }
        for worker in 0..self.workers.len() {
            let at = self.rng.random_range(0..MILLI);
            self.queue.push(at, Event::StartWorker(worker));
        }
        for (index, (when, _)) in self.scenario.faults.iter().enumerate() {
            match when {
                When::At(at) => self.queue.push(*at, Event::Fault(index)),
                When::After(_) | When::AfterKeys(_) => self.pending.push((*when, index)),
            }
        }
        self.queue.push(self.scenario.heal_at, Event::Heal);
        if self.scenario.hostile {
            self.queue.push(MILLI, Event::Hostile);
        }
    }

    /// Lets everything happen, until all calls are made or something is wrong.
    pub(crate) fn run(mut self) -> Outcome {
        let end = self.scenario.heal_at + self.patience();
        let (mut events, mut moment) = (0, 0);
        while self.checker.problem().is_none() && !self.is_done() {
            let Some((at, event)) = self.queue.pop() else {
                self.checker.fail(|| "nobody waits for anything, and calls are not done".into());
                break;
            };
            moment = if at > self.now { 0 } else { moment + 1 };
            self.now = at;
            self.checker.passes(at);
            events += 1;
            if moment > MOMENT_MAX {
                let state = self.describe_workers();
                self.checker.fail(|| format!("time stands still: {state}, after {event:?}"));
                break;
            }
            if at > end || events > EVENTS_MAX {
                let state = self.describe_workers();
                let since = (at - self.scenario.heal_at.min(at)) as f64 / SECOND as f64;
                self.checker.fail(|| {
                    format!("calls are not done {since:.3} s after everything healed: {state}")
                });
                break;
            }
            self.happen(event);
        }
        self.check_witness();
        self.stats.runs = 1;
        self.stats.trees = u64::from(self.scenario.daemons > 1);
        self.stats.events = events;
        self.stats.count_keys(self.checker.key_counts());
        self.stats.returned = self.checker.returned;
        self.stats.stood_in = self.checker.stood_in;
        let violation = self.checker.problem().map(str::to_owned);
        self.stats.violations = u64::from(violation.is_some());
        if let Some(violation) = &violation {
            let now = self.now;
            self.trace.say(now, || format!("VIOLATION: {violation}"));
        }
        Outcome {
            scenario: self.scenario,
            stats: self.stats,
            trace: self.trace,
            violation,
            end: self.now,
        }
    }

    /// How long after everything healed all calls have to be done.
    fn patience(&self) -> Nanos {
        let Scenario { jobs, dead_after, resume_timeout, join_timeout, .. } = &self.scenario;
        let deadline = jobs.iter().map(|job| job.deadline.min(20 * SECOND)).max().unwrap_or(0);
        2 * deadline + 4 * (dead_after + resume_timeout + join_timeout) + 30 * SECOND
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToDaemon { daemon, source, bytes, origin } => {
                self.at_daemon(daemon, source, bytes, origin);
            }
            Event::ToWorker { worker, source, port, bytes } => {
                self.at_worker(worker, source, port, bytes);
            }
            Event::Control(event) => self.control(event),
            Event::WorkerTimer(worker) => self.worker_timer(worker),
            // An earlier one that was asked for later takes the place of this one.
            Event::DaemonTimer(daemon) if !self.daemons[daemon].is_due(self.now) => {}
            Event::DaemonTimer(daemon) => self.daemon_timer(daemon),
            Event::StartWorker(worker) => self.start_worker(worker),
            Event::Fault(index) => self.fault(index),
            Event::Continue(worker) => self.continue_worker(worker),
            Event::ContinueDaemon(daemon) => self.continue_daemon(daemon),
            Event::StartDaemon(daemon) => self.start_daemon(daemon),
            Event::DialAgain(index) => self.dial_again(index),
            Event::IsBack(daemon) => self.tell_troubles(daemon),
            Event::MayBeGivenUp(worker) => self.may_be_given_up(worker),
            Event::Ring(event) => self.ring_event(event),
            Event::Hostile => self.hostile(),
            Event::Heal => self.heal(),
        }
    }

    /// Of the job that must not notice anything.
    fn is_witness(&self, job: usize) -> bool {
        self.scenario.witness && job == 1
    }

    /// Writes down that something happened.
    fn note(&mut self, numbers: &[u64], line: impl FnOnce() -> String) {
        self.trace.add(&[self.now]);
        self.trace.add(numbers);
        self.trace.say(self.now, line);
    }
}

/// What became of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was drawn.
    pub scenario: Scenario,
    /// What was counted.
    pub stats: Stats,
    /// What happened.
    pub trace: Trace,
    /// What should not have happened.
    pub violation: Option<String>,
    /// Virtual time at the end.
    pub end: Nanos,
}

impl Outcome {
    /// How many faults of the scenario have happened, by kind.
    pub const fn kinds() -> [&'static str; Fault::KINDS.len()] {
        Fault::KINDS
    }
}
