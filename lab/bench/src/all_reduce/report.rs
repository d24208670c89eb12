//! What a rank reports: a table for people (rank 0), JSON for programs (every rank).

use serde::Serialize;
use xdp_agg_client::Chosen;
use xdp_agg_report::quantile;

/// The columns of nccl-tests.
const COLUMNS: &str = "\
#        size         count      type   redop    root       time   algbw   busbw  #wrong        p99
#         (B)    (elements)                                 (us)  (GB/s)  (GB/s)               (us)
";

/// Everything that one rank measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// This worker.
    pub(crate) rank: u16,
    /// Number of workers.
    pub(crate) world_size: u16,
    /// `xdp-agg` or `tcp-ring`.
    pub(crate) system: &'static str,
    /// Engine of the aggregator, or `ring`.
    pub(crate) algorithm: String,
    /// By which strategy it sums, and why.
    pub(crate) chosen: Option<Chosen>,
    /// Element type in the words of nccl-tests.
    pub(crate) dtype: &'static str,
    /// One per size.
    pub(crate) rows: Vec<Row>,
    /// The communicator's own counters at the end.
    pub(crate) counters: serde_json::Value,
    /// The most memory that this process has held, in bytes.
    pub(crate) peak_memory_bytes: u64,
}

/// One size.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// Bytes of the vector.
    pub(crate) bytes: usize,
    /// Elements of the vector.
    pub(crate) count: usize,
    /// Timed calls.
    pub(crate) iters: u32,
    /// Calls before them.
    pub(crate) warmup: u32,
    /// Elements that were not the exact sum, in all ranks, before and after timing.
    pub(crate) wrong: u64,
    /// Each call on this rank, in microseconds.
    pub(crate) times_us: Vec<f64>,
    /// Each call, averaged over the ranks, in microseconds.
    pub(crate) mean_us: Vec<f64>,
    /// Processor seconds of the whole machine a call.
    pub(crate) cpu_s: f64,
    /// Processor seconds that the hypervisor gave to others a call.
    pub(crate) steal_s: f64,
    /// Processor seconds of this process a call.
    pub(crate) process_cpu_s: f64,
}

/// Microseconds to the nanosecond: what the clock tells.
fn to_nanosecond(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

impl Row {
    /// Keeps no more digits of the times than the clock has.
    pub(crate) fn rounded(mut self) -> Self {
        for us in self.times_us.iter_mut().chain(&mut self.mean_us) {
            *us = to_nanosecond(*us);
        }
        self
    }

    /// Median and 99th percentile of the calls in microseconds.
    fn median_and_p99(&self) -> (f64, f64) {
        (quantile(&self.mean_us, 0.5), quantile(&self.mean_us, 0.99))
    }
}

impl Report {
    /// Above the table.
    pub(crate) fn heading(&self) -> String {
        let Self { system, algorithm, world_size, .. } = self;
        format!(
            "# {system} ({algorithm}), {world_size} workers, sum, in place; time: median of the \
             calls, each averaged over the ranks\n{COLUMNS}"
        )
    }

    /// One line of the table.
    pub(crate) fn line(&self, row: &Row) -> String {
        let (median, p99) = row.median_and_p99();
        let (algbw, busbw) = self.bandwidths(row.bytes, median);
        format!(
            " {:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {median:>9.2}  {algbw:>6.3}  {busbw:>6.3}  \
             {:>6}  {p99:>9.2}",
            row.bytes, row.count, self.dtype, "sum", -1, row.wrong
        )
    }

    /// Below the table.
    pub(crate) fn footing(&self) -> String {
        let busbws = self.rows.iter().map(|row| {
            let (median, _) = row.median_and_p99();
            self.bandwidths(row.bytes, median).1
        });
        let average = busbws.sum::<f64>() / self.rows.len().max(1) as f64;
        let wrong = self.wrong();
        format!(
            "# Out of bounds values : {wrong} {}\n# Avg bus bandwidth    : {average:.4}\n",
            if wrong == 0 { "OK" } else { "FAILED" }
        )
    }

    /// Wrong elements of all sizes.
    pub(crate) fn wrong(&self) -> u64 {
        self.rows.iter().map(|row| row.wrong).sum()
    }

    /// algbw and busbw in GB/s (1e9 bytes), as nccl-tests define them for all-reduce.
    fn bandwidths(&self, bytes: usize, time_us: f64) -> (f64, f64) {
        if time_us <= 0.0 {
            return (0.0, 0.0);
        }
        let workers = f64::from(self.world_size);
        let algbw = bytes as f64 / time_us / 1e3;
        (algbw, algbw * 2.0 * (workers - 1.0) / workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let report = Report { world_size: 4, ..Report::default() };
        // 1 GB in one second among four: 1 GB/s, and 1.5 times that on the links of a ring.
        assert_eq!(report.bandwidths(1_000_000_000, 1e6), (1.0, 1.5));
    }
}
