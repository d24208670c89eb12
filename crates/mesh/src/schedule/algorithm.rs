//! The broadcast algorithms by name.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Bytes of a chunk where none is given.
pub(crate) const DEFAULT_CHUNK: u32 = 128 << 10;
/// Children of a node and one more, in a k-nomial tree, where nothing is given.
pub(crate) const DEFAULT_K: u32 = 4;

/// How a broadcast goes from rank to rank (the paper's sections 3.1, 4.2 and 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The root sends to each rank, one after the other: equation (1).
    Direct,
    /// Each rank sends the whole to the next: equation (2).
    Chain,
    /// A binomial tree: in each round, every rank that has the data sends it to one that has not;
    /// equation (3) with `k = 2`.
    Binomial,
    /// A k-nomial tree: in each round to `k - 1`; equation (3).
    Knomial {
        /// At least 2; 2 is the binomial tree.
        k: u32,
    },
    /// The root scatters parts along a binomial tree, which then go round a ring: equation (4).
    ScatterAllGather,
    /// A chain of chunks, each sent on while the next one comes: equation (5).
    PipelinedChain {
        /// Bytes of a chunk.
        chunk: u32,
    },
    /// The same in an order that enters and leaves each host once, and runs backwards inside a
    /// host, so that both directions of its links are busy (TA-PC, section 4.3).
    TopologyChain {
        /// Bytes of a chunk.
        chunk: u32,
    },
}

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no broadcast algorithm: choose direct, chain, binomial, knomial, \
     scatter-all-gather, pipelined-chain or topology-chain"
)]
pub struct UnknownAlgorithm(String);

impl Algorithm {
    /// All of them, with usual parameters.
    pub const ALL: [Self; 7] = [
        Self::Direct,
        Self::Chain,
        Self::Binomial,
        Self::Knomial { k: DEFAULT_K },
        Self::ScatterAllGather,
        Self::PipelinedChain { chunk: DEFAULT_CHUNK },
        Self::TopologyChain { chunk: DEFAULT_CHUNK },
    ];

    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Chain => "chain",
            Self::Binomial => "binomial",
            Self::Knomial { .. } => "knomial",
            Self::ScatterAllGather => "scatter-all-gather",
            Self::PipelinedChain { .. } => "pipelined-chain",
            Self::TopologyChain { .. } => "topology-chain",
        }
    }

    /// Bytes of a chunk, where it cuts any.
    #[must_use]
    pub const fn chunk(self) -> Option<u32> {
        match self {
            Self::PipelinedChain { chunk } | Self::TopologyChain { chunk } => Some(chunk),
            _ => None,
        }
    }

    /// The same with chunks of `chunk` bytes, where it cuts any.
    #[must_use]
    pub const fn with_chunk(self, chunk: u32) -> Self {
        match self {
            Self::PipelinedChain { .. } => Self::PipelinedChain { chunk },
            Self::TopologyChain { .. } => Self::TopologyChain { chunk },
            other => other,
        }
    }

    /// The `k` of a k-nomial tree.
    #[must_use]
    pub const fn k(self) -> Option<u32> {
        match self {
            Self::Knomial { k } => Some(k),
            _ => None,
        }
    }

    /// The same with another `k`, if it is a k-nomial tree.
    #[must_use]
    pub const fn with_k(self, k: u32) -> Self {
        match self {
            Self::Knomial { .. } => Self::Knomial { k },
            other => other,
        }
    }

    /// What is wrong with its parameter, if anything.
    pub(crate) fn problem(self) -> Option<String> {
        match self {
            Self::Knomial { k } if k < 2 => {
                Some(format!("k = {k}: a k-nomial tree wants 2 or more"))
            }
            Self::PipelinedChain { chunk: 0 } | Self::TopologyChain { chunk: 0 } => {
                Some("chunks of 0 bytes: choose some kilobytes".into())
            }
            _ => None,
        }
    }

    /// It as a number and its parameter.
    pub(crate) const fn code(self) -> (u8, u32) {
        match self {
            Self::Direct => (1, 0),
            Self::Chain => (2, 0),
            Self::Binomial => (3, 0),
            Self::Knomial { k } => (4, k),
            Self::ScatterAllGather => (5, 0),
            Self::PipelinedChain { chunk } => (6, chunk),
            Self::TopologyChain { chunk } => (7, chunk),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| UnknownAlgorithm(name.into()))
    }
}

/// Which ranks share a host: lists of ranks, each rank in one of them. And which of a host's ranks
/// are closer to each other than to the rest: modules, such as the sockets of a host and the cards
/// of a socket (section 4.3: CS-Storm has four modules of four GPUs a node).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    hosts: Vec<Vec<u16>>,
    /// By level, from the outermost in.
    modules: Vec<Vec<Vec<u16>>>,
}

impl Groups {
    /// Every rank on a host of its own.
    #[must_use]
    pub fn single(world_size: u16) -> Self {
        Self::of((0..world_size).map(|rank| vec![rank]).collect())
    }

    /// `size` ranks a host, numbered host by host; the last host may have fewer.
    #[must_use]
    pub fn of_size(world_size: u16, size: u16) -> Self {
        let ranks: Vec<u16> = (0..world_size).collect();
        Self::of(ranks.chunks(usize::from(size.max(1))).map(<[u16]>::to_vec).collect())
    }

    const fn of(hosts: Vec<Vec<u16>>) -> Self {
        Self { hosts, modules: Vec::new() }
    }

    /// The same, with modules inside those that there are: lists of ranks. A rank in none of them
    /// is a module by itself.
    ///
    /// # Errors
    /// A module that is empty, spreads over several of those around it, or has a rank of another,
    /// in words.
    pub fn with_modules(mut self, modules: Vec<Vec<u16>>) -> Result<Self, String> {
        let mut seen = BTreeSet::new();
        let around = self.modules.last().unwrap_or(&self.hosts);
        for module in &modules {
            let whole = around.iter().any(|outer| module.iter().all(|rank| outer.contains(rank)));
            if module.is_empty() || !whole || !module.iter().all(|rank| seen.insert(*rank)) {
                return Err(format!(
                    "the module {module:?}: its ranks must be of one host (of one module where \
                     modules are nested), and each rank in one module"
                ));
            }
        }
        self.modules.push(modules);
        Ok(self)
    }

    /// Lists of ranks.
    ///
    /// # Errors
    /// A rank that is missing, or in two places, in words.
    pub fn new(world_size: u16, groups: Vec<Vec<u16>>) -> Result<Self, String> {
        let mut all: Vec<u16> = groups.iter().flatten().copied().collect();
        all.sort_unstable();
        if !all.iter().copied().eq(0..world_size) || groups.iter().any(Vec::is_empty) {
            return Err(format!(
                "groups of the ranks {all:?}: each of 0 to {} must be in one group, and no group \
                 may be empty",
                world_size.saturating_sub(1)
            ));
        }
        Ok(Self::of(groups))
    }

    /// As the ranks say in order: each its host, and how many processes its launcher says are
    /// there. Where all say the same number and are numbered host by host, these are the groups;
    /// else all of a host.
    #[must_use]
    pub(crate) fn of_hosts(hosts: &[(&str, u16)]) -> Self {
        let world_size = hosts.len() as u16;
        let size = hosts.first().map_or(1, |(_, size)| *size).max(1);
        let alike = hosts.chunks(size.into()).all(|group| {
            group.len() == usize::from(size) && group.iter().all(|other| *other == group[0])
        });
        if alike {
            return Self::of_size(world_size, size);
        }
        let mut groups: Vec<(&str, Vec<u16>)> = Vec::new();
        for (rank, (host, _)) in (0..world_size).zip(hosts) {
            match groups.iter_mut().find(|(known, _)| known == host) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((host, vec![rank])),
            }
        }
        Self::of(groups.into_iter().map(|(_, ranks)| ranks).collect())
    }

    /// The groups.
    #[must_use]
    pub fn groups(&self) -> &[Vec<u16>] {
        &self.hosts
    }

    /// A rank of each host, in the hosts' order: the root of its own, of the others the first.
    #[must_use]
    pub fn heads(&self, root: u16) -> Vec<u16> {
        let head = |host: &Vec<u16>| if host.contains(&root) { root } else { host[0] };
        self.hosts.iter().map(head).collect()
    }

    /// The ranks with this one's place in their hosts, in the hosts' order, and its host's number.
    ///
    /// # Errors
    /// Hosts of several sizes, in words.
    pub(crate) fn fellows(&self, rank: u16) -> Result<(Vec<u16>, u16), String> {
        let size = self.hosts.first().map_or(0, Vec::len);
        if self.hosts.iter().any(|host| host.len() != size) {
            return Err("calls between hosts want equally many ranks on each of them".into());
        }
        let at = |host: &Vec<u16>| host.iter().position(|other| *other == rank);
        let (host, place) =
            (0..).zip(&self.hosts).find_map(|(n, host)| Some((n, at(host)?))).unwrap_or_default();
        Ok((self.hosts.iter().map(|host| host[place]).collect(), host))
    }

    /// The order of a topology-aware chain from this root: host by host, the root's first; inside a
    /// host from where it is entered backwards (section 4.3, Fig. 4: GPU 1 sends to GPU 4, and the
    /// chain leaves by GPU 2). Modules of a host follow each other backwards in the same way, and
    /// so do the ranks of each: it is entered and left once.
    #[must_use]
    pub fn chain(&self, root: u16) -> Vec<u16> {
        let home = self.hosts.iter().position(|group| group.contains(&root)).unwrap_or(0);
        let mut order = Vec::new();
        for i in 0..self.hosts.len() {
            self.walk(&self.hosts[(home + i) % self.hosts.len()], root, 0, &mut order);
        }
        order
    }

    /// Backwards through what modules of this level make of the ranks, from where the root is.
    fn walk(&self, ranks: &[u16], root: u16, level: usize, order: &mut Vec<u16>) {
        let Some(modules) = self.modules.get(level) else {
            let entry = ranks.iter().position(|rank| *rank == root).unwrap_or(0);
            order.extend((0..ranks.len()).map(|i| ranks[(entry + ranks.len() - i) % ranks.len()]));
            return;
        };
        let mut units: Vec<(Option<usize>, Vec<u16>)> = Vec::new();
        for rank in ranks {
            let module = modules.iter().position(|module| module.contains(rank));
            match units.iter_mut().find(|(known, _)| module.is_some() && *known == module) {
                Some((_, unit)) => unit.push(*rank),
                None => units.push((module, vec![*rank])),
            }
        }
        let entry = units.iter().position(|(_, unit)| unit.contains(&root)).unwrap_or(0);
        for i in 0..units.len() {
            let (_, unit) = &units[(entry + units.len() - i) % units.len()];
            self.walk(unit, root, level + 1, order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "tree".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.contains("binomial, knomial"), "{error}");
    }

    #[test]
    fn groups_are_the_processes_of_hosts() {
        let of = |hosts: &[(&str, u16)]| Groups::of_hosts(hosts).hosts;
        assert_eq!(of(&[("a", 2), ("a", 2), ("b", 2), ("b", 2)]), [[0, 1], [2, 3]]);
        assert_eq!(of(&[("a", 3), ("a", 3), ("a", 3), ("b", 1)]), [vec![0, 1, 2], vec![3]]);
        assert_eq!(of(&[("a", 2), ("b", 2), ("a", 2), ("b", 2)]), [[0, 2], [1, 3]]);
        // Hosts of a laboratory on one machine.
        assert_eq!(of(&[("a", 1), ("a", 1)]), [[0], [1]]);
        assert_eq!(of(&[("a", 0), ("b", u16::MAX)]), [[0], [1]]);
    }

    #[test]
    fn groups_have_every_rank_once() {
        assert!(Groups::new(3, vec![vec![0], vec![2, 1]]).is_ok());
        for wrong in [vec![vec![0, 1]], vec![vec![0, 1, 2], vec![2]], vec![vec![0, 1, 2], vec![]]] {
            assert!(Groups::new(3, wrong).is_err());
        }
        assert_eq!(Groups::of_size(5, 2).groups(), [vec![0, 1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn fellows_have_one_place_in_their_hosts() {
        let groups = Groups::of_size(6, 2);
        assert_eq!(groups.fellows(0), Ok((vec![0, 2, 4], 0)));
        assert_eq!(groups.fellows(5), Ok((vec![1, 3, 5], 2)));
        let mixed = Groups::new(4, vec![vec![2, 0], vec![1, 3]]).expect("each rank once");
        assert_eq!(mixed.fellows(0), Ok((vec![0, 3], 0)));
        assert_eq!(Groups::single(3).fellows(2), Ok((vec![0, 1, 2], 2)));
        assert!(Groups::of_size(5, 2).fellows(0).is_err());
    }

    /// Figure 4: four GPUs a host; the chain enters at the first and goes on to the last.
    #[test]
    fn a_topology_chain_runs_backwards_in_a_host() {
        let groups = Groups::of_size(8, 4);
        assert_eq!(groups.chain(0), [0, 3, 2, 1, 4, 7, 6, 5]);
        assert_eq!(groups.chain(6), [6, 5, 4, 7, 0, 3, 2, 1]);
        assert_eq!(Groups::single(3).chain(1), [1, 2, 0]);
    }

    /// CS-Storm: two sockets of two modules of four GPUs. Each is entered and left once.
    #[test]
    fn a_topology_chain_goes_through_a_module_at_a_time() {
        let four = |first: u16| (first..first + 4).collect::<Vec<u16>>();
        let sockets = vec![(0..8).collect(), (8..16).collect()];
        let nested = Groups::of_size(18, 16).with_modules(sockets.clone()).expect("sockets");
        let modules = [0, 4, 8, 12].map(four).to_vec();
        let nested = nested.with_modules(modules.clone()).expect("modules");
        let expected = [0, 3, 2, 1, 4, 7, 6, 5, 8, 11, 10, 9, 12, 15, 14, 13, 16, 17];
        assert_eq!(nested.chain(0), expected);
        // From the inside of a module: out of it last by its next rank.
        assert_eq!(nested.chain(13)[..8], [13, 12, 15, 14, 8, 11, 10, 9]);
        for outer in sockets.iter().chain(&modules) {
            let order = nested.chain(6);
            let inside: Vec<bool> = order.iter().map(|rank| outer.contains(rank)).collect();
            let entries = inside.windows(2).filter(|pair| !pair[0] && pair[1]).count();
            assert!(entries + usize::from(inside[0]) == 1, "{outer:?}: {order:?}");
        }
        let flat = Groups::of_size(18, 16);
        for wrong in [vec![vec![15, 16]], vec![vec![]], vec![vec![0, 1], vec![1, 2]]] {
            assert!(flat.clone().with_modules(wrong).is_err());
        }
    }
}
