//! The control connection of a worker: the one place that owns its stream and carries frames.
//!
//! What is said is [`xdp_agg_protocol::worker::Machine`]'s business.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xdp_agg_common::control::{self, IPV4_ONLY, Reply, Request};
use xdp_agg_common::frame::chunks_for_mtu;
use xdp_agg_forks::own;
use xdp_agg_tls::{ClientTls, ControlStream, Liveness, OpenError};

use crate::driver::reach::{self, Pause};
use crate::driver::route;
use crate::driver::sys;
use crate::error::{Error, JobError};

/// Longest time for TLS on top of that: the daemon may have many workers to welcome at once.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most bytes that wait for a daemon that takes none, before one more message: hours of questions.
const UNSENT_MAX: usize = 1 << 18;

/// How to reach the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    pub(crate) address: SocketAddr,
    /// Where it has a name, this is looked up at each attempt.
    pub(crate) name: Option<String>,
    /// How long what was sent may stay unacknowledged before the connection counts as dead.
    pub(crate) dead_after: Duration,
    /// None: the connection is plain.
    pub(crate) tls: Option<ClientTls>,
}

/// An open control connection.
#[derive(Debug)]
pub(crate) struct Session {
    stream: ControlStream,
    received: Vec<u8>,
    /// What the daemon has not taken yet.
    unsent: Vec<u8>,
    /// For a thread that sleeps on it without holding the session.
    watched: Arc<OwnedFd>,
    liveness: Liveness,
}

impl Session {
    /// Connects, once.
    pub(crate) fn open(dial: &Dial) -> Result<Self, OpenError> {
        let stream = reach::connect(dial.name.as_deref(), dial.address).map_err(OpenError::Io)?;
        // The host or the link at the other end may be dead without a word.
        let liveness = Liveness::of(&stream, dial.dead_after).map_err(OpenError::Io)?;
        stream.set_nodelay(true).map_err(OpenError::Io)?;
        let stream = ControlStream::open(stream, dial.tls.as_ref(), HANDSHAKE)?;
        stream.set_nonblocking(true).map_err(OpenError::Io)?;
        let watched = own(|| stream.as_fd().try_clone_to_owned()).map_err(OpenError::Io)?;
        let watched = Arc::new(watched);
        Ok(Self { stream, received: Vec::new(), unsent: Vec::new(), watched, liveness })
    }

    /// Sends a message, or what of it the daemon takes now; [`Self::flush`] sends the rest. Nobody
    /// waits for the daemon here: while it is stopped, data goes on.
    pub(crate) fn send(&mut self, message: &Request) -> Result<(), Error> {
        let frame = control::encode(message)?;
        if self.unsent.len() > UNSENT_MAX {
            let waiting = self.unsent.len();
            let reason = format!("it takes nothing that is said to it: {waiting} bytes wait");
            return Err(Error::Job(JobError::AggregatorLost(reason)));
        }
        self.unsent.extend_from_slice(&frame);
        self.flush()
    }

    /// Sends what waits, as far as the daemon takes it.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let mut sent = 0;
        let done = loop {
            let done = match &self.unsent[sent..] {
                [] if !self.stream.wants_write() => break Ok(()),
                [] => self.stream.flush(),
                rest => self.stream.write(rest).map(|count| sent += count),
            };
            match done {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(lost(&error)),
            }
        };
        self.unsent.drain(..sent);
        done
    }

    /// Whether something waits until the daemon takes it.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.stream.wants_write()
    }

    /// The next message that has arrived whole, without waiting.
    pub(crate) fn poll(&mut self) -> Result<Option<Reply>, Error> {
        loop {
            if let Some(reply) = control::decode(&mut self.received)? {
                return Ok(Some(reply));
            }
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => {
                    let reason = "its control connection ended without a word";
                    return Err(Error::Job(JobError::AggregatorLost(reason.into())));
                }
                Ok(len) => self.received.extend_from_slice(&part[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(&error)),
            }
        }
    }

    /// The other host is gone.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        match self.liveness.is_dead(&self.watched) {
            Some(silent) => {
                let reason = format!("its host has acknowledged nothing for {silent:.1?}");
                Err(Error::Job(JobError::AggregatorLost(reason)))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// A descriptor to sleep on that stays valid when the session is gone.
    pub(crate) fn watched(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.watched)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The other descriptor may outlive this one; the daemon shall know at once.
        self.stream.close();
    }
}

/// What the end of a connection means.
fn lost(error: &std::io::Error) -> Error {
    match error.kind() {
        // What came was not what this side or the other accepts.
        ErrorKind::InvalidData => Error::Tls(error.to_string()),
        _ => Error::Job(JobError::AggregatorLost(error.to_string())),
    }
}

/// The way to the daemon, before it is there: the address that this host sends from, and the chunks
/// of payload that fit, `mtu` permitting.
pub(crate) fn path(
    aggregator: SocketAddr,
    mtu: Option<u32>,
    (until, mut pause): (Instant, Pause),
) -> Result<(Ipv4Addr, u16), Error> {
    if aggregator.is_ipv6() {
        return Err(Error::Config {
            name: "XDP_AGG_ADDR",
            problem: format!("{aggregator} is an IPv6 address; expected {IPV4_ONLY}"),
        });
    }
    let socket = loop {
        // Nothing is sent: connecting a UDP socket only looks up the route.
        let connected = own(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))
            .and_then(|socket| socket.connect(aggregator).map(|()| socket));
        match connected {
            Ok(socket) => break socket,
            Err(error) if Instant::now() >= until => {
                let reason = format!("{error}, until XDP_AGG_JOIN_DEADLINE was over");
                return Err(Error::Job(JobError::Unreachable {
                    address: aggregator,
                    reason,
                    of: None,
                }));
            }
            Err(error) => {
                if let Some(waited) = pause.is_long() {
                    tracing::warn!("no route to {aggregator} after {waited} s: {error}; trying on");
                }
                std::thread::sleep(pause.next());
            }
        }
    };
    let SocketAddr::V4(local) =
        socket.local_addr().map_err(Error::io("reading the local address"))?
    else {
        return Err(Error::Job(JobError::Protocol("an IPv6 address of an IPv4 socket".into())));
    };
    let path = match aggregator.ip() {
        IpAddr::V4(to) => route::mtu(*local.ip(), to),
        IpAddr::V6(_) => Err(ErrorKind::Unsupported.into()),
    };
    let path = match path {
        Ok(path) => path,
        // Not even a netlink socket is permitted: what the socket believes is better than nothing.
        Err(_) => {
            let told = sys::option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU)
                .map_err(Error::io("reading the path MTU"))?;
            u32::try_from(told).unwrap_or(0)
        }
    };
    let used = mtu.unwrap_or(path).min(path);
    match chunks_for_mtu(used) {
        0 => Err(Error::Config {
            name: "mtu",
            problem: format!("{used} bytes leave no room for a payload; at least 114 are needed"),
        }),
        chunks => Ok((*local.ip(), chunks)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use xdp_agg_common::control::MAX_FRAME;

    use super::*;

    fn abort(letter: u8, len: usize) -> Request {
        Request::Abort { reason: char::from(letter).to_string().repeat(len), cause: None }
    }

    /// A stopped daemon has full windows in the end. The engine of the data path, which speaks to
    /// it, goes on all the same, and what was said arrives in order once the daemon goes on.
    #[test]
    fn a_daemon_that_takes_nothing_holds_nobody_up() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let dead_after = Duration::from_secs(600);
        let dial = Dial { address, name: None, dead_after, tls: None };
        let mut session = Session::open(&dial).expect("it listens");
        let (mut daemon, _) = listener.accept().expect("it connects");
        let mut said = 0;
        while !session.has_unsent() {
            let start = Instant::now();
            session.send(&abort(b'a' + said % 26, MAX_FRAME / 2)).expect("there is room");
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
            said += 1;
        }
        let waiting = session.unsent.len();
        // What would be too much is the daemon's loss, and no memory's.
        let mut others = 0_u32;
        let error = loop {
            match session.send(&Request::Missing { block: 7, of: None }) {
                Ok(()) => others += 1,
                Err(error) => break error,
            }
            assert!(session.unsent.len() <= waiting.max(UNSENT_MAX) + 100);
        };
        assert!(matches!(error, Error::Job(JobError::AggregatorLost(_))), "{error}");
        // It goes on.
        let reader = std::thread::spawn(move || {
            for number in 0..said {
                let request: Request = control::read_message(&mut daemon).expect("a message");
                let Request::Abort { reason, .. } = request else { panic!("another message") };
                assert!(reason.starts_with(char::from(b'a' + number % 26)), "{number}");
            }
            for _ in 0..others {
                let request: Request = control::read_message(&mut daemon).expect("a message");
                assert_eq!(request, Request::Missing { block: 7, of: None });
            }
        });
        while !reader.is_finished() {
            session.flush().expect("it reads again");
            std::thread::sleep(Duration::from_millis(1));
        }
        reader.join().expect("all arrived, in order");
        assert!(!session.has_unsent());
    }
}
