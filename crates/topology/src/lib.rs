//! Networks as data, and what is planned from them.
//!
//! * [`model`]: a network of regions (racks, pods) and hosts; [`mod@file`] reads it from a topology
//!   file and prints it, [`infer`] finds regions in measured rates.
//! * [`agents`]: whether a strategy has the aggregators that it needs.
//! * [`plan`]: the aggregation trees of a strategy on a network.
//! * [`flows`] and [`analysis`]: the traffic of an all-reduce, what it puts on every link, and how
//!   it compares with other schemes (paper 2, table 1).
//! * [`choose`]: the fastest strategy by measured costs. [`occupation`] and [`incremental`]: which
//!   rack to equip with an aggregator next (paper 3, section III-B).
//! * [`graph`]: the links of a network, and the routes over them.
//! * [`servers`]: what over-subscription costs parameter servers (paper 2, section 2.1).
//! * [`units`] and [`size`]: rates and sizes as people write them.
//!
//! Nothing here opens a file ([`file::bounded`] reads what it is handed), and nothing depends on
//! time or chance: every worker computes the same plan from the same file.

#![forbid(unsafe_code)]

pub mod agents;
pub mod analysis;
pub mod choose;
pub mod file;
pub mod flows;
pub mod graph;
pub mod incremental;
pub mod infer;
pub mod model;
pub mod occupation;
pub mod plan;
#[cfg(test)]
mod sample;
pub mod servers;
pub mod size;
pub mod units;

pub use agents::{BareRack, Lack};
pub use file::{Fault, FileError, TopologyFile};
pub use model::{Aggregator, Host, KnownCosts, Measured, Region, Strategy, Topology};
pub use plan::{Forest, Node, PlanError, Site, Tree};
pub use units::Rate;
