//! What a plan costs: bytes on every cable, the least time, the chain of dependencies, slots.

use serde::Serialize;
use xdp_agg_common::maps::MAX_JOBS;

use crate::flows::{Flow, Scheme, load};
use crate::graph::{Network, NodeKind};
use crate::model::{Strategy, Topology};
use crate::plan::{Forest, PlanError, Site};
use crate::units::Rate;

/// Traffic of an all-reduce on a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// Every cable: uplinks first, then the hosts' and the aggregators' links.
    pub cables: Vec<Cable>,
    /// Bytes that leave over-subscribed regions, summed over the regions; one inside another
    /// counts for itself.
    pub crossing: f64,
    /// Messages of a chain of which each waits for the one before.
    pub chain: usize,
    /// What is done one after the other; see [`Scheme::phases`].
    pub phases: Vec<Phase>,
    /// Seconds that the fullest link of each phase needs, with nothing but the data on it, all
    /// phases together. It takes no less.
    pub seconds: f64,
}

/// A part of an all-reduce that begins when the one before it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Seconds that its fullest link needs.
    pub seconds: f64,
    /// Most bytes that arrive at a host to be added. An aggregator of a region adds at the rate of
    /// its links.
    pub arriving: f64,
}

/// A cable, and what goes over it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cable {
    /// What it connects to the rest of the network.
    pub end: End,
    /// Name of that region or host.
    pub name: String,
    /// Rate of each direction.
    pub rate: Rate,
    /// Bytes towards the core.
    pub up: f64,
    /// Bytes from the core.
    pub down: f64,
}

/// What a cable connects to the rest of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// A region: its uplink.
    Region,
    /// A worker's host.
    Host,
    /// The host of a region's aggregator.
    Aggregator,
}

impl Cable {
    /// Seconds that the fuller direction needs.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.up.max(self.down) / self.rate.bytes()
    }
}

impl Traffic {
    /// The traffic of a scheme on a network with `bytes` a worker, without headers.
    #[must_use]
    pub fn of(topology: &Topology, scheme: &Scheme, bytes: f64) -> Self {
        let network = Network::of(topology);
        let mut loads = vec![0.0; network.links().len()];
        let mut phases = Vec::new();
        for flows in scheme.phases(bytes) {
            let own = load(&network, &flows);
            let links = own.iter().zip(network.links());
            let seconds = links.map(|(bytes, link)| bytes / link.capacity.bytes());
            let seconds = seconds.fold(0.0, f64::max);
            phases.push(Phase { seconds, arriving: busiest(topology, &flows) });
            loads.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        }
        let mut cables = Vec::new();
        // The uplinks are the first cables, in the order of the regions.
        for (index, pair) in network.links().chunks(2).enumerate() {
            let (end, name) = match network.nodes()[pair[0].from] {
                NodeKind::Switch => (End::Region, &topology.regions[index].name),
                NodeKind::Host(host) => (End::Host, &topology.hosts[host].name),
                NodeKind::Aggregator(region) => (End::Aggregator, &topology.regions[region].name),
            };
            let (up, down) = (loads[2 * index], loads[2 * index + 1]);
            let (name, rate) = (name.clone(), pair[0].capacity);
            cables.push(Cable { end, name, rate, up, down });
        }
        let narrow = topology.oversubscribed();
        let uplinks = cables.iter().zip(narrow).filter(|(_, narrow)| *narrow);
        let crossing = uplinks.map(|(cable, _)| cable.up).sum();
        let seconds = phases.iter().map(|phase| phase.seconds).sum();
        Self { cables, crossing, chain: scheme.chain(), phases, seconds }
    }
}

/// Most bytes that arrive at a host.
fn busiest(topology: &Topology, flows: &[Flow]) -> f64 {
    let mut arriving = vec![0.0; topology.hosts.len()];
    for flow in flows {
        if let Site::Host(host) = flow.to {
            arriving[host] += flow.bytes;
        }
    }
    arriving.into_iter().fold(0.0, f64::max)
}

/// The fewest bytes that can leave the over-subscribed regions, counted as in
/// [`Traffic::crossing`]. Each region sums what is in it, outer regions come before inner ones,
/// and the result comes back the same way. It does not depend on where the sum is completed if
/// all regions are alike; otherwise it is that of the best place.
#[must_use]
pub fn least_crossing(topology: &Topology, bytes: f64) -> f64 {
    let narrow = topology.oversubscribed();
    let regions = topology.regions.len();
    // The last is the core. Regions that do not matter are part of the one around them.
    let mut inner: Vec<Vec<usize>> = vec![Vec::new(); regions + 1];
    let mut middle = vec![false; regions + 1];
    let mut staffed = vec![false; regions + 1];
    let mut scope = Vec::with_capacity(regions);
    for (index, region) in topology.regions.iter().enumerate() {
        let around = region.parent.map_or(regions, |parent: usize| scope[parent]);
        scope.push(if narrow[index] { index } else { around });
        if narrow[index] {
            inner[around].push(index);
        }
        middle[scope[index]] |= region.aggregator.is_some();
    }
    for host in &topology.hosts {
        middle[host.region.map_or(regions, |region| scope[region])] = true;
        for region in topology.around(host.region) {
            staffed[region] = true;
        }
    }
    let mut crossings = 0;
    // Regions between a region's aggregator and the region's border.
    let mut depth = vec![0; regions + 1];
    for index in (0..=regions).rev() {
        // The core is done last, although it is around all others.
        let index = if index == 0 { regions } else { index - 1 };
        let below: Vec<_> = inner[index].iter().filter(|&&region| staffed[region]).collect();
        let nearest = below.iter().map(|&&region| depth[region] + 1).min();
        let own = if middle[index] { 0 } else { nearest.unwrap_or(0) };
        depth[index] = own;
        let edges: usize = below.iter().map(|&&region| depth[region] + 1 + own).sum();
        // The region that the middle is in need not send to itself.
        crossings += edges.saturating_sub(2 * own);
    }
    crossings as f64 * bytes
}

/// Slots that a plan takes at an aggregator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Demand {
    /// The aggregator.
    pub site: Site,
    /// Name of its host or region.
    pub name: String,
    /// Trees that it is in; each is a job of its own there.
    pub trees: usize,
    /// Slots that they take together.
    pub slots: u64,
    /// Slots that it has, if that is known.
    pub has: Option<u32>,
}

impl Demand {
    /// Slots that are missing; 0 if there are enough or nobody said how many there are.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.has.map_or(0, |has| self.slots.saturating_sub(has.into()))
    }

    /// Jobs that are more than a daemon holds.
    #[must_use]
    pub const fn jobs_missing(&self) -> usize {
        self.trees.saturating_sub(MAX_JOBS)
    }
}

/// What aggregators lack for a plan with `slots_per_tree` slots a tree, and what to do; None: it
/// fits. `fewer` is the setting that gives a tree fewer slots.
#[must_use]
pub fn shortfall(demands: &[Demand], slots_per_tree: u32, fewer: &str) -> Option<String> {
    let (mut slots, mut jobs) = (Vec::new(), Vec::new());
    for demand in demands {
        let (name, trees, wanted) = (&demand.name, demand.trees, demand.slots);
        if demand.missing() > 0 {
            slots.push(format!("{name}: {} slots are missing of {wanted}", demand.missing()));
        }
        if demand.jobs_missing() > 0 {
            jobs.push(format!("{name}: {trees} jobs are needed, a daemon holds {MAX_JOBS}"));
        }
    }
    let mut remedies = Vec::new();
    if !slots.is_empty() {
        remedies.push(format!(
            "Give the daemons more --slots (`slots` in the file), each tree fewer ({fewer}), or \
             choose another strategy"
        ));
    }
    if !jobs.is_empty() {
        let text = "Slots do not help against too many jobs: each tree is one at each of its \
                    aggregators. Choose a strategy with fewer trees there (`rat` has one for each \
                    rack, `colocated` one), or give racks an `aggregator`";
        remedies.push(text.to_owned());
    }
    let missing: Vec<_> = slots.into_iter().chain(jobs).collect();
    let (missing, remedies) = (missing.join("; "), remedies.join(". "));
    (!missing.is_empty()).then(|| {
        format!(
            "the plan does not fit its aggregators, with {slots_per_tree} slots a tree; {missing}. \
             {remedies}"
        )
    })
}

/// What every aggregator of a plan has to hold if each tree has `slots_per_tree` slots at each of
/// its aggregators; by site.
#[must_use]
pub fn demands(topology: &Topology, forest: &Forest, slots_per_tree: u32) -> Vec<Demand> {
    let mut trees = std::collections::BTreeMap::new();
    for node in forest.trees.iter().flat_map(|tree| &tree.nodes) {
        *trees.entry(node.site).or_insert(0) += 1;
    }
    let demand = |(site, trees): (Site, usize)| {
        let has = match site {
            Site::Host(host) => topology.hosts[host].slots,
            Site::Region(region) => topology.regions[region].aggregator.as_ref()?.slots,
        };
        let name = topology.name_of(site).to_owned();
        let slots = trees as u64 * u64::from(slots_per_tree);
        Some(Demand { site, name, trees, slots, has })
    };
    trees.into_iter().filter_map(demand).collect()
}

/// A row of table 1 of paper 2, computed for a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The scheme.
    pub scheme: &'static str,
    /// Bytes that leave over-subscribed regions.
    pub crossing: f64,
    /// That, over the least possible; 1 if nothing has to leave any.
    pub times_least: f64,
    /// Whether the paper says that it is the least; None: not in the paper's table.
    pub paper_says: Option<bool>,
    /// The paper's formula of the dependency chain.
    pub formula: &'static str,
    /// Its value here.
    pub chain: f64,
    /// Seconds that the fullest link of each phase needs, all phases together.
    pub seconds: f64,
}

impl Comparison {
    /// Whether no scheme can send less across regions.
    #[must_use]
    pub fn is_least(&self) -> bool {
        self.times_least < 1.0 + 1e-9
    }
}

/// Arity of the tree of [`table1`]'s row `k-nomial`.
pub const K_NOMIAL: usize = 4;

/// Table 1 of paper 2 for a network, with the strategies of papers 1 and 3 that it allows. The
/// bytes are those of the schemes on this network with its ranks; the dependency chains are the
/// paper's formulas.
#[must_use]
pub fn table1(topology: &Topology, bytes: f64) -> Vec<Comparison> {
    let ranks: Vec<_> = topology.hosts.iter().map(|host| host.rank).collect();
    let w = topology.world() as f64;
    let narrow = topology.oversubscribed();
    let levels = |host: &crate::Host| topology.around(host.region).filter(|&r| narrow[r]).count();
    let l = topology.hosts.iter().map(levels).max().unwrap_or(0) as f64;
    let racks = crate::plan::racks(topology);
    let widest = racks.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let strategy = |strategy| Scheme::of(topology, strategy);
    let groups = |scheme: &Result<Scheme, PlanError>| match scheme {
        Ok(Scheme::Forest(forest)) => forest.trees.len() as f64,
        _ => 1.0,
    };
    let rina = strategy(Strategy::Rina);
    let steps = 2.0 * (groups(&rina) - 1.0);
    let log_k = w.log2() / (K_NOMIAL as f64).log2();
    let rows = [
        ("ps", strategy(Strategy::Ps), Some(false), "2", 2.0),
        ("ring", strategy(Strategy::Ring), Some(true), "2(w-1)", 2.0 * (w - 1.0)),
        ("butterfly", Ok(Scheme::Butterfly(ranks.clone())), Some(false), "log2 w", w.log2()),
        (
            "halving-doubling",
            Ok(Scheme::HalvingDoubling(ranks.clone())),
            Some(false),
            "2 log2 w",
            2.0 * w.log2(),
        ),
        ("4-nomial", Ok(Scheme::KNomial(ranks, K_NOMIAL)), Some(false), "2 log4 w", 2.0 * log_k),
        (
            "blueconnect",
            Ok(Scheme::blue_connect(topology)),
            Some(true),
            "2(l+max w_i)",
            2.0 * (l + widest),
        ),
        ("plink", Scheme::plink(topology), Some(false), "4", 4.0),
        ("rat", strategy(Strategy::Rat), Some(true), "2(l+1)", 2.0 * (l + 1.0)),
        ("rina", rina, None, "2(G-1)", steps),
        ("colocated", strategy(Strategy::Colocated), None, "2", 2.0),
        ("passing", strategy(Strategy::Passing), None, "2", 2.0),
        (
            "h-ar",
            strategy(Strategy::HAr),
            None,
            "2(max w_i + racks - 2)",
            2.0 * (widest + racks.len() as f64 - 2.0),
        ),
    ];
    let least = least_crossing(topology, bytes);
    let compare = |(scheme, plan, paper_says, formula, chain): (_, Result<Scheme, _>, _, _, _)| {
        let Traffic { crossing, seconds, .. } = Traffic::of(topology, &plan.ok()?, bytes);
        let times_least = if least > 0.0 { crossing / least } else { 1.0 };
        Some(Comparison { scheme, crossing, times_least, paper_says, formula, chain, seconds })
    };
    rows.into_iter().filter_map(compare).collect()
}
