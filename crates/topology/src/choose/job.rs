//! What a job takes whose strategy is `auto`: the best that works by aggregators.

use super::{Costs, Crossing, LeftOut, against_ring, choose, list, ms};
use crate::model::{Strategy, Topology};

/// Bytes of the vectors that a job's strategy is chosen for: a bucket of gradients as data-parallel
/// training makes them.
pub const JOB_BYTES: f64 = 25.0 * 1024.0 * 1024.0;

/// The strategy that a job takes.
#[derive(Clone, Debug, PartialEq)]
pub struct JobChoice {
    /// One that is carried out by aggregators.
    pub strategy: Strategy,
    /// Why, in a sentence for people.
    pub reason: String,
    /// For which sizes a ring of the workers is faster, or why that is not asked.
    pub ring: Result<Crossing, String>,
}

/// No strategy of aggregators fits the network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "auto finds no strategy whose plan fits the aggregators, with {slots} slots a tree; not \
     possible: {}. Give a host a daemon or a region an `aggregator`, or those that are there more \
     slots (`xdp-agg serve --slots`, and the file's `slots`), or the job fewer (XDP_AGG_JOB_SLOTS)",
    list(.left_out)
)]
pub struct NothingFits {
    /// Slots of each tree at each of its aggregators.
    pub slots: u32,
    /// What each strategy lacks.
    pub left_out: Vec<LeftOut>,
}

/// The strategy of a job on a network, for vectors of [`JOB_BYTES`]. Where TCP between the workers
/// would be the fastest, the best of the others.
///
/// # Errors
/// [`NothingFits`]: what each strategy lacks.
pub fn for_job(topology: &Topology, slots_per_tree: u32) -> Result<JobChoice, NothingFits> {
    let choice = choose(topology, JOB_BYTES, &Costs::of(topology), slots_per_tree);
    let origin = topology.costs.origin();
    let Some(best) = choice.estimates.iter().find(|estimate| estimate.strategy.is_forest()) else {
        return Err(NothingFits { slots: slots_per_tree, left_out: choice.left_out });
    };
    let reason = if best.strategy == choice.strategy {
        format!("auto {origin}: {}", choice.reason)
    } else {
        format!(
            "auto {origin}: about {} ms for {JOB_BYTES:.0} bytes, {}, the best that works by \
             aggregators; {} over TCP: {}",
            ms(best.seconds),
            best.bound,
            choice.strategy,
            choice.reason
        )
    };
    let strategy = best.strategy;
    Ok(JobChoice { strategy, reason, ring: crossing(topology, strategy, slots_per_tree) })
}

fn crossing(topology: &Topology, strategy: Strategy, slots: u32) -> Result<Crossing, String> {
    if !topology.costs.are_complete() {
        return Err("not all costs were measured (`xdp-agg topology measure`)".into());
    }
    against_ring(topology, strategy, &Costs::of(topology), slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::KnownCosts;
    use crate::sample;

    fn racks(slots: u32) -> Topology {
        let mut topology = sample::racks(2, 4, 4.0);
        for host in &mut topology.hosts {
            host.slots = Some(slots);
        }
        topology
    }

    #[test]
    fn what_no_aggregator_holds_is_said_strategy_by_strategy() {
        let error = for_job(&racks(100), 1024).expect_err("100 slots");
        let said = error.to_string();
        for part in [
            "colocated (924 slots are missing at h0)",
            "passing (no aggregator)",
            "rat (1948 slots are missing at h0)",
            "rina (8092 slots are missing at h0)",
            "with 1024 slots a tree",
            "XDP_AGG_JOB_SLOTS",
        ] {
            assert!(said.contains(part), "{part:?} is missing in {said}");
        }
        assert!(!said.contains("ring"), "what needs no aggregators is no help: {said}");
        assert_eq!(for_job(&racks(100), 64).map(|choice| choice.strategy), Ok(Strategy::Colocated));
    }

    #[test]
    fn a_job_takes_the_best_that_works_by_aggregators() {
        let mut network = racks(8192);
        network.costs.daemon_byte = Some(1e-6);
        let over_tcp = choose(&network, JOB_BYTES, &Costs::of(&network), 1024);
        assert!(!over_tcp.strategy.is_forest(), "{}", over_tcp.reason);
        let choice = for_job(&network, 1024).expect("all daemons have slots");
        assert!(choice.strategy.is_forest());
        assert!(choice.reason.contains("the best that works by aggregators"), "{}", choice.reason);
        assert!(choice.ring.is_err(), "one cost is measured");
        let costs = Costs::of(&network);
        network.costs = KnownCosts {
            message: Some(costs.message),
            tcp_message: Some(costs.tcp_message),
            daemon_byte: Some(costs.daemon_byte),
            tcp_byte: Some(costs.tcp_byte),
        };
        let ring = for_job(&network, 1024).expect("all daemons have slots").ring;
        assert_eq!(ring, against_ring(&network, choice.strategy, &costs, 1024));
        let ring = ring.expect("all costs are measured").to_string();
        assert!(ring.starts_with("a ring of the workers above "), "{ring}");
    }
}
