//! Why a baseline could not be opened, or did not sum.

/// An error of a baseline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Settings, or the aggregator.
    #[error(transparent)]
    Client(#[from] xdp_agg_client::Error),
    /// The processes of this host.
    #[error(transparent)]
    Host(#[from] xdp_agg_intranode::Error),
    /// The parameter servers.
    #[error(transparent)]
    Servers(#[from] xdp_agg_ps::Error),
    /// Waiting for the servers' sockets.
    #[error("waiting for the servers: {0}")]
    Wait(#[source] std::io::Error),
}
