//! A row of a benchmark: what is printed, and what goes into the JSON file.

use serde::Serialize;

/// One system at one setting.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// `xdp-agg`, `tcp-ring` or `openmpi`.
    pub(crate) system: String,
    /// Engine and result mode, or the algorithm.
    pub(crate) algorithm: String,
    /// Number of workers.
    pub(crate) workers: u16,
    /// Bytes of each worker's vector.
    pub(crate) bytes: u64,
    /// Rate of every link in each direction, `none` where not limited.
    pub(crate) rate: String,
    /// MTU of every link.
    pub(crate) mtu: u32,
    /// Median over the calls; a call's time is averaged over the ranks.
    pub(crate) time_us_median: f64,
    /// 99th percentile over the calls.
    pub(crate) time_us_p99: f64,
    /// Bytes over median time, in 1e9 bytes a second.
    pub(crate) algbw_gbs: f64,
    /// That times `2 (N - 1) / N`: what the links of a ring would have to carry.
    pub(crate) busbw_gbs: f64,
    /// Processor seconds of the whole machine a call.
    pub(crate) cpu_s: f64,
    /// Elements that were not the exact sum.
    pub(crate) wrong: u64,
    /// Bytes on the wire over the rate; none where the links are not limited.
    pub(crate) bound_us: Option<f64>,
    /// Share of the packets that every direction of every link loses, in percent.
    pub(crate) loss_percent: f64,
    /// Timed calls.
    pub(crate) iters: u32,
    /// Whether super-packets crossed the links in one piece.
    pub(crate) offloads: bool,
    /// Whether no direction of any link carried more than its rate while this row was measured;
    /// none where the links are not limited. A row with `false` does not count as a result.
    pub(crate) caps_kept: Option<bool>,
    /// The most that a direction of a link carried, in bits a second over a tenth of a second.
    pub(crate) link_peak_bits: Option<f64>,
    /// Packets that were sent again, by all workers.
    pub(crate) retransmissions: Option<u64>,
    /// The most memory that a worker's process held, in bytes.
    pub(crate) worker_peak_memory_bytes: Option<u64>,
}

impl Row {
    /// Time over bound: 1 is the best that the links allow.
    pub(crate) fn times_bound(&self) -> Option<f64> {
        self.bound_us.filter(|bound| *bound > 0.0).map(|bound| self.time_us_median / bound)
    }

    /// algbw and busbw of this time.
    pub(crate) fn bandwidths(bytes: u64, workers: u16, time_us: f64) -> (f64, f64) {
        let algbw = if time_us > 0.0 { bytes as f64 / time_us / 1e3 } else { 0.0 };
        let workers = f64::from(workers);
        (algbw, algbw * 2.0 * (workers - 1.0) / workers)
    }

    /// The columns of [`HEADING`].
    pub(crate) fn line(&self) -> String {
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        format!(
            "{:<9} {:<20} {:>2} {:>10} {:>8} {:>5} {:>5} {:>12.1} {:>12.1} {:>7.4} {:>7.4} {:>8.4} \
             {:>6} {:>12} {:>7} {:>4}",
            self.system,
            self.algorithm,
            self.workers,
            self.bytes,
            self.rate,
            self.mtu,
            self.loss_percent,
            self.time_us_median,
            self.time_us_p99,
            self.algbw_gbs,
            self.busbw_gbs,
            self.cpu_s,
            self.wrong,
            optional(self.bound_us, 1),
            optional(self.times_bound(), 3),
            said(self.caps_kept),
        )
    }
}

/// Whether links kept their rates, where they had any, in a table.
pub(crate) fn said(caps_kept: Option<bool>) -> &'static str {
    caps_kept.map_or("-", |kept| if kept { "yes" } else { "NO" })
}

/// Names and units of the columns of [`Row::line`].
pub(crate) const HEADING: &str = "\
# system  algorithm             N      bytes     rate   mtu  loss         \
time          p99   algbw   busbw      cpu  wrong        bound   time/ caps
#                                        (B)            (B)   (%)         \
(us)         (us)  (GB/s)  (GB/s)      (s)                (us)   bound kept";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        assert_eq!(Row::bandwidths(1_000_000_000, 4, 1e6), (1.0, 1.5));
        assert_eq!(Row::bandwidths(0, 4, 0.0), (0.0, 0.0));
    }
}
