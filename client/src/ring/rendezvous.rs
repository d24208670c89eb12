//! How the ranks find each other: all come to rank 0, which tells each its neighbour.
//!
//! Messages are JSON behind a length (u16, little-endian). Rank 0 listens on the rendezvous
//! address; every rank opens a listener for the rank before it, comes with a [`Hello`], and gets
//! a [`Reply`] when all have come. Then each connects to the rank after it and introduces itself
//! by a [`Link`].

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xdp_agg_mesh::callers::{Callers, FIRST_WORDS, Until};
use xdp_agg_mesh::meet::{self, connect_until};

use super::error::Error;
use super::links::{Links, Neighbour};
use crate::digest::keyed;

/// Of these messages and of what follows on the ring's connections.
const VERSION: u32 = 3;
const BYTE_ORDER: ByteOrder =
    if cfg!(target_endian = "little") { ByteOrder::Little } else { ByteOrder::Big };
/// Wait between two attempts to connect.
const RETRY: Duration = Duration::from_millis(10);
/// Most callers whose turning away is logged, and told to all.
const MAX_REFUSED: usize = 8;

/// Which ring of a job this is: the same at all its members, who prove to each other that they
/// know the cookie. A ring without a daemon has none of all this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Occasion {
    /// The epoch that ended.
    pub(crate) epoch: u16,
    pub(crate) cookie: u64,
    /// Rings that the members were on since.
    pub(crate) rings: u32,
}

impl Occasion {
    /// What only who knows the cookie can say, of `words` on this occasion.
    pub(crate) fn proof(&self, words: &str) -> u64 {
        let Self { epoch, cookie, rings } = self;
        keyed(*cookie, format!("epoch {epoch}, ring {rings}: {words}").as_bytes())
    }
}

/// A rank's first words to rank 0.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: u32,
    byte_order: ByteOrder,
    rank: u16,
    world_size: u16,
    listener: SocketAddr,
    // Of an earlier version without these it can be said that it is one.
    #[serde(default)]
    epoch: u16,
    #[serde(default)]
    rings: u32,
    /// [`Self::words`], proved.
    #[serde(default)]
    proof: u64,
}

impl Hello {
    /// What the caller vouches for: nobody else can come in its place, or lead others elsewhere.
    fn words(&self) -> String {
        format!("rank {} of {} at {}", self.rank, self.world_size, self.listener)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ByteOrder {
    Little,
    Big,
}

impl fmt::Display for ByteOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Little { "little-endian" } else { "big-endian" })
    }
}

/// Rank 0's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    /// All are there.
    Go { next: SocketAddr, ring: u64 },
    /// This rank cannot take part.
    Refused { reason: String },
    /// Others did not come in time.
    Missing { ranks: Vec<u16>, refused: Vec<String> },
}

/// A rank's first words to the rank after it.
#[derive(Debug, Serialize, Deserialize)]
struct Link {
    ring: u64,
    rank: u16,
    role: Role,
}

/// What a connection between neighbours is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    Data,
    Control,
}

/// Who meets where, and until when.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) rank: u16,
    pub(super) world_size: u16,
    pub(super) address: SocketAddr,
    /// Rank 0: the listener, where the caller has opened it.
    pub(super) listener: Option<TcpListener>,
    pub(super) deadline: Duration,
    pub(super) occasion: Occasion,
}

impl Meeting {
    /// Meets the others and builds the connections of the ring.
    pub(super) fn hold(mut self) -> Result<Links, Error> {
        let end = Instant::now() + self.deadline;
        let (listener, next, ring) = if self.rank == 0 { self.host(end) } else { self.visit(end) }?;
        let next_rank = (self.rank + 1) % self.world_size;
        let previous_rank = (self.rank + self.world_size - 1) % self.world_size;
        let fail = |direction, neighbour, address| {
            let rank = self.rank;
            move |source| Error::Link { rank, direction, neighbour, address, source }
        };
        let reach = |role| self.reach(next, ring, role, end);
        let next = reach(Role::Data)
            .and_then(|data| Ok((data, reach(Role::Control)?)))
            .map_err(fail("to", next_rank, next))?;
        let address = listener.local_addr().map_err(Error::io("read a listener's address"))?;
        let previous = accept_links(&listener, ring, previous_rank, end).map_err(fail(
            "from",
            previous_rank,
            address,
        ))?;
        Ok(Links {
            previous: Neighbour::new(previous_rank, previous.0, previous.1)?,
            next: Neighbour::new(next_rank, next.0, next.1)?,
        })
    }

    fn hello(&self, listener: SocketAddr) -> Hello {
        let Self { rank, world_size, occasion, .. } = *self;
        let Occasion { epoch, rings, .. } = occasion;
        let (version, byte_order, proof) = (VERSION, BYTE_ORDER, 0);
        let mut hello =
            Hello { version, byte_order, rank, world_size, listener, epoch, rings, proof };
        hello.proof = occasion.proof(&hello.words());
        hello
    }

    /// Rank 0: collects all others, then answers them.
    fn host(&mut self, end: Instant) -> Result<(TcpListener, SocketAddr, u64), Error> {
        let host = match self.listener.take() {
            Some(listener) => listener,
            None => listen(self.address)?,
        };
        host.set_nonblocking(true).map_err(Error::io("make a listener non-blocking"))?;
        let own = listen(SocketAddr::new(self.address.ip(), 0))?;
        let port = own.local_addr().map_err(Error::io("read a listener's address"))?.port();
        let mut guests = Guests::new(self.world_size, self.occasion);
        let mut callers = Callers::new(&host, length);
        while !guests.are_here() {
            if let Some((stream, words)) = callers.next(end) {
                guests.receive(stream, &words);
                continue;
            }
            let (ranks, refused) = (guests.missing(), guests.refused.clone());
            guests.answer(|_| Reply::Missing { ranks: ranks.clone(), refused: refused.clone() });
            let (missing, world_size, waited) = (ranks, self.world_size, self.deadline);
            return Err(Error::MissingRanks { missing, world_size, waited, refused });
        }
        // Tells the connections of one ring from those of another on reused ports. Nothing secret.
        let ring = meet::random();
        let next = guests.listener(1);
        guests.answer(|rank| Reply::Go {
            next: match guests.seats.get(usize::from(rank)) {
                Some(Some(guest)) => guest.listener,
                // The last rank's next is rank 0, at the address where that rank has found it.
                _ => SocketAddr::new(guests.host_ip(rank - 1), port),
            },
            ring,
        });
        Ok((own, next, ring))
    }

    /// Other ranks: introduce themselves and wait for the answer.
    fn visit(&self, end: Instant) -> Result<(TcpListener, SocketAddr, u64), Error> {
        let (rank, address, waited) = (self.rank, self.address, self.deadline);
        let silent = |source| Error::NoRendezvous { rank, address, waited, source };
        let mut stream = connect_until(address, end, RETRY).map_err(silent)?;
        let local = stream.local_addr().map_err(silent)?;
        let listener = listen(SocketAddr::new(local.ip(), 0))?;
        let at = listener.local_addr().map_err(Error::io("read a listener's address"))?;
        write_message(&mut stream, &self.hello(at)).map_err(silent)?;
        // Rank 0 gives up at its own deadline and then says who is missing: worth a moment more.
        let mut answer = Until { stream: &stream, end: end + FIRST_WORDS };
        match read_message(&mut answer).map_err(silent)? {
            Reply::Go { next, ring } => Ok((listener, next, ring)),
            Reply::Refused { reason } => Err(Error::Refused { rank, reason }),
            Reply::Missing { ranks: missing, refused } => {
                Err(Error::MissingRanks { missing, world_size: self.world_size, waited, refused })
            }
        }
    }

    /// Connects to the next rank, which listens already.
    fn reach(
        &self,
        next: SocketAddr,
        ring: u64,
        role: Role,
        end: Instant,
    ) -> io::Result<TcpStream> {
        let mut stream = connect_until(next, end, RETRY)?;
        write_message(&mut stream, &Link { ring, rank: self.rank, role })?;
        Ok(stream)
    }
}

/// A rank that has come to rank 0.
#[derive(Debug)]
struct Guest {
    stream: TcpStream,
    listener: SocketAddr,
}

/// All that have come; seat 0, rank 0's own, stays empty.
#[derive(Debug)]
struct Guests {
    seats: Vec<Option<Guest>>,
    refused: Vec<String>,
    occasion: Occasion,
}

impl Guests {
    fn new(world_size: u16, occasion: Occasion) -> Self {
        let seats = (0..world_size).map(|_| None).collect();
        Self { seats, refused: Vec::new(), occasion }
    }

    /// True when all have come. Who is gone again has not: it may come once more, as a new process.
    fn are_here(&mut self) -> bool {
        if !self.missing().is_empty() {
            return false;
        }
        for seat in &mut self.seats {
            seat.take_if(|guest| meet::is_gone(&guest.stream));
        }
        self.missing().is_empty()
    }

    fn missing(&self) -> Vec<u16> {
        let seats = self.seats.iter().enumerate().skip(1);
        seats.filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank as u16).collect()
    }

    fn listener(&self, rank: u16) -> SocketAddr {
        self.guest(rank).listener
    }

    /// The address by which `rank` has found rank 0.
    fn host_ip(&self, rank: u16) -> IpAddr {
        match self.guest(rank).stream.local_addr() {
            Ok(address) => address.ip(),
            Err(_) => self.guest(rank).listener.ip(),
        }
    }

    fn guest(&self, rank: u16) -> &Guest {
        self.seats[usize::from(rank)].as_ref().expect("asked only when all have come")
    }

    /// Seats a caller, or says why not. Who does not speak this protocol is left without an answer.
    fn receive(&mut self, mut stream: TcpStream, words: &[u8]) {
        let Ok(hello) = read_message::<Hello>(&mut &*words) else {
            return;
        };
        match self.objection(&hello) {
            None => {
                let guest = Guest { stream, listener: hello.listener };
                self.seats[usize::from(hello.rank)] = Some(guest);
            }
            Some(reason) => {
                // Strangers may come in any number; the first ones are told of.
                if self.refused.len() < MAX_REFUSED {
                    let (rank, listener) = (hello.rank, hello.listener);
                    tracing::warn!(rank, %listener, reason, "turned away");
                    self.refused.push(format!("{}: {reason}", listener.ip()));
                }
                // It may be gone already; then nobody needs the answer.
                let _ = write_message(&mut stream, &Reply::Refused { reason });
            }
        }
    }

    fn objection(&self, hello: &Hello) -> Option<String> {
        let Hello { version, byte_order, rank, world_size, .. } = hello;
        let expected = self.seats.len();
        if *version != VERSION || *byte_order != BYTE_ORDER {
            return Some(format!(
                "it speaks version {version}, {byte_order}, rank 0 speaks version {VERSION}, \
                 {BYTE_ORDER}; use the same release on all hosts"
            ));
        }
        if let Some(reason) = self.stranger(hello) {
            return Some(reason);
        }
        if usize::from(*world_size) != expected {
            return Some(format!(
                "its WORLD_SIZE is {world_size}, that of rank 0 is {expected}; give all the same"
            ));
        }
        match self.seats.get(usize::from(*rank)) {
            None => Some(format!("its rank {rank} is not below WORLD_SIZE {expected}")),
            // Who sat there has gone, and this is who comes in its place.
            Some(Some(other)) if meet::is_gone(&other.stream) => None,
            Some(Some(other)) => Some(format!(
                "rank {rank} is taken (by a worker on {}); give every worker its own RANK",
                other.listener.ip()
            )),
            Some(None) if *rank == 0 => Some(
                "rank 0 is taken (by the rendezvous host); give every worker its own RANK".into(),
            ),
            Some(None) => None,
        }
    }

    /// Why it is none of this ring's members.
    fn stranger(&self, hello: &Hello) -> Option<String> {
        let Occasion { epoch, rings, .. } = self.occasion;
        if (hello.epoch, hello.rings) != (epoch, rings) {
            return Some(format!(
                "it was last in epoch {} and then on {} rings, rank 0 in epoch {epoch} and on \
                 {rings}; it belongs to another ring",
                hello.epoch, hello.rings
            ));
        }
        (hello.proof != self.occasion.proof(&hello.words()))
            .then(|| "it does not know the epoch's cookie: is it of another job?".into())
    }

    /// Answers all guests; `reply` gets the rank after the guest's.
    fn answer(&self, reply: impl Fn(u16) -> Reply) {
        for (rank, guest) in self.seats.iter().enumerate() {
            if let Some(guest) = guest {
                // A guest that died meanwhile is noticed by its neighbours.
                let _ = write_message(&mut &guest.stream, &reply(rank as u16 + 1));
            }
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    meet::listen(address, super::MAX_WORLD).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => Error::PortInUse { address },
        _ => Error::Listen { address, source },
    })
}

/// Bytes of a message that begins like this; of its length, as long as that is not there.
fn length(words: &[u8]) -> usize {
    words.first_chunk().map_or(2, |len| usize::from(u16::from_le_bytes(*len)) + 2)
}

/// The data and the control connection of the rank before this one. Strangers are ignored.
fn accept_links(
    listener: &TcpListener,
    ring: u64,
    rank: u16,
    end: Instant,
) -> io::Result<(TcpStream, TcpStream)> {
    let (mut data, mut control) = (None, None);
    let mut callers = Callers::new(listener, length);
    while let Some((stream, words)) = callers.next(end) {
        match read_message::<Link>(&mut &*words) {
            Ok(link) if link.ring == ring && link.rank == rank => match link.role {
                Role::Data => data = Some(stream),
                Role::Control => control = Some(stream),
            },
            _ => continue,
        }
        if data.is_some() && control.is_some() {
            break;
        }
    }
    data.zip(control).ok_or_else(|| {
        io::Error::new(io::ErrorKind::TimedOut, "it did not connect within the deadline")
    })
}

fn write_message(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let len = u16::try_from(json.len()).map_err(io::Error::other)?;
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend_from_slice(&json);
    stream.write_all(&bytes)
}

fn read_message<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut json = vec![0; u16::from_le_bytes(len).into()];
    stream.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}
