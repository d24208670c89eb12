//! A rank's connections with all others, and the collectives over them.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use xdp_agg_common::wire::Reduction;
use xdp_agg_forks::Origin;
use xdp_agg_quantize::{Element, Op};

use crate::call::{Call, Collective};
use crate::element::{Arithmetic, Datum};
use crate::error::Error;
use crate::executor::{Run, Work};
use crate::link::Link;
use crate::onlooker::{Onlooker, Patience};
use crate::open::Builder;
use crate::reducer::{Plain, Reducer};
use crate::schedule::{self, Algorithm, Groups, Schedule, part};
use crate::wire::{Header, MAX_NOTICE};

/// By rank, world and length.
type Planned = fn(u16, u16, usize) -> Schedule;

/// How an all-reduce of words goes from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Round a ring: [`schedule::all_reduce`].
    Ring,
    /// [`schedule::doubling`].
    Doubling,
    /// [`schedule::halving`].
    Halving,
}

impl Pattern {
    fn planned(self) -> (Collective, Planned) {
        match self {
            Self::Doubling => (Collective::DoublingAllReduce, schedule::doubling),
            Self::Halving => (Collective::HalvingAllReduce, schedule::halving),
            Self::Ring => (Collective::AllReduce, schedule::all_reduce),
        }
    }
}

/// Which ranks sum with each other in a call that all of them make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All ranks.
    World,
    /// One rank of each host: those with this rank's place in its host. Hosts have equally many.
    Hosts,
}

/// How an all-reduce goes, and which one it is.
#[derive(Clone, Copy, Debug)]
pub struct By {
    /// From rank to rank.
    pub pattern: Pattern,
    /// Among these.
    pub span: Span,
    /// 48 bits on which these ranks must agree.
    pub tag: u64,
}

/// Makes `from` and `into` one, word by word, as an aggregator does with their lanes. Both are
/// equally long.
pub fn combine_words(into: &mut [u64], from: &[u64], reduction: Reduction) {
    let combine = Arithmetic::of_words(reduction).combine;
    combine(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from));
}

/// A rank's connections with all others.
///
/// Calls block; all ranks make the same ones in the same order. Each ends within the deadline, plus
/// at most half a second in which a rank that gives up waits for another's better reason. A rank
/// that only sends in a call may be done before it can know that another rank's call differs. It is
/// told in its next call. After an error all further calls fail with [`Error::Broken`].
#[derive(Debug)]
pub struct Mesh {
    rank: u16,
    groups: Groups,
    deadline: Duration,
    onlooker: Arc<dyn Onlooker>,
    /// By rank; none at this one.
    links: Vec<Option<Link>>,
    short_bytes: usize,
    scratch: Vec<u8>,
    /// All ranks' vectors, in a call of short ones.
    gathered: Vec<u8>,
    sequence: u64,
    broken: Option<String>,
    origin: Origin,
}

impl Mesh {
    pub(crate) fn new(
        rank: u16,
        groups: Groups,
        (deadline, onlooker): (Duration, Arc<dyn Onlooker>),
        short_bytes: usize,
        links: Vec<Option<Link>>,
    ) -> Self {
        let (scratch, gathered, sequence, broken) = (Vec::new(), Vec::new(), 0, None);
        Self {
            rank,
            groups,
            deadline,
            onlooker,
            links,
            short_bytes,
            scratch,
            gathered,
            sequence,
            broken,
            origin: Origin::here(),
        }
    }

    /// A mesh by values.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A mesh by the environment: see [`Builder::from_env`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn from_env() -> Result<Self, Error> {
        Builder::from_env()?.open()
    }

    /// This worker's number.
    #[must_use]
    pub const fn rank(&self) -> u16 {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u16 {
        self.links.len() as u16
    }

    /// How many calls were made: the next one's number, which is the same at all ranks.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.sequence
    }

    /// What looks on while calls wait.
    #[must_use]
    pub fn onlooker(&self) -> &Arc<dyn Onlooker> {
        &self.onlooker
    }

    /// Which ranks share a host.
    #[must_use]
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// This rank's part of a vector of `len` elements, in reduce-scatter and all-gather.
    #[must_use]
    pub fn part(&self, len: usize) -> Range<usize> {
        part(self.rank.into(), self.links.len(), len)
    }

    /// Leaves the root's data at all ranks.
    ///
    /// # Errors
    /// A root or a parameter that cannot be; another rank makes a different call or is gone; the
    /// deadline. After one the data is unspecified.
    pub fn broadcast<T: Datum>(
        &mut self,
        data: &mut [T],
        root: u16,
        algorithm: Algorithm,
    ) -> Result<(), Error> {
        self.broadcast_by(Collective::Broadcast, schedule::broadcast, data, root, algorithm)
    }

    /// Leaves the root's data at one rank of each other host ([`Groups::heads`]): the part of a
    /// hierarchical broadcast that goes between hosts. The data of other ranks stays as it is.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn broadcast_between_hosts<T: Datum>(
        &mut self,
        data: &mut [T],
        root: u16,
        algorithm: Algorithm,
    ) -> Result<(), Error> {
        let schedule = schedule::broadcast_between_hosts;
        self.broadcast_by(Collective::HostBroadcast, schedule, data, root, algorithm)
    }

    fn broadcast_by<T: Datum>(
        &mut self,
        collective: Collective,
        schedule: fn(Algorithm, u16, u16, &Groups, usize, usize) -> Schedule,
        data: &mut [T],
        root: u16,
        algorithm: Algorithm,
    ) -> Result<(), Error> {
        self.check(root, algorithm)?;
        let (len, size) = (data.len(), size_of::<T>());
        let schedule = schedule(algorithm, self.rank, root, &self.groups, len, size);
        let call = Call::new(collective, T::NAME, len).at(root).by(algorithm);
        self.run(call, &schedule, bytemuck::cast_slice_mut(data), size, None)
    }

    /// Leaves all ranks' data, reduced, at the root. The order of the additions is the same in
    /// every run. At the other ranks the data is unspecified then.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn reduce<T: Element>(
        &mut self,
        data: &mut [T],
        op: Op,
        root: u16,
        algorithm: Algorithm,
    ) -> Result<(), Error> {
        self.check(root, algorithm)?;
        let (len, size) = (data.len(), size_of::<T>());
        let schedule = schedule::reduce(algorithm, self.rank, root, &self.groups, len, size);
        let call = Call::new(Collective::Reduce, T::TYPE.name(), len).at(root).by(algorithm);
        self.reduce_by(call, &schedule, data, op)
    }

    /// Leaves in this rank's [`Self::part`] all ranks' data, reduced, round a ring. The rest is
    /// unspecified then.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn reduce_scatter<T: Element>(
        &mut self,
        data: &mut [T],
        op: Op,
    ) -> Result<Range<usize>, Error> {
        let schedule = schedule::reduce_scatter(self.rank, self.world_size(), data.len());
        let call = Call::new(Collective::ReduceScatter, T::TYPE.name(), data.len());
        self.reduce_by(call, &schedule, data, op)?;
        Ok(self.part(data.len()))
    }

    /// Leaves every rank's [`Self::part`] at all ranks, round a ring.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn all_gather<T: Datum>(&mut self, data: &mut [T]) -> Result<(), Error> {
        let schedule = schedule::all_gather(self.rank, self.world_size(), data.len());
        let call = Call::new(Collective::AllGather, T::NAME, data.len());
        self.run(call, &schedule, bytemuck::cast_slice_mut(data), size_of::<T>(), None)
    }

    /// Leaves all ranks' data, reduced, at all ranks, round a ring; all get the same bits. Integer
    /// sums wrap.
    ///
    /// Short vectors ([`Builder::short_bytes`]) take another way over the same connections. Every
    /// rank's whole vector goes round, and each rank reduces them all, in order of rank. That is
    /// half as many steps.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn all_reduce<T: Element>(&mut self, data: &mut [T], op: Op) -> Result<(), Error> {
        let call = Call::new(Collective::AllReduce, T::TYPE.name(), data.len()).with(op);
        let arithmetic = Arithmetic::of_elements(T::TYPE, op);
        self.all_reduce_bytes(call, bytemuck::cast_slice_mut(data), size_of::<T>(), arithmetic)
    }

    /// The same of words of an aggregator's lanes.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn all_reduce_words(
        &mut self,
        words: &mut [u64],
        reduction: Reduction,
    ) -> Result<(), Error> {
        let call = Call::new(Collective::AllReduce, "words", words.len()).with_words(reduction);
        let arithmetic = Arithmetic::of_words(reduction);
        self.all_reduce_bytes(call, bytemuck::cast_slice_mut(words), size_of::<u64>(), arithmetic)
    }

    /// The same by a pattern of the caller's choice.
    ///
    /// # Errors
    /// As [`Self::broadcast`]; the caller was interrupted; hosts of several sizes with
    /// [`Span::Hosts`].
    pub fn all_reduce_words_by(
        &mut self,
        words: &mut [u64],
        reduction: Reduction,
        by: By,
        patience: Patience<'_>,
    ) -> Result<(), Error> {
        let (collective, schedule) = self.planned(by, words.len())?;
        let call = Call::new(collective, "words", words.len()).with_words(reduction).tagged(by.tag);
        let mut plain =
            Plain { arithmetic: Arithmetic::of_words(reduction), world: self.world_size() };
        let words = bytemuck::cast_slice_mut(words);
        self.run_with(call, &schedule, (words, size_of::<u64>()), Some(&mut plain), patience)
    }

    /// The same of units of `unit` bytes, with a reducer of the caller's. What is complete at a
    /// rank is finished there, and comes finished to the others; with [`Pattern::Doubling`] nothing
    /// is finished.
    ///
    /// # Errors
    /// As [`Self::all_reduce_words_by`].
    pub fn all_reduce_units<T: Element>(
        &mut self,
        data: &mut [T],
        (op, unit): (Op, usize),
        by: By,
        reducer: &mut dyn Reducer,
        patience: Patience<'_>,
    ) -> Result<(), Error> {
        let units = size_of_val(data).div_ceil(unit);
        let (collective, schedule) = self.planned(by, units)?;
        let call = Call::new(collective, T::TYPE.name(), data.len()).with(op).tagged(by.tag);
        let data: &mut [u8] = bytemuck::cast_slice_mut(data);
        self.run_with(call, &schedule, (data, unit), Some(reducer), patience)
    }

    /// What this rank does in an all-reduce of `len` elements.
    fn planned(&self, by: By, len: usize) -> Result<(Collective, Schedule), Error> {
        let (collective, schedule) = by.pattern.planned();
        let schedule = match by.span {
            Span::World => schedule(self.rank, self.world_size(), len),
            Span::Hosts => {
                let (fellows, host) = self.groups.fellows(self.rank).map_err(Error::Argument)?;
                schedule(host, fellows.len() as u16, len).among(&fellows)
            }
        };
        Ok((collective, schedule))
    }

    /// Leaves every rank's [`Self::part`] at all ranks, in one step. `tag`: 48 bits on which the
    /// ranks must agree.
    ///
    /// # Errors
    /// As [`Self::all_reduce_words_by`].
    pub fn exchange<T: Datum>(
        &mut self,
        data: &mut [T],
        tag: u64,
        patience: Patience<'_>,
    ) -> Result<(), Error> {
        let schedule = schedule::exchange(self.rank, self.world_size(), data.len());
        let call = Call::new(Collective::Exchange, T::NAME, data.len()).tagged(tag);
        let data = bytemuck::cast_slice_mut(data);
        self.run_with(call, &schedule, (data, size_of::<T>()), None, patience)
    }

    fn all_reduce_bytes(
        &mut self,
        call: Call,
        data: &mut [u8],
        size: usize,
        arithmetic: Arithmetic,
    ) -> Result<(), Error> {
        let (rank, world) = (self.rank, self.world_size());
        if !data.is_empty() && data.len() > self.short_bytes {
            let schedule = schedule::all_reduce(rank, world, data.len() / size);
            return self.run(call, &schedule, data, size, Some(arithmetic));
        }
        // Of nothing an element is sent all the same: all learn of each other's call.
        let each = data.len().max(size);
        let mut all = std::mem::take(&mut self.gathered);
        all.resize(each * usize::from(world), 0);
        all[each * usize::from(rank)..][..data.len()].copy_from_slice(data);
        let schedule = schedule::all_gather(rank, world, all.len() / size);
        let call = Call { collective: Collective::ShortAllReduce, ..call };
        self.run(call, &schedule, &mut all, size, None)?;
        let len = data.len();
        let mut vectors = all.chunks_exact(each).map(|vector| &vector[..len]);
        // By rank from 0 on every rank, so that rounding is the same on all.
        data.copy_from_slice(vectors.next().unwrap_or_default());
        vectors.for_each(|vector| (arithmetic.combine)(data, vector));
        if let Some(finish) = arithmetic.finish {
            finish(data, world);
        }
        self.gathered = all;
        Ok(())
    }

    /// Ends when all ranks have begun it.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        let schedule = schedule::barrier(self.rank, self.world_size());
        self.run(Call::new(Collective::Barrier, u8::NAME, 1), &schedule, &mut [0], 1, None)
    }

    /// Leaves all ranks' data, reduced, at all ranks: rings inside the groups and across them
    /// (H-AR, the baseline of the Rina paper). All ranks get the same bits.
    ///
    /// # Errors
    /// As [`Self::broadcast`]; groups of several sizes.
    pub fn hierarchical_all_reduce<T: Element>(
        &mut self,
        data: &mut [T],
        op: Op,
    ) -> Result<(), Error> {
        let schedule = schedule::hierarchical_all_reduce(self.rank, &self.groups, data.len())
            .map_err(Error::Argument)?;
        let call = Call::new(Collective::HierarchicalAllReduce, T::TYPE.name(), data.len());
        self.reduce_by(call, &schedule, data, op)
    }

    /// This host's address on its connections, where it has any.
    #[must_use]
    pub fn local_address(&self) -> Option<IpAddr> {
        let address = |link: &Link| link.stream.local_addr().ok();
        self.links.iter().flatten().find_map(address).map(|address| address.ip())
    }

    /// The connections' sockets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = SockRef<'_>> {
        self.links.iter().flatten().map(|link| SockRef::from(&link.stream))
    }

    /// The connections, and the number of the next call.
    pub(crate) fn into_parts(self) -> (Vec<Option<Link>>, u64) {
        (self.links, self.sequence)
    }

    fn check(&self, root: u16, algorithm: Algorithm) -> Result<(), Error> {
        if root >= self.world_size() {
            let world = self.world_size();
            return Err(Error::Argument(format!(
                "root {root} of {world} ranks; they count from 0"
            )));
        }
        algorithm.problem().map_or(Ok(()), |problem| Err(Error::Argument(problem)))
    }

    fn reduce_by<T: Element>(
        &mut self,
        call: Call,
        schedule: &Schedule,
        data: &mut [T],
        op: Op,
    ) -> Result<(), Error> {
        let arithmetic = Some(Arithmetic::of_elements(T::TYPE, op));
        let data = bytemuck::cast_slice_mut(data);
        self.run(call.with(op), schedule, data, size_of::<T>(), arithmetic)
    }

    /// `size`: bytes of an element.
    fn run(
        &mut self,
        call: Call,
        schedule: &Schedule,
        data: &mut [u8],
        size: usize,
        arithmetic: Option<Arithmetic>,
    ) -> Result<(), Error> {
        let world = self.world_size();
        let mut plain = arithmetic.map(|arithmetic| Plain { arithmetic, world });
        let reducer = plain.as_mut().map(|plain| -> &mut dyn Reducer { plain });
        let patience = Patience { deadline: self.deadline, interrupted: &mut || false };
        self.run_with(call, schedule, (data, size), reducer, patience)
    }

    /// `size`: bytes of what the schedule counts.
    fn run_with(
        &mut self,
        call: Call,
        schedule: &Schedule,
        (data, size): (&mut [u8], usize),
        reducer: Option<&mut dyn Reducer>,
        mut patience: Patience<'_>,
    ) -> Result<(), Error> {
        if self.origin.is_elsewhere() {
            return Err(Error::Forked);
        }
        if let Some(reason) = &self.broken {
            return Err(Error::Broken { reason: reason.clone() });
        }
        let call = Call { sequence: self.sequence, ..call };
        self.sequence += 1;
        // Not as long-lived as the caller's.
        let reducer = reducer.map(|reducer| -> &mut dyn Reducer { reducer });
        let (patience, onlooker) = (patience.again(), &*self.onlooker);
        let work = Work { call, schedule, data, size, reducer, patience, onlooker };
        let done = Run::new(&mut self.links, &mut self.scratch, work).run();
        if let Err(error) = &done {
            self.give_up(error);
        }
        done
    }

    /// Tells the others why, and ends the connections.
    fn give_up(&mut self, error: &Error) {
        self.broken = Some(error.to_string());
        let (by, culprit, mut text) = match error {
            Error::Stopped { by, culprit, reason } => (*by, *culprit, reason.clone()),
            other => (self.rank, other.ranks().first().copied(), other.to_string()),
        };
        text.truncate(text.floor_char_boundary(MAX_NOTICE));
        let notice = Header::Stop { by, culprit, len: text.len() };
        for link in self.links.iter_mut().flatten() {
            link.give_up(&notice, &text);
        }
    }
}
