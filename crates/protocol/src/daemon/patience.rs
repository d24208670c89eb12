//! How long the other end of a connection, or a member's data path, may be out of reach.

use std::time::Duration;

use xdp_agg_common::control::{AggregatorLoss, Policy, Request, WorkerLoss};

/// In what time dead hosts and links are noticed. None: as fits the job's policy
/// ([`Policy::dead_after`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience(pub Option<Duration>);

impl Patience {
    /// The shortest of all.
    #[must_use]
    pub fn least(self) -> Duration {
        self.of(false)
    }

    /// How often the other ends are looked after.
    #[must_use]
    pub fn tick(self) -> Duration {
        (self.least() / 16).clamp(Duration::from_millis(10), Duration::from_millis(500))
    }

    /// With members of a job.
    #[must_use]
    pub fn with_members(self, policy: Policy) -> Duration {
        self.of(policy.worker_loss == WorkerLoss::Fail)
    }

    /// With branches of a job's tree, at its root.
    #[must_use]
    pub fn with_branches(self, policy: Policy) -> Duration {
        self.of(policy.aggregator_loss == AggregatorLoss::Fail)
    }

    /// With a connection that says this. None: as before.
    #[must_use]
    pub fn after(self, request: &Request) -> Option<Duration> {
        match request {
            Request::Join(join) => Some(self.with_members(join.policy)),
            // The root knows the job's policy: this end is not the first to give up.
            Request::Branch(_) => Some(self.of(true)),
            _ => None,
        }
    }

    fn of(self, ends_job: bool) -> Duration {
        self.0.unwrap_or(Policy::dead_after(ends_job))
    }
}
