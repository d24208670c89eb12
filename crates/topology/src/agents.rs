//! Whether a network has the aggregators that a strategy needs.

use std::fmt;

use serde::Serialize;

use crate::model::{Strategy, Topology};

/// What a network lacks for a strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lack {
    /// There is not a single aggregator that the strategy can use.
    #[error("strategy {0} needs an aggregator; {remedy}", remedy = remedy(*.0))]
    Aggregator(Strategy),
}

/// What gives a strategy its first aggregator.
pub(crate) const fn remedy(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Passing => "give a region an `aggregator`",
        Strategy::Colocated | Strategy::Atp => "run a daemon on a host",
        _ => "give a region an `aggregator`, or run a daemon on a host",
    }
}

impl Topology {
    /// Whether a strategy has the aggregators that it needs: at least one. Racks without any are no
    /// obstacle ([`Self::bare_racks`]).
    ///
    /// # Errors
    /// What is missing.
    pub fn check_agents(&self, strategy: Strategy) -> Result<(), Lack> {
        let regions = || self.regions.iter().any(|region| region.aggregator.is_some());
        let daemons = || self.hosts.iter().any(|host| host.daemon.is_some());
        let has = match strategy {
            Strategy::Passing => regions(),
            Strategy::Colocated | Strategy::Atp => daemons(),
            Strategy::Rat | Strategy::Rina => regions() || daemons(),
            Strategy::Auto | Strategy::HAr | Strategy::Ring | Strategy::Ps => true,
        };
        if has { Ok(()) } else { Err(Lack::Aggregator(strategy)) }
    }

    /// The racks that a strategy would sum in themselves, and in which nothing aggregates. Their
    /// workers send to an aggregator outside, as members of its group: unprivileged, and a copy
    /// each. In the order of the regions; none for other strategies than `rat` and `rina`.
    #[must_use]
    pub fn bare_racks(&self, strategy: Strategy) -> Vec<BareRack> {
        let narrow = self.oversubscribed();
        let mut bare = Vec::new();
        for (index, region) in self.regions.iter().enumerate() {
            let wanted = match strategy {
                Strategy::Rina => true,
                Strategy::Rat => narrow[index],
                _ => false,
            };
            // A region of regions has none of its own: each of those counts by itself.
            let inside: Vec<_> =
                self.hosts.iter().filter(|host| host.region == Some(index)).collect();
            let mut around = self.around(Some(index));
            let equipped = around.any(|near| self.regions[near].aggregator.is_some());
            let staffed = equipped || inside.iter().any(|host| host.daemon.is_some());
            if let Some(host) = inside.first().filter(|_| wanted && !staffed && inside.len() > 1) {
                let (region, host) = (region.name.clone(), host.name.clone());
                bare.push(BareRack { region, workers: inside.len(), host });
            }
        }
        bare
    }
}

/// A rack in which nothing aggregates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BareRack {
    /// The region.
    pub region: String,
    /// Workers in it: as many copies leave it, where one would with an aggregator.
    pub workers: usize,
    /// A host of it, which could run a daemon.
    pub host: String,
}

impl fmt::Display for BareRack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { region, workers, host } = self;
        write!(
            f,
            "region {region:?} has {workers} workers and no aggregator: each sends a copy to the \
             next one outside; with `xdp-agg serve --engine userspace` on host {host:?}, which \
             needs no privileges, one copy leaves"
        )
    }
}
