//! What describes a network: the topology file, and the trees that are planned on it.

use xdp_agg_topology::{Forest, Strategy, Topology};

use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "topology",
    about: "the topology file, and the trees that are planned on it",
    run,
    text: true,
    tokens: include_str!("../../dictionaries/topology.txt"),
    features: &["a network", "refused", "trees", "no trees", "several regions"],
};

fn run(input: &[u8]) -> Outcome {
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
