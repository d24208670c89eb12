//! What the broadcast paper's text says in numbers: Xin, Xie and Li, Large Message Broadcast Design
//! for Distributed Machine Learning (2020). `papers/broadcast.toml` has them.

use std::sync::LazyLock;

use serde::Deserialize;

/// How much faster a topology-aware pipelined chain is than a plain one (section 5.4, figure 11).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Where it stands.
    pub figure: String,
    /// The paper's name of the cluster.
    pub cluster: String,
    /// Its nodes.
    pub nodes: u16,
    /// Cards of a node, with two GPUs each.
    pub cards: u16,
    /// Network adapters of a node.
    pub adapters: u16,
    /// Rate of an adapter in Gbit/s.
    pub adapter_gbits: f64,
    /// Percent.
    pub percent: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Paper {
    order: Vec<Order>,
}

static PAPER: LazyLock<Paper> = LazyLock::new(|| {
    // A test reads it; what is built in does not change.
    toml::from_str(include_str!("../papers/broadcast.toml")).expect("the paper's numbers are read")
});

/// Both panels of figure 11.
#[must_use]
pub fn orders() -> &'static [Order] {
    &PAPER.order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clusters_have_the_papers_gpus() {
        let gpus = |order: &Order| order.nodes * order.cards * 2;
        assert_eq!(orders().iter().map(gpus).collect::<Vec<_>>(), [32, 64]);
    }
}
