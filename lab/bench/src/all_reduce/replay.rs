//! Iterations of training without the training: buckets are summed when their layers would have
//! been computed.
//!
//! Computation is slept, not spun: real computation is on accelerators, and the processes of a test
//! share few processors. Sleeps end at fixed times after the start of the iteration, whatever
//! starting an all-reduce costs, as kernels queued on an accelerator do.

use std::io::Write as _;
use std::num::NonZero;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use xdp_agg_client::Chosen;
use xdp_agg_workloads::Workload;

use super::pattern;
use super::strategy::{Replay, Strategy};
use super::usage::{MachineTime, peak_memory, process_cpu_s};

const COLUMNS: &str = "\
# workload   fraction      bytes compute overlap    median       min       max   exposed #wrong";

/// How long all ranks wait at a mark, so that counters read there are those of a quiet network.
const MARK_PAUSE: Duration = Duration::from_millis(100);

/// Iterations of one kind: `ITERSxSECONDS[+overlap][+through]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Phase {
    /// Timed iterations.
    pub(crate) iters: u32,
    /// Computation of an iteration, in seconds: forward and backward.
    pub(crate) compute_s: f64,
    /// Buckets are summed as soon as they are computed; otherwise all of them when the whole
    /// backward pass has ended.
    pub(crate) overlap: bool,
    /// One iteration after the other. Otherwise all ranks meet before each, in a call of one
    /// element, which they do not leave at the same time. A rank that leaves it first waits for the
    /// others in what is timed: by a step between hosts, where steps take long.
    pub(crate) through: bool,
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text:?} is no phase; expected iterations and the seconds of computation of each, \
                 such as 10x0, 3x0.5, 3x0.5+overlap or 10x0+through"
            )
        };
        let mut parts = text.split('+');
        let count = parts.next().unwrap_or_default();
        let (mut overlap, mut through) = (false, false);
        for word in parts {
            let said = match word {
                "overlap" => &mut overlap,
                "through" => &mut through,
                _ => return Err(expected()),
            };
            if std::mem::replace(said, true) {
                return Err(expected());
            }
        }
        let (iters, seconds) = count.split_once('x').ok_or_else(expected)?;
        let iters = iters.parse().ok().filter(|iters| (1..=1_000_000).contains(iters));
        let seconds = seconds.parse().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
        let (Some(iters), Some(compute_s)) = (iters, seconds) else { return Err(expected()) };
        Ok(Self { iters, compute_s, overlap, through })
    }
}

/// Buckets to sum in an iteration, by what they are called.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Name in the report: of a network, or a size.
    pub(crate) name: String,
    /// Of its tensors' elements.
    pub(crate) fraction: f64,
    /// Elements of each bucket, and its share of the computation.
    buckets: Vec<(usize, f64)>,
    forward_share: f64,
}

impl Load {
    /// A network's gradients.
    pub(crate) fn of(workload: &Workload) -> Self {
        let Workload { network, fraction, buckets, forward_share } = workload;
        let buckets = buckets.iter().map(|b| (b.elements, b.compute_share)).collect();
        let name = network.name().to_owned();
        Self { name, fraction: *fraction, buckets, forward_share: *forward_share }
    }

    /// One bucket of this number of bytes.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        let (name, buckets) = (bytes.to_string(), vec![(bytes / size_of::<f32>(), 2.0 / 3.0)]);
        Self { name, fraction: 1.0, buckets, forward_share: 1.0 / 3.0 }
    }

    /// Number of buckets.
    pub(crate) const fn buckets(&self) -> usize {
        self.buckets.len()
    }

    fn bytes(&self) -> usize {
        self.buckets.iter().map(|(elements, _)| elements * size_of::<f32>()).sum()
    }
}

/// What was measured in a phase.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// What it consisted of.
    #[serde(flatten)]
    phase: Phase,
    /// Each iteration on this rank, in seconds.
    times_s: Vec<f64>,
    /// Elements that were wrong at this rank, of all buckets of all iterations.
    wrong: u64,
    /// From the first iteration to the last, in seconds, barriers and checks included.
    wall_s: f64,
    /// Processor seconds of the whole machine meanwhile.
    busy_s: f64,
    /// Processor seconds that the hypervisor gave to others meanwhile.
    steal_s: f64,
    /// Processor seconds of this process meanwhile.
    process_cpu_s: f64,
}

/// What one rank reports.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    rank: u16,
    world_size: u16,
    strategy: &'static str,
    algorithm: String,
    /// By which strategy of trees it sums, and why.
    chosen: Option<Chosen>,
    /// Processors of the machine.
    processors: usize,
    loads: Vec<LoadReport>,
    counters: serde_json::Value,
    peak_memory_bytes: u64,
}

#[derive(Debug, Serialize)]
struct LoadReport {
    workload: String,
    fraction: f64,
    /// `K`.
    bytes: usize,
    /// Bytes of each bucket, in the order in which they are summed.
    buckets: Vec<usize>,
    phases: Vec<Measured>,
    /// Wrong elements of this rank, before, in and after all phases.
    wrong: u64,
}

/// What to do.
pub(crate) struct Plan<'a> {
    pub(crate) strategy: Strategy,
    pub(crate) phases: &'a [Phase],
    /// Say when a phase begins and ends, with a pause at each.
    pub(crate) marks: bool,
}

/// Replays all loads and prints what rank 0 measures.
pub(crate) fn run(replay: &mut dyn Replay, plan: &Plan<'_>, loads: &[Load]) -> Result<Report> {
    let mut report = Report {
        rank: replay.rank(),
        world_size: replay.world_size(),
        strategy: plan.strategy.name(),
        algorithm: replay.algorithm(),
        chosen: replay.chosen(),
        processors: thread::available_parallelism().map_or(1, NonZero::get),
        loads: Vec::new(),
        counters: serde_json::Value::Null,
        peak_memory_bytes: 0,
    };
    if report.rank == 0 {
        print!("{}", report.heading());
    }
    for load in loads {
        let measured = replay_load(replay, plan, load)
            .with_context(|| format!("rank {}, {}", report.rank, load.name))?;
        if report.rank == 0 {
            measured.print();
        }
        report.loads.push(measured);
    }
    report.counters = replay.counters()?;
    report.peak_memory_bytes = peak_memory().unwrap_or(0);
    Ok(report)
}

fn replay_load(replay: &mut dyn Replay, plan: &Plan<'_>, load: &Load) -> Result<LoadReport> {
    let mut state = State {
        buckets: load.buckets.iter().map(|(elements, _)| vec![0.0; *elements]).collect(),
        load,
        replay,
    };
    // Also the warm-up: all buckets once.
    let mut wrong = state.verify_pattern()?;
    let mut phases = Vec::new();
    for (i, phase) in plan.phases.iter().enumerate() {
        let measured = state.phase(*phase, plan.marks.then_some(i))?;
        wrong += measured.wrong;
        phases.push(measured);
    }
    wrong += state.verify_pattern()?;
    let buckets = load.buckets.iter().map(|(elements, _)| elements * size_of::<f32>()).collect();
    let (workload, fraction) = (load.name.clone(), load.fraction);
    Ok(LoadReport { workload, fraction, bytes: load.bytes(), buckets, phases, wrong })
}

struct State<'a> {
    replay: &'a mut dyn Replay,
    load: &'a Load,
    buckets: Vec<Vec<f32>>,
}

impl State<'_> {
    fn phase(&mut self, phase: Phase, mark: Option<usize>) -> Result<Measured> {
        if let Some(number) = mark {
            self.mark("begin", number)?;
        }
        self.barrier()?;
        let (start, machine, cpu) = (Instant::now(), MachineTime::now()?, process_cpu_s()?);
        let (mut times_s, mut wrong) = (Vec::new(), 0);
        for _ in 0..phase.iters {
            // Values that no strategy can take a short cut for, and cheap to check.
            let own = f32::from(self.replay.rank() + 1);
            self.buckets.iter_mut().for_each(|bucket| bucket.fill(own));
            if !phase.through {
                self.barrier()?;
            }
            times_s.push(self.iteration(phase)?.as_secs_f64());
            wrong += self.wrong_constants();
        }
        let process_cpu_s = process_cpu_s()? - cpu;
        let spent = MachineTime::now()?.since(&machine);
        let wall_s = start.elapsed().as_secs_f64();
        if let Some(number) = mark {
            self.mark("end", number)?;
        }
        let MachineTime { busy_s, steal_s } = spent;
        Ok(Measured { phase, times_s, wrong, wall_s, busy_s, steal_s, process_cpu_s })
    }

    /// One iteration: from its start to the last sum.
    fn iteration(&mut self, phase: Phase) -> Result<Duration> {
        let start = Instant::now();
        let sleep_until = |share: f64| {
            let end = start + Duration::from_secs_f64(share * phase.compute_s);
            let left = end.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                thread::sleep(left);
            }
        };
        let mut computed = self.load.forward_share;
        if !phase.overlap {
            sleep_until(1.0);
        }
        let buckets = std::mem::take(&mut self.buckets);
        let count = buckets.len();
        for (bucket, (_, share)) in buckets.into_iter().zip(&self.load.buckets) {
            computed += share;
            if phase.overlap {
                sleep_until(computed);
            }
            self.replay.start(bucket)?;
        }
        for _ in 0..count {
            self.buckets.push(self.replay.wait()?);
        }
        Ok(start.elapsed())
    }

    /// Sums the known pattern in every bucket, and counts this rank's wrong elements.
    fn verify_pattern(&mut self) -> Result<u64> {
        let (rank, world_size) = (self.replay.rank(), self.replay.world_size());
        self.buckets.iter_mut().for_each(|bucket| pattern::fill(bucket, rank));
        self.iteration(Phase { iters: 1, compute_s: 0.0, overlap: false, through: false })?;
        let wrong = |bucket: &Vec<f32>| pattern::count_wrong(bucket, world_size);
        Ok(self.buckets.iter().map(wrong).sum())
    }

    /// Elements that are not the sum of what all ranks filled in for a timed iteration.
    fn wrong_constants(&self) -> u64 {
        let workers = u32::from(self.replay.world_size());
        let expected = (workers * (workers + 1) / 2) as f32;
        let wrong = |bucket: &Vec<f32>| bucket.iter().filter(|x| **x != expected).count() as u64;
        self.buckets.iter().map(wrong).sum()
    }

    /// Ends when all ranks have begun it.
    fn barrier(&mut self) -> Result<()> {
        self.replay.start(vec![1.0])?;
        let (sum, world_size) = (self.replay.wait()?, f32::from(self.replay.world_size()));
        if sum != [world_size] {
            bail!("{sum:?} is not the sum of a one from each of {world_size} ranks");
        }
        Ok(())
    }

    fn mark(&mut self, what: &str, phase: usize) -> Result<()> {
        self.barrier()?;
        // The last rank's barrier may still have packets on the wire, which belong to no phase.
        thread::sleep(MARK_PAUSE / 2);
        if self.replay.rank() == 0 {
            let mut stdout = std::io::stdout();
            writeln!(stdout, "# mark {what} {} {phase}", self.load.name)?;
            stdout.flush()?;
        }
        thread::sleep(MARK_PAUSE);
        Ok(())
    }
}

impl LoadReport {
    fn print(&self) {
        for measured in &self.phases {
            let mut sorted = measured.times_s.clone();
            sorted.sort_by(f64::total_cmp);
            let median = xdp_agg_report::quantile(&sorted, 0.5);
            let Phase { compute_s, overlap, .. } = measured.phase;
            println!(
                " {:>9} {:>10.3e} {:>10} {:>7.3} {:>7} {:>9.4} {:>9.4} {:>9.4} {:>9.4} {:>6}",
                self.workload,
                self.fraction,
                self.bytes,
                compute_s,
                if overlap { "yes" } else { "no" },
                median,
                xdp_agg_report::quantile(&sorted, 0.0),
                xdp_agg_report::quantile(&sorted, 1.0),
                median - compute_s,
                measured.wrong,
            );
        }
    }
}

impl Report {
    /// Wrong elements of this rank.
    pub(crate) fn wrong(&self) -> u64 {
        self.loads.iter().map(|load| load.wrong).sum()
    }

    fn heading(&self) -> String {
        let Self { strategy, algorithm, world_size, .. } = self;
        format!(
            "# {strategy} ({algorithm}), {world_size} processes; times of an iteration on rank 0, \
             seconds; computation is slept\n{COLUMNS}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use xdp_agg_baselines::{About, BoxError, Collective};
    use xdp_agg_client::Op;

    use super::super::strategy::tests::Alone;
    use super::super::strategy::tests::one_lane;
    use super::*;

    #[test]
    fn phases_are_read() {
        let phase =
            |iters, compute_s, overlap| Ok(Phase { iters, compute_s, overlap, through: false });
        assert_eq!("10x0".parse(), phase(10, 0.0, false));
        assert_eq!("3x0.5+overlap".parse(), phase(3, 0.5, true));
        let through = Phase { iters: 3, compute_s: 0.5, overlap: true, through: true };
        for text in ["3x0.5+overlap+through", "3x0.5+through+overlap"] {
            assert_eq!(text.parse(), Ok(through));
        }
        for text in
            ["", "10", "x0", "0x1", "3x-1", "3x1+over", "3xNaN", "1x0+", "1x0+through+through"]
        {
            assert!(text.parse::<Phase>().is_err(), "{text}");
        }
    }

    fn replayed(offset: f32, phases: &[Phase]) -> Report {
        let mut replay = one_lane(Alone { world: 4, offset });
        let workload = Workload::new(xdp_agg_workloads::Network::Vgg16, 1e-4);
        let plan = Plan { strategy: Strategy::Ring, phases, marks: false };
        run(&mut replay, &plan, &[Load::of(&workload), Load::of_bytes(4096)]).expect("it replays")
    }

    #[test]
    fn an_iteration_takes_as_long_as_its_computation() {
        let phases = ["2x0", "2x0.05", "2x0.05+overlap"].map(|text| text.parse().expect(text));
        let report = replayed(0.0, &phases);
        assert_eq!(report.wrong(), 0);
        assert_eq!(report.loads.len(), 2);
        for load in &report.loads {
            for measured in &load.phases {
                assert_eq!(measured.times_s.len(), 2);
                for time in &measured.times_s {
                    let over = time - measured.phase.compute_s;
                    assert!((0.0..0.5).contains(&over), "{time} for {:?}", measured.phase);
                }
            }
        }
    }

    /// Counts all calls, the barriers' included.
    struct Counting(Alone, Arc<AtomicU32>);

    impl Collective for Counting {
        fn about(&self) -> About {
            self.0.about()
        }

        fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.all_reduce_f32(data, op)
        }

        fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
            self.0.all_reduce_i32(data, op)
        }
    }

    #[test]
    fn ranks_meet_before_each_iteration_or_only_the_first() {
        for (text, expected) in [("5x0", 1 + 5 + 5), ("5x0+through", 1 + 5)] {
            let calls = Arc::new(AtomicU32::new(0));
            let mut replay =
                one_lane(Counting(Alone { world: 2, offset: 0.0 }, Arc::clone(&calls)));
            let load = Load::of_bytes(400);
            let buckets = vec![vec![0.0; 100]];
            let mut state = State { buckets, load: &load, replay: &mut replay };
            let measured = state.phase(text.parse().expect(text), None).expect("it runs");
            assert_eq!((measured.times_s.len(), measured.wrong), (5, 0));
            assert_eq!(calls.load(Ordering::Relaxed), expected, "{text}");
        }
    }

    #[test]
    fn wrong_sums_are_counted_in_every_iteration() {
        let mut replay = one_lane(Alone { world: 4, offset: 1.0 });
        let load = Load::of_bytes(400);
        let mut state = State { buckets: vec![vec![0.0; 100]], load: &load, replay: &mut replay };
        assert_eq!(state.verify_pattern().expect("it sums"), 100);
        state.buckets[0].fill(1.0);
        let phase = Phase { iters: 1, compute_s: 0.0, overlap: true, through: false };
        state.iteration(phase).expect("it sums");
        assert_eq!(state.wrong_constants(), 100);
        assert!(state.barrier().is_err());
    }
}
