//! The targets, one a module.

mod control;
mod forwarder;
mod jobs;
mod packet;
mod reform;
mod topology;

use crate::Target;

/// All of them.
pub const ALL: [Target; 7] = [
    packet::TARGET,
    forwarder::TARGET,
    control::TARGET,
    jobs::TARGET,
    jobs::TREES,
    topology::TARGET,
    reform::TARGET,
];

/// For targets that run everywhere.
#[must_use]
pub const fn everywhere() -> Option<String> {
    None
}
