//! Many seeds, on all processors.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Stats;
use crate::scenario::Choice;

/// Seeds that a thread takes at a time.
const BATCH: u64 = 16;
/// Violations after which no further seeds are taken.
const ENOUGH: usize = 100;

/// Which seeds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// What the seeds are not asked about.
    pub choice: Choice,
    /// Threads; 0: one for each processor.
    pub threads: usize,
    /// Stop at the first violation.
    pub stop: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// All runs together.
    pub stats: Stats,
    /// Seeds with violations, in ascending order, and what was violated.
    pub violations: Vec<(u64, String)>,
}

/// Runs the seeds; `progress` is told after each batch how many runs it had.
pub fn run(plan: &Plan, progress: impl Fn(u64) + Sync) -> Report {
    let next = AtomicU64::new(0);
    let enough = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= plan.count {
                return;
            }
            let to = (from + BATCH).min(plan.count);
            let mut part = Report::default();
            for offset in from..to {
                let seed = plan.first.wrapping_add(offset);
                let (stats, violation) = run_one(seed, plan.choice);
                part.stats.merge(&stats);
                if let Some(violation) = violation {
                    part.violations.push((seed, violation));
                    if plan.stop {
                        break;
                    }
                }
            }
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.stats.merge(&part.stats);
            report.violations.extend(part.violations);
            if plan.stop && !report.violations.is_empty() || report.violations.len() >= ENOUGH {
                enough.store(true, Ordering::Relaxed);
            }
            drop(report);
            progress(to - from);
        }
    };
    let threads = match plan.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.violations.sort();
    report
}

/// One run; a panic is a violation, too.
fn run_one(seed: u64, choice: Choice) -> (Stats, Option<String>) {
    let run = std::panic::catch_unwind(|| crate::run(seed, choice, false));
    match run {
        Ok(outcome) => (outcome.stats, outcome.violation),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            let violation = format!("panic: {}", words.unwrap_or("without words"));
            (Stats { runs: 1, violations: 1, ..Stats::default() }, Some(violation))
        }
    }
}
