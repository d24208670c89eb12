//! Whether a network has the aggregators that a strategy needs.

use crate::model::{Strategy, Topology};

/// What a network lacks for a strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lack {
    /// Neither a region nor a host in it aggregates.
    #[error(
        "region {region:?} has {workers} workers and no agent for strategy {strategy}: it has no \
         `aggregator`, and host {host:?} has no daemon; give the region an `aggregator`, or run a \
         daemon on a host of it"
    )]
    Agent {
        /// The region.
        region: String,
        /// Workers in it.
        workers: usize,
        /// The strategy that wants one.
        strategy: Strategy,
        /// A host that nobody aggregates.
        host: String,
    },
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
    /// Whether a strategy has the aggregators that it needs: at least one, and `rat` and `rina` one
    /// in each rack that is to be summed in itself.
    ///
    /// # Errors
    /// What is missing; the first, in the order of the regions.
    pub fn check_agents(&self, strategy: Strategy) -> Result<(), Lack> {
        if matches!(strategy, Strategy::Rat | Strategy::Rina) {
            self.check_racks(strategy)?;
        }
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

    fn check_racks(&self, strategy: Strategy) -> Result<(), Lack> {
        let narrow = self.oversubscribed();
        for (index, region) in self.regions.iter().enumerate() {
            let inside: Vec<_> =
                self.hosts.iter().filter(|host| host.region == Some(index)).collect();
            let mut around = self.around(Some(index));
            let equipped = around.any(|near| self.regions[near].aggregator.is_some());
            let staffed = equipped || inside.iter().any(|host| host.daemon.is_some());
            let wanted = strategy == Strategy::Rina || narrow[index];
            if let Some(host) = inside.first().filter(|_| wanted && !staffed && inside.len() > 1) {
                return Err(Lack::Agent {
                    region: region.name.clone(),
                    workers: inside.len(),
                    strategy,
                    host: host.name.clone(),
                });
            }
        }
        Ok(())
    }
}
