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
    /// ATP's socket or thread.
    #[error("the socket to ATP's switch: {0}")]
    Socket(#[source] std::io::Error),
    /// Settings of ATP's numbers.
    #[error(transparent)]
    Format(#[from] xdp_agg_quantize::FormatError),
    /// A vector that ATP's numbers do not hold.
    #[error(transparent)]
    TooLarge(#[from] crate::atp::TooLarge),
    /// ATP's sums did not come.
    #[error("no sum in {0:?}; are the switch, all servers and all workers up?")]
    Deadline(std::time::Duration),
    /// ATP's thread has ended before.
    #[error("ATP has failed before; the first error says why")]
    Ended,
}
