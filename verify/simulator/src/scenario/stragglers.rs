//! Members that keep others waiting, and for how long they may.

use rand::Rng;
use rand::rngs::SmallRng;
use xdp_agg_common::control::WorkerLoss;

use super::{Fault, JobPlan, Link, Scenario, When, magnitude};
use crate::reference::mix;
use crate::time::{MILLI, Nanos, SECOND};

/// The choice of seeds with stragglers is independent of what else they have.
const STRAGGLERS: u64 = 0x57a6_61e2_57a6_61e3;
/// What a wait takes beyond its limit: until the others say that they wait, until branches have
/// named the contributors, and until a new epoch runs.
const SLACK: Nanos = 4 * SECOND;

impl Scenario {
    /// In a quarter of the runs there is a limit, and workers that stand still for longer, or make
    /// their calls late. Not beside a witness: it may take its time, and nothing happens to it.
    pub(super) fn draw_stragglers(&mut self, rng: &mut SmallRng) {
        if self.witness || !mix(self.seed ^ STRAGGLERS).is_multiple_of(4) {
            return;
        }
        let limit = magnitude(rng, 300 * MILLI, 2 * SECOND);
        self.straggler_timeout = Some(limit);
        self.heal_at = self.heal_at.max(magnitude(rng, 4 * SECOND, 12 * SECOND));
        for job in &mut self.jobs {
            if rng.random_bool(0.5) {
                job.deadline = job.deadline.max(60 * SECOND);
            }
            if rng.random_bool(0.3) {
                let rank = rng.random_range(0..job.world);
                job.slow = Some((rank, magnitude(rng, limit / 4, 4 * limit)));
            }
            if rng.random_bool(0.5) {
                job.policy.worker_loss = WorkerLoss::Shrink;
            }
        }
        for _ in 0..rng.random_range(1..=3) {
            let worker = rng.random_range(0..self.workers());
            let time = magnitude(rng, limit / 4, 4 * limit + SLACK);
            let when = When::After(magnitude(rng, 8, 400));
            self.faults.push((when, Fault::StopWorker { worker, time }));
        }
    }

    /// How long a worker may stand still while others wait, where nothing else happens at all.
    pub fn longest_wait(&self) -> Option<Nanos> {
        let limit = self.straggler_timeout?;
        let stops = |(_, fault): &(When, Fault)| matches!(fault, Fault::StopWorker { .. });
        let Link { loss, duplicate, late, .. } = self.link;
        let quiet = (loss, duplicate, late) == (0.0, 0.0, 0.0);
        let only = quiet && !self.hostile && self.faults.iter().all(stops);
        // One may be stopped after the other, and each time the wait begins anew.
        only.then_some((limit + SLACK) * self.faults.len() as Nanos)
    }

    /// Whether nothing happens but to workers' processes: what they say reaches their daemon soon.
    #[must_use]
    pub fn only_workers_fail(&self) -> bool {
        let of_workers = |(_, fault): &(When, Fault)| {
            matches!(fault, Fault::StopWorker { .. } | Fault::KillWorker { .. })
        };
        !self.hostile && self.faults.iter().all(of_workers)
    }

    /// Whether the deadline of a job's calls is far beyond what may happen to them. Packets are
    /// lost now and then. Workers and branches are killed, which shows at once; workers stand
    /// still, which shows after a while if there is a limit.
    pub fn is_in_time(&self, plan: &JobPlan) -> bool {
        let is_root = |daemon: usize| self.jobs.iter().any(|job| job.root == daemon);
        let stops = |fault: &Fault| matches!(fault, Fault::StopWorker { .. });
        let harmless = |(_, fault): &(When, Fault)| match fault {
            Fault::KillWorker { .. } => true,
            Fault::KillDaemon { daemon, .. } => !is_root(*daemon),
            other => self.straggler_timeout.is_some() && stops(other),
        };
        let Link { loss, late, .. } = self.link;
        let slow = usize::from(plan.slow.is_some());
        let waits = slow + self.faults.iter().filter(|(_, fault)| stops(fault)).count();
        // A member that stands still while the job forms has that time.
        let wait = self.straggler_timeout.unwrap_or(0) + self.join_timeout + SLACK;
        plan.deadline >= 10 * SECOND + waits as Nanos * wait
            && self.faults.iter().all(harmless)
            && loss <= 0.1
            && late <= 0.02
    }
}
