//! Which aggregators sum what.

use std::net::{Ipv4Addr, SocketAddrV4};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use xdp_agg_common::control::{AggregatorLoss, Branch, CONTROL_PORT, Tree};

use super::{DAEMONS_MAX, JobPlan, SPARES, Scenario, magnitude};
use crate::reference::mix;
use crate::time::{MILLI, SECOND};

/// Address of the first aggregator; the others' follow.
const FIRST: u32 = 0x0a00_0064;

/// Address of an aggregator.
pub(crate) const fn address(daemon: usize) -> u32 {
    FIRST + daemon as u32
}

/// The aggregator with this address.
pub(crate) fn daemon_at(addr: u32) -> Option<usize> {
    let daemon = addr.checked_sub(FIRST)? as usize;
    (daemon < DAEMONS_MAX).then_some(daemon)
}

/// Where an aggregator's daemon listens.
fn control(daemon: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(address(daemon)), CONTROL_PORT)
}

impl Scenario {
    /// Several aggregators, and a tree of them for each job. Two jobs may have them in different
    /// places, as the halves of one vector would. The witness has the first one alone.
    pub(super) fn draw_trees(&mut self, rng: &mut SmallRng) {
        self.daemons = rng.random_range(2..=DAEMONS_MAX);
        let farthest = if rng.random_bool(0.5) { 30 } else { 1 };
        self.far_daemons = (0..self.daemons).map(|_| magnitude(rng, 1, farthest)).collect();
        for (index, job) in self.jobs.iter_mut().enumerate() {
            if index == 1 && self.witness {
                continue;
            }
            job.root = if index == 0 { 0 } else { rng.random_range(0..self.daemons) };
            job.tree = tree(rng, job, self.daemons);
            if job.policy.aggregator_loss == AggregatorLoss::Resume && rng.random_bool(0.4) {
                job.policy.aggregator_loss = AggregatorLoss::Ring;
            }
            job.fallback_after = magnitude(rng, 20 * MILLI, SECOND);
            // Each hop takes its time, and with the smallest pool block goes after block.
            let near = self.far.iter().max().copied().unwrap_or(1);
            let hops = job.tree.branches.len() as u64;
            let farthest = self.far_daemons.iter().max().copied().unwrap_or(1);
            let trip = 2 * self.link.base * (near + hops * farthest);
            let rounds = (job.blocks + 8) * job.in_flight as u64 / u64::from(job.slots / 2) + 1;
            job.deadline = job.deadline.max(3 * trip * rounds);
        }
    }

    /// Who stands in for whom, and when a lost aggregator is taken back. What else a seed stands
    /// for does not depend on it.
    pub(super) fn draw_spares(&mut self) {
        let rng = &mut SmallRng::seed_from_u64(mix(self.seed ^ SPARES));
        self.return_after = magnitude(rng, 5 * MILLI, SECOND);
        for job in &mut self.jobs {
            let taken: Vec<_> = job.tree.branches.iter().map(|branch| branch.daemon).collect();
            let mut others: Vec<_> = (0..self.daemons)
                .filter(|daemon| *daemon != job.root && !taken.contains(&control(*daemon)))
                .map(control)
                .collect();
            for branch in &mut job.tree.branches {
                others.shuffle(rng);
                let count = rng.random_range(0..=others.len());
                branch.spares = others[..count].to_vec();
            }
            if rng.random_bool(0.5) {
                job.ring_order = (0..job.world).collect();
                job.ring_order.shuffle(rng);
            }
        }
    }

    pub(super) fn draw_daemon(&self, rng: &mut SmallRng) -> usize {
        if self.daemons > 1 { rng.random_range(0..self.daemons) } else { 0 }
    }
}

/// A path, as Rina's, or any other tree.
fn tree(rng: &mut SmallRng, job: &JobPlan, daemons: usize) -> Tree {
    let mut others: Vec<_> = (0..daemons).filter(|daemon| *daemon != job.root).collect();
    others.shuffle(rng);
    others.truncate(rng.random_range(1..=others.len()));
    let is_path = rng.random_bool(0.4);
    let mut branches: Vec<Branch> = Vec::new();
    for (index, daemon) in others.into_iter().enumerate() {
        let last = index.checked_sub(1).map(|last| last as u16);
        let any = last.filter(|_| rng.random_bool(0.6)).map(|last| rng.random_range(0..=last));
        let parent = if is_path { last } else { any };
        branches.push(Branch::new(control(daemon), parent, Vec::new()));
    }
    // With or without workers at the root.
    let first = usize::from(rng.random_bool(0.3));
    for rank in 0..job.world {
        let place = rng.random_range(first..=branches.len());
        if let Some(branch) = place.checked_sub(1).and_then(|index| branches.get_mut(index)) {
            branch.ranks.push(rank);
        }
    }
    // Without branches that have nobody below them.
    Tree { branches }.pruned(u64::MAX, |_| false)
}
