//! Targets whose readers are crates with sockets: the daemon's settings, the worker library's, and
//! the mesh's messages. All others are [`xdp_agg_fuzz::targets`].

mod config;
mod mesh;
mod tuning;

use xdp_agg_fuzz::Target;

/// All of them.
pub const ALL: [Target; 3] = [config::TARGET, tuning::TARGET, mesh::TARGET];
