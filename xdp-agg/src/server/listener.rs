//! The control address.

use std::io;
use std::net::SocketAddr;

use listenfd::ListenFd;
use socket2::SockRef;
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
    /// What the service manager handed over is not a control socket.
    #[error(
        "LISTEN_FDS: {why}; one TCP socket that listens is expected (ListenStream= in a .socket \
         unit): mend the unit, or disable it, so that the daemon listens by itself"
    )]
    Handed {
        /// What it is.
        why: String,
    },
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

    /// The socket that a service manager listens on in the daemon's place (`LISTEN_FDS`,
    /// `sd_listen_fds(3)`). Where settings name an address too (`wanted`), it must be the socket's.
    /// None: no socket was handed over. To be called within a tokio runtime, once.
    ///
    /// # Errors
    /// It is not one TCP socket that listens, or listens elsewhere.
    pub fn handed_over(wanted: Option<SocketAddr>) -> Result<Option<Self>, ServerError> {
        let refused = |why: String| ServerError::Handed { why };
        let mut handed = ListenFd::from_env();
        match handed.len() {
            0 => return Ok(None),
            1 => {}
            count => return Err(refused(format!("{count} sockets were handed over"))),
        }
        let failed = |error: io::Error| refused(error.to_string());
        let Some(socket) = handed.take_tcp_listener(0).map_err(failed)? else {
            return Ok(None);
        };
        let addr = socket.local_addr().map_err(failed)?;
        if !SockRef::from(&socket).is_listener().map_err(failed)? {
            return Err(refused(format!("the TCP socket {addr} does not listen")));
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != addr) {
            let why = format!("the socket listens on {addr}, and control = {wanted} is set");
            return Err(refused(why));
        }
        socket.set_nonblocking(true).map_err(failed)?;
        let inner = TcpListener::from_std(socket).map_err(failed)?;
        Ok(Some(Self { inner, addr }))
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
