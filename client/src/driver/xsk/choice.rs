//! Which way results take into a worker, by its settings and by what its host permits.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use super::program::Refusal;
use super::results::Results;
use crate::driver::route;
use crate::error::Error;
use crate::settings::Transport;

const NAME: &str = "XDP_AGG_TRANSPORT";

impl Results {
    /// The way around the stack to a worker's data socket, from the daemon at this address, for
    /// results of up to `chunks` chunks, if the settings want it. None: results come by UDP.
    ///
    /// # Errors
    /// The settings want what this host does not permit.
    pub(crate) fn choose(
        wanted: Transport,
        daemon: SocketAddr,
        local: SocketAddrV4,
        chunks: u16,
    ) -> Result<Option<Self>, Error> {
        let IpAddr::V4(from) = daemon.ip() else { return Ok(None) };
        if wanted != Transport::AfXdp {
            return Ok(None);
        }
        if from.is_loopback() || from == *local.ip() {
            tracing::info!("{NAME}: the daemon is on this host, so its results come by UDP");
            return Ok(None);
        }
        let opened = route::interface(*local.ip(), from)
            .map_err(|error| Refusal::Other("asking for the interface".into(), error))
            .and_then(|interface| Self::open(interface, local, chunks));
        match opened {
            Ok(results) => Ok(Some(results)),
            Err(refusal @ Refusal::Busy(_)) => {
                tracing::warn!("{NAME}: {refusal}; results come by UDP");
                Ok(None)
            }
            Err(refusal) => Err(Error::Config {
                name: NAME,
                problem: format!(
                    "{} is not possible: {refusal}; choose {} or {}",
                    Transport::AfXdp,
                    Transport::Udp,
                    Transport::Auto
                ),
            }),
        }
    }
}
