//! How a dead host or link is noticed.
//!
//! The kernel's own limit, `TCP_USER_TIMEOUT`, is not used. It counts from the first repetition
//! since the connection lost something, and Linux 6.18 keeps that moment when all is acknowledged
//! again. So a second loss of a moment ends a connection that lost something 20 s before.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use crate::info::acknowledged;

/// Whether the other host of a connection is there.
///
/// Something must be sent every eighth of the time in which a dead host is to be noticed, and
/// [`Self::is_dead`] be asked as often. What is not acknowledged for two thirds of that time ends
/// it. Pauses between TCP's repetitions double. So a link that is away for up to a third of the
/// time surely sees a repetition after it has come back.
///
/// While nothing is on its way, the kernel's keepalive asks after a quarter of the time, and again
/// every sixteenth. The kernel counts these in whole seconds.
///
/// A process that is stopped does not end its connection: its kernel acknowledges for it.
#[derive(Debug)]
pub struct Liveness {
    limit: Duration,
    /// When all was acknowledged, or something was, for all that is known.
    alive: Instant,
}

impl Liveness {
    /// Of a connection whose other host counts as dead when it cannot be reached for `within`.
    ///
    /// # Errors
    /// The socket's.
    pub fn of(socket: &impl AsFd, within: Duration) -> io::Result<Self> {
        let (second, limit) = (Duration::from_secs(1), within * 2 / 3);
        let (first, pause) = ((within / 4).max(second), (within / 16).max(second));
        let rest = limit.saturating_sub(first).as_secs() / pause.as_secs();
        let keepalive = TcpKeepalive::new()
            .with_time(first)
            .with_interval(pause)
            .with_retries(1 + rest.min(100) as u32);
        SockRef::from(socket).set_tcp_keepalive(&keepalive)?;
        Ok(Self { limit, alive: Instant::now() })
    }

    /// How long what was sent has not been acknowledged, if that is too long.
    pub fn is_dead(&mut self, socket: &impl AsFd) -> Option<Duration> {
        let now = Instant::now();
        let alive = acknowledged(socket.as_fd()).and_then(|ago| now.checked_sub(ago));
        // What cannot be told is no reason to give up.
        self.alive = alive.map_or(now, |alive| alive.max(self.alive));
        let silent = now.saturating_duration_since(self.alive);
        (silent >= self.limit).then_some(silent)
    }
}
