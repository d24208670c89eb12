//! What happens to a job when somebody is lost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What happens to a job when somebody is lost. All members ask for the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// When a worker is lost.
    pub worker_loss: WorkerLoss,
    /// When the daemon is lost.
    pub aggregator_loss: AggregatorLoss,
}

impl Policy {
    /// In what time a dead host or link is noticed, unless that is set: 30 s where the loss ends
    /// the job, as being quick gains little there, and 10 s where the others go on. A link that is
    /// away for up to a third of that time costs time only.
    #[must_use]
    pub const fn dead_after(ends_job: bool) -> Duration {
        Duration::from_secs(if ends_job { 30 } else { 10 })
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { worker_loss, aggregator_loss } = self;
        write!(f, "{} on worker loss, ", worker_loss.name())?;
        write!(f, "{} on aggregator loss", aggregator_loss.name())
    }
}

/// When a worker is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerLoss {
    /// The others' calls return an error that names its rank.
    #[default]
    Fail,
    /// The others go on without it, in a new epoch.
    Shrink,
}

impl WorkerLoss {
    /// The name in settings and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Shrink => "shrink",
        }
    }
}

/// When the daemon is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AggregatorLoss {
    /// Calls return an error.
    #[default]
    Fail,
    /// Workers connect again and go on, in a new epoch or in the old one.
    Resume,
    /// As `Resume`; where no daemon comes back in time, the workers go on over a TCP ring until one
    /// does.
    Ring,
}

impl AggregatorLoss {
    /// The name in settings and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Resume => "resume",
            Self::Ring => "ring",
        }
    }
}
