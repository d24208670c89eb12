//! Jobs whose sums go through several aggregators: a tree of daemons (RAT, Rina, co-located).
//!
//! Workers have a control connection to the daemon at the root alone. That daemon leads the job. To
//! the other daemons of the tree, its *branches*, it opens control connections of its own. It tells
//! them which ranks they serve and where their sums go. Cookie, epoch, block numbers, slots and
//! ranks are the same in the whole tree; a branch contributes to its parent under the lowest rank
//! below it.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

use super::words;
use crate::maps::ResultMode;
use crate::wire::MAX_WORKERS;

/// Most daemons of a tree besides its root.
pub const MAX_BRANCHES: usize = MAX_WORKERS - 1;
/// Most daemons that may stand in for a branch.
pub const MAX_SPARES: usize = 4;

/// How the daemons of a job are connected. The same from all its workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// The daemons besides the root; parents come before their children.
    pub branches: Vec<Branch>,
}

/// A daemon that forwards the sums of its members to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Its control address, as the root reaches it. Data goes to the same IP address.
    pub daemon: SocketAddrV4,
    /// The branch that its sums go to: an index into [`Tree::branches`]. None: the root.
    pub parent: Option<u16>,
    /// Ranks that send to it directly. Those that no branch names send to the root.
    pub ranks: Vec<u16>,
    /// Daemons of its rack that take its place while it is lost, the first of them that is there.
    /// They are no branches of this tree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<SocketAddrV4>,
}

impl Branch {
    /// A branch that nobody stands in for.
    #[must_use]
    pub const fn new(daemon: SocketAddrV4, parent: Option<u16>, ranks: Vec<u16>) -> Self {
        Self { daemon, parent, ranks, spares: Vec::new() }
    }
}

/// What is wrong with a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// More daemons than there can be ranks behind them.
    #[error("a tree of {0} branches: at most {MAX_BRANCHES} are possible")]
    TooMany(usize),
    /// A parent that is not an earlier branch.
    #[error(
        "branch {index} ({daemon}) has branch {parent} as its parent: an earlier one is expected, \
         so that there is no cycle"
    )]
    Order {
        /// The branch.
        index: usize,
        /// Its daemon.
        daemon: SocketAddrV4,
        /// What it names as its parent.
        parent: u16,
    },
    /// One daemon in two places.
    #[error("the daemon {0} is named twice in one tree: every aggregator has one place in it")]
    Twice(SocketAddrV4),
    /// More daemons for one place than any rack needs.
    #[error(
        "branch {index} ({daemon}) has {count} daemons that may stand in for it: at most \
         {MAX_SPARES} are possible"
    )]
    Spares {
        /// The branch.
        index: usize,
        /// Its daemon.
        daemon: SocketAddrV4,
        /// How many it names.
        count: usize,
    },
    /// A rank that is at two branches, or that the job does not have.
    #[error(
        "rank {rank} at branch {index}: each rank below the world size of {world_size} is at one \
         branch at most"
    )]
    Rank {
        /// The rank.
        rank: u16,
        /// The branch.
        index: usize,
        /// Ranks are below it.
        world_size: u16,
    },
    /// Nobody contributes there.
    #[error("branch {index} ({daemon}) has no rank below it: leave it out")]
    Empty {
        /// The branch.
        index: usize,
        /// Its daemon.
        daemon: SocketAddrV4,
    },
}

impl Tree {
    /// True for a job of one aggregator.
    #[must_use]
    pub const fn is_single(&self) -> bool {
        self.branches.is_empty()
    }

    /// Checks that it is a tree over the ranks below `world_size`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, world_size: u16) -> Result<(), TreeError> {
        if self.branches.len() > MAX_BRANCHES {
            return Err(TreeError::TooMany(self.branches.len()));
        }
        let mut seen = 0_u64;
        for (index, branch) in self.branches.iter().enumerate() {
            let Branch { daemon, parent, ranks, spares } = branch;
            if let Some(parent) = *parent
                && usize::from(parent) >= index
            {
                return Err(TreeError::Order { index, daemon: *daemon, parent });
            }
            if self.branches[..index].iter().any(|other| other.daemon == *daemon) {
                return Err(TreeError::Twice(*daemon));
            }
            if spares.len() > MAX_SPARES {
                let count = spares.len();
                return Err(TreeError::Spares { index, daemon: *daemon, count });
            }
            let mut others = self.branches.iter().map(|branch| branch.daemon);
            if let Some(twice) = others.find(|other| spares.contains(other)) {
                return Err(TreeError::Twice(twice));
            }
            for rank in ranks.iter().copied() {
                let bit = 1_u64.checked_shl(rank.into()).unwrap_or(0);
                if rank >= world_size || seen & bit != 0 {
                    return Err(TreeError::Rank { rank, index, world_size });
                }
                seen |= bit;
            }
        }
        let empty = (0..self.branches.len()).find(|index| self.below(*index) == 0);
        match empty {
            Some(index) => Err(TreeError::Empty { index, daemon: self.branches[index].daemon }),
            None => Ok(()),
        }
    }

    /// The ranks that a branch serves directly, as bits.
    #[must_use]
    pub fn leaves(&self, index: usize) -> u64 {
        let ranks = self.branches.get(index).map_or(&[][..], |branch| &branch.ranks);
        ranks.iter().fold(0, |bits, rank| bits | 1 << (rank & 63))
    }

    /// All ranks below a branch, as bits.
    #[must_use]
    pub fn below(&self, index: usize) -> u64 {
        let children = self.children(Some(index)).map(|child| self.below(child));
        children.fold(self.leaves(index), |bits, child| bits | child)
    }

    /// The branches whose sums go to this one, or to the root.
    pub fn children(&self, of: Option<usize>) -> impl Iterator<Item = usize> {
        let parent = |branch: &Branch| branch.parent.map(usize::from);
        let branches = self.branches.iter().enumerate();
        branches.filter(move |(_, branch)| parent(branch) == of).map(|(index, _)| index)
    }

    /// The branch that a rank sends to. None: the root.
    #[must_use]
    pub fn branch_of(&self, rank: u16) -> Option<usize> {
        self.branches.iter().position(|branch| branch.ranks.contains(&rank))
    }

    /// The tree of the ranks that are left: `members` as bits. Branches without ranks go. A branch
    /// for which `lost` holds is replaced by the first of its spares for which it does not hold.
    /// Where there is none, what was below the branch goes to its parent. The tree names no spares.
    #[must_use]
    pub fn pruned(&self, members: u64, lost: impl Fn(SocketAddrV4) -> bool) -> Self {
        // By old index: the new one, or that of the branch that takes over what comes from there.
        let mut moved: Vec<Option<u16>> = Vec::new();
        let mut pruned = Self::default();
        for (index, branch) in self.branches.iter().enumerate() {
            let parent = branch.parent.and_then(|parent| moved[usize::from(parent)]);
            let mut ranks = branch.ranks.clone();
            ranks.retain(|rank| members >> (rank & 63) & 1 == 1);
            let is_free = |daemon: &&SocketAddrV4| {
                !lost(**daemon) && pruned.branches.iter().all(|other| other.daemon != **daemon)
            };
            let daemon = std::iter::once(&branch.daemon).chain(&branch.spares).find(is_free);
            if let Some(daemon) = daemon.filter(|_| self.below(index) & members != 0) {
                moved.push(Some(pruned.branches.len() as u16));
                pruned.branches.push(Branch::new(*daemon, parent, ranks));
                continue;
            }
            if let Some(parent) = parent {
                pruned.branches[usize::from(parent)].ranks.extend(ranks);
            }
            moved.push(parent);
        }
        pruned
    }
}

/// What the root of a tree says to one of its branches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum BranchRequest {
    /// Take part in a job: keep slots for it. The reservation ends with the connection.
    Serve {
        /// Name of the job.
        job: String,
        /// Ranks are below it.
        world_size: u16,
        /// Slots of the pool.
        slots: u32,
    },
    /// An epoch begins: learn the paths.
    Prepare(BranchSetup),
    /// All paths are learned: sum and forward.
    Start {
        /// The epoch.
        epoch: u16,
        /// How results shall go out. None: as the branch likes.
        mode: Option<ResultMode>,
    },
    /// The epoch is over.
    Stop,
    /// Which members' contributions to this block are missing?
    Missing {
        /// Block number.
        block: u64,
    },
    /// When did members last contribute?
    Heard {
        /// Of the question.
        number: u64,
    },
}

/// An epoch as a branch needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchSetup {
    /// Membership number.
    pub epoch: u16,
    /// Random number of the epoch.
    pub cookie: u64,
    /// Block size in chunks.
    pub chunks: u16,
    /// The members that contribute here: ranks, with their data addresses.
    pub members: Vec<(u16, SocketAddrV4)>,
    /// Which of these are branches themselves, as bits.
    pub forwarders: u64,
    /// Where sums go.
    pub uplink: Uplink,
}

/// Where a branch's sums go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// The parent's data address.
    pub data: SocketAddrV4,
    /// Index of the job there.
    pub job_id: u16,
    /// The rank under which the branch contributes there.
    pub rank: u16,
}

/// Members on their aggregator's own host, which send to an address of their own: packets to the
/// address that the others use would not reach its data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalMembers {
    /// Their ranks, as bits.
    pub ranks: u64,
    /// Where they send to.
    pub data: SocketAddrV4,
}

impl LocalMembers {
    /// Whether a rank is one of them.
    #[must_use]
    pub const fn has(&self, rank: u16) -> bool {
        rank < 64 && self.ranks >> rank & 1 == 1
    }
}

/// What a branch says to the root of its tree. Refusals are [`super::Reply::Error`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum BranchReply {
    /// Answer to [`BranchRequest::Serve`].
    Serving {
        /// Index of the job on this branch.
        job_id: u16,
        /// Where its members send to.
        data: SocketAddrV4,
        /// Largest block that it takes, in chunks.
        max_chunks: u16,
        /// The last epoch number that was used here: the job's must be later.
        last_epoch: u16,
        /// A random number of the daemon's process: one may have several addresses.
        daemon: u64,
        /// Its members are to send packet by packet ([`super::Admitted::single_packets`]).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        single_packets: bool,
    },
    /// Answer to [`BranchRequest::Prepare`]: this epoch's number was used here; take a later one.
    Used {
        /// The epoch that was wanted.
        epoch: u16,
        /// The last number that was used.
        last_epoch: u16,
    },
    /// Answer to [`BranchRequest::Prepare`].
    Prepared {
        /// The epoch.
        epoch: u16,
        /// The workers on the branch's own host. None: its address is the same for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        local: Option<LocalMembers>,
    },
    /// The parent has answered a probe: the way up is open.
    Linked {
        /// The epoch.
        epoch: u16,
    },
    /// Answer to [`BranchRequest::Start`].
    Started {
        /// The epoch.
        epoch: u16,
        /// How results go out.
        mode: ResultMode,
        /// The group to join, in [`ResultMode::Multicast`].
        group: Option<SocketAddrV4>,
    },
    /// The engine could not prepare or start this epoch.
    Failed {
        /// The epoch.
        epoch: u16,
        /// Why, in words.
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
    },
    /// Answer to [`BranchRequest::Missing`].
    Missing {
        /// Block number.
        block: u64,
        /// The members that are awaited, as bits.
        ranks: u64,
    },
    /// Answer to [`BranchRequest::Heard`].
    Heard {
        /// Of the question.
        number: u64,
        /// The epoch in which they contribute.
        epoch: u16,
        /// Milliseconds since the last contribution of each member, by rank. None: not in this
        /// epoch. A member that is not named is not known.
        ranks: Vec<(u16, Option<u64>)>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(host: u8) -> SocketAddrV4 {
        SocketAddrV4::new([10, 0, 0, host].into(), super::super::CONTROL_PORT)
    }

    fn branch(host: u8, parent: Option<u16>, ranks: &[u16]) -> Branch {
        Branch::new(daemon(host), parent, ranks.to_vec())
    }

    /// Root with rank 0; branch 0 with 1 and 2, below it branch 1 with 3, and branch 2 with 4.
    fn tree() -> Tree {
        let branches =
            vec![branch(1, None, &[1, 2]), branch(2, Some(0), &[3]), branch(3, None, &[4])];
        Tree { branches }
    }

    #[test]
    fn a_tree_knows_who_is_below_whom() {
        let tree = tree();
        assert_eq!(tree.check(5), Ok(()));
        assert_eq!((tree.below(0), tree.below(1), tree.below(2)), (0b1110, 0b1000, 0b10000));
        assert_eq!(tree.leaves(0), 0b110);
        assert_eq!(tree.children(None).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(tree.children(Some(0)).collect::<Vec<_>>(), [1]);
        assert_eq!((tree.branch_of(0), tree.branch_of(3)), (None, Some(1)));
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        let with = |change: fn(&mut Tree)| {
            let mut tree = tree();
            change(&mut tree);
            tree.check(5)
        };
        assert!(matches!(with(|t| t.branches[0].parent = Some(1)), Err(TreeError::Order { .. })));
        assert!(matches!(with(|t| t.branches[0].parent = Some(0)), Err(TreeError::Order { .. })));
        assert!(matches!(with(|t| t.branches[2].daemon = daemon(1)), Err(TreeError::Twice(_))));
        assert!(matches!(with(|t| t.branches[2].ranks = vec![3]), Err(TreeError::Rank { .. })));
        assert!(matches!(with(|t| t.branches[2].ranks = vec![5]), Err(TreeError::Rank { .. })));
        assert!(matches!(with(|t| t.branches[2].ranks = vec![64]), Err(TreeError::Rank { .. })));
        assert!(matches!(with(|t| t.branches[1].ranks.clear()), Err(TreeError::Empty { .. })));
        let spares = |hosts: &[u8]| -> Vec<_> { hosts.iter().copied().map(daemon).collect() };
        let mut other = tree();
        other.branches[0].spares = spares(&[9, 3]);
        assert_eq!(other.check(5), Err(TreeError::Twice(daemon(3))), "a branch of its own");
        other.branches[0].spares = spares(&[1]);
        assert_eq!(other.check(5), Err(TreeError::Twice(daemon(1))), "its own");
        other.branches[0].spares = spares(&[9; MAX_SPARES]);
        assert_eq!(other.check(5), Ok(()));
        other.branches[0].spares.push(daemon(10));
        assert!(matches!(other.check(5), Err(TreeError::Spares { index: 0, count: 5, .. })));
        let many = Tree { branches: vec![branch(1, None, &[0]); MAX_BRANCHES + 1] };
        assert!(matches!(many.check(64), Err(TreeError::TooMany(_))));
    }

    #[test]
    fn a_branch_tells_of_its_own_workers_if_there_are_any() {
        let prepared = |local| BranchReply::Prepared { epoch: 3, local };
        let json = |reply: &BranchReply| serde_json::to_string(reply).expect("plain data");
        assert_eq!(json(&prepared(None)), r#"{"step":"prepared","epoch":3}"#);
        let data = SocketAddrV4::new([169, 254, 109, 1].into(), 48864);
        let local = LocalMembers { ranks: 0b101, data };
        let text =
            r#"{"step":"prepared","epoch":3,"local":{"ranks":5,"data":"169.254.109.1:48864"}}"#;
        assert_eq!(json(&prepared(Some(local))), text);
        for (text, local) in [(text, Some(local)), (r#"{"step":"prepared","epoch":3}"#, None)] {
            let read: BranchReply = serde_json::from_str(text).expect("it is one");
            assert_eq!(read, prepared(local));
        }
        assert!(local.has(2) && !local.has(1) && !local.has(64));
    }

    #[test]
    fn a_spare_takes_the_place_of_what_is_lost() {
        let mut tree = tree();
        tree.branches[0].spares = vec![daemon(8), daemon(9)];
        tree.branches[2].spares = vec![daemon(8)];
        let at = |lost: &[u8]| -> Vec<_> {
            let lost: Vec<_> = lost.iter().copied().map(daemon).collect();
            let pruned = tree.pruned(0b11111, |at| lost.contains(&at));
            assert_eq!(pruned.check(5), Ok(()));
            let last = |b: &Branch| (b.daemon.ip().octets()[3], b.parent, b.ranks.clone());
            pruned.branches.iter().map(last).collect()
        };
        let (one, two) = (|host| (host, None, vec![1, 2]), (2, Some(0), vec![3]));
        let three = |host| (host, None, vec![4]);
        assert_eq!(at(&[1]), [one(8), two.clone(), three(3)]);
        assert_eq!(at(&[1, 8]), [one(9), two.clone(), three(3)]);
        // Nobody is at two places: the second one has no other spare, and its rank goes up.
        assert_eq!(at(&[1, 3]), [one(8), two.clone()]);
        assert_eq!(at(&[1, 8, 9]), [(2, None, vec![3]), three(3)]);
        assert_eq!(at(&[3]), [one(1), two, three(8)]);
        // A branch that nobody is below is not replaced.
        assert_eq!(tree.pruned(0b10001, |at| at == daemon(1)).branches.len(), 1);
    }

    #[test]
    fn a_branch_without_spares_is_said_as_before() {
        let json = |branch: &Branch| serde_json::to_string(branch).expect("plain data");
        let mut one = branch(1, None, &[2]);
        let before = r#"{"daemon":"10.0.0.1:9870","parent":null,"ranks":[2]}"#;
        assert_eq!(json(&one), before);
        assert_eq!(serde_json::from_str::<Branch>(before).expect("it is one"), one);
        one.spares.push(daemon(9));
        assert_eq!(serde_json::from_str::<Branch>(&json(&one)).expect("it is one"), one);
    }

    #[test]
    fn what_is_lost_leaves_its_ranks_to_its_parent() {
        // Branch 0 is lost: 1 and 2 send to the root, and branch 1 forwards there.
        let pruned = tree().pruned(0b11111, |at| at == daemon(1));
        let branches = vec![branch(2, None, &[3]), branch(3, None, &[4])];
        assert_eq!(pruned, Tree { branches });
        // Branch 1 is lost: its rank sends to branch 0.
        let pruned = tree().pruned(0b11111, |at| at == daemon(2));
        let branches = vec![branch(1, None, &[1, 2, 3]), branch(3, None, &[4])];
        assert_eq!(pruned, Tree { branches });
        // Ranks 3 and 4 are lost: their branches have nothing to do.
        let pruned = tree().pruned(0b00111, |_| false);
        assert_eq!(pruned, Tree { branches: vec![branch(1, None, &[1, 2])] });
        // Branch 0 forwards for branch 1 alone.
        let pruned = tree().pruned(0b01001, |_| false);
        let branches = vec![branch(1, None, &[]), branch(2, Some(0), &[3])];
        assert_eq!(pruned, Tree { branches });
        assert_eq!(pruned.check(5), Ok(()));
    }
}
