//! `bench kill`: workers and daemons killed in the middle of calls, at random moments.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use xdp_agg_testbed::BpfFs;
use xdp_agg_testbed::steady::{Line, Steady, Verdict, Work, judge};

use super::files::write_json;
use super::lab::{Daemon, Engine, Lab, Plan, Privilege};
use super::setting::Rate;
use xdp_agg_report::quantile;

/// In what time the others go on or are told.
const PROMISED: Duration = Duration::from_secs(3);
/// A worker that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(15);
/// For a job to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// What is killed, and what the job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Scene {
    /// A worker; the others are told its rank.
    WorkerFail,
    /// A worker; the others go on.
    WorkerShrink,
    /// The daemon; calls fail, and after its restart there are others.
    DaemonFail,
    /// The daemon; after its restart the call under way goes on.
    DaemonResume,
    /// The daemon; its data path is pinned, and calls go on without it.
    DaemonPin,
    /// The daemon, for good; calls go on over a ring.
    DaemonRing,
}

impl Scene {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn settings(self) -> Vec<(&'static str, String)> {
        let (worker, aggregator) = match self {
            Self::WorkerFail | Self::DaemonFail => ("fail", "fail"),
            Self::WorkerShrink => ("shrink", "fail"),
            Self::DaemonResume | Self::DaemonPin => ("shrink", "resume"),
            Self::DaemonRing => ("shrink", "ring"),
        };
        vec![
            ("XDP_AGG_ON_WORKER_LOSS", worker.to_owned()),
            ("XDP_AGG_ON_AGGREGATOR_LOSS", aggregator.to_owned()),
            ("XDP_AGG_FALLBACK_AFTER", "1".to_owned()),
        ]
    }
}

/// Kills workers and daemons in the middle of calls, at random moments, with SIGKILL.
///
/// Four worker processes make one call after the other, whose sums are known beforehand. `right`
/// counts the kills after which all others were told of the loss, or went on with right sums,
/// within three seconds; for a daemon from its restart on. `wrong` counts wrong elements of all
/// calls of all workers, `different` calls whose results differ in a bit between two workers.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Kills of each scene.
    #[arg(long, default_value_t = 50)]
    times: u32,
    /// What is killed, separated by commas. Default: everything.
    #[arg(long, value_enum, value_delimiter = ',')]
    scene: Option<Vec<Scene>>,
    /// Number of workers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    workers: u16,
    /// What sums in the aggregator.
    #[arg(long, value_enum, default_value_t = Engine::Xdp)]
    engine: Engine,
    /// Moments and victims follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the rows here as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What became of one scene.
#[derive(Debug, Default, Serialize)]
struct Row {
    scene: String,
    times: u32,
    right: u32,
    late: u32,
    hung: u32,
    /// Errors of another kind than the promised one.
    other: u32,
    calls: u64,
    wrong: u64,
    different: u64,
    median_ms: f64,
    max_ms: f64,
}

/// What became of one kill at one worker.
enum Ending {
    /// As promised, at this moment.
    Right(Instant),
    /// Something else, in words.
    Other(String),
    /// Nothing.
    Hung,
}

pub(crate) fn main(args: &Args, privilege: Privilege) -> Result<()> {
    if privilege != Privilege::Root {
        bail!("`bench kill` needs root");
    }
    let plan = Plan::new(args.workers, Rate { bits: None }, privilege);
    let plan = Plan { engine: args.engine, ..plan };
    let scenes = args.scene.clone().unwrap_or_else(|| Scene::value_variants().to_vec());
    println!(
        "# kill: {} workers, {} kills a scene, seed {}\n\
         # scene        times right  late  hung other   calls wrong different median(ms)  max(ms)",
        args.workers, args.times, args.seed
    );
    let mut rows = Vec::new();
    for scene in scenes {
        if scene == Scene::DaemonPin && args.engine != Engine::Xdp {
            continue;
        }
        let row = Stage::new(args, plan, scene)?.play()?;
        println!(
            "{:<14} {:>5} {:>5} {:>5} {:>5} {:>5} {:>7} {:>5} {:>9} {:>10.1} {:>8.1}",
            row.scene,
            row.times,
            row.right,
            row.late,
            row.hung,
            row.other,
            row.calls,
            row.wrong,
            row.different,
            row.median_ms,
            row.max_ms
        );
        rows.push(row);
    }
    if let Some(file) = &args.json {
        write_json(file, &rows)?;
    }
    let bad = |row: &&Row| row.right != args.times || row.wrong + row.different > 0;
    let bad: Vec<_> = rows.iter().filter(bad).map(|row| &*row.scene).collect();
    if !bad.is_empty() {
        bail!("not as promised: {}", bad.join(", "));
    }
    Ok(())
}

/// The network of a scene.
struct Stage<'a> {
    args: &'a Args,
    scene: Scene,
    lab: Lab,
    pins: Option<BpfFs>,
}

/// What has come of it so far, and what chance does next.
struct Tally {
    row: Row,
    times_ms: Vec<f64>,
    random: SmallRng,
}

impl Tally {
    fn below(&mut self, end: u64) -> u64 {
        self.random.random_range(0..end)
    }

    /// A moment of a call.
    fn pause(&mut self) {
        std::thread::sleep(Duration::from_micros(self.below(60_000)));
    }

    fn judge(&mut self, said: &[Vec<(Instant, Line)>]) {
        let Verdict { calls, wrong, different } = judge(said);
        self.row.calls += calls;
        self.row.wrong += wrong;
        self.row.different += different;
    }

    /// One kill: how it ended at every worker, since this moment.
    fn note(&mut self, endings: &[Ending], since: Instant) {
        self.row.times += 1;
        let mut last = since;
        for ending in endings {
            match ending {
                Ending::Right(at) => last = last.max(*at),
                Ending::Other(text) => {
                    eprintln!("{}: {text}", self.row.scene);
                    self.row.other += 1;
                    return;
                }
                Ending::Hung => {
                    self.row.hung += 1;
                    return;
                }
            }
        }
        let time = last - since;
        self.times_ms.push(time.as_secs_f64() * 1e3);
        if time < PROMISED { self.row.right += 1 } else { self.row.late += 1 }
    }
}

impl<'a> Stage<'a> {
    fn new(args: &'a Args, plan: Plan, scene: Scene) -> Result<Self> {
        let pins = if scene == Scene::DaemonPin { Some(BpfFs::mount()?) } else { None };
        Ok(Self { args, scene, lab: Lab::build(plan)?, pins })
    }

    fn daemon(&self) -> Result<Daemon<'_>> {
        let extra = self.pins.as_ref().map(BpfFs::arguments).unwrap_or_default();
        self.lab.start_daemon_with(&extra)
    }

    /// A job whose workers have each made a call.
    fn workers(&self, job: &str, reconnects: bool) -> Result<Vec<Steady>> {
        let work = Work { seed: self.args.seed, longest: 150_000, reconnects, ..Work::default() };
        let settings = self.scene.settings();
        let spawn = |rank| self.lab.start_steady(job, rank, &settings, &work);
        let workers = (0..self.args.workers).map(spawn).collect::<Result<Vec<_>>>()?;
        for worker in &workers {
            worker.wait_calls(1, BEGIN)?;
        }
        Ok(workers)
    }

    fn all(&self) -> u64 {
        (1 << self.args.workers) - 1
    }

    fn play(self) -> Result<Row> {
        let row = Row { scene: self.scene.name(), ..Row::default() };
        let random = SmallRng::seed_from_u64(self.args.seed);
        let mut tally = Tally { row, times_ms: Vec::new(), random };
        match self.scene {
            Scene::WorkerFail | Scene::WorkerShrink => self.kill_workers(&mut tally)?,
            Scene::DaemonRing => self.kill_daemons_for_good(&mut tally)?,
            Scene::DaemonFail | Scene::DaemonResume | Scene::DaemonPin => {
                self.kill_daemons(&mut tally)?;
            }
        }
        let Tally { mut row, times_ms, .. } = tally;
        row.median_ms = quantile(&times_ms, 0.5);
        row.max_ms = quantile(&times_ms, 1.0);
        Ok(row)
    }

    fn kill_workers(&self, tally: &mut Tally) -> Result<()> {
        let daemon = self.daemon()?;
        for round in 0..self.args.times {
            let victim = tally.below(self.args.workers.into()) as usize;
            let mut workers = self.workers(&format!("kill-{round}"), false)?;
            tally.pause();
            let dying = workers.remove(victim);
            let since = Instant::now();
            let before = dying.said();
            dying.kill()?;
            let left = self.all() & !(1 << victim);
            let endings: Vec<_> =
                workers.iter().map(|worker| self.ending(worker, since, left, victim)).collect();
            let mut said: Vec<_> = workers.iter().map(Steady::said).collect();
            said.push(before);
            tally.note(&endings, since);
            tally.judge(&said);
        }
        daemon.stop()
    }

    /// What a worker says after a kill: a call of these ranks, or an error.
    fn ending(&self, worker: &Steady, since: Instant, ranks: u64, victim: usize) -> Ending {
        let found = worker.wait("how it goes on", HANG, |at, line| {
            at > since
                && match line {
                    Line::Call { contributors, partial: 0, path, .. } => {
                        let is_there = self.scene != Scene::DaemonRing || path == "ring";
                        *contributors == ranks && is_there && self.scene != Scene::WorkerFail
                    }
                    Line::Failed { .. } => self.scene != Scene::DaemonFail,
                    _ => false,
                }
        });
        match found {
            Err(_) => Ending::Hung,
            Ok((at, Line::Failed { kind, ranks, text, .. })) => {
                let named = kind == "member_lost" && ranks == [victim as u16];
                let right = named && self.scene == Scene::WorkerFail;
                if right { Ending::Right(at) } else { Ending::Other(text) }
            }
            Ok((at, _)) => Ending::Right(at),
        }
    }

    /// The daemon dies and is started again; the workers stay.
    fn kill_daemons(&self, tally: &mut Tally) -> Result<()> {
        let mut daemon = self.daemon()?;
        let workers = self.workers("daemons", self.scene == Scene::DaemonFail)?;
        for _ in 0..self.args.times {
            tally.pause();
            let killing = Instant::now();
            daemon.kill()?;
            let killed = Instant::now();
            let go_on = |since| -> Vec<Ending> {
                let on = |worker| self.ending(worker, since, self.all(), usize::MAX);
                workers.iter().map(on).collect()
            };
            // What is to happen before there is a daemon again.
            let without = match self.scene {
                Scene::DaemonFail => workers.iter().map(|worker| told(worker, killing)).collect(),
                Scene::DaemonPin => go_on(killed),
                _ => Vec::new(),
            };
            daemon = self.daemon()?;
            let again = Instant::now();
            let with = go_on(again);
            let next = with.iter().all(
                |ending| matches!(ending, Ending::Right(at) if at.duration_since(again) < PROMISED),
            );
            if without.is_empty() || !next {
                tally.note(&with, again);
            } else {
                tally.note(&without, killing);
            }
            if with.iter().any(|ending| !matches!(ending, Ending::Right(_))) {
                eprintln!("{}: the job has ended; no more kills", tally.row.scene);
                break;
            }
        }
        tally.judge(&workers.iter().map(Steady::said).collect::<Vec<_>>());
        drop(workers);
        daemon.stop()
    }

    /// The daemon dies and does not come back.
    fn kill_daemons_for_good(&self, tally: &mut Tally) -> Result<()> {
        for round in 0..self.args.times {
            let daemon = self.daemon()?;
            let workers = self.workers(&format!("ring-{round}"), false)?;
            tally.pause();
            daemon.kill()?;
            let since = Instant::now();
            let on = |worker| self.ending(worker, since, self.all(), usize::MAX);
            let endings: Vec<_> = workers.iter().map(on).collect();
            tally.note(&endings, since);
            tally.judge(&workers.iter().map(Steady::said).collect::<Vec<_>>());
        }
        Ok(())
    }
}

/// The worker is told that the daemon is gone.
fn told(worker: &Steady, since: Instant) -> Ending {
    let is_failed = |at, line: &Line| at > since && matches!(line, Line::Failed { .. });
    match worker.wait("that the daemon is gone", HANG, is_failed) {
        Err(_) => Ending::Hung,
        Ok((at, Line::Failed { kind, .. })) if kind == "aggregator_lost" => Ending::Right(at),
        Ok((_, line)) => Ending::Other(format!("{line:?}")),
    }
}
