//! How a dead host or link is noticed.
//!
//! The kernel's own limit, `TCP_USER_TIMEOUT`, is not used. It counts from the first repetition
//! since the connection lost something, and Linux 6.18 keeps that moment when all is acknowledged
//! again. So a second loss of a moment ends a connection that lost something 20 s before.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use crate::info::{acknowledged, bound_pauses};

/// Longest pause between two repetitions: the kernel takes no shorter one.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether the other host of a connection is there.
///
/// Something must be sent every eighth of the time in which a dead host is to be noticed, and
/// [`Self::is_dead`] be asked as often. What is not acknowledged for four fifths of that time ends
/// it.
///
/// Pauses between TCP's repetitions double up to a second (`PAUSE`). So a link that comes back
/// sees a repetition within a second, however often it was away before. One that is away for 3 s,
/// twice within a moment, is silent for 7 s: less than the 8 s of a job that shrinks. Before Linux
/// 6.15 the pauses go on doubling. There a link that is away once for up to a third of the time
/// surely sees a repetition in time.
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
        let (second, limit) = (Duration::from_secs(1), within * 4 / 5);
        let (first, pause) = ((within / 4).max(second), (within / 16).max(second));
        let rest = limit.saturating_sub(first).as_secs() / pause.as_secs();
        let keepalive = TcpKeepalive::new()
            .with_time(first)
            .with_interval(pause)
            .with_retries(1 + rest.min(100) as u32);
        SockRef::from(socket).set_tcp_keepalive(&keepalive)?;
        bound_pauses(socket.as_fd(), PAUSE);
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::info::longest_pause;

    /// A link that flaps again and again: each time it sees a repetition within a second.
    #[test]
    fn pauses_between_repetitions_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let stream = TcpStream::connect(address).expect("it listens");
        let usual = longest_pause(stream.as_fd());
        Liveness::of(&stream, Duration::from_secs(10)).expect("a socket of TCP");
        // Linux before 6.15 has no such option.
        assert_eq!(longest_pause(stream.as_fd()), usual.map(|_| PAUSE));
    }
}
