//! The regions that matter to a strategy, without those that do not.

use crate::model::{Site, Strategy, Topology};

/// The tree of what is aggregated together: the first scope is the core, the others are regions.
#[derive(Debug)]
pub(super) struct Scopes<'a> {
    pub(super) topology: &'a Topology,
    scopes: Vec<Scope>,
    workers: Vec<u16>,
}

/// A region that is aggregated, or the core.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Scopes within this one.
    pub(super) children: Vec<usize>,
    /// Workers within this scope and no inner one, ascending.
    pub(super) ranks: Vec<u16>,
    /// Where it can be aggregated, by the lowest rank there.
    pub(super) sites: Vec<Site>,
}

impl<'a> Scopes<'a> {
    pub(super) fn of(topology: &'a Topology, strategy: Strategy) -> Self {
        let workers = topology.hosts.iter().map(|host| host.rank).collect();
        let mut scopes = Self { topology, scopes: vec![Scope::default()], workers };
        let matters = scopes.matter(strategy);
        let mut scope_of = Vec::with_capacity(topology.regions.len());
        for (index, region) in topology.regions.iter().enumerate() {
            let around = region.parent.map_or(0, |parent| scope_of[parent]);
            let own = if matters[index] { scopes.open(around) } else { around };
            scope_of.push(own);
        }
        for rank in scopes.workers.clone() {
            let region = topology.hosts[usize::from(rank)].region;
            let scope = region.map_or(0, |region| scope_of[region]);
            scopes.scopes[scope].ranks.push(rank);
        }
        for (index, scope) in scope_of.iter().enumerate() {
            if matters[index] && scopes.has_aggregator(index) {
                scopes.scopes[*scope].sites = vec![Site::Region(index)];
            }
        }
        scopes.collect_sites();
        scopes
    }

    /// The core.
    pub(super) fn core(&self) -> &Scope {
        &self.scopes[0]
    }

    pub(super) fn get(&self, scope: usize) -> &Scope {
        &self.scopes[scope]
    }

    /// All ranks, ascending.
    pub(super) fn workers(&self) -> &[u16] {
        &self.workers
    }

    /// How many ranks are in the region.
    pub(super) fn workers_within(&self, region: usize) -> usize {
        let within = |&&rank: &&u16| self.topology.is_within(usize::from(rank), region);
        self.workers.iter().filter(within).count()
    }

    pub(super) fn has_aggregator(&self, region: usize) -> bool {
        self.topology.regions[region].aggregator.is_some()
    }

    pub(super) fn has_daemon(&self, rank: u16) -> bool {
        let host = usize::from(rank);
        self.topology.hosts[host].daemon.is_some()
    }

    /// Whether each region is aggregated where an aggregator is at hand: if it has two workers or
    /// more, and an aggregator or (`rat`) less uplink than its hosts can fill.
    fn matter(&self, strategy: Strategy) -> Vec<bool> {
        let topology = self.topology;
        let mut workers = vec![0_usize; topology.regions.len()];
        for &rank in &self.workers {
            for region in topology.around(topology.hosts[usize::from(rank)].region) {
                workers[region] += 1;
            }
        }
        let narrow = topology.oversubscribed();
        let worth = |region| match strategy {
            Strategy::Rat => narrow[region] || self.has_aggregator(region),
            Strategy::Rina | Strategy::Atp => self.has_aggregator(region),
            _ => false,
        };
        let regions = workers.into_iter().enumerate();
        regions.map(|(region, workers)| workers > 1 && worth(region)).collect()
    }

    fn open(&mut self, around: usize) -> usize {
        self.scopes.push(Scope::default());
        let scope = self.scopes.len() - 1;
        self.scopes[around].children.push(scope);
        scope
    }

    /// A scope without an aggregator of its own has the sites of all that is in it.
    fn collect_sites(&mut self) {
        let mut lowest = vec![u16::MAX; self.scopes.len()];
        for index in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[index];
            let below = scope.children.iter().map(|&child| lowest[child]);
            let low = below.chain(scope.ranks.iter().copied()).min().unwrap_or(u16::MAX);
            lowest[index] = low;
            if !scope.sites.is_empty() {
                continue;
            }
            let daemons = scope.ranks.iter().filter(|&&rank| self.has_daemon(rank));
            let mut sites: Vec<_> =
                daemons.map(|&rank| (rank, Site::Host(usize::from(rank)))).collect();
            for &child in &scope.children {
                for &site in &self.scopes[child].sites {
                    let rank = match site {
                        Site::Host(host) => self.topology.hosts[host].rank,
                        Site::Region(_) => lowest[child],
                    };
                    sites.push((rank, site));
                }
            }
            sites.sort_unstable();
            self.scopes[index].sites = sites.into_iter().map(|(_, site)| site).collect();
        }
    }
}
