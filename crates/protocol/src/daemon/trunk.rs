//! Where a job's sums come together besides its root, as the root sees it.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Instant;

use xdp_agg_common::control::{BranchInfo, BranchReply, LocalMembers, Tree};

use super::away::{Away, Losses};
use super::effect::LinkId;
use super::numbers::latest;
use crate::engine::Started;

/// A connection to a branch, as a job sees it.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) id: LinkId,
    /// Its connection is open.
    pub(super) up: bool,
    /// None: it was not asked yet, or has not answered.
    pub(super) serving: Option<Serving>,
    pub(super) prepared: bool,
    /// Members on its own host.
    pub(super) local: Option<LocalMembers>,
    /// Its way up is open.
    pub(super) linked: bool,
    pub(super) started: Option<Started>,
    /// When it was last asked which members contribute.
    pub(super) asked: Option<Instant>,
}

impl Link {
    /// One that nobody was asked over.
    pub(super) const fn new(id: LinkId) -> Self {
        Self {
            id,
            up: false,
            serving: None,
            prepared: false,
            local: None,
            linked: false,
            started: None,
            asked: None,
        }
    }
}

/// A branch that serves the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving {
    pub(super) job_id: u16,
    pub(super) data: SocketAddrV4,
    pub(super) max_chunks: u16,
    pub(super) last_epoch: u16,
    /// What it is known by at any address.
    pub(super) daemon: u64,
    pub(super) single_packets: bool,
}

impl Serving {
    /// What a branch says of itself. Its address is the one that it was reached at; what it says of
    /// it may be inside.
    pub(super) fn said(reply: &BranchReply) -> Option<Self> {
        match *reply {
            BranchReply::Serving {
                job_id,
                data,
                max_chunks,
                last_epoch,
                daemon,
                single_packets,
            } => Some(Self { job_id, data, max_chunks, last_epoch, daemon, single_packets }),
            _ => None,
        }
    }
}

/// Where a job's sums come together besides its root.
#[derive(Clone, Debug, Default)]
pub(super) struct Trunk {
    /// As all members want it.
    pub(super) asked: Tree,
    /// What is left of it in this epoch.
    pub(super) tree: Tree,
    /// By the branch's control address.
    pub(super) links: BTreeMap<SocketAddrV4, Link>,
    /// How often a branch has called the number of an epoch used since the last one that ran:
    /// others take numbers at the same branches.
    pub(super) contests: u32,
    /// Daemons that were lost: the job does without them until they are back.
    pub(super) dead: BTreeMap<SocketAddrV4, Away>,
    /// How often, and what came of it.
    pub(super) losses: BTreeMap<SocketAddrV4, Losses>,
    /// This daemon's engine has prepared the epoch.
    pub(super) prepared: bool,
    /// Members on this host.
    pub(super) local: Option<LocalMembers>,
    /// This daemon's engine has started it.
    pub(super) started: Option<Started>,
}

impl Trunk {
    /// All engines have learned which ranks are members.
    pub(super) fn is_prepared(&self) -> bool {
        self.prepared && self.links.values().all(|link| link.prepared)
    }

    /// All branches have found their way up.
    pub(super) fn is_linked(&self) -> bool {
        self.links.values().all(|link| link.linked)
    }

    /// All engines sum.
    pub(super) fn has_started(&self) -> bool {
        self.started.is_some() && self.links.values().all(|link| link.started.is_some())
    }

    /// All branches of the epoch are there.
    pub(super) fn is_there(&self) -> bool {
        let serves = |link: &Link| link.serving.is_some();
        self.tree.branches.iter().all(|b| self.links.get(&b.daemon).is_some_and(serves))
    }

    /// The largest block that all branches take.
    pub(super) fn max_chunks(&self) -> u16 {
        let serving = self.links.values().filter_map(|link| link.serving);
        serving.map(|serving| serving.max_chunks).min().unwrap_or(u16::MAX)
    }

    pub(super) fn last_epoch(&self) -> u16 {
        let serving = self.links.values().filter_map(|link| link.serving);
        latest(serving.map(|serving| serving.last_epoch))
    }

    pub(super) fn serving(&self, index: usize) -> Option<Serving> {
        self.links.get(&self.tree.branches.get(index)?.daemon)?.serving
    }

    /// The branch that is the same daemon as the one at this address.
    pub(super) fn twin(&self, daemon: SocketAddrV4, id: u64) -> Option<SocketAddrV4> {
        let is_one = |link: &Link| link.serving.is_some_and(|serving| serving.daemon == id);
        let mut twins = self.links.iter().filter(|(at, link)| **at != daemon && is_one(link));
        twins.next().map(|(at, _)| *at)
    }

    /// The ranks that send to this daemon directly, as bits.
    pub(super) fn leaves(&self, daemon: SocketAddrV4) -> u64 {
        let branches = &self.tree.branches;
        let index = branches.iter().position(|branch| branch.daemon == daemon);
        index.map_or(0, |index| self.tree.leaves(index))
    }

    /// Where a branch is to be reached on the data path, and its index of the job.
    pub(super) fn data(&self, index: usize) -> Option<(SocketAddrV4, u16)> {
        self.serving(index).map(|serving| (serving.data, serving.job_id))
    }

    /// Where a rank sends to that is on its aggregator's own host.
    pub(super) fn local_data(&self, rank: u16) -> Option<SocketAddrV4> {
        let local = match self.tree.branch_of(rank) {
            None => self.local,
            Some(index) => self.links.get(&self.tree.branches[index].daemon)?.local,
        };
        local.filter(|local| local.has(rank)).map(|local| local.data)
    }

    /// Whether the aggregator that a rank sends to takes no trains; `own`: whether this one takes
    /// none.
    pub(super) fn single_packets(&self, rank: u16, own: bool) -> bool {
        let branch = self.tree.branch_of(rank);
        branch.map_or(own, |index| self.serving(index).is_some_and(|it| it.single_packets))
    }

    /// How results come from the aggregator that a rank sends to.
    pub(super) fn started_for(&self, rank: u16) -> Option<Started> {
        match self.tree.branch_of(rank) {
            None => self.started,
            Some(index) => self.links.get(&self.tree.branches[index].daemon)?.started,
        }
    }

    pub(super) fn infos(&self) -> Vec<BranchInfo> {
        let branches = &self.tree.branches;
        let info = |branch: &xdp_agg_common::control::Branch| BranchInfo {
            daemon: branch.daemon,
            parent: branch.parent.map(|parent| branches[usize::from(parent)].daemon),
            ranks: branch.ranks.clone(),
            linked: self.links.get(&branch.daemon).is_some_and(|link| link.linked),
        };
        branches.iter().map(info).collect()
    }
}
