//! How the ranks find each other, and how each connects with all.
//!
//! Every rank has a listener. Where all know all addresses, the lower rank of two connects to the
//! higher one and shows the job's cookie. Where only rank 0's is known, all come to it first, and
//! get addresses and cookie there. Messages are JSON behind a length, as on control connections.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xdp_agg_common::control::{read_message, write_message};
use xdp_agg_launcher::Launch;

use crate::callers::{Callers, FIRST_WORDS, Until};
use crate::error::Error;
use crate::link::Link;
use crate::meet::{connect_until, is_gone, listen, random};
use crate::mesh::Mesh;
use crate::schedule::Groups;

/// Largest world size: every rank has a connection with every other one.
pub const MAX_WORLD: u16 = 512;
/// Deadline of opening and of each call, where none is given.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
/// Longer deadlines count as this one, a year: what no clock can reach is no moment.
pub const MAX_DEADLINE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Of these messages and of what follows on the connections.
const VERSION: u32 = 1;
/// Wait between two attempts to connect.
const RETRY: Duration = Duration::from_millis(5);

/// A caller's first words.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    version: u32,
    rank: u16,
    world_size: u16,
    /// The job's; 0 where the caller knows none yet.
    cookie: u64,
    /// Where the caller listens; to rank 0, which answers with [`Answer::Meet`].
    listener: Option<SocketAddr>,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The connection is the two ranks' from now on.
    Welcome,
    /// Where all ranks listen, and the job's cookie.
    Meet { addresses: Vec<SocketAddr>, cookie: u64 },
    /// This caller cannot take part.
    Refused { reason: String },
    /// Others did not come in time.
    Missing { ranks: Vec<u16>, refused: Vec<String> },
}

/// Settings of a [`Mesh`]; `open` makes it.
#[derive(Debug)]
pub struct Builder {
    pub(crate) rank: u16,
    pub(crate) world_size: u16,
    pub(crate) deadline: Duration,
    pub(crate) groups: Option<Groups>,
    rendezvous: Option<SocketAddr>,
    addresses: Option<Vec<SocketAddr>>,
    listener: Option<TcpListener>,
    cookie: Option<u64>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            rank: 0,
            world_size: 1,
            deadline: DEFAULT_DEADLINE,
            groups: None,
            rendezvous: None,
            addresses: None,
            listener: None,
            cookie: None,
        }
    }
}

impl Builder {
    /// Settings from the environment, as launchers set it ([`Launch`]). Where there is more than
    /// one rank, `MASTER_ADDR` (a name or an address of rank 0's host) and `MASTER_PORT` (a free
    /// port there) are needed.
    ///
    /// # Errors
    /// A variable that is missing or cannot be understood.
    pub fn from_env() -> Result<Self, Error> {
        let launch = Launch::from_env()?;
        let (rank, world_size) = launch.world()?;
        let builder = Self::default().rank(rank).world_size(world_size);
        let builder = builder.group_size(launch.processes());
        if world_size <= 1 {
            return Ok(builder);
        }
        let master = launch.need_master()?;
        let found = master.to_socket_addrs().into_iter().flatten().next();
        found.map(|address| builder.rendezvous(address)).ok_or_else(|| {
            let problem = format!("{:?} is no address, and no name of one", master.0);
            Error::Setting { name: "MASTER_ADDR", problem }
        })
    }

    /// This worker's number, from 0.
    #[must_use]
    pub const fn rank(mut self, rank: u16) -> Self {
        self.rank = rank;
        self
    }

    /// The number of ranks, at most [`MAX_WORLD`].
    #[must_use]
    pub const fn world_size(mut self, world_size: u16) -> Self {
        self.world_size = world_size;
        self
    }

    /// How long opening, and then each call, may take; [`DEFAULT_DEADLINE`] by default.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// So many ranks share a host, numbered host by host. Default: 1.
    #[must_use]
    pub fn group_size(mut self, size: u16) -> Self {
        self.groups = Some(Groups::of_size(self.world_size, size));
        self
    }

    /// Which ranks share a host.
    #[must_use]
    pub fn groups(mut self, groups: Groups) -> Self {
        self.groups = Some(groups);
        self
    }

    /// Where rank 0 listens and all others come to, if not all addresses are known.
    #[must_use]
    pub const fn rendezvous(mut self, address: SocketAddr) -> Self {
        self.rendezvous = Some(address);
        self
    }

    /// Where each rank listens, in order of rank. Wants [`Self::cookie`].
    #[must_use]
    pub fn addresses(mut self, addresses: Vec<SocketAddr>) -> Self {
        self.addresses = Some(addresses);
        self
    }

    /// This rank's listener, where it is open already; at rank 0 on the rendezvous' address.
    #[must_use]
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Where this rank listens, if its listener is open already.
    #[must_use]
    pub fn listening_at(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// A number that only the job's ranks know; whoever does not know it is turned away. At a
    /// rendezvous rank 0 makes one where none is given.
    #[must_use]
    pub const fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = Some(cookie);
        self
    }

    /// Connects with all other ranks.
    ///
    /// # Errors
    /// Settings that cannot be; a port in use; ranks that are missing at the deadline; this rank
    /// turned away by another one; a rank that cannot be reached.
    pub fn open(mut self) -> Result<Mesh, Error> {
        self.deadline = self.deadline.min(MAX_DEADLINE);
        let Self { rank, world_size, .. } = self;
        let wrong = |name, problem| Err(Error::Setting { name, problem });
        if rank >= world_size || world_size > MAX_WORLD {
            let problem = format!("rank {rank} of {world_size}; at most {MAX_WORLD}, from 0");
            return wrong("RANK", problem);
        }
        let groups = self.groups.take().unwrap_or_else(|| Groups::single(world_size));
        let grouped: usize = groups.groups().iter().map(Vec::len).sum();
        if grouped != usize::from(world_size) {
            return wrong(
                "groups",
                format!("{grouped} ranks are in them, and the world has {world_size}"),
            );
        }
        let links = if world_size == 1 { vec![None] } else { self.connect()? };
        Ok(Mesh::new(rank, groups, self.deadline, links))
    }

    fn connect(&mut self) -> Result<Vec<Option<Link>>, Error> {
        let end = Instant::now() + self.deadline;
        let (listener, addresses, cookie) = match (self.addresses.take(), self.cookie) {
            (Some(addresses), Some(cookie)) => {
                if addresses.len() != usize::from(self.world_size) {
                    let problem = format!("{} of {} ranks", addresses.len(), self.world_size);
                    return Err(Error::Setting { name: "addresses", problem });
                }
                let own = addresses[usize::from(self.rank)];
                (self.listen(own)?, addresses, cookie)
            }
            (Some(_), None) => {
                let problem = "not set: a list of addresses wants one".into();
                return Err(Error::Setting { name: "cookie", problem });
            }
            (None, _) if self.rank == 0 => self.host(end)?,
            (None, _) => self.visit(end)?,
        };
        self.interlink(&listener, &addresses, cookie, end)
    }

    /// This rank's listener.
    fn listen(&mut self, address: SocketAddr) -> Result<TcpListener, Error> {
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => {
                listen(address, MAX_WORLD).map_err(|source| Error::Listen { address, source })?
            }
        };
        // A caller's own may block.
        listener.set_nonblocking(true).map_err(Error::io("make a listener non-blocking"))?;
        Ok(listener)
    }

    fn rendezvous_address(&self) -> Result<SocketAddr, Error> {
        let of_listener = self.listening_at();
        let problem = || "not set: where rank 0 listens, or the addresses of all ranks".into();
        let address = self.rendezvous.or(of_listener.filter(|_| self.rank == 0));
        address.ok_or_else(|| Error::Setting { name: "rendezvous", problem: problem() })
    }

    /// Rank 0 at a rendezvous: collects all others, then tells them of each other.
    fn host(&mut self, end: Instant) -> Result<(TcpListener, Vec<SocketAddr>, u64), Error> {
        let address = self.rendezvous_address()?;
        let listener = self.listen(address)?;
        let mut guests: Vec<Option<(TcpStream, SocketAddr)>> = Vec::new();
        guests.resize_with(self.world_size.into(), || None);
        let mut refused = Vec::new();
        let mut callers = Callers::new(&listener, length);
        while !are_here(&mut guests) {
            let Some((mut stream, hello)) = next(&mut callers, end) else {
                let missing = absent(&guests, 1);
                for (stream, _) in guests.iter_mut().flatten() {
                    let (ranks, refused) = (missing.clone(), refused.clone());
                    // Who is gone meanwhile needs no answer.
                    let _ = write_message(stream, &Answer::Missing { ranks, refused });
                }
                return Err(self.missing(missing, refused));
            };
            let known = self.cookie.is_none_or(|cookie| cookie == hello.cookie);
            let seat = guests.get_mut(usize::from(hello.rank)).filter(|_| hello.rank > 0);
            let objection = objection(&hello, self.world_size, known);
            match (objection, seat, hello.listener) {
                (None, Some(seat), Some(listener))
                    if seat.as_ref().is_none_or(|(other, _)| is_gone(other)) =>
                {
                    *seat = Some((stream, listener));
                }
                (objection, ..) => {
                    let reason = objection.unwrap_or_else(|| {
                        format!("rank {} is taken; give every worker its own RANK", hello.rank)
                    });
                    refuse(&mut stream, &hello, reason, &mut refused);
                }
            }
        }
        let cookie = self.cookie.unwrap_or_else(random);
        let mut addresses = vec![address];
        addresses.extend(guests.iter().flatten().map(|(_, address)| *address));
        for (stream, _) in guests.iter_mut().flatten() {
            let addresses = addresses.clone();
            // A guest that died meanwhile is noticed when the connections are made.
            let _ = write_message(stream, &Answer::Meet { addresses, cookie });
        }
        Ok((listener, addresses, cookie))
    }

    /// Other ranks at a rendezvous.
    fn visit(&mut self, end: Instant) -> Result<(TcpListener, Vec<SocketAddr>, u64), Error> {
        let address = self.rendezvous_address()?;
        let waited = self.deadline;
        let silent = |source| Error::Unreachable { rank: 0, address, waited, source };
        let mut stream = connect_until(address, end, RETRY).map_err(silent)?;
        let ip: IpAddr = stream.local_addr().map_err(silent)?.ip();
        let listener = self.listen(SocketAddr::new(ip, 0))?;
        let at = listener.local_addr().map_err(Error::io("read a listener's address"))?;
        let hello = self.hello(self.cookie.unwrap_or(0), Some(at));
        let mut ask = || -> Result<Answer, xdp_agg_common::control::FrameError> {
            write_message(&mut stream, &hello)?;
            // Rank 0 gives up at its own deadline and then says who is missing.
            read_message(&mut Until { stream: &stream, end: end + FIRST_WORDS })
        };
        match ask().map_err(|error| silent(io::Error::other(error)))? {
            Answer::Meet { addresses, cookie }
                if addresses.len() == usize::from(self.world_size) =>
            {
                Ok((listener, addresses, cookie))
            }
            Answer::Refused { reason } => Err(Error::Refused { by: 0, reason }),
            Answer::Missing { ranks, refused } => Err(self.missing(ranks, refused)),
            Answer::Meet { .. } | Answer::Welcome => {
                Err(silent(io::Error::new(io::ErrorKind::InvalidData, "not a rendezvous' answer")))
            }
        }
    }

    fn hello(&self, cookie: u64, listener: Option<SocketAddr>) -> Hello {
        let Self { rank, world_size, .. } = *self;
        Hello { version: VERSION, rank, world_size, cookie, listener }
    }

    fn missing(&self, missing: Vec<u16>, refused: Vec<String>) -> Error {
        let (world_size, waited) = (self.world_size, self.deadline);
        Error::MissingRanks { missing, world_size, waited, refused }
    }

    /// Connects to all higher ranks, accepts all lower ones, and waits for the higher ones' words.
    fn interlink(
        &self,
        listener: &TcpListener,
        addresses: &[SocketAddr],
        cookie: u64,
        end: Instant,
    ) -> Result<Vec<Option<Link>>, Error> {
        let mut streams: Vec<Option<TcpStream>> = Vec::new();
        streams.resize_with(addresses.len(), || None);
        let me = usize::from(self.rank);
        let waited = self.deadline;
        let unreachable = |rank: usize| {
            let address = addresses[rank];
            move |source| Error::Unreachable { rank: rank as u16, address, waited, source }
        };
        // The kernel takes connections for a listener that nobody looks at yet: no rank waits for
        // another one here.
        for rank in me + 1..addresses.len() {
            let mut stream =
                connect_until(addresses[rank], end, RETRY).map_err(unreachable(rank))?;
            write_message(&mut stream, &self.hello(cookie, None))
                .map_err(|error| unreachable(rank)(io::Error::other(error)))?;
            streams[rank] = Some(stream);
        }
        let mut refused = Vec::new();
        let mut awaited: BTreeSet<u16> = (0..self.rank).collect();
        let mut callers = Callers::new(listener, length);
        while !awaited.is_empty() {
            let Some((mut stream, hello)) = next(&mut callers, end) else {
                return Err(self.missing(awaited.into_iter().collect(), refused));
            };
            let objection =
                objection(&hello, self.world_size, hello.cookie == cookie).or_else(|| {
                    let known = awaited.contains(&hello.rank);
                    (!known).then(|| format!("rank {} is not awaited", hello.rank))
                });
            match objection {
                Some(reason) => refuse(&mut stream, &hello, reason, &mut refused),
                None => {
                    if write_message(&mut stream, &Answer::Welcome).is_ok() {
                        awaited.remove(&hello.rank);
                        streams[usize::from(hello.rank)] = Some(stream);
                    }
                }
            }
        }
        for (rank, stream) in streams.iter_mut().enumerate().skip(me + 1) {
            let Some(stream) = stream else { continue };
            // What is here already is read in any case.
            let end = end.max(Instant::now() + RETRY);
            match read_message(&mut Until { stream, end }) {
                Ok(Answer::Welcome) => {}
                Ok(Answer::Refused { reason }) => {
                    return Err(Error::Refused { by: rank as u16, reason });
                }
                Ok(_) => return Err(unreachable(rank)(io::Error::other("not a mesh's answer"))),
                Err(error) => return Err(unreachable(rank)(io::Error::other(error))),
            }
        }
        let links = streams.into_iter().enumerate();
        let links = links.map(|(rank, s)| s.map(|s| Link::new(rank as u16, s)).transpose());
        let links: Vec<_> = links.collect::<Result<_, _>>()?;
        tracing::debug!(rank = self.rank, world_size = self.world_size, "mesh connected");
        Ok(links)
    }
}

/// True when all have come. Who is gone again has not: it may come once more, as a new process.
fn are_here(guests: &mut [Option<(TcpStream, SocketAddr)>]) -> bool {
    if !absent(guests, 1).is_empty() {
        return false;
    }
    for guest in &mut *guests {
        guest.take_if(|(stream, _)| is_gone(stream));
    }
    absent(guests, 1).is_empty()
}

fn absent(guests: &[Option<(TcpStream, SocketAddr)>], from: usize) -> Vec<u16> {
    let seats = guests.iter().enumerate().skip(from);
    seats.filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank as u16).collect()
}

/// Why a caller is turned away, if it is.
fn objection(hello: &Hello, world_size: u16, knows_cookie: bool) -> Option<String> {
    let Hello { version, rank, world_size: theirs, .. } = hello;
    if *version != VERSION {
        return Some(format!(
            "it speaks version {version}, this one version {VERSION}; use one release on all hosts"
        ));
    }
    if !knows_cookie {
        return Some("it does not know the job's cookie: is it of another job?".into());
    }
    if *theirs != world_size || *rank >= world_size {
        return Some(format!(
            "it is rank {rank} of {theirs}, this world has {world_size}; give all the same"
        ));
    }
    None
}

fn refuse(stream: &mut TcpStream, hello: &Hello, reason: String, refused: &mut Vec<String>) {
    let from = stream.peer_addr().map_or_else(|_| "a stranger".into(), |a| a.ip().to_string());
    tracing::warn!(rank = hello.rank, from, reason, "turned away");
    // Strangers may come in any number; the first ones are told of.
    if refused.len() < 8 {
        refused.push(format!("{from}: {reason}"));
    }
    // It may be gone already; then nobody needs the answer.
    let _ = write_message(stream, &Answer::Refused { reason });
}

/// Bytes of a message that begins like this; of its length, as long as that is not there.
fn length(words: &[u8]) -> usize {
    words.first_chunk().map_or(4, |len| (u32::from_be_bytes(*len) as usize).saturating_add(4))
}

/// The next caller that speaks as one; None when there is none until `end`.
fn next(callers: &mut Callers<'_>, end: Instant) -> Option<(TcpStream, Hello)> {
    loop {
        let (stream, words) = callers.next(end)?;
        if let Ok(hello) = read_message(&mut &*words) {
            return Some((stream, hello));
        }
    }
}
