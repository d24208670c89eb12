//! How a dead host or link is noticed.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Makes the kernel end this connection when the other *host* cannot be reached for `within`.
///
/// Unacknowledged data ends it two thirds of that time after its first repetition. So something
/// must be sent every eighth of that time or so. Pauses between repetitions double. So a link that
/// is away for up to a third of `within` surely sees a repetition after it has come back.
///
/// While nothing is on its way, keepalive asks after a quarter of `within`, and again every
/// sixteenth. The same time ends the connection. The kernel counts these in whole seconds.
///
/// A process that is stopped does not end its connection: its kernel acknowledges for it. Only a
/// receive buffer that is full for that time would, so a sender must stop before it is full.
///
/// # Errors
/// The socket's.
pub fn set_liveness(socket: &impl AsFd, within: Duration) -> io::Result<()> {
    let second = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new()
        .with_time((within / 4).max(second))
        .with_interval((within / 16).max(second))
        .with_retries(1);
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(within * 2 / 3))
}
