//! What a seed stands for: how many workers, which policies, how bad the network, which faults
//! when.
//!
//! Each kind of trouble is switched on or off as a whole, by the seed ("swarm testing"): a run in
//! which everything happens at once hides what two kinds alone would show, and a run that is nearly
//! clean gets far.

mod stragglers;
mod trees;

pub(crate) use trees::{address, daemon_at};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use xdp_agg_common::control::{AggregatorLoss, Policy, Tree, WorkerLoss};
use xdp_agg_protocol::worker::flow::Congestion;

use crate::reference::mix;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

/// Most workers of one job.
pub const WORLD_MAX: u16 = 6;
/// Most data blocks of a call that is not long.
pub const BLOCKS_MAX: u64 = 72;
/// Slots of an aggregator.
pub const SLOTS: u32 = 72;
/// Most aggregators.
pub const DAEMONS_MAX: usize = 4;
/// The choice of seeds with trees is independent of what else they have.
const TREES: u64 = 0x7ee5_0f7e_e5ff_0001;
/// So is what makes windows smaller.
const WINDOWS: u64 = 0xa1bd_a1bd_5a77_5a77;
/// So are the limits of waits.
const WAITS: u64 = 0x3a17_3a17_11fe_11fe;
/// And who stands in for a lost aggregator.
const SPARES: u64 = 0x5ba2_e5ba_2e5b_a2e5;

/// What a seed is not asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// How many jobs there are, 1 or 2; None: the seed says.
    pub jobs: Option<usize>,
    /// Whether there are several aggregators, in trees; None: the seed says.
    pub trees: Option<bool>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was drawn from.
    pub seed: u64,
    /// One job or two.
    pub jobs: Vec<JobPlan>,
    /// The second job has no faults and a clean network: nothing may happen to it.
    pub witness: bool,
    /// The data path is the kernel's: it goes on while the daemon is stopped, and survives it if
    /// it is pinned. Otherwise it lives and stops with the daemon.
    pub kernel_data_path: bool,
    /// A worker that comes back uses the port that it had.
    pub same_port: bool,
    /// Replays and mutations of packets are sent.
    pub hostile: bool,
    /// How long a lost branch must be there again.
    pub return_after: Nanos,
    /// When the hosts or links of members count as dead.
    pub dead_after: Nanos,
    /// How long a restarted daemon waits for members.
    pub resume_timeout: Nanos,
    /// How long ranks have for joining.
    pub join_timeout: Nanos,
    /// Rates of all links, in both directions, until everything heals.
    pub link: Link,
    /// How many times longer packets take to and from each worker than `link` says.
    pub far: Vec<u64>,
    /// Aggregators. The first is the root of the first job's tree, and of all that have none.
    pub daemons: usize,
    /// How many times longer packets take between an aggregator and the others.
    pub far_daemons: Vec<u64>,
    /// What happens when, in no particular order.
    pub faults: Vec<(When, Fault)>,
    /// How long others wait for a member that contributes nothing. None: until their deadlines.
    pub straggler_timeout: Option<Nanos>,
    /// How long a call may stand still although all are in it.
    pub stall_deadline: Nanos,
    /// After how long a wait is told of.
    pub warn_after: Nanos,
    /// Bit `i`: worker `i` has strict AIMD.
    pub strict: u64,
    /// From then on nothing bad happens any more, and every process is back.
    pub heal_at: Nanos,
}

/// One job.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// The daemon that leads it.
    pub root: usize,
    /// The daemons below that one.
    pub tree: Tree,
    /// Number of workers.
    pub world: u16,
    /// Slots of its pool.
    pub slots: u32,
    /// Most chunks of a block.
    pub chunks: u16,
    /// What happens when a member is lost.
    pub policy: Policy,
    /// Calls that a worker has in flight at once.
    pub in_flight: usize,
    /// Calls that are made before everything heals.
    pub calls: u64,
    /// Longest time between two calls of a worker.
    pub think: Nanos,
    /// A rank that thinks for up to this time instead.
    pub slow: Option<(u16, Nanos)>,
    /// Most data blocks of a call.
    pub blocks: u64,
    /// The first call is of more blocks than that: more than go with the keys that come first.
    pub long: bool,
    /// Floats, some of them NaN or infinite, besides integers.
    pub floats: bool,
    /// Longest time for a call.
    pub deadline: Nanos,
    /// How long the workers are without a daemon until they go on over a ring, if they may.
    pub fallback_after: Nanos,
    /// In which order the ring visits the ranks; empty: ascending.
    pub ring_order: Vec<u16>,
}

/// How good a link is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Time that every packet takes.
    pub base: Nanos,
    /// Most that a packet takes longer: beyond the time between two packets it reorders.
    pub jitter: Nanos,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet comes twice (each copy with a delay of its own).
    pub duplicate: f64,
    /// Probability that a packet takes up to `tail` longer.
    pub late: f64,
    /// See `late`.
    pub tail: Nanos,
}

/// When a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time.
    At(Nanos),
    /// Soon after this number of data packets was sent: while something is under way.
    After(u64),
    /// Soon after this number of data packets with keys was sent.
    AfterKeys(u64),
}

/// Something bad. Workers are counted through all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL of a worker; another process takes its place after that time, if any.
    KillWorker {
        /// Which one.
        worker: usize,
        /// Until its successor starts. None: when everything heals.
        down: Option<Nanos>,
    },
    /// SIGSTOP of a worker, and SIGCONT.
    StopWorker {
        /// Which one.
        worker: usize,
        /// How long.
        time: Nanos,
    },
    /// No packet gets through to a worker or from it.
    Cut {
        /// Which one.
        worker: usize,
        /// From it.
        up: bool,
        /// To it.
        down: bool,
        /// How long.
        time: Nanos,
        /// The aggregator's engine notices.
        seen: bool,
    },
    /// Its control connection breaks.
    Break {
        /// Which one.
        worker: usize,
    },
    /// SIGKILL of a daemon, and its restart.
    KillDaemon {
        /// Which one.
        daemon: usize,
        /// Its data path and its state survive.
        pinned: bool,
        /// How long it is away.
        down: Nanos,
    },
    /// SIGSTOP of a daemon, and SIGCONT.
    StopDaemon {
        /// Which one.
        daemon: usize,
        /// How long.
        time: Nanos,
    },
    /// No packet gets through between a daemon and the other daemons.
    CutDaemon {
        /// Which one.
        daemon: usize,
        /// From it.
        up: bool,
        /// To it.
        down: bool,
        /// Nor between it and workers.
        whole: bool,
        /// How long.
        time: Nanos,
    },
    /// The control connections between a daemon and the others break.
    BreakDaemon {
        /// Which one.
        daemon: usize,
    },
}

impl Fault {
    /// Names of the kinds, in the order of [`Self::kind`].
    pub const KINDS: [&'static str; 8] = [
        "worker killed",
        "worker stopped",
        "link cut",
        "control broken",
        "daemon killed",
        "daemon stopped",
        "daemons parted",
        "branch broken",
    ];
    /// Those that a run with one daemon can have.
    const OF_ONE: usize = 6;

    /// The daemon that it happens to.
    pub const fn daemon(&self) -> Option<usize> {
        match self {
            Self::KillDaemon { daemon, .. }
            | Self::StopDaemon { daemon, .. }
            | Self::CutDaemon { daemon, .. }
            | Self::BreakDaemon { daemon } => Some(*daemon),
            _ => None,
        }
    }

    /// Number of its kind.
    pub const fn kind(&self) -> usize {
        match self {
            Self::KillWorker { .. } => 0,
            Self::StopWorker { .. } => 1,
            Self::Cut { .. } => 2,
            Self::Break { .. } => 3,
            Self::KillDaemon { .. } => 4,
            Self::StopDaemon { .. } => 5,
            Self::CutDaemon { .. } => 6,
            Self::BreakDaemon { .. } => 7,
        }
    }
}

/// A time between `low` and `high`, as likely in each of its orders of magnitude.
pub(crate) fn magnitude(rng: &mut SmallRng, low: Nanos, high: Nanos) -> Nanos {
    let (low, high) = (low.max(1) as f64, high.max(1) as f64);
    (low * (high / low).powf(rng.random::<f64>())) as Nanos
}

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64, choice: Choice) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed);
        // How much trouble: now and then none or all.
        let trouble = [0.0, 0.25, 0.5, 0.5, 0.5, 0.75, 1.0][rng.random_range(0..7)];
        let two = rng.random_bool(0.25);
        let count = choice.jobs.unwrap_or(if two { 2 } else { 1 });
        let heal_at = magnitude(rng, 10 * MILLI, 8 * SECOND);
        let mut jobs: Vec<_> = (0..count).map(|_| JobPlan::draw(rng, heal_at)).collect();
        let witness = count > 1 && rng.random_bool(0.6);
        if witness {
            // What it promises has to be met, however long the others take.
            jobs[1].deadline = 60 * SECOND;
        }
        let dead_after = magnitude(rng, 40 * MILLI, 2 * SECOND);
        let mut scenario = Self {
            seed,
            witness,
            kernel_data_path: rng.random_bool(0.5),
            same_port: rng.random_bool(0.5),
            hostile: rng.random_bool(trouble),
            return_after: SECOND,
            dead_after,
            resume_timeout: magnitude(rng, 100 * MILLI, 5 * SECOND),
            join_timeout: magnitude(rng, 200 * MILLI, 5 * SECOND),
            link: Link::draw(rng, trouble),
            far: Vec::new(),
            daemons: 1,
            far_daemons: vec![1],
            faults: Vec::new(),
            straggler_timeout: None,
            stall_deadline: [2, 5, 30][(mix(seed ^ WAITS) % 3) as usize] * SECOND,
            warn_after: [300 * MILLI, SECOND, 4 * SECOND][(mix(seed ^ !WAITS) % 3) as usize],
            // None, all, or some beside others.
            strict: [0, u64::MAX, mix(seed)][(mix(seed ^ WINDOWS) % 3) as usize],
            heal_at,
            jobs,
        };
        let farthest = if rng.random_bool(0.5) { 30 } else { 1 };
        scenario.far = (0..scenario.workers()).map(|_| magnitude(rng, 1, farthest)).collect();
        // What has no trees is drawn as if there were none.
        if choice.trees.unwrap_or(mix(seed ^ TREES).is_multiple_of(4)) {
            scenario.draw_trees(rng);
        }
        scenario.allow_for_distance();
        scenario.draw_faults(rng, trouble);
        scenario.draw_fallback(rng);
        scenario.draw_stragglers(rng);
        scenario.draw_spares();
        scenario
    }

    /// No deadline is shorter than twice the time that calls in flight take one behind the other
    /// where nothing goes wrong. Else they would end and be made again for ever.
    fn allow_for_distance(&mut self) {
        let farthest = |far: &[Nanos]| far.iter().copied().max().unwrap_or(1);
        let way = self.link.base * (farthest(&self.far) + 2 * farthest(&self.far_daemons));
        for job in &mut self.jobs {
            let window = Nanos::from(job.slots / 2).max(1);
            let turns = job.in_flight as Nanos * (job.blocks / window + 2);
            job.deadline = job.deadline.max(2 * turns * 2 * way);
        }
    }

    /// What makes a worker's windows smaller.
    pub fn congestion(&self, worker: usize) -> Congestion {
        if self.strict >> (worker % 64) & 1 == 1 { Congestion::Aimd } else { Congestion::Tolerant }
    }

    /// Workers of all jobs.
    pub fn workers(&self) -> usize {
        self.jobs.iter().map(|job| usize::from(job.world)).sum()
    }

    fn draw_faults(&mut self, rng: &mut SmallRng, trouble: f64) {
        let victims = if self.witness { usize::from(self.jobs[0].world) } else { self.workers() };
        // So that faults fall into all of a long call.
        let long = self.jobs.iter().any(|job| job.long);
        let packets = if long { 20_000 } else { 400 };
        let kinds = if self.daemons > 1 { Fault::KINDS.len() } else { Fault::OF_ONE };
        for kind in 0..kinds {
            if !rng.random_bool(trouble * 0.6) {
                continue;
            }
            let count = [1, 1, 2, 4][rng.random_range(0..4)];
            for _ in 0..count {
                let worker = rng.random_range(0..victims);
                let fault = self.draw_fault(rng, kind, worker);
                if self.witness && fault.daemon() == Some(0) {
                    continue;
                }
                let when = match rng.random_range(0..8) {
                    0 => When::At(rng.random_range(0..self.heal_at)),
                    1 => When::At(magnitude(rng, 100 * MICRO, self.heal_at)),
                    2..4 if self.jobs.iter().any(|job| job.floats) => {
                        When::AfterKeys(magnitude(rng, 1, 200))
                    }
                    _ => When::After(magnitude(rng, 8, packets)),
                };
                self.faults.push((when, fault));
            }
        }
    }

    /// A daemon is dead for a time in which its workers go on over a ring.
    fn draw_fallback(&mut self, rng: &mut SmallRng) {
        let rings = |job: &&JobPlan| job.policy.aggregator_loss == AggregatorLoss::Ring;
        let Some(JobPlan { root, fallback_after, .. }) = self.jobs.iter().find(rings) else {
            return;
        };
        let (daemon, down) = (*root, *fallback_after + magnitude(rng, MILLI, SECOND));
        if rng.random_bool(0.5) && !(self.witness && daemon == 0) {
            let when = When::After(magnitude(rng, 8, 1000));
            let pinned = rng.random_bool(0.3);
            self.faults.push((when, Fault::KillDaemon { daemon, pinned, down }));
        }
    }

    fn draw_fault(&self, rng: &mut SmallRng, kind: usize, worker: usize) -> Fault {
        let longest = (3 * self.dead_after).max(self.heal_at);
        let mut time = |shortest| magnitude(rng, shortest, longest);
        match kind {
            0 => {
                let down = time(MILLI);
                Fault::KillWorker { worker, down: rng.random_bool(0.6).then_some(down) }
            }
            1 => Fault::StopWorker { worker, time: time(100 * MICRO) },
            2 => {
                let time = time(MILLI);
                let ways = [(true, true), (true, false), (false, true)];
                let (up, down) = ways[rng.random_range(0..3)];
                Fault::Cut { worker, up, down, time, seen: rng.random_bool(0.4) }
            }
            3 => Fault::Break { worker },
            4 => {
                let down = time(MILLI).min(2 * SECOND);
                let pinned = rng.random_bool(0.5);
                Fault::KillDaemon { daemon: self.draw_daemon(rng), pinned, down }
            }
            5 => {
                let time = time(100 * MICRO);
                Fault::StopDaemon { daemon: self.draw_daemon(rng), time }
            }
            6 => {
                let time = time(MILLI);
                let ways = [(true, true), (true, false), (false, true)];
                let (up, down) = ways[rng.random_range(0..3)];
                let whole = rng.random_bool(0.3);
                Fault::CutDaemon { daemon: self.draw_daemon(rng), up, down, whole, time }
            }
            _ => Fault::BreakDaemon { daemon: self.draw_daemon(rng) },
        }
    }
}

impl JobPlan {
    /// Whether broadcasts' blocks are their roots' alone, but for every sixteenth.
    pub fn has_copies(&self) -> bool {
        self.policy == Policy::default() && self.tree.is_single() && self.slots >= 32
    }

    fn draw(rng: &mut SmallRng, heal_at: Nanos) -> Self {
        // Now and then one call after the other, so that whatever happens falls into one.
        let busy = rng.random_bool(0.4);
        let calls = if busy { rng.random_range(8..32) } else { rng.random_range(2..12) };
        let think = if busy { 100 * MICRO } else { 2 * heal_at / calls };
        let worker_loss = if rng.random_bool(0.65) { WorkerLoss::Shrink } else { WorkerLoss::Fail };
        let aggregator_loss =
            if rng.random_bool(0.65) { AggregatorLoss::Resume } else { AggregatorLoss::Fail };
        let policy = Policy { worker_loss, aggregator_loss };
        let fails = policy == Policy::default();
        let most = magnitude(rng, 2, BLOCKS_MAX);
        let long = rng.random_bool(0.01);
        // Jobs that end with the first loss have the fewest excuses for being late.
        let shortest = if fails { 4 * SECOND } else { 500 * MILLI };
        let deadline = magnitude(rng, shortest, 20 * SECOND);
        Self {
            root: 0,
            tree: Tree::default(),
            world: if rng.random_bool(0.04) { 1 } else { rng.random_range(2..=WORLD_MAX) },
            slots: if long {
                16
            } else if fails {
                32
            } else {
                1 << rng.random_range(1..=4)
            },
            chunks: rng.random_range(1..=2),
            policy,
            in_flight: [1, 1, 2, 3][rng.random_range(0..4)],
            calls,
            think: magnitude(rng, 2 * MICRO, think.max(20 * MICRO)),
            slow: None,
            blocks: most,
            long,
            floats: rng.random_bool(0.6),
            deadline: if long { 60 * SECOND } else { deadline },
            fallback_after: SECOND,
            ring_order: Vec::new(),
        }
    }
}

impl Link {
    /// A link without faults.
    pub const CLEAN: Self =
        Self { base: 20 * MICRO, jitter: 2 * MICRO, loss: 0.0, duplicate: 0.0, late: 0.0, tail: 0 };

    fn draw(rng: &mut SmallRng, trouble: f64) -> Self {
        let base = magnitude(rng, 5 * MICRO, 300 * MICRO);
        let mut some = |low: f64, high: f64| {
            let rate = low * (high / low).powf(rng.random::<f64>());
            if rng.random_bool(trouble) { rate } else { 0.0 }
        };
        let (loss, duplicate) = (some(0.005, 0.4), some(0.005, 0.4));
        let (late, spread) = (some(0.002, 0.2), some(0.05, 20.0));
        let tail = magnitude(rng, 100 * MICRO, 4 * SECOND);
        let jitter = (base as f64 * spread) as Nanos;
        Self { base, jitter, loss, duplicate, late, tail }
    }
}
