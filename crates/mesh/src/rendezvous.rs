//! How the ranks find each other, and how each connects with all.
//!
//! Every rank has a listener. Where all know all addresses, the lower rank of two connects to the
//! higher one. Where only rank 0's is known, all come to it first, and get the addresses there.
//! Messages are JSON behind a length, as on control connections.
//!
//! Both ranks of a connection prove that they know the job's cookie. It is not said itself, except
//! by rank 0 where the ranks come without one.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use xdp_agg_common::control::{FrameError, read_message, write_message};

use crate::callers::{Callers, FIRST_WORDS, Until};
use crate::error::Error;
use crate::link::Link;
use crate::meet::{connect_until, is_gone, listen, random};
use crate::open::{Builder, MAX_WORLD, RETRY};

/// Of these messages and of what follows on the connections.
const VERSION: u32 = 2;

/// A caller's first words.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    version: u32,
    rank: u16,
    world_size: u16,
    /// Which of the job's meshes it means.
    // Of an earlier version without these it can be said that it is one.
    #[serde(default)]
    occasion: String,
    /// [`Self::words`], proved by the job's cookie; by 0 where the caller knows none.
    #[serde(default)]
    proof: u64,
    /// Where the caller listens; to rank 0, which answers with [`Answer::Meet`].
    listener: Option<SocketAddr>,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The connection is the two ranks' from now on. [`welcome`], proved by the job's cookie.
    Welcome { proof: u64 },
    /// Where all ranks listen, and the job's cookie where they know none.
    Meet { addresses: Vec<SocketAddr>, cookie: Option<u64> },
    /// This caller cannot take part.
    Refused { reason: String },
    /// Others did not come in time.
    Missing { ranks: Vec<u16>, refused: Vec<String> },
}

impl Hello {
    /// What the caller vouches for to a rank: nobody else can come in its place, or lead others
    /// elsewhere.
    fn words(&self, to: u16) -> String {
        let Self { rank, world_size, occasion, listener, .. } = self;
        format!("rank {rank} of {world_size} at {listener:?} to rank {to}: {occasion}")
    }
}

/// What the one that answers vouches for.
fn welcome(by: u16, rank: u16, occasion: &str) -> String {
    format!("rank {by} welcomes rank {rank}: {occasion}")
}

/// Shows that its maker knows the cookie, and does not tell it.
fn proof(cookie: u64, words: &str) -> u64 {
    SipHasher24::new_with_keys(cookie, u64::from_le_bytes(*b"xdp-agg\0")).hash(words.as_bytes())
}

impl Builder {
    pub(crate) fn connect(&mut self) -> Result<Vec<Option<Link>>, Error> {
        let end = Instant::now() + self.join_time();
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
            None => listen(address, MAX_WORLD).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => Error::PortInUse { address },
                _ => Error::Listen { address, source },
            })?,
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
                    // A rank that is gone meanwhile needs no answer.
                    let _ = write_message(stream, &Answer::Missing { ranks, refused });
                }
                return Err(self.missing(missing, refused));
            };
            let seat = guests.get_mut(usize::from(hello.rank)).filter(|_| hello.rank > 0);
            let objection = self.objection(&hello, self.cookie.unwrap_or(0));
            match (objection, seat, hello.listener) {
                (None, Some(seat), Some(listener))
                    if seat.as_ref().is_none_or(|(other, _)| is_gone(other)) =>
                {
                    *seat = Some((stream, listener));
                }
                (objection, seat, _) => {
                    let reason = objection.unwrap_or_else(|| {
                        let by = seat.and_then(|seat| seat.as_ref()).map_or_else(
                            || "the rendezvous' host".into(),
                            |(_, listener)| format!("a worker on {}", listener.ip()),
                        );
                        let rank = hello.rank;
                        format!("rank {rank} is taken by {by}; give every worker its own RANK")
                    });
                    refuse(&mut stream, &hello, reason, &mut refused);
                }
            }
        }
        let (known, cookie) = (self.cookie, self.cookie.unwrap_or_else(random));
        let mut addresses = vec![address];
        addresses.extend(guests.iter().flatten().map(|(_, address)| *address));
        for (stream, _) in guests.iter_mut().flatten() {
            let (addresses, cookie) = (addresses.clone(), known.is_none().then_some(cookie));
            // A guest that died meanwhile is noticed when the connections are made.
            let _ = write_message(stream, &Answer::Meet { addresses, cookie });
        }
        Ok((listener, addresses, cookie))
    }

    /// Other ranks at a rendezvous.
    fn visit(&mut self, end: Instant) -> Result<(TcpListener, Vec<SocketAddr>, u64), Error> {
        let address = self.rendezvous_address()?;
        let waited = self.join_time();
        let silent = |source| Error::Unreachable { rank: 0, address, waited, source };
        let mut stream = connect_until(address, end, RETRY).map_err(silent)?;
        let ip: IpAddr = stream.local_addr().map_err(silent)?.ip();
        let listener = self.listen(SocketAddr::new(ip, 0))?;
        let at = listener.local_addr().map_err(Error::io("read a listener's address"))?;
        let hello = self.hello(self.cookie.unwrap_or(0), 0, Some(at));
        let mut ask = || -> Result<Answer, FrameError> {
            write_message(&mut stream, &hello)?;
            // Rank 0 gives up at its own deadline and then says who is missing.
            read_message(&mut Until { stream: &stream, end: end + FIRST_WORDS })
        };
        match ask().map_err(|error| silent(io::Error::other(error)))? {
            Answer::Meet { addresses, cookie }
                if addresses.len() == usize::from(self.world_size) =>
            {
                Ok((listener, addresses, self.cookie.or(cookie).unwrap_or(0)))
            }
            Answer::Refused { reason } => Err(Error::Refused { by: 0, reason }),
            Answer::Missing { ranks, refused } => Err(self.missing(ranks, refused)),
            Answer::Meet { .. } | Answer::Welcome { .. } => {
                Err(silent(io::Error::new(io::ErrorKind::InvalidData, "not a rendezvous' answer")))
            }
        }
    }

    fn hello(&self, cookie: u64, to: u16, listener: Option<SocketAddr>) -> Hello {
        let (rank, world_size, occasion) = (self.rank, self.world_size, self.occasion.clone());
        let mut hello = Hello { version: VERSION, rank, world_size, occasion, proof: 0, listener };
        hello.proof = proof(cookie, &hello.words(to));
        hello
    }

    /// Why a caller is turned away, if it is.
    fn objection(&self, hello: &Hello, cookie: u64) -> Option<String> {
        let Hello { version, rank, world_size: theirs, occasion, .. } = hello;
        let world_size = self.world_size;
        if *version != VERSION {
            return Some(format!(
                "it speaks version {version}, this one version {VERSION}; use one release on all \
                 hosts"
            ));
        }
        if *occasion != self.occasion {
            return Some(format!(
                "it comes for {occasion:?}, this one is here for {:?}; it belongs to another ring",
                self.occasion
            ));
        }
        if hello.proof != proof(cookie, &hello.words(self.rank)) {
            return Some("it does not know the job's cookie: is it of another job?".into());
        }
        if *theirs != world_size || *rank >= world_size {
            return Some(format!(
                "it is rank {rank} and its WORLD_SIZE is {theirs}, that of rank {} is \
                 {world_size}; give all the same",
                self.rank
            ));
        }
        None
    }

    fn missing(&self, missing: Vec<u16>, refused: Vec<String>) -> Error {
        let (world_size, waited) = (self.world_size, self.join_time());
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
        let waited = self.join_time();
        let unreachable = |rank: usize| {
            let address = addresses[rank];
            move |source| Error::Unreachable { rank: rank as u16, address, waited, source }
        };
        // The kernel takes connections for a listener that nobody looks at yet: no rank waits for
        // another one here.
        for rank in me + 1..addresses.len() {
            let mut stream =
                connect_until(addresses[rank], end, RETRY).map_err(unreachable(rank))?;
            write_message(&mut stream, &self.hello(cookie, rank as u16, None))
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
            let objection = self.objection(&hello, cookie).or_else(|| {
                let known = awaited.contains(&hello.rank);
                (!known).then(|| format!("rank {} is not awaited", hello.rank))
            });
            match objection {
                Some(reason) => refuse(&mut stream, &hello, reason, &mut refused),
                None => {
                    let words = welcome(self.rank, hello.rank, &self.occasion);
                    let answer = Answer::Welcome { proof: proof(cookie, &words) };
                    if write_message(&mut stream, &answer).is_ok() {
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
            let words = welcome(rank as u16, self.rank, &self.occasion);
            match read_message(&mut Until { stream, end }) {
                Ok(Answer::Welcome { proof: theirs }) if theirs == proof(cookie, &words) => {}
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

/// True when all have come. A rank that is gone again does not count: it may come once more, as a
/// new process.
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

/// The next caller that speaks as one; None: none came until `end`.
fn next(callers: &mut Callers<'_>, end: Instant) -> Option<(TcpStream, Hello)> {
    loop {
        let (stream, words) = callers.next(end)?;
        if let Ok(hello) = read_message(&mut &*words) {
            return Some((stream, hello));
        }
    }
}
