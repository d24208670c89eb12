//! What goes wrong, and when all is well again.

use rand::Rng;

use super::place::Place;
use super::{Event, World};
use crate::scenario::Fault;
use crate::time::{MICRO, MILLI};
use crate::trace::Party;

/// Calls that everybody makes when all is well again.
const LAST_CALLS: u64 = 2;

impl World {
    /// A fault of the scenario.
    pub(super) fn fault(&mut self, index: usize) {
        if self.healed {
            return;
        }
        let (_, fault) = self.scenario.faults[index];
        self.stats.faults[fault.kind()] += 1;
        self.note(&[8, fault.kind() as u64], || format!("FAULT {fault:?}"));
        match fault {
            Fault::KillWorker { worker, down } => {
                self.kill_worker(worker);
                if let Some(down) = down {
                    self.queue.push(self.now + down, Event::StartWorker(worker));
                }
            }
            Fault::StopWorker { worker, time } => {
                self.stop_worker(worker);
                self.queue.push(self.now + time, Event::Continue(worker));
            }
            Fault::Cut { worker, up, down, time, seen } => {
                let back = (self.now + time).min(self.scenario.heal_at);
                self.cut_connections(|client, _| client.place() == Place::Worker(worker), back);
                self.workers[worker].cut.until(back, up, down);
                if seen {
                    self.goes_away(worker, back);
                }
            }
            Fault::Break { worker } => {
                if let Some(process) = &self.workers[worker].process {
                    self.checker.breaks(process.life);
                }
                self.break_connections(|client, _| client.place() == Place::Worker(worker));
            }
            Fault::KillDaemon { daemon, pinned, down } => {
                self.kill_daemon_soon(daemon, pinned, down);
            }
            Fault::StopDaemon { daemon, time } => {
                if self.daemons[daemon].is_up() {
                    self.checker.troubled(daemon);
                    self.stop_daemon(daemon);
                    self.queue.push(self.now + time, Event::ContinueDaemon(daemon));
                }
            }
            Fault::CutDaemon { daemon, up, down, whole, time } => {
                self.checker.troubled(daemon);
                let back = (self.now + time).min(self.scenario.heal_at);
                self.cut_connections(
                    |client, to| match client.place() {
                        Place::Worker(_) => whole && to == daemon,
                        Place::Daemon(from) => from == daemon || to == daemon,
                    },
                    back,
                );
                self.daemons[daemon].trunk.until(back, up, down);
                if whole {
                    self.daemons[daemon].access.until(back, up, down);
                }
            }
            Fault::BreakDaemon { daemon } => {
                self.checker.troubled(daemon);
                self.break_connections(|client, to| match client.place() {
                    Place::Worker(_) => false,
                    Place::Daemon(from) => from == daemon || to == daemon,
                });
            }
        }
    }

    /// From now on nothing bad happens.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.note(&[9], || "all is well from now on".into());
        for daemon in 0..self.daemons.len() {
            self.daemons[daemon].end_troubles(self.now);
            self.start_daemon(daemon);
            self.continue_daemon(daemon);
        }
        for worker in 0..self.workers.len() {
            self.workers[worker].cut.end(self.now);
            self.continue_worker(worker);
            let at = self.now + self.rng.random_range(MICRO..MILLI);
            self.queue.push(at, Event::StartWorker(worker));
        }
        self.checker.heal(LAST_CALLS);
        for worker in 0..self.workers.len() {
            if let Some((life, made)) = self.workers[worker].made() {
                self.checker.extend(life, made, LAST_CALLS);
            }
        }
        self.closing = true;
        for worker in 0..self.workers.len() {
            self.drive(worker);
        }
    }

    /// Whether all calls are made, and nothing is left to wait for.
    pub(super) fn is_done(&self) -> bool {
        self.closing && (0..self.workers.len()).all(|worker| self.worker_is_done(worker))
    }

    /// The job that nothing happened to has noticed nothing.
    pub(super) fn check_witness(&mut self) {
        if !self.scenario.witness || self.checker.problem().is_some() {
            return;
        }
        let errors = self.workers.iter().filter(|worker| worker.job == 1).map(|w| w.errors).sum();
        let errors: u64 = errors;
        if errors > 0 {
            self.checker
                .fail(|| format!("{errors} calls failed of a job that nothing happened to"));
        }
    }

    /// For messages.
    pub(super) fn describe_workers(&self) -> String {
        let all = self.workers.iter().enumerate().filter(|(w, _)| !self.worker_is_done(*w));
        let words =
            all.map(|(number, worker)| format!("{} {}", Party::Worker(number), worker.describe()));
        words.collect::<Vec<_>>().join("; ")
    }
}
