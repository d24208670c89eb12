//! Networks as data, and what is planned from them.
//!
//! * [`model`]: a network of regions (racks, pods) and hosts, as a topology file describes it.
//! * [`plan`]: the aggregation trees of a strategy on a network, also after a loss.
//!
//! Nothing here does any input or output, and nothing depends on time or chance: every worker
//! computes the same plan from the same file.

#![forbid(unsafe_code)]

pub mod generate;
pub mod graph;
pub mod model;
pub mod plan;
pub mod units;

pub use model::{Aggregator, Host, Region, Strategy, Topology};
pub use plan::{Forest, Lost, Node, PlanError, Site, Tree};
pub use units::Rate;
