//! How each rank connects with all others.
//!
//! Every rank has a listener. The lower rank of two connects to the higher one. Where the ranks do
//! not know all addresses, they [meet](crate::meeting) first. Messages are JSON behind a length, as
//! on control connections.
//!
//! Both ranks of a connection prove that they know the job's cookie. It is not said itself.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use xdp_agg_common::control::words::{self, SENTENCE_MAX, clean};
use xdp_agg_common::control::{read_message, write_message};

use crate::callers::{Callers, Until, length, other_version, other_world};
use crate::error::Error;
use crate::link::Link;
use crate::meet::{RETRY, connect_until, this_host};
use crate::meeting::{Meeting, MeetingPoint, Secret, open_hall};
use crate::open::Builder;
use crate::schedule::Groups;

/// Of these messages and of what follows on the connections.
const VERSION: u32 = 3;

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
    /// [`Self::words`], proved by the job's cookie.
    #[serde(default)]
    proof: u64,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The connection is the two ranks' from now on. [`welcome`], proved by the job's cookie.
    Welcome { proof: u64 },
    /// This caller cannot take part.
    Refused {
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
    },
}

impl Hello {
    /// What the caller vouches for to a rank: nobody else can come in its place.
    fn words(&self, to: u16) -> String {
        let Self { rank, world_size, occasion, .. } = self;
        format!("rank {rank} of {world_size} to rank {to}: {occasion}")
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
            (None, _) => self.find_all()?,
        };
        self.interlink(&listener, &addresses, cookie, end)
    }

    /// This rank's listener.
    fn listen(&mut self, address: SocketAddr) -> Result<TcpListener, Error> {
        open_hall(address, self.listener.take())
    }

    /// Meets the others: where they listen, and their cookie.
    fn find_all(&mut self) -> Result<(TcpListener, Vec<SocketAddr>, u64), Error> {
        let of_listener = self.listening_at().filter(|_| self.rank == 0).map(MeetingPoint::At);
        let place = self.rendezvous.take().or(of_listener).ok_or_else(|| {
            let problem = "not set: where rank 0 listens, or the addresses of all ranks".into();
            Error::Setting { name: "rendezvous", problem }
        })?;
        let meeting = Meeting {
            rank: self.rank,
            world_size: self.world_size,
            place,
            occasion: self.occasion.clone(),
            run: self.run.take(),
            secret: self.cookie.map_or_else(|| self.secret.clone(), Secret::cookie),
            within: self.join_time(),
            warn_after: self.warn_after,
        };
        let words = format!("{} {}", this_host(), self.local_size.unwrap_or(0));
        let (minutes, own) = meeting.meet(&words, self.listener.take(), true)?;
        if self.local_size.is_some() {
            let hosts = minutes.words.iter().map(|words| words.split_once(' ').unwrap_or_default());
            let hosts: Vec<_> =
                hosts.map(|(host, size)| (host, size.parse().unwrap_or(0))).collect();
            self.groups = Some(Groups::of_hosts(&hosts));
        }
        let own = own.ok_or_else(|| Error::Setting {
            name: "rendezvous",
            problem: "it was over before this rank listened".into(),
        })?;
        Ok((own, minutes.addresses, self.cookie.unwrap_or(minutes.number)))
    }

    fn hello(&self, cookie: u64, to: u16) -> Hello {
        let (rank, world_size, occasion) = (self.rank, self.world_size, self.occasion.clone());
        let mut hello = Hello { version: VERSION, rank, world_size, occasion, proof: 0 };
        hello.proof = proof(cookie, &hello.words(to));
        hello
    }

    /// Why a caller is turned away, if it is.
    fn objection(&self, hello: &Hello, cookie: u64) -> Option<String> {
        let Hello { version, rank, world_size, occasion, .. } = hello;
        if let Some(reason) = other_version(*version, VERSION) {
            return Some(reason);
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
        other_world((*rank, *world_size), (self.rank, self.world_size))
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
            write_message(&mut stream, &self.hello(cookie, rank as u16))
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

fn refuse(stream: &mut TcpStream, hello: &Hello, reason: String, refused: &mut Vec<String>) {
    let from = stream.peer_addr().map_or_else(|_| "a stranger".into(), |a| a.ip().to_string());
    // It may quote the caller.
    let reason = clean(&reason, SENTENCE_MAX);
    tracing::warn!(rank = hello.rank, from, reason, "turned away");
    // Strangers may come in any number; the first ones are told of.
    if refused.len() < 8 {
        refused.push(format!("{from}: {reason}"));
    }
    // It may be gone already; then nobody needs the answer.
    let _ = write_message(stream, &Answer::Refused { reason });
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
