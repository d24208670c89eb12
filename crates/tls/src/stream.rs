//! The connecting side of a control connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use crate::explain::{Side, explain};
use crate::files::ClientTls;

/// A connection of a worker or a tool to the daemon.
///
/// Reads and writes as a socket does, blocking or not as [`Self::set_nonblocking`] says. Over TLS
/// there is one difference: bytes that [`Write::write`] took may still wait here for the socket.
/// While [`Self::wants_write`] says so, wait until the descriptor can be written to and call
/// [`Write::flush`].
#[derive(Debug)]
pub enum ControlStream {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted, the daemon's certificate verified.
    Tls(Box<TlsStream>),
}

/// A connection over TLS.
#[derive(Debug)]
pub struct TlsStream {
    tls: ClientConnection,
    socket: TcpStream,
}

/// Why a connection could not be taken into use.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The connection failed: another attempt may succeed.
    #[error("{0}")]
    Io(io::Error),
    /// The other side does not do what it should: another attempt would fail too.
    #[error("{0}")]
    Refused(String),
}

impl ControlStream {
    /// Takes a connected socket into use: as it is, or with the handshake of TLS, which may take
    /// `patience`. The socket blocks afterwards.
    ///
    /// # Errors
    /// The connection fails or takes too long, or one side does not accept the other.
    pub fn open(
        socket: TcpStream,
        tls: Option<&ClientTls>,
        patience: Duration,
    ) -> Result<Self, OpenError> {
        let Some(ClientTls { config, name }) = tls else {
            return Ok(Self::Plain(socket));
        };
        let tls = ClientConnection::new(config.clone(), name.clone())
            .map_err(|error| OpenError::Refused(error.to_string()))?;
        let mut stream = TlsStream { tls, socket };
        match stream.handshake(Instant::now() + patience) {
            Ok(()) => Ok(Self::Tls(Box::new(stream))),
            Err(error) if is_timeout(&error) => Err(OpenError::Io(io::Error::new(
                ErrorKind::TimedOut,
                format!(
                    "no TLS handshake in {:.1} s: is it an xdp-agg daemon, and does it use TLS?",
                    patience.as_secs_f64()
                ),
            ))),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Err(OpenError::Refused(error.to_string()))
            }
            Err(error) => Err(OpenError::Io(error)),
        }
    }

    /// Whether calls return [`ErrorKind::WouldBlock`] instead of waiting.
    ///
    /// # Errors
    /// The socket's.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket().set_nonblocking(nonblocking)
    }

    /// How long a blocking read or write may take. None: as long as it takes.
    ///
    /// # Errors
    /// The socket's.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket().set_read_timeout(timeout)?;
        self.socket().set_write_timeout(timeout)
    }

    /// Whether bytes wait for the socket to take them.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.tls.wants_write(),
        }
    }

    /// Whether it is encrypted.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// See [`TcpStream::set_nodelay`].
    ///
    /// # Errors
    /// The socket's.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket().set_nodelay(nodelay)
    }

    /// Ends the connection, also for other holders of its socket.
    pub fn close(&mut self) {
        if let Self::Tls(stream) = self {
            stream.tls.send_close_notify();
            // The end says the same, less politely.
            drop(stream.push());
        }
        drop(self.socket().shutdown(Shutdown::Both));
    }

    /// Address of this side.
    ///
    /// # Errors
    /// The socket's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// Address of the other side.
    ///
    /// # Errors
    /// The socket's.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    const fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.socket,
        }
    }
}

impl TlsStream {
    fn handshake(&mut self, deadline: Instant) -> io::Result<()> {
        while self.tls.is_handshaking() || self.tls.wants_write() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            self.socket.set_write_timeout(Some(left))?;
            if self.tls.wants_write() {
                retry(|| self.tls.write_tls(&mut self.socket))?;
            } else if self.take_in()? == 0 {
                let error = io::Error::from(ErrorKind::UnexpectedEof);
                return Err(io::Error::new(error.kind(), explain(&error, Side::Client)));
            }
        }
        self.socket.set_read_timeout(None)?;
        self.socket.set_write_timeout(None)
    }

    /// Takes what the socket has; 0 is its end.
    fn take_in(&mut self) -> io::Result<usize> {
        let taken = retry(|| self.tls.read_tls(&mut self.socket))?;
        if let Err(error) = self.tls.process_new_packets() {
            // The other side is told why, if it can be.
            drop(self.tls.write_tls(&mut self.socket));
            let error = io::Error::new(ErrorKind::InvalidData, error);
            return Err(io::Error::new(ErrorKind::InvalidData, explain(&error, Side::Client)));
        }
        Ok(taken)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Answers that TLS itself owes must not wait until we have something to say.
            match self.push() {
                Err(error) if !is_timeout(&error) => return Err(error),
                _ => {}
            }
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            self.take_in()?;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        let taken = self.tls.writer().write(bytes)?;
        match self.push() {
            Err(error) if !is_timeout(&error) => Err(error),
            // The bytes are ours now, and go when there is room.
            _ => Ok(taken),
        }
    }

    /// Gives the socket what waits for it.
    fn push(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match retry(|| self.tls.write_tls(&mut self.socket)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) => return Err(self.last_words(error)),
            }
        }
        Ok(())
    }

    /// Why a write failed: a daemon that refuses us says so before it closes.
    fn last_words(&mut self, error: io::Error) -> io::Error {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => match self.take_in() {
                Err(reason) if reason.kind() == ErrorKind::InvalidData => reason,
                _ => error,
            },
            _ => error,
        }
    }
}

/// Whether a call only ran out of time or of room.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl Read for ControlStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for ControlStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.push(),
        }
    }
}

impl AsFd for ControlStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
