//! Branches that keep their job waiting: each step until it runs has a time of its own.
//!
//! A stopped daemon, or another program in its place, takes connections and answers nothing. Only
//! the root can tell it from a slow one.

use std::net::SocketAddrV4;

use super::Jobs;
use super::job::Job;
use super::phase::Phase;

/// What a branch does until its job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connect,
    Serve,
    Prepare,
    Link,
    Start,
}

impl Step {
    /// Says that the step was not done, and what to do. `limit` is the step's time, in words.
    fn told(self, limit: &str) -> String {
        let stuck = "is its daemon stopped, or busy?";
        let (what, hint) = match self {
            Self::Connect => (
                "no connection to it was made",
                "does `xdp-agg serve` run there, and is a way open?",
            ),
            Self::Serve => ("it took the connection, but did not agree to serve the job", stuck),
            Self::Prepare => ("it did not prepare the job's epoch", stuck),
            Self::Link => (
                "it found no way to its parent",
                "UDP packets must pass between their data addresses, both ways; is one stopped?",
            ),
            Self::Start => ("it did not start the job's epoch", stuck),
        };
        format!(
            "{what} within {limit}: {hint} (the root's --probe-timeout is the limit of each step)"
        )
    }
}

impl Job {
    /// The branch that is waited for, and for what. Of several, one that does not wait for another:
    /// parents come first, and a branch finds its way up when its parent answers.
    fn late_branch(&self) -> Option<(SocketAddrV4, Step)> {
        let trunk = &self.life.trunk;
        trunk.tree.branches.iter().find_map(|branch| {
            let link = trunk.links.get(&branch.daemon)?;
            let late = match self.phase() {
                Phase::Branching(_) if !link.up => Some(Step::Connect),
                Phase::Branching(_) => link.serving.is_none().then_some(Step::Serve),
                Phase::Preparing(_) => (!link.prepared).then_some(Step::Prepare),
                Phase::Probing(_) => (!link.linked).then_some(Step::Link),
                Phase::Starting(_) => link.started.is_none().then_some(Step::Start),
                _ => None,
            };
            Some((branch.daemon, late?))
        })
    }

    /// Others than this daemon's own engine are waited for.
    pub(super) fn awaits_branches(&self) -> bool {
        self.late_branch().is_some()
    }
}

impl Jobs {
    /// The time for a step of the branches is over. False: the job does not wait for a branch.
    pub(super) fn branches_are_late(&mut self, job_id: u16) -> bool {
        let Some(job) = self.jobs.get(&job_id) else {
            return false;
        };
        // A worker that is late has not opened the way, whatever its branch did.
        let by_workers = matches!(job.phase(), Phase::Probing(_)) && !job.awaited().is_empty();
        let Some((daemon, step)) = job.late_branch().filter(|_| !by_workers) else {
            return false;
        };
        let limit = format!("{} s", self.limits.probe_timeout.as_secs_f64());
        self.lose_branch(job_id, daemon, &step.told(&limit));
        true
    }
}
