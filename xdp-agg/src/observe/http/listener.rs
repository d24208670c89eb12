//! The address of the HTTP server.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;

/// The address that was asked for cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {addr} for HTTP: {source}; --http takes an address of this host and a \
         free port, or `off`"
)]
pub struct HttpError {
    addr: SocketAddr,
    source: io::Error,
}

/// An address that is ours.
#[derive(Debug)]
pub struct HttpListener {
    inner: std::net::TcpListener,
    addr: SocketAddr,
}

impl HttpListener {
    /// Listens on `addr`; port 0 takes a free one. To be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is taken or not of this host.
    pub fn bind(addr: SocketAddr) -> Result<Self, HttpError> {
        let open = || {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            let inner = socket.listen(BACKLOG)?.into_std()?;
            let addr = inner.local_addr()?;
            Ok(Self { inner, addr })
        };
        open().map_err(|source| HttpError { addr, source })
    }

    /// The address, with its true port.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// For the runtime that this is called in.
    pub(super) fn into_tokio(self) -> io::Result<TcpListener> {
        TcpListener::from_std(self.inner)
    }
}

/// The next connection, without delay for short answers.
pub(super) async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, from) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, from))
}
