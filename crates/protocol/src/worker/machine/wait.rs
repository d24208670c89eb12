//! A wait of a worker, and how it is told of.

use std::time::Duration;

use xdp_agg_common::control::Standing;

use crate::worker::error::{Error, Limit, reasons};
use crate::worker::{EpochBlock, JobBlock};

/// What changes as soon as anything moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing is waited for.
    Idle,
    /// The job has not begun.
    Joining,
    /// Epoch, its first block without result, the first one of the job that may not be sent, and
    /// the oldest call.
    At(u16, EpochBlock, JobBlock, Option<u64>),
}

/// A wait.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) mark: Mark,
    pub(super) since: Duration,
    /// When the daemon was asked last, and when it last answered.
    pub(super) asked: Duration,
    pub(super) answered: Duration,
    /// The block that the ranks of the answer keep.
    pub(super) block: Option<u64>,
    /// These ranks, and how they do; None: it has not said.
    pub(super) ranks: Option<Vec<u16>>,
    pub(super) standing: Option<Vec<Standing>>,
    /// The answer to a question of the caller's has not come.
    pub(super) pending: bool,
    /// Since when all are in the call, and nothing has moved.
    pub(super) stalled: Option<Duration>,
    pub(super) warn_at: Duration,
    pub(super) pause: Duration,
}

/// A wait is long enough to be told of.
#[derive(Clone, Debug)]
pub struct Warning {
    /// What would be said if it ended in an error now.
    pub error: Error,
    /// How long it has lasted.
    pub waited: Duration,
    /// What will end it.
    pub limit: Limit,
    /// The first rank of this worker's host.
    pub(super) first: u16,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { error, waited, limit, first } = self;
        let whole = waited.as_secs_f64().round();
        match error {
            Error::Deadline { sequence, ranks, standing, known, .. } => {
                let what = match sequence {
                    Some(number) => format!("call {number} has waited"),
                    None => "the job has not begun after".into(),
                };
                let reasons = reasons(*sequence, ranks, standing, known);
                write!(f, "{what} {whole} s: {reasons}; {limit} says how long it may")
            }
            other => write!(f, "after {whole} s: {}", other.told(*first)),
        }
    }
}

impl Waiting {
    pub(super) fn new(now: Duration, warn_after: Duration) -> Self {
        Self {
            mark: Mark::Joining,
            since: now,
            asked: now,
            answered: now,
            block: None,
            ranks: None,
            standing: None,
            pending: false,
            stalled: None,
            warn_at: now + warn_after,
            pause: warn_after,
        }
    }

    /// The answer is complete.
    pub(super) fn is_told(&self) -> bool {
        let ranks = self.ranks.as_ref().filter(|_| !self.pending);
        ranks.is_some_and(|ranks| ranks.is_empty() || self.standing.is_some())
    }
}
