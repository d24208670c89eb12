//! The control address.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that may wait to be accepted: all workers of all jobs may start at once.
const BACKLOG: u32 = 2048;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The control address is taken.
    #[error(
        "TCP address {0} is in use: is another xdp-agg running? Stop it (`xdp-agg jobs` shows \
         whether it is one), or choose another --control address"
    )]
    AddressInUse(SocketAddr),
    /// The control address cannot be used.
    #[error(
        "cannot listen on {addr}: {source}; --control takes an address of this host and a port"
    )]
    Bind {
        /// What was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A control address that is ours. Taking it comes before the engine, so that a second daemon is
/// refused before it touches an interface.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Listens on `addr`; port 0 takes a free one. To be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is taken or not of this host.
    pub fn bind(addr: SocketAddr) -> Result<Self, ServerError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ServerError::AddressInUse(addr),
            _ => ServerError::Bind { addr, source },
        };
        let open = || {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A restart must not wait for connections of the last run to be forgotten.
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            socket.listen(BACKLOG)
        };
        let inner = open().map_err(failed)?;
        let addr = inner.local_addr().map_err(failed)?;
        Ok(Self { inner, addr })
    }

    /// The next connection, and where it comes from.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.inner.accept().await
    }

    /// The address, with its true port.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }
}
