//! Members that keep others waiting, as the world sees them.

use xdp_agg_common::control::{AbortReason, Presence, Reply};
use xdp_agg_protocol::worker::{Error, Limit};

use super::World;
use super::control::{Client, Connection};
use super::worker::Worker;
use crate::time::{Nanos, SECOND};

/// How long after a stop or a cut what was said before it may come.
const AFTERMATH: Nanos = SECOND;
/// After how long without an answer a process counts as stopped, and what was heard before is old.
const SILENCE: Nanos = 4 * SECOND;

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

    /// What a worker is told of those that it waits for is so, or was so a moment ago.
    pub(super) fn check_told(&mut self, worker: usize, error: &Error) {
        let Error::Deadline { sequence: Some(sequence), standing, .. } = error else { return };
        if !self.scenario.only_workers_fail() {
            return;
        }
        for standing in standing {
            self.stats.standings += 1;
            let place = self.member(worker, standing.rank);
            let Some(process) = &place.process else { continue };
            let (now, recent) = (self.now, self.now.saturating_sub(AFTERMATH + SILENCE));
            let stopped = place.is_stopped();
            let made = process.made.get(sequence).is_some_and(|at| *at < recent);
            let says_not_made =
                standing.doing.as_ref().is_some_and(|doing| doing.next_sequence <= *sequence);
            let wrong = match standing.presence {
                Presence::Alive if stopped && place.stopped_at < recent => "has stopped long since",
                Presence::Alive if !stopped && place.went_on < recent && made && says_not_made => {
                    "has made the call long since"
                }
                Presence::Silent if !stopped && place.went_on < recent => "has never stopped",
                _ => continue,
            };
            let rank = standing.rank;
            self.checker.fail(|| format!("rank {rank} is {standing:?} at {now}: it {wrong}"));
        }
    }

    /// A worker gives up because nothing moves: those that it waits for have called.
    pub(super) fn check_stall(&mut self, worker: usize, error: &Error) {
        let Error::Deadline { sequence: Some(sequence), limit: Limit::Stall, ranks, .. } = error
        else {
            return;
        };
        let own = self.workers[worker].rank;
        for rank in ranks.iter().filter(|rank| **rank != own) {
            let place = self.member(worker, *rank);
            let Some(process) = &place.process else { continue };
            if !process.made.contains_key(sequence) {
                self.checker.fail(|| format!("rank {own} gives up on rank {rank}, which is late"));
            }
        }
    }

    /// The place of a rank of a worker's job.
    fn member(&self, worker: usize, rank: u16) -> &Worker {
        let first = worker - usize::from(self.workers[worker].rank);
        &self.workers[first + usize::from(rank)]
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
