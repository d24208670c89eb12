//! Aggregators from a topology: the planner's trees as daemons to connect to.

use std::fs::File;
use std::net::SocketAddrV4;
use std::sync::Arc;

use xdp_agg_common::control::{Branch, Tree};
use xdp_agg_topology::analysis::{demands, shortfall};
use xdp_agg_topology::choose::{JobChoice, for_job};
use xdp_agg_topology::file::bounded;
use xdp_agg_topology::plan::ring_order;
use xdp_agg_topology::{Forest, Site, Strategy, Topology, TopologyFile};

use super::{Builder, Chooser, Chosen, Source, Target};
use crate::error::Error;

/// Slots of a tree that are assumed where none are asked for: the daemon's default.
const SLOTS: u32 = 1024;

/// A setting that was wrong, under the name of its variable.
fn wrong(name: &'static str) -> impl Fn(String) -> Error {
    move |problem| Error::Config { name, problem }
}

/// `XDP_AGG_STRATEGY`.
fn of_job(text: &str) -> Result<Strategy, Error> {
    let wrong = wrong("XDP_AGG_STRATEGY");
    let Ok(strategy) = text.parse::<Strategy>() else {
        let names = Strategy::OF_JOBS.map(Strategy::name).join(", ");
        return Err(wrong(format!("{text:?} is no strategy of a job; expected one of {names}")));
    };
    strategy.of_job().map_err(|error| wrong(error.to_string()))
}

impl Builder {
    /// Sums over the aggregators of a network, as its strategy says; `strategy` is laid over it.
    /// The same at all workers: each computes the same plan. Ranks of the topology are hosts.
    ///
    /// `auto` chooses trees by the network's links and the file's costs for vectors of 25 MiB.
    /// Where all costs were measured, all-reduces of the sizes for which a ring of the workers is
    /// faster go round the ring. The tuning table's rules for all-reduce come before it. A strategy
    /// that is given here is kept to for all sizes. What was chosen and why is in the log, and in
    /// [`Communicator::chosen`](crate::Communicator::chosen).
    ///
    /// # Errors
    /// A strategy that needs no aggregators (`ring`, `h-ar`, `ps`: these are other systems), or
    /// finds none in this network; a plan for which an aggregator has not enough slots, by the file
    /// and by [`Self::slots`] so far.
    pub fn topology(self, topology: &Topology, strategy: Option<Strategy>) -> Result<Self, Error> {
        self.plan_on(Source::Given(Arc::new(topology.clone())), strategy)
    }

    fn plan_on(mut self, source: Source, strategy: Option<Strategy>) -> Result<Self, Error> {
        let wrong = wrong("XDP_AGG_TOPOLOGY");
        let topology = &source.topology().clone().inferred();
        match strategy {
            Some(strategy) => drop(strategy.of_job().map_err(|error| wrong(error.to_string()))?),
            None => source.check_job().map_err(&wrong)?,
        }
        let (strategy, reason) = match strategy.unwrap_or(topology.strategy) {
            Strategy::Auto => {
                let slots = self.slots.unwrap_or(SLOTS);
                let choice = for_job(topology, slots).map_err(|error| wrong(error.to_string()))?;
                let JobChoice { strategy, reason, ring } = choice;
                self.chooser = Chooser::Auto(ring);
                (strategy, reason)
            }
            named if strategy.is_some() => {
                self.chooser = Chooser::Caller;
                (named, "the caller or XDP_AGG_STRATEGY wants it".into())
            }
            of_file => {
                self.chooser = Chooser::File;
                (of_file, "the topology file wants it".into())
            }
        };
        let name = strategy.name().into();
        self.chosen = Chosen { strategy: name, reason, all_reduce: Vec::new() };
        source.check_agents(strategy).map_err(&wrong)?;
        let forest = Forest::plan(topology, strategy).map_err(|error| wrong(error.to_string()))?;
        let slots = self.slots.unwrap_or(SLOTS);
        let needed = demands(topology, &forest, slots);
        if let Some(missing) = shortfall(&needed, slots, "XDP_AGG_JOB_SLOTS") {
            return Err(wrong(missing));
        }
        let trees = forest.trees.iter().map(|tree| target(topology, tree));
        self.aggregators = trees.collect::<Result<_, _>>().map_err(wrong)?;
        self.ring_order = ring_order(topology);
        self.source = Some(source);
        Ok(self)
    }

    /// The same from a topology file and the name of a strategy.
    pub(super) fn read_topology(self, path: &str, strategy: Option<&str>) -> Result<Self, Error> {
        let wrong = wrong("XDP_AGG_TOPOLOGY");
        let text = File::open(path)
            .and_then(bounded)
            .map_err(|error| wrong(format!("{path:?} cannot be read: {error}")))?;
        let file = TopologyFile::parse(&text).map_err(|error| wrong(format!("{path}: {error}")))?;
        let strategy = strategy.map(of_job).transpose()?;
        self.plan_on(Source::File(path.into(), Arc::new(file)), strategy)
    }
}

/// A planned tree as the daemons to speak to.
fn target(topology: &Topology, tree: &xdp_agg_topology::Tree) -> Result<Target, String> {
    let daemon = |site: Site| -> Result<SocketAddrV4, String> {
        let (name, control) = match site {
            Site::Host(host) => {
                let host = &topology.hosts[host];
                (&host.name, host.daemon)
            }
            Site::Region(region) => {
                let region = &topology.regions[region];
                (&region.name, region.aggregator.as_ref().map(|aggregator| aggregator.control))
            }
        };
        control.ok_or_else(|| format!("{name} is to aggregate and has no daemon"))
    };
    let root = daemon(tree.nodes[0].site)?;
    let branches = tree.nodes.iter().skip(1).map(|node| {
        // Parents come before children there, too; the root is not a branch.
        let parent = node.parent.filter(|parent| *parent > 0).map(|parent| parent as u16 - 1);
        let spares = node.spares.iter().map(|site| daemon(*site)).collect::<Result<_, String>>()?;
        Ok(Branch { spares, ..Branch::new(daemon(node.site)?, parent, node.ranks.clone()) })
    });
    let tree = Tree { branches: branches.collect::<Result<_, String>>()? };
    Ok(Target { tree, ..Target::new(root.into()) })
}

#[cfg(test)]
mod tests {
    use super::super::Place;
    use super::*;
    use crate::error::JobError;

    const RACKS: &str = r#"
        name = "two racks"
        [job]
        strategy = "rat"
        [defaults]
        rate = "10gbit"
        [[region]]
        name = "r0"
        uplink = "10gbit"
        aggregator = "10.0.0.201:9870"
        [[region]]
        name = "r1"
        uplink = "10gbit"
        aggregator = "10.0.0.202:9870"
        [[host]]
        name = "a"
        rank = 0
        address = "10.0.0.1"
        region = "r0"
        [[host]]
        name = "b"
        rank = 1
        address = "10.0.0.2"
        region = "r0"
        [[host]]
        name = "c"
        rank = 2
        address = "10.0.0.3"
        region = "r1"
        [[host]]
        name = "d"
        rank = 3
        address = "10.0.0.4"
        region = "r1"
    "#;

    fn builder(strategy: Option<Strategy>) -> Result<Builder, Error> {
        let topology = Topology::parse(RACKS).expect("a topology");
        Builder::default().topology(&topology, strategy)
    }

    #[test]
    fn trees_of_racks_are_daemons_to_speak_to() {
        let builder = builder(None).expect("a plan");
        let [first, second] = &builder.aggregators[..] else { panic!("two trees") };
        assert_eq!(first.address.to_string(), "10.0.0.201:9870");
        assert_eq!(second.address.to_string(), "10.0.0.202:9870");
        let [branch] = &first.tree.branches[..] else { panic!("one branch") };
        assert_eq!((branch.daemon.to_string(), branch.parent), ("10.0.0.202:9870".into(), None));
        assert_eq!(branch.ranks, [2, 3]);
        // The hosts of its rack stand in for it, in the other tree those of the other rack.
        let spares = |branch: &Branch| branch.spares.iter().map(|at| *at.ip()).collect::<Vec<_>>();
        assert_eq!(spares(branch), [[10, 0, 0, 3], [10, 0, 0, 4]].map(std::net::Ipv4Addr::from));
        let other = &second.tree.branches[0];
        assert_eq!(spares(other), [[10, 0, 0, 2], [10, 0, 0, 1]].map(std::net::Ipv4Addr::from));
        assert_eq!(builder.ring_order, [0, 1, 2, 3]);
        assert_eq!(first.tree.check(4), Ok(()));
        assert_eq!(first.serving(3).to_string(), "10.0.0.202:9870");
        assert_eq!(first.serving(0), first.address);
    }

    #[test]
    fn the_workers_own_interface_is_looked_for() {
        let named = RACKS.replace("[defaults]", "[defaults]\n        interface = \"nosuch0\"");
        let place = |hosts| Place {
            rank: 2,
            world_size: hosts,
            local_rank: 0,
            local_size: 1,
            host: 2,
            hosts,
        };
        let check = |text: &str, hosts| {
            let file = Arc::new(TopologyFile::parse(text).expect("a topology"));
            let builder = Builder::default().plan_on(Source::File("f.toml".into(), file), None);
            builder.expect("a plan").check_own_host(&place(hosts)).map_err(|e| e.to_string())
        };
        let said = check(&named, 4).expect_err("it does not exist");
        assert!(said.contains("f.toml: line 6: interface \"nosuch0\" of host \"c\""), "{said}");
        assert_eq!(check(&named.replace("nosuch0", "lo"), 4), Ok(()));
        assert_eq!(check(&named, 8), Ok(()), "which host this is, is not known");
        let topology = Topology::parse(&named).expect("a topology");
        let given = Builder::default().topology(&topology, None).expect("a plan");
        let said = given.check_own_host(&place(4)).expect_err("it does not exist").to_string();
        assert!(said.contains("the topology \"two racks\": interface \"nosuch0\""), "{said}");
    }

    #[test]
    fn every_host_may_sum_its_share() {
        let builder = builder(Some(Strategy::Colocated)).expect("a plan");
        assert_eq!(builder.aggregators.len(), 4);
        assert!(builder.aggregators.iter().all(|target| target.tree.is_single()));
    }

    #[test]
    fn auto_says_why() {
        let topology = Topology::parse(RACKS).expect("a topology");
        let auto =
            |slots| Builder::default().slots(slots).topology(&topology, Some(Strategy::Auto));
        let builder = auto(SLOTS).expect("a plan");
        assert!(!builder.aggregators.is_empty());
        assert!(builder.chosen.reason.contains("ms for"), "{:?}", builder.chosen);
    }

    #[test]
    fn a_plan_that_does_not_fit_says_how_many_slots_are_missing() {
        let few = RACKS.replace(
            "9870\"\n        [[region]]",
            "9870\"\n        aggregator_slots = 1500\n        [[region]]",
        );
        let topology = Topology::parse(&few).expect("a topology");
        let error = Builder::default().topology(&topology, None).expect_err("two trees a rack");
        assert!(error.to_string().contains("r0: 548 slots are missing of 2048. Give"), "{error}");
        assert!(Builder::default().slots(512).topology(&topology, None).is_ok());
    }

    #[test]
    fn auto_that_fits_no_aggregator_says_what_each_strategy_lacks() {
        let few = RACKS.replace("rate = \"10gbit\"", "rate = \"10gbit\"\n        slots = 100");
        let few = few.replace("9870\"\n", "9870\"\n        aggregator_slots = 100\n");
        let few = Topology::parse(&few).expect("a topology");
        let error = Builder::default().topology(&few, Some(Strategy::Auto)).expect_err("100 slots");
        let said = error.to_string();
        assert!(said.contains("colocated (924 slots are missing at a)"), "{said}");
        assert!(said.contains("passing (924 slots are missing at r0)"), "{said}");
        assert!(!said.contains("h-ar"), "{said}");
    }

    #[test]
    fn workers_of_a_rack_without_daemon_are_members_of_another_group() {
        let alone = RACKS.replace("        aggregator = \"10.0.0.202:9870\"\n", "");
        let alone = alone.replace("[defaults]", "[defaults]\n        daemon = false");
        let plan = |strategy| {
            let file = Arc::new(TopologyFile::parse(&alone).expect("a topology"));
            Builder::default().plan_on(Source::File("f.toml".into(), file), Some(strategy))
        };
        for strategy in [Strategy::Rat, Strategy::Rina] {
            let builder = plan(strategy).expect("r0 has an aggregator");
            let [target] = &builder.aggregators[..] else { panic!("one tree") };
            assert!(target.tree.is_single(), "{strategy}");
        }
        let said = plan(Strategy::Colocated).expect_err("there are no daemons").to_string();
        assert!(said.contains("f.toml: line 16: strategy colocated needs"), "{said}");
    }

    #[test]
    fn the_ring_of_a_lost_aggregator_keeps_the_racks_order() {
        let mixed = RACKS
            .replace("10.0.0.2\"\n        region = \"r0\"", "10.0.0.2\"\n        region = \"r1\"");
        let mixed = mixed
            .replace("10.0.0.3\"\n        region = \"r1\"", "10.0.0.3\"\n        region = \"r0\"");
        let topology = Topology::parse(&mixed).expect("a topology");
        let builder = Builder::default().topology(&topology, None).expect("a plan");
        assert_eq!(builder.ring_order, [0, 2, 1, 3]);
    }

    #[test]
    fn a_daemon_that_cannot_be_reached_is_named_as_the_topology_does() {
        let builder = builder(None).expect("a plan");
        let said = |address: &str| {
            let address = address.parse().expect("an address");
            let reason = "connection refused".into();
            builder
                .explain(Error::Job(JobError::Unreachable { address, reason, of: None }))
                .to_string()
        };
        let root = said("10.0.0.201:9870");
        assert!(root.contains("no aggregator at 10.0.0.201:9870 (connection refused), "), "{root}");
        assert!(root.contains("region \"r0\" of the topology \"two racks\""), "{root}");
        assert!(!root.contains("XDP_AGG_ADDR"), "{root}");
        assert!(said("10.0.0.3:9870").contains("host \"c\" of the topology"));
        assert!(said("10.0.0.9:9870").contains("XDP_AGG_ADDR"), "the topology has no such one");
    }

    #[test]
    fn what_needs_no_aggregator_is_refused() {
        let said = |file: &str, strategy| {
            let file = Arc::new(TopologyFile::parse(file).expect("a topology"));
            let plan = Builder::default().plan_on(Source::File("f.toml".into(), file), strategy);
            plan.expect_err("no trees").to_string()
        };
        let error = said(RACKS, Some(Strategy::Ring));
        assert!(error.contains("ring is a baseline") && !error.contains("line 4"), "{error}");
        let error = said(&RACKS.replace("\"rat\"", "\"h-ar\""), None);
        assert!(error.contains("f.toml: line 4: strategy h-ar is a baseline"), "{error}");
        assert!(error.contains("`xdp-agg-bench --strategy h-ar`"), "{error}");
        for (name, words) in
            [("ps", "ps is a baseline"), ("foo", "\"foo\" is no strategy of a job")]
        {
            let error = of_job(name).expect_err(name).to_string();
            assert!(error.contains("XDP_AGG_STRATEGY: ") && error.contains(words), "{error}");
            assert!(!error.contains("expected auto, colocated, rat, rina, passing, atp, h-ar"));
        }
        assert_eq!(of_job("atp").expect("it is one"), Strategy::Atp);
    }
}
