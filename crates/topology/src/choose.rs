//! Strategy `auto`: which strategy is the fastest on a network by measured costs, and why.

mod job;

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::analysis::{Cable, End, Phase, Traffic, demands};
use crate::flows::Scheme;
use crate::model::{KnownCosts, Strategy, Topology};
use crate::plan::ring_order;

pub use job::{JOB_BYTES, JobChoice, NothingFits, for_job};

/// What was measured on the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Seconds from sending a message to the next one that waited for it, between two hosts over
    /// a daemon.
    pub message: f64,
    /// The same for a message of the TCP ring or a parameter server.
    pub tcp_message: f64,
    /// Seconds that a host's daemon takes for a byte that arrives.
    pub daemon_byte: f64,
    /// Seconds that a worker takes for a byte that it receives over TCP and adds.
    pub tcp_byte: f64,
}

/// What is assumed before anything is measured: 20 and 60 µs a message, 1.5 GB/s for a daemon and
/// 2.5 GB/s over TCP.
impl Default for Costs {
    fn default() -> Self {
        Self { message: 20e-6, tcp_message: 60e-6, daemon_byte: 1.0 / 1.5e9, tcp_byte: 1.0 / 2.5e9 }
    }
}

impl Costs {
    /// What the topology file says, and for the rest what is assumed.
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let (known, assumed) = (topology.costs, Self::default());
        Self {
            message: known.message.unwrap_or(assumed.message),
            tcp_message: known.tcp_message.unwrap_or(assumed.tcp_message),
            daemon_byte: known.daemon_byte.unwrap_or(assumed.daemon_byte),
            tcp_byte: known.tcp_byte.unwrap_or(assumed.tcp_byte),
        }
    }
}

impl KnownCosts {
    /// Where the costs come from, for people.
    #[must_use]
    pub fn origin(&self) -> &'static str {
        if self.are_complete() {
            "by measured costs"
        } else if *self == Self::default() {
            "by assumed costs"
        } else {
            "by costs measured in part"
        }
    }
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The strategy; never `auto`.
    pub strategy: Strategy,
    /// Why, in a sentence for people.
    pub reason: String,
    /// All that came into question, the fastest first.
    pub estimates: Vec<Estimate>,
    /// Those that did not.
    pub left_out: Vec<LeftOut>,
}

/// A strategy that does not come into question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The strategy.
    pub strategy: Strategy,
    /// What it lacks, for people.
    pub why: String,
}

/// All of them, in a line for people.
fn list(left_out: &[LeftOut]) -> String {
    let one = |LeftOut { strategy, why }: &LeftOut| format!("{strategy} ({why})");
    left_out.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What a strategy would take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The strategy.
    pub strategy: Strategy,
    /// Seconds of an all-reduce.
    pub seconds: f64,
    /// What most of it goes to.
    pub bound: String,
}

/// For which sizes a ring is faster than trees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Crossing {
    /// For none.
    Never,
    /// For all.
    Always,
    /// For at most this many bytes.
    UpTo(f64),
    /// For this many bytes and more.
    From(f64),
}

/// For people: which way which sizes go.
impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("all sizes: faster than a ring of the workers"),
            Self::Always => f.write_str("a ring of the workers is faster"),
            Self::UpTo(bytes) => {
                write!(f, "a ring of the workers up to {:.0} bytes", bytes.trunc())
            }
            Self::From(bytes) => {
                write!(f, "a ring of the workers above {:.0} bytes", bytes.trunc())
            }
        }
    }
}

/// Bytes of which the time for each byte is computed.
const SAMPLE: f64 = 1e9;

/// The strategies in question; of equally fast ones the first is chosen.
const CANDIDATES: [Strategy; 6] = [
    Strategy::Colocated,
    Strategy::Passing,
    Strategy::Rat,
    Strategy::Rina,
    Strategy::HAr,
    Strategy::Ring,
];

/// The fastest strategy for vectors of `bytes` bytes. Its time is that of the fullest link or the
/// busiest host of each phase, whichever is longer, and of the longest chain of messages.
///
/// Every process that knows the same network and costs chooses the same. A strategy does not come
/// into question if the network lacks its aggregators ([`Topology::check_agents`]), or if it takes
/// more jobs or slots (`slots_per_tree` for each tree) than an aggregator has. `ring` always does.
#[must_use]
pub fn choose(topology: &Topology, bytes: f64, costs: &Costs, slots_per_tree: u32) -> Choice {
    let mut left_out = Vec::new();
    let mut estimates = Vec::new();
    for strategy in CANDIDATES {
        let has_agents = topology.check_agents(strategy).map_err(|_| "no aggregator".into());
        let estimate = || estimate(topology, strategy, bytes, costs, slots_per_tree);
        match has_agents.and_then(|()| estimate()) {
            Ok(estimate) => estimates.push(estimate),
            Err(why) => left_out.push(LeftOut { strategy, why }),
        }
    }
    // Stable, so the order of the candidates decides between equals.
    estimates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let Some(first) = estimates.first() else {
        let reason = "nothing else works on this network".into();
        return Choice { strategy: Strategy::Ring, reason, estimates, left_out };
    };
    let strategy = first.strategy;
    let mut reason =
        format!("about {} ms for {bytes:.0} bytes, {}", ms(first.seconds), first.bound);
    if let Some(next) = estimates.get(1) {
        let (name, time, bound) = (next.strategy, ms(next.seconds), &next.bound);
        // Writing to a string does not fail.
        let _ = write!(reason, "; next {name}: {time} ms, {bound}");
    }
    if !left_out.is_empty() {
        let _ = write!(reason, "; not possible: {}", list(&left_out));
    }
    Choice { strategy, reason, estimates, left_out }
}

/// For which sizes a ring of the workers in the order of their ranks is faster than the trees of
/// `strategy`, by the same model. Before a ring the workers agree on the call by a round trip over
/// a daemon.
///
/// # Errors
/// Why the ring never comes into question: the ranks are not numbered region by region, or the
/// strategy has no plan.
pub fn against_ring(
    topology: &Topology,
    strategy: Strategy,
    costs: &Costs,
    slots_per_tree: u32,
) -> Result<Crossing, String> {
    if ring_order(topology).iter().enumerate().any(|(i, r)| i != usize::from(*r)) {
        return Err("the ranks are not numbered region by region".into());
    }
    // Both are linear in the size: a time for the messages, and one for each byte.
    let line = |strategy| -> Result<(f64, f64), String> {
        let at = |bytes| estimate(topology, strategy, bytes, costs, slots_per_tree);
        let (none, some) = (at(0.0)?.seconds, at(SAMPLE)?.seconds);
        Ok((none, (some - none) / SAMPLE))
    };
    let (trees, mut ring) = (line(strategy)?, line(Strategy::Ring)?);
    ring.0 += 2.0 * costs.message;
    let later = (ring.0 - trees.0) / (trees.1 - ring.1);
    Ok(match (ring.0 < trees.0, ring.1 < trees.1) {
        (true, true) => Crossing::Always,
        (true, false) if later.is_finite() => Crossing::UpTo(later),
        (false, true) if later.is_finite() => Crossing::From(later),
        (true, false) => Crossing::Always,
        _ => Crossing::Never,
    })
}

fn ms(seconds: f64) -> String {
    format!("{:.3}", seconds * 1e3)
}

fn estimate(
    topology: &Topology,
    strategy: Strategy,
    bytes: f64,
    costs: &Costs,
    slots_per_tree: u32,
) -> Result<Estimate, String> {
    let scheme = Scheme::of(topology, strategy).map_err(|_| "no aggregator".to_owned())?;
    if let Scheme::Forest(forest) = &scheme {
        for demand in demands(topology, forest, slots_per_tree) {
            let name = &demand.name;
            if demand.jobs_missing() > 0 {
                return Err(format!("{} jobs too many at {name}", demand.jobs_missing()));
            }
            if demand.missing() > 0 {
                return Err(format!("{} slots are missing at {name}", demand.missing()));
            }
        }
    }
    let traffic = Traffic::of(topology, &scheme, bytes);
    let (message, byte) = if strategy.is_forest() {
        (costs.message, costs.daemon_byte)
    } else {
        (costs.tcp_message, costs.tcp_byte)
    };
    let chain = traffic.chain as f64 * message;
    let hosts = || traffic.phases.iter().map(|phase| phase.arriving * byte);
    let longer = |(phase, host): (&Phase, f64)| phase.seconds.max(host);
    let transfer: f64 = traffic.phases.iter().zip(hosts()).map(longer).sum();
    let fuller = |a, b| if Cable::seconds(b) > Cable::seconds(a) { b } else { a };
    let fullest = traffic.cables.iter().reduce(fuller);
    let bound = if chain > transfer {
        format!("most of it a chain of {} messages", traffic.chain)
    } else if hosts().sum::<f64>() > traffic.seconds {
        "bound by the hosts that add".into()
    } else {
        let bound = fullest.map_or("nothing to send".into(), bound_by);
        match traffic.phases.len() {
            0 | 1 => bound,
            phases => format!("{bound}, the fullest over {phases} phases"),
        }
    };
    Ok(Estimate { strategy, seconds: transfer + chain, bound })
}

fn bound_by(cable: &Cable) -> String {
    let what = match cable.end {
        End::Region => "the uplink of",
        End::Host => "the link of",
        End::Aggregator => "the link of the aggregator of",
    };
    format!("bound by {what} {} ({})", cable.name, cable.rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn racks(ratio: f64, racks: usize) -> Topology {
        sample::racks(racks, 4, ratio)
    }

    #[test]
    fn one_rack_is_colocated() {
        let choice = choose(&racks(1.0, 1), 97e6, &Costs::default(), 16);
        assert_eq!(choice.strategy, Strategy::Colocated, "{}", choice.reason);
        assert!(choice.reason.contains("passing (no aggregator)"), "{}", choice.reason);
    }

    #[test]
    fn narrow_uplinks_want_trees() {
        let choice = choose(&racks(8.0, 2), 97e6, &Costs::default(), 16);
        assert_eq!(choice.strategy, Strategy::Rat, "{}", choice.reason);
        assert!(choice.reason.contains("uplink of rack"), "{}", choice.reason);
    }

    #[test]
    fn phases_that_cannot_overlap_add_up() {
        // Both are bound by the hosts' links, but hierarchical rings leave them for the uplinks.
        let choice = choose(&racks(4.0, 2), 97e6, &Costs::default(), 16);
        let of = |strategy| choice.estimates.iter().position(|e| e.strategy == strategy);
        assert!(of(Strategy::Ring) < of(Strategy::HAr), "{:?}", choice.estimates);
        let rings = choice.estimates.iter().find(|e| e.strategy == Strategy::HAr).expect("rings");
        assert!(rings.bound.ends_with("the fullest over 2 phases"), "{}", rings.bound);
        // 3/4 of the vector out of each host twice, then half of it out of each rack, twice.
        let links = (1.5 + 1.0) * 97e6 / 1.25e9;
        let chain = 8.0 * Costs::default().tcp_message;
        assert!((rings.seconds - links - chain).abs() < 1e-9, "{}", rings.seconds);
    }

    #[test]
    fn what_a_daemon_cannot_hold_is_left_out() {
        let mut network = racks(4.0, 2);
        for host in &mut network.hosts {
            host.slots = Some(20);
        }
        let choice = choose(&network, 97e6, &Costs::default(), 16);
        assert_ne!(choice.strategy, Strategy::Rat);
        assert!(choice.reason.contains("rat (12 slots are missing at h0)"), "{}", choice.reason);
        let choice = choose(&racks(4.0, 16), 97e6, &Costs::default(), 16);
        assert!(choice.reason.contains("rina (16 jobs too many"), "{}", choice.reason);
    }

    #[test]
    fn a_rack_without_agent_sends_too_much_for_rat() {
        let mut network = racks(8.0, 2);
        let chosen = |network: &Topology| choose(network, 97e6, &Costs::default(), 16);
        let rat = |choice: &Choice| {
            let mut all = choice.estimates.iter();
            all.find(|estimate| estimate.strategy == Strategy::Rat).map(|it| it.seconds)
        };
        let before = rat(&chosen(&network)).expect("it is possible");
        network.hosts[4..].iter_mut().for_each(|host| host.daemon = None);
        let choice = chosen(&network);
        let after = rat(&choice).expect("it is possible");
        assert!(after > 2.0 * before, "a copy a worker: {after} s, and {before} s before");
        assert_ne!(choice.strategy, Strategy::Rat);
    }

    #[test]
    fn the_costs_decide() {
        let slow = Costs { daemon_byte: 1e-7, ..Costs::default() };
        let choice = choose(&racks(1.0, 1), 97e6, &slow, 16);
        assert!(!choice.strategy.is_forest(), "{}", choice.reason);
        assert!(choice.estimates.iter().any(|e| e.bound == "bound by the hosts that add"));
        let choice = choose(&racks(1.0, 1), 4096.0, &Costs::default(), 16);
        assert!(choice.reason.contains("chain of 2 messages"), "{}", choice.reason);
    }

    #[test]
    fn measured_costs_take_the_place_of_assumed_ones() {
        let mut network = racks(1.0, 1);
        assert_eq!(Costs::of(&network), Costs::default());
        assert_eq!(network.costs.origin(), "by assumed costs");
        network.costs.daemon_byte = Some(1e-7);
        let costs = Costs::of(&network);
        assert_eq!(costs, Costs { daemon_byte: 1e-7, ..Costs::default() });
        assert_eq!(network.costs.origin(), "by costs measured in part");
        assert!(!choose(&network, 97e6, &costs, 16).strategy.is_forest());
    }

    #[test]
    fn a_ring_takes_over_where_its_bytes_are_cheaper() {
        let network = racks(1.0, 1);
        let cross = |costs: &Costs| against_ring(&network, Strategy::Colocated, costs, 16);
        // Links of 10 Gbit/s are what both wait for: 2(N-1)/N vectors. The ring has more messages.
        assert_eq!(cross(&Costs::default()), Ok(Crossing::Never));
        let slow = Costs { daemon_byte: 1e-8, ..Costs::default() };
        let Ok(Crossing::From(bytes)) = cross(&slow) else { panic!("{:?}", cross(&slow)) };
        for (bytes, ring) in [(bytes * 0.99, false), (bytes * 1.01, true)] {
            let all = choose(&network, bytes, &slow, 16).estimates;
            let of =
                |strategy| all.iter().find(|e| e.strategy == strategy).map_or(0.0, |e| e.seconds);
            let agreed = of(Strategy::Ring) + 2.0 * slow.message;
            assert_eq!(agreed < of(Strategy::Colocated), ring, "{all:?}");
        }
        // Messages over daemons that take a hundred times as long, and trees of two levels.
        let network = racks(8.0, 2);
        let cross = |costs: &Costs| against_ring(&network, Strategy::Rat, costs, 16);
        let far = Costs { message: 1e-3, ..Costs::default() };
        assert!(matches!(cross(&far), Ok(Crossing::UpTo(_))), "{:?}", cross(&far));
        let far = Costs { daemon_byte: 1e-8, ..far };
        assert_eq!(cross(&far), Ok(Crossing::Always));
    }

    #[test]
    fn a_ring_that_crosses_the_racks_too_often_is_none() {
        let mut network = racks(4.0, 2);
        for (index, host) in network.hosts.iter_mut().enumerate() {
            host.region = Some(index % 2);
        }
        let error = against_ring(&network, Strategy::Rat, &Costs::default(), 16);
        assert!(error.expect_err("they alternate").contains("region by region"));
    }
}
