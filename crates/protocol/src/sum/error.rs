//! Why a job cannot be summed.

use std::net::SocketAddrV4;

/// Why a job cannot be summed, or not yet.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path was not learned.
    #[error("no probe of rank {0} has arrived on the data path")]
    NoPath(u16),
    /// The parent has not answered a probe.
    #[error(
        "the parent aggregator {0} has not answered a probe of full block size; is its daemon \
         running the job, is its data address right, and does the path take such packets?"
    )]
    NoUplink(SocketAddrV4),
    /// The wanted mode does not fit.
    #[error("result mode {mode} does not fit: {why}")]
    Mode {
        /// Its name.
        mode: &'static str,
        /// Why, and what fits.
        why: String,
    },
    /// The job does not fit the engine, or is not there.
    #[error("user-space engine: {0}")]
    Setup(String),
}
