//! What describes a network and the ways through it: the topology file with the trees that are
//! planned on it, and the table of ways for collectives. The worker library reads that table, which
//! names the library's collectives.

use xdp_agg_client::collectives::{Kind, Tuning};
use xdp_agg_topology::{Forest, Strategy, Topology};

use super::everywhere;
use crate::{Outcome, Target};

pub(super) const TOPOLOGY: Target = Target {
    name: "topology",
    about: "the topology file, and the trees that are planned on it",
    run: run_topology,
    text: true,
    tokens: &TOPOLOGY_TOKENS,
    features: &["a network", "refused", "trees", "no trees", "several regions"],
    unavailable: everywhere,
};

pub(super) const TUNING: Target = Target {
    name: "tuning",
    about: "the table of ways for collectives",
    run: run_tuning,
    text: true,
    tokens: &TUNING_TOKENS,
    features: &["a table", "refused"],
    unavailable: everywhere,
};

const TOPOLOGY_TOKENS: [&str; 32] = [
    "[[host]]",
    "[[region]]",
    "[job]",
    "[defaults]",
    "[measured]",
    "name",
    "rank",
    "address",
    "region",
    "parent",
    "uplink",
    "oversubscription",
    "aggregator",
    "rate",
    "slots",
    "interface",
    "strategy",
    "rat",
    "rina",
    "passing",
    "colocated",
    "auto",
    "ring",
    "10gbit",
    "100mbit",
    "0",
    "1.5",
    "\"10.0.0.1\"",
    "\"10.0.0.2:9870\"",
    "\"a\"",
    "\"b\"",
    "9999999999",
];

const TUNING_TOKENS: [&str; 24] = [
    "[[broadcast]]",
    "[[reduce]]",
    "[[reduce-scatter]]",
    "[[all-gather]]",
    "ranks",
    "up-to",
    "algorithm",
    "chunk",
    "k",
    "checked",
    "true",
    "false",
    "\"aggregator\"",
    "\"ring\"",
    "\"direct\"",
    "\"chain\"",
    "\"binomial\"",
    "\"knomial\"",
    "\"scatter-all-gather\"",
    "\"pipelined-chain\"",
    "\"topology-chain\"",
    "0",
    "1",
    "65536",
];

fn run_topology(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let text = String::from_utf8_lossy(input);
    let topology = match Topology::parse(&text) {
        Ok(topology) => topology,
        Err(error) => {
            outcome.note(1);
            assert!(!error.to_string().is_empty());
            return outcome;
        }
    };
    outcome.accepted = true;
    outcome.note(0);
    if topology.regions.len() > 1 {
        outcome.note(4);
    }
    let written = topology.to_toml();
    let again = Topology::parse(&written);
    assert_eq!(again.as_ref().ok(), Some(&topology), "what is written is not what was read");
    for strategy in Strategy::ALL {
        match Forest::plan(&topology, strategy) {
            Ok(forest) => {
                outcome.note(2);
                check(&forest, topology.hosts.len());
            }
            Err(error) => {
                outcome.note(3);
                assert!(!error.to_string().is_empty());
            }
        }
    }
    outcome
}

/// Each tree has each rank once, and parents before children.
fn check(forest: &Forest, ranks: usize) {
    assert!(!forest.trees.is_empty(), "a plan without trees");
    for tree in &forest.trees {
        let mut seen = vec![false; ranks];
        for (index, node) in tree.nodes.iter().enumerate() {
            let above = node.parent.map_or(index == 0, |parent| parent < index);
            assert!(above, "{tree:?}");
            for rank in &node.ranks {
                let was = std::mem::replace(&mut seen[usize::from(*rank)], true);
                assert!(!was, "rank {rank} twice: {tree:?}");
            }
        }
        assert!(seen.iter().all(|seen| *seen), "a rank is nowhere: {tree:?}");
    }
}

fn run_tuning(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    match Tuning::parse(&String::from_utf8_lossy(input)) {
        Ok(table) => {
            outcome.accepted = true;
            outcome.note(0);
            let written = table.to_toml().expect("what was read can be written");
            assert_eq!(Tuning::parse(&written).as_ref(), Ok(&table));
            for kind in Kind::ALL {
                for (ranks, bytes) in [(1, 0), (2, 1), (64, 1 << 20), (u16::MAX, u64::MAX)] {
                    let choice = table.choose(kind, ranks, bytes);
                    assert!(!choice.way.name().is_empty());
                }
            }
        }
        Err(problem) => {
            outcome.note(1);
            assert!(!problem.is_empty());
        }
    }
    outcome
}
