//! Members that keep others waiting, as the world sees them.

use xdp_agg_common::control::{AbortReason, Reply};

use super::World;
use super::control::{Client, Connection};
use crate::time::{Nanos, SECOND};

/// How long after a stop or a cut what was said before it may come.
const AFTERMATH: Nanos = SECOND;

impl World {
    /// A daemon tells a member for whom it waits, and for whom no longer.
    pub(super) fn check_waits(&mut self, index: usize, reply: &Reply) {
        let Connection { client: Client::Worker { life, .. }, daemon, .. } =
            self.connections[index]
        else {
            return;
        };
        match reply {
            Reply::RunTo { sequence } => self.checker.runs_to(life, Some(*sequence)),
            Reply::Reform { lost, reason } => {
                self.checker.runs_to(life, None);
                self.checker.loses(life, daemon, lost, reason);
            }
            Reply::Admitted(_) | Reply::Resumed => self.checker.runs_to(life, None),
            Reply::Aborted(AbortReason::Timeout { ranks, step }) => {
                let is_out = self.checker.puts_out(life, ranks, step);
                self.stats.put_out += u64::from(is_out);
                if is_out && self.is_well(life) {
                    self.checker.is_blameless(life, daemon, step);
                }
            }
            _ => {}
        }
    }

    /// A worker that was stopped goes on. Had others waited for it for all that time, it would not
    /// be a member any more.
    pub(super) fn check_stop(&mut self, worker: usize) {
        let Some(longest) = self.scenario.longest_wait() else { return };
        let since = self.workers[worker].stopped_at;
        let Some(late) = self.workers[worker].process.as_ref().map(|process| process.life) else {
            return;
        };
        if since + longest >= self.now || self.checker.is_put_out(late) {
            return;
        }
        let deadline = self.scenario.jobs[self.workers[worker].job].deadline;
        for other in 0..self.workers.len() {
            let place = &self.workers[other];
            let Some(process) = place.process.as_ref().filter(|_| !place.is_stopped()) else {
                continue;
            };
            let first = process.calls.iter().map(|call| call.due - deadline).min();
            let waits = first.is_some_and(|first| first.max(place.went_on) + longest < self.now);
            let life = process.life;
            if waits && self.checker.waits_for(life, late) {
                let rank = place.rank;
                self.checker.fail(|| {
                    format!("rank {rank} waits for one that has stood still for {longest} ns")
                });
            }
        }
    }

    /// Whether a process runs, and its host is reached.
    fn is_well(&self, life: usize) -> bool {
        let worker = self
            .workers
            .iter()
            .find(|worker| worker.process.as_ref().is_some_and(|process| process.life == life));
        worker.is_some_and(|worker| {
            let last = worker.went_on.max(worker.cut.end_of());
            !worker.is_stopped() && (last == 0 || last + AFTERMATH < self.now)
        })
    }
}
