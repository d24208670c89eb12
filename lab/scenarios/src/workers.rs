//! `xdp-agg-bench` as every worker, and its reports as one row.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::files::{report_file, reports, scratch};
use super::lab::{Lab, Program, wait_all};

/// What to measure with `xdp-agg-bench`.
#[derive(Clone, Debug)]
pub(crate) struct Bench<'a> {
    /// `xdp-agg` or `tcp-ring`.
    pub(crate) system: &'a str,
    pub(crate) bytes: &'a [u64],
    pub(crate) iters: u32,
    pub(crate) warmup: u32,
    /// The longest that one call may take.
    pub(crate) deadline: Duration,
    /// The longest that all of it may take.
    pub(crate) limit: Duration,
}

/// What one worker reports (`xdp-agg-bench --json`), as far as it is used here.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) algorithm: String,
    pub(crate) rows: Vec<Measured>,
    counters: Option<Counters>,
    pub(crate) peak_memory_bytes: u64,
}

/// One size.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) bytes: u64,
    pub(crate) iters: u32,
    pub(crate) wrong: u64,
    /// Each call, averaged over the ranks.
    pub(crate) mean_us: Vec<f64>,
    pub(crate) cpu_s: f64,
}

#[derive(Debug, Deserialize)]
struct Counters {
    gap_retransmissions: u64,
    timer_retransmissions: u64,
}

impl Report {
    /// Blocks that this worker sent again, if it is one that counts them.
    pub(crate) fn retransmissions(&self) -> Option<u64> {
        self.counters.as_ref().map(|c| c.gap_retransmissions + c.timer_retransmissions)
    }
}

/// Runs it; the reports in order of rank.
pub(crate) fn run(lab: &Lab, bench: &Bench<'_>) -> Result<Vec<Report>> {
    let scratch = scratch()?;
    let sizes: Vec<String> = bench.bytes.iter().map(u64::to_string).collect();
    let arguments = |rank: u16| {
        let pairs = [
            ("--system", bench.system.to_owned()),
            ("--bytes", sizes.join(",")),
            ("--iters", bench.iters.to_string()),
            ("--warmup", bench.warmup.to_string()),
            ("--json", report_file(&scratch, rank).to_string_lossy().into_owned()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    };
    let job = format!("bench-{}", bench.system);
    let program =
        Program { name: "xdp-agg-bench", job: &job, deadline: bench.deadline, shows_rank_0: false };
    wait_all(lab.start_workers(&program, arguments)?, bench.limit)?;
    reports(&scratch, lab.plan().ranks())
}
