//! How a dead host or link is noticed.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Makes the kernel end this connection when the other *host* cannot be reached for `within`.
///
/// What was sent and is not acknowledged ends it half that time after its first repetition, so
/// something must be sent every eighth or so; then there is time to spare. While nothing is on its
/// way, keepalive asks after a second of silence and again a second later, which the same time
/// ends: the kernel counts these in whole seconds.
///
/// A process that is stopped does not end its connection: its kernel acknowledges for it. Only a
/// receive buffer that is full for that time would, so whoever sends must stop before it is.
///
/// # Errors
/// The socket's.
pub fn set_liveness(socket: &impl AsFd, within: Duration) -> io::Result<()> {
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new()
        .with_time((within / 2).max(second))
        .with_interval((within / 4).max(second))
        .with_retries(1);
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(within / 2))
}
