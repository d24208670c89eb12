//! The examples in `docs/topology.md` are right.

use xdp_agg_topology::{Forest, Strategy, Topology};

/// The blocks of a language in the documentation.
fn blocks(language: &str) -> Vec<&'static str> {
    let text = include_str!("../../../docs/topology.md");
    let start = format!("\n```{language}\n");
    let found = text.split(start.as_str()).skip(1);
    found.map(|block| block.split("\n```").next().unwrap_or_default()).collect()
}

#[test]
fn the_example_is_read_and_planned() {
    let examples = blocks("toml");
    assert!(!examples.is_empty(), "the documentation has an example");
    for example in examples {
        let topology = Topology::parse(example).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(topology.strategy, Strategy::Rat);
        let forest = Forest::plan(&topology, topology.strategy).expect("every host has a daemon");
        assert_eq!(forest.trees.len(), topology.world());
    }
}

#[test]
fn every_strategy_is_described() {
    let text = include_str!("../../../docs/topology.md");
    for strategy in Strategy::ALL {
        assert!(text.contains(&format!("| `{strategy}` |")), "{strategy} is missing");
    }
}
