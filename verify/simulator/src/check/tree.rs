//! The aggregators of an epoch: which member contributes where, and what each aggregator knows of a
//! block.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;

use xdp_agg_common::control::Admitted;
use xdp_agg_protocol::engine::JobSetup;

use super::Checker;
use crate::scenario::{JobPlan, daemon_at};

/// Aggregators that were killed, stopped or cut off, and pairs that lost each other.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// Packets between them are lost, or are very late.
    pub(super) rough: bool,
    pub(super) daemons: BTreeSet<usize>,
}

/// An aggregator of an epoch, as its daemon told its data path.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) setup: JobSetup,
    blocks: Vec<Part>,
}

/// A block at one aggregator.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// Members whose contribution was counted.
    pub(super) seen: u64,
    /// The sum that went up, once it did: whether it is marked, and its lanes.
    pub(super) sum: Option<(bool, Vec<u8>)>,
    /// The result came down.
    pub(super) settled: bool,
    /// The member whose repetition sent the sum up again the last time.
    pub(super) asker: Option<u16>,
}

impl Node {
    pub(super) const fn is_root(&self) -> bool {
        self.setup.uplink.is_none()
    }

    pub(super) fn part(&mut self, block: u64) -> &mut Part {
        let index = block as usize;
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, Part::default());
        }
        &mut self.blocks[index]
    }
}

impl Checker {
    /// A daemon was killed, stopped or cut off from others.
    pub(crate) fn troubled(&mut self, daemon: usize) {
        self.troubles.daemons.insert(daemon);
    }

    /// The connection between a root and a branch is over.
    pub(crate) fn parted(&mut self, root: usize, branch: usize) {
        self.troubles.daemons.extend([root, branch]);
    }

    /// Whether a branch may be given up.
    pub(super) fn is_troubled(&self, daemon: Option<usize>) -> bool {
        self.troubles.rough || daemon.is_some_and(|d| self.troubles.daemons.contains(&d))
    }

    /// An aggregator learns of an epoch.
    pub(super) fn plant(&mut self, daemon: usize, setup: &JobSetup) {
        let node = Node { setup: setup.clone(), blocks: Vec::new() };
        let nodes = self.trunks.entry(setup.conf.cookie).or_default();
        if nodes.insert(daemon, node).is_some() {
            self.fail(|| format!("daemon {daemon} is told of one epoch twice"));
        }
    }

    pub(super) fn node(&self, cookie: u64, daemon: usize) -> Option<&Node> {
        self.trunks.get(&cookie)?.get(&daemon)
    }

    /// A block at an aggregator.
    pub(super) fn part(&mut self, cookie: u64, daemon: usize, block: u64) -> Option<&mut Part> {
        Some(self.trunks.get_mut(&cookie)?.get_mut(&daemon)?.part(block))
    }

    /// The workers whose contributions are in a member's, as bits.
    pub(super) fn ranks_of(&self, cookie: u64, daemon: usize, rank: u16) -> u64 {
        let Some(Node { setup, .. }) = self.node(cookie, daemon) else { return 0 };
        let Some(at) = setup.members.get(&rank) else { return 0 };
        if setup.forwarders >> rank & 1 == 0 {
            return 1 << rank;
        }
        match daemon_at((*at.ip()).into()).filter(|child| *child != daemon) {
            Some(child) => self.below(cookie, child),
            None => 0,
        }
    }

    /// All workers below an aggregator.
    pub(super) fn below(&self, cookie: u64, daemon: usize) -> u64 {
        let Some(Node { setup, .. }) = self.node(cookie, daemon) else { return 0 };
        let ranks = setup.members.keys();
        ranks.fold(0, |bits, rank| bits | self.ranks_of(cookie, daemon, *rank))
    }

    /// A member is told where to send to: there it is known as a worker.
    pub(super) fn check_place(&self, admitted: &Admitted, rank: u16) -> Result<(), String> {
        let daemon = daemon_at((*admitted.data.ip()).into());
        let node = daemon.and_then(|daemon| self.node(admitted.cookie, daemon));
        let fits = node.is_some_and(|Node { setup, .. }| {
            setup.job_id == admitted.job_id
                && setup.conf.port == admitted.data.port()
                && setup.members.contains_key(&rank)
                && setup.forwarders >> rank & 1 == 0
        });
        let job_id = admitted.job_id;
        let words = || format!("rank {rank} is sent to {} (job {job_id})", admitted.data);
        if fits { Ok(()) } else { Err(words() + ", which does not know it as a worker") }
    }

    /// Whoever sums in an epoch that is no aggregator of the job's tree stands in for one that does
    /// not sum.
    pub(super) fn check_spares(&mut self, index: usize) -> Result<(), String> {
        let epoch = &self.epochs[index];
        let JobPlan { tree, root, .. } = &self.jobs[epoch.job].1;
        let Some(nodes) = self.trunks.get(&epoch.admitted.cookie) else { return Ok(()) };
        let sums = |at: &SocketAddrV4| {
            daemon_at((*at.ip()).into()).is_some_and(|d| nodes.contains_key(&d))
        };
        let planned: Vec<_> =
            tree.branches.iter().filter_map(|b| daemon_at((*b.daemon.ip()).into())).collect();
        let strangers = nodes.keys().filter(|daemon| *daemon != root && !planned.contains(daemon));
        let places = tree
            .branches
            .iter()
            .filter(|branch| !sums(&branch.daemon) && branch.spares.iter().any(sums));
        let (strangers, places) = (strangers.count(), places.count());
        if strangers > places {
            return Err(format!("{strangers} aggregators stand in for {places} that are lost"));
        }
        self.stood_in += u64::from(strangers > 0);
        Ok(())
    }

    /// The aggregators of an epoch that begins are one tree, with each member at one place.
    pub(super) fn check_tree(&self, admitted: &Admitted) -> Result<(), String> {
        let Admitted { cookie, epoch, members, slots, chunks, .. } = *admitted;
        let Some(nodes) = self.trunks.get(&cookie) else { return Err("no aggregator".into()) };
        let roots: Vec<_> = nodes.iter().filter(|(_, node)| node.is_root()).collect();
        let [(root, _)] = roots[..] else {
            return Err(format!("{} aggregators without a parent", roots.len()));
        };
        let mut leaves = 0_u64;
        for (daemon, Node { setup, .. }) in nodes {
            let conf = &setup.conf;
            if (conf.epoch, conf.slots, conf.max_chunks) != (epoch, slots, chunks) {
                return Err(format!("daemon {daemon} knows the epoch otherwise than its members"));
            }
            let own = setup.conf.members & !setup.forwarders;
            if leaves & own != 0 {
                return Err(format!("ranks {:#b} are at two aggregators", leaves & own));
            }
            leaves |= own;
            let Some(up) = setup.uplink else { continue };
            let parent = daemon_at((*up.addr.ip()).into()).and_then(|parent| nodes.get(&parent));
            let known = parent.is_some_and(|Node { setup, .. }| {
                let at = setup.members.get(&up.rank).map(|at| u32::from(*at.ip()));
                setup.job_id == up.job
                    && setup.forwarders >> up.rank & 1 == 1
                    && at.and_then(daemon_at) == Some(*daemon)
            });
            let lowest = self.below(cookie, *daemon).trailing_zeros();
            if !known || lowest != u32::from(up.rank) {
                return Err(format!(
                    "daemon {daemon} goes up to {} as rank {} of job {}, where it is not known",
                    up.addr, up.rank, up.job
                ));
            }
        }
        let all = self.below(cookie, *root);
        if (leaves, all) != (members, members) {
            return Err(format!(
                "the tree has ranks {leaves:#b}, {all:#b} below its root: the members are \
                 {members:#b}"
            ));
        }
        Ok(())
    }
}
