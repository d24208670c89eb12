//! Worker processes whose every sum is checked, and what has to become of their calls.

use std::process::Command;
use std::time::{Duration, Instant};

use xdp_agg_testbed::steady::{Line, Steady, Work, judge};

use super::LIMIT;

/// What workers said, and when.
pub type Said = Vec<Vec<(Instant, Line)>>;

/// Goes on over a ring without an aggregator, and without lost workers.
pub const RING: [(&str, &str); 3] = [
    ("XDP_AGG_ON_WORKER_LOSS", "shrink"),
    ("XDP_AGG_ON_AGGREGATOR_LOSS", "ring"),
    ("XDP_AGG_FALLBACK_AFTER", "1"),
];

/// An error of a worker.
pub struct Failure {
    /// After what time.
    pub after: Duration,
    pub kind: String,
    pub ranks: Vec<u16>,
    pub text: String,
}

/// Calls long enough that one is under way at any moment.
pub fn work() -> Work {
    Work { longest: 150_000, ..Work::default() }
}

/// The command is the program in its namespace, with the environment of a worker.
pub fn start(rank: u16, mut command: Command, work: &Work) -> Steady {
    let limit = LIMIT.as_secs().to_string();
    for name in ["XDP_AGG_DEADLINE", "XDP_AGG_JOIN_DEADLINE"] {
        // A test's own settings count.
        if command.get_envs().all(|(set, _)| set != name) {
            command.env(name, &limit);
        }
    }
    Steady::spawn(&format!("rank {rank}"), command, work).expect("it starts")
}

/// Each of these workers has done a call.
pub fn all_begin(workers: impl Iterator<Item = Steady>) -> Vec<Steady> {
    let workers: Vec<_> = workers.collect();
    for worker in &workers {
        worker.wait_calls(1, LIMIT).expect("the job begins");
    }
    workers
}

/// The first line of a worker after this moment that is such a one, and when it came.
pub fn first(
    worker: &Steady,
    what: &str,
    since: Instant,
    is_it: impl Fn(&Line) -> bool,
) -> (Instant, Line) {
    let found = worker.wait(what, LIMIT, |at, line| at > since && is_it(line));
    found.unwrap_or_else(|error| panic!("{error}"))
}

/// The first call of a worker after this moment that these ranks contributed to, and no other.
pub fn call_of(worker: &Steady, since: Instant, ranks: u64) -> Instant {
    let whole = |line: &Line| match line {
        Line::Call { contributors, partial: 0, .. } => *contributors == ranks,
        _ => false,
    };
    first(worker, &format!("a call of {ranks:#b}"), since, whole).0
}

/// The same of each of these workers, in time.
pub fn calls_of(workers: &[Steady], since: Instant, ranks: u64, limit: Duration) {
    for worker in workers {
        let after = call_of(worker, since, ranks) - since;
        assert!(after < limit, "{after:?}");
    }
}

/// The first call of a worker after this moment that all three contributed to, over this path
/// alone.
pub fn call_over(worker: &Steady, since: Instant, over: &str) -> Instant {
    let is_it =
        |line: &Line| matches!(line, Line::Call { path, contributors: 0b111, .. } if path == over);
    first(worker, &format!("a call over the {over}"), since, is_it).0
}

/// The first error of a worker after this moment.
pub fn failure_of(worker: &Steady, since: Instant) -> Failure {
    match first(worker, "an error", since, |line| matches!(line, Line::Failed { .. })) {
        (at, Line::Failed { kind, ranks, text, .. }) => {
            Failure { after: at - since, kind, ranks, text }
        }
        (_, other) => panic!("{other:?}"),
    }
}

pub fn all_said(workers: &[Steady]) -> Said {
    workers.iter().map(Steady::said).collect()
}

/// Whether any of these said such a line.
pub fn any_said(said: &Said, is_it: impl Fn(&Line) -> bool) -> bool {
    said.iter().flatten().any(|(_, line)| is_it(line))
}

/// No call of any worker was wrong, nor different from another's.
pub fn check(said: &Said) {
    let verdict = judge(said);
    assert!(verdict.calls > 0);
    assert_eq!((verdict.wrong, verdict.different), (0, 0), "{verdict:?}");
}

/// Nor did one fail.
pub fn check_none_failed(said: &Said) {
    assert!(!any_said(said, |line| matches!(line, Line::Failed { .. })), "no call fails");
    check(said);
}
