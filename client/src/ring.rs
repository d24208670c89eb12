//! The baseline: a TCP ring all-reduce, as good as TCP and one thread make it.
//!
//! Every rank has a connection from the rank before it and one to the rank after it (and beside
//! each a second one, for notices when something fails). A vector is cut into as many pieces as
//! there are ranks; in `N - 1` steps each piece goes round and is summed, in `N - 1` more the
//! sums go round. No link carries more than `2 (N - 1) / N` times the vector, which is the least
//! that is possible without help from the network. Bytes are passed on as soon as they are
//! reduced, not step by step, so both directions of every link stay busy.
//!
//! Short vectors take another way over the same connections: every rank's whole vector goes
//! round, and each rank sums them all, in order of rank. That is half as many steps. Either way
//! all ranks get the same bits.

mod call;
mod element;
mod error;
mod links;
mod plan;
mod poll;
mod rendezvous;
#[cfg(test)]
mod tests;
mod transfer;

use std::cell::Cell;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

pub use call::Call;
pub use element::{Element, What};
pub use error::Error;

use xdp_agg_common::wire::Reduction;
use xdp_agg_mesh::MAX_DEADLINE;

use call::Notice;
use element::as_bytes;
use element::sealed::Sealed;
use links::Links;
use plan::Plan;
use rendezvous::Meeting;
pub(crate) use rendezvous::Occasion;
use transfer::{CHUNK, Context, Transfer};
use xdp_agg_numbers::Op;

/// Largest world size.
pub const MAX_WORLD: u16 = 1024;
/// Deadline of the rendezvous and of each call, where none is given.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
/// Vectors up to so many bytes go round whole, where nothing else is said.
///
/// That saves `N - 1` one-way trips and costs `(N - 2) / N` of the vector on the link for each.
/// Above this size the bytes cost more than the trip (some 20 µs) on a link of 500 Mbit/s.
pub const DEFAULT_SHORT_BYTES: usize = 2048;

/// One rank of a TCP ring.
///
/// Calls block; all ranks make the same ones in the same order. Each ends within the deadline,
/// plus at most a second in which a rank that gives up waits for another's better reason. After
/// an error the ranks are out of step, so all further calls fail with [`Error::Broken`].
#[derive(Debug)]
pub struct Ring {
    rank: u16,
    world_size: u16,
    deadline: Duration,
    short_bytes: usize,
    /// None in a world of one.
    links: Option<Links>,
    scratch: Vec<u8>,
    gathered: Vec<u8>,
    sequence: u64,
    broken: Option<String>,
}

impl Ring {
    /// A ring by the environment: `RANK` (or `OMPI_COMM_WORLD_RANK`, `PMI_RANK`), `WORLD_SIZE` (or
    /// `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE`), `MASTER_ADDR` (a name or an address of rank 0's host)
    /// and `MASTER_PORT` (a free port there), as torchrun and MPI launchers set them. Optional:
    /// `XDP_AGG_DEADLINE` in seconds, [`DEFAULT_DEADLINE`] by default, and
    /// `XDP_AGG_RING_SHORT_BYTES`, see [`Builder::short_bytes`].
    ///
    /// # Errors
    /// Settings that are missing or wrong, and those of [`Builder::connect`].
    pub fn from_env() -> Result<Self, Error> {
        Self::from_values(std::env::var_os)
    }

    /// This worker's number.
    #[must_use]
    pub const fn rank(&self) -> u16 {
        self.rank
    }

    /// Number of workers.
    #[must_use]
    pub const fn world_size(&self) -> u16 {
        self.world_size
    }

    /// What is no text is an error, and not taken for a variable that is not set.
    fn from_values(value: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, Error> {
        let wrong = Cell::new(None);
        let text = |name| {
            let text = value(name)?.into_string();
            text.map_err(|value| wrong.set(Some((name, value.to_string_lossy().into())))).ok()
        };
        let builder = Self::from_variables(text);
        match wrong.into_inner() {
            Some((name, value)) => {
                Err(Error::InvalidSetting { name, value, expected: "UTF-8 text" })
            }
            None => builder?.connect(),
        }
    }

    fn from_variables(variable: impl Fn(&'static str) -> Option<String>) -> Result<Builder, Error> {
        let need = |name, meaning| variable(name).ok_or(Error::MissingVariable { name, meaning });
        let number = |names: [&'static str; 3], meaning| {
            let set = names.iter().find_map(|name| Some((*name, variable(name)?)));
            let (name, value) = set.ok_or(Error::MissingVariable { name: names[0], meaning })?;
            parse(name, &value)
        };
        let rank =
            number(["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"], "this worker's number, from 0")?;
        let world_size =
            number(["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"], "the number of workers")?;
        let mut builder = Self::builder().rank(rank).world_size(world_size);
        if let Some(seconds) = variable("XDP_AGG_DEADLINE") {
            let expected = "a positive number of seconds";
            let duration = seconds.trim().parse().ok().filter(|s| *s > 0.0);
            let duration = duration.and_then(|s| Duration::try_from_secs_f64(s).ok());
            let name = "XDP_AGG_DEADLINE";
            builder = builder.deadline(duration.ok_or(Error::InvalidSetting {
                name,
                value: seconds,
                expected,
            })?);
        }
        if let Some(value) = variable("XDP_AGG_RING_SHORT_BYTES") {
            let (name, expected) = ("XDP_AGG_RING_SHORT_BYTES", "a number of bytes");
            let bytes = value.trim().parse();
            builder = builder.short_bytes(bytes.map_err(|_| Error::InvalidSetting {
                name,
                value,
                expected,
            })?);
        }
        if world_size > 1 {
            let host = need("MASTER_ADDR", "the address of rank 0's host")?;
            let port = parse("MASTER_PORT", &need("MASTER_PORT", "a free port on rank 0's host")?)?;
            builder = builder.rendezvous(resolve(host, port)?);
        }
        Ok(builder)
    }

    /// A ring by values.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// All-reduces in place.
    ///
    /// Integer sums wrap. An average is the sum divided by the world size; integers are divided
    /// towards zero. All ranks get the same bits.
    ///
    /// # Errors
    /// Another rank makes a different call or is gone, or the deadline passes. The buffer's
    /// contents are then unspecified.
    pub fn all_reduce<T: Element>(&mut self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.reduce(data, What::Elements(T::TYPE, op))
    }

    /// Makes one of all ranks' words of lanes, in place.
    pub(crate) fn reduce_words(
        &mut self,
        words: &mut [u64],
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.reduce(element::as_words(words), What::Words(reduction))
    }

    fn reduce<T: Sealed + Copy>(&mut self, data: &mut [T], what: What) -> Result<(), Error> {
        if let Some(reason) = &self.broken {
            return Err(Error::Broken { reason: reason.clone() });
        }
        let result = self.reduce_on_links(data, what);
        self.sequence += 1;
        if let Err(error) = &result {
            self.give_up(error);
        }
        result
    }

    fn reduce_on_links<T: Sealed + Copy>(
        &mut self,
        data: &mut [T],
        what: What,
    ) -> Result<(), Error> {
        let (rank, world) = (self.rank, self.world_size);
        // A world of one: the sum and the average of one value are that value.
        let Some(links) = &mut self.links else {
            return Ok(());
        };
        let (count, sequence) = (data.len(), self.sequence);
        let whole = size_of_val(data) <= self.short_bytes;
        let call = Call { sequence, count: count as u64, what, whole };
        let (started, deadline) = (Instant::now(), self.deadline);
        let scratch = &mut self.scratch;
        let context = Context { rank, world, links, scratch, started, deadline };
        let data = as_bytes(data);
        if !whole {
            let plan = Plan::reduce_scatter(rank, world, count, size_of::<T>());
            return Transfer::<T>::new(context, plan, call, data).run();
        }
        let plan = Plan::gather(rank, world, count, size_of::<T>());
        let all = &mut self.gathered;
        all.resize(data.len() * usize::from(world), 0);
        all[plan.sent(0)].copy_from_slice(data);
        Transfer::<T>::new(context, plan, call, all).run()?;
        let mut vectors = all.chunks_exact(data.len().max(1));
        // By rank from 0 on every rank, so that rounding is the same on all.
        data.copy_from_slice(vectors.next().unwrap_or_default());
        vectors.for_each(|vector| T::combine(what, data, vector));
        T::finish(what, data, world);
        Ok(())
    }

    /// Closes the connections and tells the others why.
    fn give_up(&mut self, error: &Error) {
        self.broken = Some(error.to_string());
        if let Some(links) = self.links.take() {
            let notice = match error {
                Error::Stopped { by, reason } => {
                    Notice::Stopped { by: *by, reason: reason.clone() }
                }
                other => Notice::Stopped { by: self.rank, reason: other.to_string() },
            };
            links.notify(&notice);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Some(links) = &self.links {
            links.notify(&Notice::Leaving);
        }
    }
}

/// Settings of a [`Ring`].
#[derive(Debug)]
pub struct Builder {
    rank: u16,
    world_size: u16,
    rendezvous: Option<SocketAddr>,
    listener: Option<TcpListener>,
    deadline: Duration,
    short_bytes: usize,
    occasion: Occasion,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            rank: 0,
            world_size: 1,
            rendezvous: None,
            listener: None,
            deadline: DEFAULT_DEADLINE,
            short_bytes: DEFAULT_SHORT_BYTES,
            occasion: Occasion::default(),
        }
    }
}

impl Builder {
    /// This worker's number, from 0; 0 by default.
    #[must_use]
    pub fn rank(mut self, rank: u16) -> Self {
        self.rank = rank;
        self
    }

    /// The number of workers, at most [`MAX_WORLD`]; 1 by default.
    #[must_use]
    pub fn world_size(mut self, world_size: u16) -> Self {
        self.world_size = world_size;
        self
    }

    /// Where rank 0 listens and the others come to. Not needed in a world of one.
    #[must_use]
    pub fn rendezvous(mut self, address: SocketAddr) -> Self {
        self.rendezvous = Some(address);
        self
    }

    /// For rank 0: a listener that is open already, on the rendezvous address. With one on port 0
    /// the system chooses a free port.
    #[must_use]
    pub fn rendezvous_listener(mut self, listener: TcpListener) -> Self {
        self.rendezvous = listener.local_addr().ok();
        self.listener = Some(listener);
        self
    }

    /// How long the rendezvous, and then each call, may take; [`DEFAULT_DEADLINE`] by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Vectors up to this many bytes go round whole (the same on all ranks);
    /// [`DEFAULT_SHORT_BYTES`] by default. On links of 10 Gbit/s and more a larger value is
    /// faster; 0 means never (but for empty vectors).
    #[must_use]
    pub fn short_bytes(mut self, bytes: usize) -> Self {
        self.short_bytes = bytes;
        self
    }

    /// Which of a job's rings it is; whoever means another one is turned away.
    #[must_use]
    pub(crate) fn occasion(mut self, occasion: Occasion) -> Self {
        self.occasion = occasion;
        self
    }

    /// Meets the other ranks and connects to the neighbours.
    ///
    /// # Errors
    /// Settings that cannot be; the port in use; ranks missing at the deadline; this rank turned
    /// away because its number is taken or its world size is another; a neighbour that cannot be
    /// reached.
    pub fn connect(self) -> Result<Ring, Error> {
        let deadline = self.deadline.min(MAX_DEADLINE);
        let Self { rank, world_size, rendezvous, listener, short_bytes, occasion, .. } = self;
        if rank >= world_size || world_size > MAX_WORLD {
            return Err(Error::Rank { rank, world_size });
        }
        let links = if world_size == 1 {
            None
        } else {
            let address = rendezvous.ok_or(Error::InvalidSetting {
                name: "rendezvous",
                value: String::new(),
                expected: "the address where rank 0 listens",
            })?;
            Some(Meeting { rank, world_size, address, listener, deadline, occasion }.hold()?)
        };
        tracing::debug!(rank, world_size, "ring connected");
        let scratch = if links.is_some() { vec![0; CHUNK] } else { Vec::new() };
        Ok(Ring {
            rank,
            world_size,
            deadline,
            short_bytes,
            links,
            scratch,
            gathered: Vec::new(),
            sequence: 0,
            broken: None,
        })
    }
}

fn parse(name: &'static str, value: &str) -> Result<u16, Error> {
    let expected = "a whole number from 0 to 65535";
    let invalid = |_| Error::InvalidSetting { name, value: value.into(), expected };
    value.trim().parse().map_err(invalid)
}

fn resolve(host: String, port: u16) -> Result<SocketAddr, Error> {
    let mut found = (host.as_str(), port).to_socket_addrs().into_iter().flatten();
    found.next().ok_or(Error::InvalidSetting {
        name: "MASTER_ADDR",
        value: host,
        expected: "an address, or a name that resolves to one",
    })
}
