//! A worker's interface is away, and the aggregator's engine notices: members that results do not
//! reach are given up after half of `dead_after`, and not before.

use xdp_agg_protocol::engine::Trouble;

use super::{Event, World};
use crate::time::Nanos;

/// An interface that is away.
#[derive(Clone, Copy)]
pub(super) struct Away {
    daemon: usize,
    worker: usize,
    since: Nanos,
    back: Nanos,
}

impl World {
    /// What is between a worker and its aggregator goes away until `back`, and the engine sees it.
    pub(super) fn goes_away(&mut self, worker: usize, back: Nanos) {
        // With several jobs an index may come to be another job's meanwhile; an engine would know.
        let [plan] = &self.scenario.jobs[..] else { return };
        let daemon = plan.root;
        if !plan.tree.is_single() || self.daemons[daemon].is_stopped() {
            return;
        }
        self.away.push(Away { daemon, worker, since: self.now, back });
        let limit = self.scenario.dead_after / 2;
        if back > self.now + limit {
            self.queue.push(self.now + limit - 1, Event::MayBeGivenUp(worker));
        }
        self.queue.push(back, Event::IsBack(daemon));
        self.tell_troubles(daemon);
    }

    /// The engine of a daemon looks after its interfaces.
    pub(super) fn tell_troubles(&mut self, daemon: usize) {
        let now = self.now;
        self.away.retain(|away| away.back > now);
        let here = self.away.iter().filter(|away| away.daemon == daemon);
        let troubles = here.filter_map(|away| {
            let worker = &self.workers[away.worker];
            let job_id = worker.process.as_ref()?.machine.admitted()?.job_id;
            let what = format!("worker {} is away since {}", away.worker, away.since);
            Some(Trouble { what, members: vec![(job_id, 1 << worker.rank)] })
        });
        let (troubles, instant) = (troubles.collect(), self.instant());
        if self.daemons[daemon].is_stopped() {
            return;
        }
        if let Some(jobs) = &mut self.daemons[daemon].jobs {
            jobs.handle_troubles(troubles, instant);
        }
        self.settle(daemon);
    }

    /// From now on the daemon may do without this worker.
    pub(super) fn may_be_given_up(&mut self, worker: usize) {
        if let Some(process) = &self.workers[worker].process {
            self.checker.cut_off(process.life);
        }
    }

    /// A daemon starts with an engine that has seen nothing.
    pub(super) fn forget_away(&mut self, daemon: usize) {
        self.away.retain(|away| away.daemon != daemon);
    }
}
