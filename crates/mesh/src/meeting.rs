//! How ranks find each other that know a place, and not each other's addresses.
//!
//! One of them holds the meeting: it listens at the place. All ranks come to it, that one too, say
//! what they have to say, and get the words and addresses of all. A place is the address of rank 0,
//! or the name of a host and a port there. At a name, whoever runs on that host may hold the
//! meeting, whatever its rank; the port tells which of them does. Rank 0 listens in any case: the
//! name may be that of a service that leads to it. Other jobs may meet at the same port before or
//! after: they are told apart by what they meet for, and try again.
//!
//! # Proofs
//!
//! The ranks may have a secret in common: a token, or the cookie of a job's epoch. Then whoever
//! comes proves that it knows the secret, and so does the holder, by keyed digests. Each goes over
//! the random numbers of both, and over all that it vouches for: nothing can be said again later,
//! or by another rank, or be changed on the way. The secret itself is never said.

mod hold;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::UdpSocket;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ring::hmac;
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};
use xdp_agg_common::control::words::{self, SENTENCE_MAX, clean};
use xdp_agg_common::control::{read_message, write_message};
use xdp_agg_forks::own;

use crate::callers::{FIRST_WORDS, Until};
use crate::error::Error;
use crate::meet::{MAX_WORLD, RETRY, connect_until, listen, random, wait};

/// Of these messages.
const VERSION: u32 = 3;
/// Longest pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest time for one attempt to connect.
const CONNECT: Duration = Duration::from_secs(2);

/// Where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeetingPoint {
    /// Where rank 0 listens.
    At(SocketAddr),
    /// A host on which at least one of them runs.
    Named {
        /// Its name or address.
        host: String,
        /// A port there that is free, or will be.
        port: u16,
        /// The variable that says the host, for errors.
        name: &'static str,
    },
}

impl From<xdp_agg_launcher::Meeting> for MeetingPoint {
    fn from(meeting: xdp_agg_launcher::Meeting) -> Self {
        Self::Named { host: meeting.host, port: meeting.port, name: meeting.name }
    }
}

impl fmt::Display for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Named { host, port, name } => write!(f, "{host}:{port} (the host by {name})"),
        }
    }
}

/// What the ranks have in common that others do not know.
#[derive(Clone)]
pub struct Secret {
    /// Empty: nothing.
    key: Vec<u8>,
    /// What it is, for errors.
    name: &'static str,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.name)
    }
}

impl Secret {
    /// None: whoever comes is believed.
    pub const NONE: Self = Self { key: Vec::new(), name: "the token (XDP_AGG_TOKEN)" };

    /// The operator's token.
    #[must_use]
    pub fn token(token: &str) -> Self {
        Self { key: token.into(), ..Self::NONE }
    }

    /// The number that the members of a job's epoch were told.
    #[must_use]
    pub fn cookie(cookie: u64) -> Self {
        Self { key: cookie.to_be_bytes().into(), name: "the job's cookie" }
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.key)
    }

    /// Shows that its maker knows the secret, and does not tell it.
    fn proof(&self, words: &str) -> Vec<u8> {
        hmac::sign(&self.key(), words.as_bytes()).as_ref().into()
    }

    fn is_proved(&self, words: &str, proof: &[u8]) -> bool {
        hmac::verify(&self.key(), words.as_bytes(), proof).is_ok()
    }

    /// A number that only those know that were at a meeting.
    fn number(&self, of: u64) -> u64 {
        if self.key.is_empty() {
            return of;
        }
        let proof = self.proof(&format!("the number of meeting {of}"));
        proof.first_chunk().map_or(of, |bytes| u64::from_be_bytes(*bytes))
    }
}

/// What ranks meet for.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// This rank.
    pub rank: u16,
    /// All of them.
    pub world_size: u16,
    /// Where.
    pub place: MeetingPoint,
    /// For what, in a few words: those that come for something else are turned away.
    pub occasion: String,
    /// The run; one of another run is turned away.
    pub run: Option<String>,
    /// What whoever comes has to know.
    pub secret: Secret,
    /// The longest that it may take.
    pub within: Duration,
    /// A rank that waits says what for after this time, and every time that it has passed again.
    pub warn_after: Duration,
}

/// A wait is told of no more often than this, whatever is asked for.
const TELL_MIN: Duration = Duration::from_millis(100);

/// When to say again what a wait is for.
#[derive(Debug)]
pub struct Tell {
    since: Instant,
    every: Duration,
    /// None: beyond what the clock can express.
    at: Option<Instant>,
}

impl Tell {
    /// Of a wait that began at `since`: each time that `every` has passed again.
    #[must_use]
    pub fn new(since: Instant, every: Duration) -> Self {
        let every = every.max(TELL_MIN);
        Self { since, every, at: since.checked_add(every) }
    }

    /// How many seconds it has taken, when that is to be told.
    pub fn is_long(&mut self, now: Instant) -> Option<u64> {
        self.at.is_some_and(|at| now >= at).then(|| {
            self.at = now.checked_add(self.every);
            now.saturating_duration_since(self.since).as_secs()
        })
    }
}

/// What came of a meeting; the same at all ranks.
#[derive(Clone, Debug)]
pub struct Minutes {
    /// Where each rank is reached, in order of rank: its host's address, and the port where it
    /// listens (0: it does not).
    pub addresses: Vec<SocketAddr>,
    /// What each rank said.
    pub words: Vec<String>,
    /// A random number; others do not know it, where the ranks have a secret.
    pub number: u64,
}

/// First words of the one that holds the meeting.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    version: u32,
    nonce: u64,
}

/// What a rank says then.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visit {
    version: u32,
    rank: u16,
    world_size: u16,
    // Of an earlier version without these it can be said that it is one.
    #[serde(default)]
    occasion: String,
    #[serde(default)]
    run: Option<String>,
    /// The connection's ends as the visitor sees them: its own address, and the holder's.
    ends: Option<(SocketAddr, SocketAddr)>,
    /// Where the visitor listens; 0: it does not.
    #[serde(default)]
    port: u16,
    #[serde(default)]
    words: String,
    #[serde(default)]
    nonce: u64,
    /// [`Self::vouched`], proved by the secret.
    #[serde(default)]
    proof: Vec<u8>,
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// All have come: where each one is and what it said; [`vouched`], proved by the secret.
    Held { seats: Vec<Seat>, number: u64, proof: Vec<u8> },
    /// This caller cannot take part. `passing`: now.
    Refused {
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
        passing: bool,
    },
    /// Others did not come in time.
    Missing {
        ranks: Vec<u16>,
        #[serde(deserialize_with = "words::sentences")]
        refused: Vec<String>,
    },
}

/// A rank, as all are told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seat {
    at: SocketAddr,
    words: String,
}

impl Visit {
    fn vouched(&self, nonce: u64) -> String {
        let Self { rank, world_size, occasion, run, ends, port, words, nonce: own, .. } = self;
        format!(
            "to {nonce} by {own}: rank {rank} of {world_size}, {ends:?}, port {port}, run {run:?}, \
             for {occasion:?}: {words}"
        )
    }
}

/// What the holder vouches for to a visitor.
fn vouched(nonces: (u64, u64), rank: u16, number: u64, seats: &[Seat]) -> String {
    format!("by {} to {}, rank {rank}: {number}, {seats:?}", nonces.0, nonces.1)
}

/// Why an attempt came to nothing.
enum Failure {
    /// It may go better the next time.
    Passing(Error),
    Final(Error),
}

impl Meeting {
    /// Meets the others; `words` are for all of them, 2000 bytes at most.
    ///
    /// # Errors
    /// Ranks that are missing at the deadline; nobody at the place; this rank turned away.
    pub fn attend(&self, words: &str) -> Result<Minutes, Error> {
        self.meet(words, None, false).map(|(minutes, _)| minutes)
    }

    /// The same, with a listener of this rank's own where `listens`. `place` is rank 0's listener
    /// for the meeting, if it is open already. It is its own then, as it is at a
    /// [`MeetingPoint::At`].
    pub(crate) fn meet(
        &self,
        words: &str,
        place: Option<TcpListener>,
        listens: bool,
    ) -> Result<(Minutes, Option<TcpListener>), Error> {
        let end = Instant::now() + self.within;
        let hall = match (&self.place, self.rank) {
            (MeetingPoint::At(address), 0) => Some(open_hall(*address, place)?),
            _ => None,
        };
        let own = match &hall {
            Some(hall) if listens => {
                Some(own(|| hall.try_clone()).map_err(Error::io("copy a listener"))?)
            }
            _ => None,
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let hold = |hall: TcpListener| scope.spawn(|| self.hold(hall, &stop, end));
            let mut holder = hall.map(hold);
            let tell = Tell::new(Instant::now(), self.warn_after);
            let mut visitor =
                Visitor { meeting: self, words, own, listens, end, tell, holds: false };
            let mut pause = RETRY;
            let outcome = loop {
                let address = self.address();
                let may_hold = matches!(self.place, MeetingPoint::Named { .. });
                if let Ok(address) = address
                    && may_hold
                    && holder.as_ref().is_none_or(thread::ScopedJoinHandle::is_finished)
                    && (self.rank == 0 || is_own(address.ip()))
                {
                    // Where the port is in use, another rank of this host may hold the meeting.
                    holder =
                        open_hall((any(address.ip()), address.port()).into(), None).ok().map(hold);
                }
                visitor.holds = holder.as_ref().is_some_and(|holder| !holder.is_finished());
                let attempt = address.map_err(Failure::Passing);
                match attempt.and_then(|address| visitor.visit(address)) {
                    Ok(minutes) => break Ok(minutes),
                    Err(Failure::Final(error)) => break Err(error),
                    Err(Failure::Passing(error)) if Instant::now() + pause >= end => {
                        break Err(error);
                    }
                    Err(Failure::Passing(error)) => match visitor.tell.is_long(Instant::now()) {
                        Some(waited) => tracing::warn!(
                            rank = self.rank,
                            "no meeting after {waited} s, trying on until it says: {error}"
                        ),
                        None => tracing::debug!("{error}"),
                    },
                }
                thread::sleep(pause);
                if may_hold {
                    pause = (2 * pause).min(PAUSE);
                }
            };
            stop.store(true, Ordering::Relaxed);
            outcome.map(|minutes| (minutes, visitor.own))
        })
    }

    /// The place's address, as far as it can be found out now.
    fn address(&self) -> Result<SocketAddr, Error> {
        let (host, port) = match &self.place {
            MeetingPoint::At(address) => return Ok(*address),
            MeetingPoint::Named { host, port, .. } => (host, port),
        };
        let found = (host.as_str(), *port).to_socket_addrs().map(Vec::from_iter);
        let found =
            found.map_err(|error| self.nobody(&format!("{host:?} is unknown ({error})")))?;
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| self.nobody(&format!("{host:?} has no address")))
    }

    fn nobody(&self, reason: &str) -> Error {
        let (place, waited) = (self.place.to_string(), self.within);
        Error::NoMeeting { place, waited, reason: reason.into() }
    }

    fn missing(&self, missing: Vec<u16>, refused: Vec<String>) -> Error {
        let (world_size, waited) = (self.world_size, self.within);
        Error::MissingRanks { missing, world_size, waited, refused }
    }
}

/// A rank on its way to the meeting.
struct Visitor<'a> {
    meeting: &'a Meeting,
    words: &'a str,
    /// Its own listener.
    own: Option<TcpListener>,
    listens: bool,
    end: Instant,
    tell: Tell,
    /// It holds the meeting, too: the holder says who is missing.
    holds: bool,
}

impl Visitor<'_> {
    fn visit(&mut self, address: SocketAddr) -> Result<Minutes, Failure> {
        let Meeting { rank, world_size, within, .. } = *self.meeting;
        let silent = |reason: &dyn fmt::Display| {
            Failure::Passing(match self.meeting.place {
                MeetingPoint::At(address) => {
                    let source = io::Error::other(reason.to_string());
                    Error::Unreachable { rank: 0, address, waited: within, source }
                }
                MeetingPoint::Named { .. } => self.meeting.nobody(&format!("{address}: {reason}")),
            })
        };
        let io = |error: io::Error| silent(&error);
        let attempt = self.end.min(Instant::now() + CONNECT);
        let stream = &mut connect_until(address, attempt, CONNECT).map_err(io)?;
        let ends = (stream.local_addr().map_err(io)?, stream.peer_addr().map_err(io)?);
        let greeted = Instant::now() + FIRST_WORDS;
        let greeting: Greeting = read_message(&mut Until { stream, end: greeted })
            .map_err(|error| silent(&format!("what listens there is no meeting ({error})")))?;
        if greeting.version != VERSION {
            let (theirs, ours) = (greeting.version, VERSION);
            return Err(silent(&format!("it speaks version {theirs}, this one version {ours}")));
        }
        let mut visit = Visit {
            version: VERSION,
            rank,
            world_size,
            occasion: self.meeting.occasion.clone(),
            run: self.meeting.run.clone(),
            ends: Some(ends),
            port: self.listen(ends).map_err(Failure::Final)?,
            words: self.words.into(),
            nonce: random(),
            proof: Vec::new(),
        };
        let secret = &self.meeting.secret;
        visit.proof = secret.proof(&visit.vouched(greeting.nonce));
        write_message(stream, &visit).map_err(|error| silent(&error))?;
        // The holder gives up at its own deadline and then says who is missing.
        let told = self.end.max(Instant::now()) + FIRST_WORDS;
        self.wait_for_others(stream, told);
        match read_message(&mut Until { stream, end: told }).map_err(|error| silent(&error))? {
            Outcome::Held { seats, number, proof } if seats.len() == usize::from(world_size) => {
                let nonces = (greeting.nonce, visit.nonce);
                if !secret.is_proved(&vouched(nonces, rank, number, &seats), &proof) {
                    let name = secret.name;
                    return Err(silent(&format!(
                        "what answers does not prove that it knows {name}"
                    )));
                }
                let (addresses, words) =
                    seats.into_iter().map(|seat| (seat.at, seat.words)).unzip();
                Ok(Minutes { addresses, words, number: secret.number(number) })
            }
            Outcome::Refused { reason, passing: false } => {
                Err(Failure::Final(Error::Refused { by: 0, reason }))
            }
            Outcome::Refused { reason, .. } => {
                Err(Failure::Passing(Error::Refused { by: 0, reason }))
            }
            Outcome::Missing { ranks, refused } => {
                Err(Failure::Final(self.meeting.missing(ranks, refused)))
            }
            Outcome::Held { .. } => Err(silent(&"not a meeting's answer")),
        }
    }

    /// Until the holder says something, or this moment.
    fn wait_for_others(&mut self, stream: &TcpStream, until: Instant) {
        loop {
            let tell = self.tell.at.filter(|_| !self.holds);
            let next = tell.map_or(until, |at| until.min(at));
            let mut fds = [PollFd::new(stream, PollFlags::IN)];
            // What the system has against waiting, it has against reading.
            if wait(&mut fds, next.saturating_duration_since(Instant::now())).is_err()
                || !fds[0].revents().is_empty()
                || Instant::now() >= until
            {
                return;
            }
            if !self.holds
                && let Some(waited) = self.tell.is_long(Instant::now())
            {
                let Meeting { rank, place, .. } = self.meeting;
                tracing::warn!(
                    rank,
                    "at the meeting at {place} for {waited} s: others are missing"
                );
            }
        }
    }

    /// Opens this rank's own listener, where it wants one and has none; its port. On the host of
    /// the meeting the others may know another address than this rank does.
    fn listen(&mut self, ends: (SocketAddr, SocketAddr)) -> Result<u16, Error> {
        if !self.listens {
            return Ok(0);
        }
        if self.own.is_none() {
            let ip = if is_same_host(ends) { any(ends.0.ip()) } else { ends.0.ip() };
            self.own = Some(open_hall((ip, 0).into(), None)?);
        }
        let address = self.own.as_ref().map(TcpListener::local_addr).transpose();
        let address = address.map_err(Error::io("read a listener's address"))?;
        Ok(address.map_or(0, |address| address.port()))
    }
}

/// Both ends of the connection are on one host.
fn is_same_host((own, other): (SocketAddr, SocketAddr)) -> bool {
    own.ip().is_loopback() || own.ip() == other.ip()
}

/// All addresses of this host, of the kind of this one.
const fn any(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Whether this is an address of this host. Nothing is sent: connecting only looks up the route.
fn is_own(ip: IpAddr) -> bool {
    let route = || {
        let socket = UdpSocket::bind((any(ip), 0))?;
        socket.connect((ip, 9))?;
        Ok::<_, io::Error>(socket.local_addr()?.ip() == ip)
    };
    ip.is_loopback() || route().unwrap_or(false)
}

/// A non-blocking listener there, if it is not open already.
pub(crate) fn open_hall(
    address: SocketAddr,
    listener: Option<TcpListener>,
) -> Result<TcpListener, Error> {
    let listener = match listener {
        Some(listener) => listener,
        None => listen(address, MAX_WORLD).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::PortInUse { address },
            _ => Error::Listen { address, source },
        })?,
    };
    // A caller's own may block.
    listener.set_nonblocking(true).map_err(Error::io("make a listener non-blocking"))?;
    Ok(listener)
}
