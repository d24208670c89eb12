//! What a flow is told, and what it counts.

use std::time::Duration;

use super::Congestion;

/// Settings of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most blocks that may be under way: half the job's pool or less.
    pub limit: u32,
    /// Most blocks that the receiver has room for; the window never exceeds it.
    pub window_max: u32,
    /// Blocks under way at the start.
    pub initial_window: u32,
    /// What makes the window smaller.
    pub congestion: Congestion,
    /// Shortest retransmission timeout.
    pub rto_min: Duration,
    /// Longest retransmission timeout.
    pub rto_max: Duration,
    /// Time between two blocks at the pace that the caller allows. Zero: no pace.
    pub block_interval: Duration,
}

/// What the flow did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// First transmissions.
    pub sent: u64,
    /// Repetitions because of a gap.
    pub gap_retransmissions: u64,
    /// Repetitions because of the timer.
    pub timer_retransmissions: u64,
    /// Questions for blocks that another worker alone contributes.
    pub questions: u64,
    /// Results that were new.
    pub results: u64,
    /// Results of blocks that had their result already.
    pub duplicate_results: u64,
    /// `PENDING` answers.
    pub pendings: u64,
    /// Transmissions that were taken for lost, less those that `PENDING` or a second result shows
    /// to have arrived.
    pub losses: u64,
}

impl Counters {
    /// Adds those of another flow.
    pub const fn merge(&mut self, other: &Self) {
        self.sent += other.sent;
        self.gap_retransmissions += other.gap_retransmissions;
        self.timer_retransmissions += other.timer_retransmissions;
        self.questions += other.questions;
        self.results += other.results;
        self.duplicate_results += other.duplicate_results;
        self.pendings += other.pendings;
        self.losses += other.losses;
    }
}
