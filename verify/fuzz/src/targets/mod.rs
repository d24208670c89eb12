//! The targets, one a module.

mod config;
mod control;
mod forwarder;
mod jobs;
mod mesh;
mod network;
mod packet;
mod reform;

use crate::Target;

/// All of them.
pub const ALL: [Target; 10] = [
    packet::TARGET,
    forwarder::TARGET,
    control::TARGET,
    jobs::TARGET,
    jobs::TREES,
    config::TARGET,
    network::TOPOLOGY,
    network::TUNING,
    mesh::TARGET,
    reform::TARGET,
];

/// The target with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<Target> {
    ALL.into_iter().find(|target| target.name == name)
}

/// For targets that run everywhere.
const fn everywhere() -> Option<String> {
    None
}
