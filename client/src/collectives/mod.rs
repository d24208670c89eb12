//! Broadcast, reduce, reduce-scatter, all-gather and barrier.
//!
//! Where all workers are processes of one host, each stays in that host's shared memory. Otherwise
//! it goes through the aggregator or among the workers themselves ([`xdp_agg_mesh`]); a table
//! ([`Tuning`]) says which way, by size and number of ranks. Through the aggregator, bytes travel
//! as unsigned 64-bit lanes of which it keeps the largest: a worker without data sends zeros. The
//! result is exact for any bytes and the same at all workers. In a broadcast one worker has data,
//! and its packets alone travel ([`xdp_agg_common::copies`]).

mod bytes;
mod learning;
mod mesh;
mod onlooker;
mod queue;
mod side;
mod tuning;

use std::ops::Range;
use std::sync::Arc;

use xdp_agg_mesh::schedule::part;
use xdp_agg_quantize::Element;

pub use learning::{Learned, Route};
pub(crate) use learning::{MOST_WORKERS, OwnedSum, Summed};
pub use tuning::{Choice, Kind, Network, Rule, Tuning, Way};
pub use xdp_agg_mesh::Algorithm;

use crate::communicator::Communicator;
use crate::error::Error;
use crate::handle::{Handle, Patience};
use crate::name::{Name, named};
pub(crate) use bytes::Words;
use mesh::reducible;
pub(crate) use side::Side;
use xdp_agg_protocol::worker::{Path, Purpose, Report, rank_bits};
use xdp_agg_quantize::Op;

impl Communicator {
    /// All-reduces by a way of the caller's choice, the same at all workers: through the
    /// aggregators, or round a ring of the workers.
    ///
    /// Round the ring floats are added as they are, in the same order in every run. So sums may
    /// differ in their last bits from those of the aggregators, and integers wrap where the
    /// aggregators refuse them. 16-bit floats go through the aggregators in any case.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; a way that no all-reduce goes; a worker that cannot be reached.
    pub fn all_reduce_by<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        choice: Choice,
    ) -> Result<Report, Error> {
        self.all_reduce_as(None, data, op, choice)
    }

    pub(crate) fn all_reduce_as<T: Element>(
        &self,
        name: Option<&Name>,
        data: &mut [T],
        op: Op,
        choice: Choice,
    ) -> Result<Report, Error> {
        if self.way::<T>(Kind::AllReduce, choice)? == Way::Aggregator {
            return self.all_reduce_for(data, op, &purpose(name, op));
        }
        let what = named("all-reduce", name);
        let what = self.describe::<T>(&what, data.len(), None, Some(op), choice.way);
        self.over_mesh(choice, &what, |mesh| mesh.all_reduce(data, op))?;
        Ok(self.report_of_ring())
    }

    /// [`Self::all_reduce_async`] by a way of the caller's choice, the same at all workers: see
    /// [`Self::all_reduce_by`]. A thread of their own carries out calls round the ring, one after
    /// the other. It keeps the order in which they and other calls among the workers were made.
    ///
    /// # Errors
    /// As [`Self::all_reduce_async`]; a way that no all-reduce goes; a worker that cannot be
    /// reached.
    pub fn all_reduce_async_by<T: Element>(
        &self,
        data: Vec<T>,
        op: Op,
        choice: Choice,
    ) -> Result<Handle<T>, Error> {
        self.all_reduce_async_as(None, data, op, choice)
    }

    pub(crate) fn all_reduce_async_as<T: Element>(
        &self,
        name: Option<&Name>,
        data: Vec<T>,
        op: Op,
        choice: Choice,
    ) -> Result<Handle<T>, Error> {
        if self.way::<T>(Kind::AllReduce, choice)? == Way::Aggregator {
            return self.start_for(data, op, &purpose(name, op));
        }
        let what = named("all-reduce", name);
        let what = self.describe::<T>(&what, data.len(), None, Some(op), choice.way);
        let report = self.report_of_ring();
        self.start_over_mesh(choice, &what, data, move |mesh, data| {
            mesh.all_reduce(data, op)?;
            Ok(report)
        })
    }

    /// Leaves the root's elements at all workers, bit for bit.
    ///
    /// # Errors
    /// No worker has the rank `root`; the deadline (naming ranks), the job's end, a call that
    /// differs from the other workers', a worker that cannot be reached; a root that is lost. After
    /// an error other than the first and the last the contents of `data` are unspecified and the
    /// communicator is unusable.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: u16) -> Result<(), Error> {
        self.broadcast_by(data, root, self.choice(Kind::Broadcast, size_of_val(data)))
    }

    /// The same by a way of the caller's choice, the same at all workers.
    ///
    /// # Errors
    /// As [`Self::broadcast`]; a way that no broadcast goes.
    pub fn broadcast_by<T: Element>(
        &self,
        data: &mut [T],
        root: u16,
        choice: Choice,
    ) -> Result<(), Error> {
        self.check_root(root)?;
        let what = self.describe::<T>("broadcast", data.len(), Some(root), None, choice.way);
        if self.in_host && matches!(choice.way, Way::Aggregator | Way::Hierarchical(_)) {
            return self.spread_in_host(data, root, &what);
        }
        match self.way::<T>(Kind::Broadcast, choice)? {
            Way::Hierarchical(by) => {
                let between = |mesh: &mut _| mesh::broadcast_between_hosts(mesh, data, root, by);
                self.over_mesh(choice, &what, between)?;
                self.spread_in_host(data, self.head(root), &what)
            }
            Way::Mesh(algorithm) => {
                self.over_mesh(choice, &what, |mesh| mesh::broadcast(mesh, data, root, algorithm))
            }
            _ => {
                let bytes = bytemuck::cast_slice_mut(data);
                let all = 0..bytes.len();
                self.exchange("broadcast", bytes, &[(root, all)], &what)
            }
        }
    }

    /// Leaves all workers' elements, reduced, at the root; at the others `data` is unspecified
    /// then.
    ///
    /// Sums through the aggregator are as in [`Self::all_reduce`]; among the workers floats are
    /// added as they are, in the same order in every run.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn reduce<T: Element>(&self, data: &mut [T], op: Op, root: u16) -> Result<(), Error> {
        self.reduce_by(data, op, root, self.choice(Kind::Reduce, size_of_val(data)))
    }

    /// The same by a way of the caller's choice, the same at all workers. 16-bit floats go through
    /// the aggregator in any case.
    ///
    /// # Errors
    /// As [`Self::reduce`]; a way that no reduce goes.
    pub fn reduce_by<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        root: u16,
        choice: Choice,
    ) -> Result<(), Error> {
        self.check_root(root)?;
        let what = self.describe::<T>("reduce", data.len(), Some(root), Some(op), choice.way);
        match self.way::<T>(Kind::Reduce, choice)? {
            Way::Mesh(algorithm) => {
                self.over_mesh(choice, &what, |mesh| mesh.reduce(data, op, root, algorithm))
            }
            _ => {
                let wanted = if self.rank() == root { 0..data.len() } else { 0..0 };
                self.all_reduce_for(data, op, &Purpose::of(&what).wanting(wanted)).map(drop)
            }
        }
    }

    /// Leaves all workers' elements, reduced, in this worker's part of the vector, which is
    /// returned; the rest is unspecified then. Parts are as even as can be, in order of rank.
    ///
    /// # Errors
    /// As [`Self::broadcast`].
    pub fn reduce_scatter<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
    ) -> Result<Range<usize>, Error> {
        self.reduce_scatter_by(data, op, self.choice(Kind::ReduceScatter, size_of_val(data)))
    }

    /// The same by a way of the caller's choice, the same at all workers. 16-bit floats go through
    /// the aggregator in any case.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter`]; a way that no reduce-scatter goes.
    pub fn reduce_scatter_by<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        choice: Choice,
    ) -> Result<Range<usize>, Error> {
        let what = self.describe::<T>("reduce-scatter", data.len(), None, Some(op), choice.way);
        let own = self.part(self.rank(), data.len());
        match self.way::<T>(Kind::ReduceScatter, choice)? {
            Way::Ring => {
                self.over_mesh(choice, &what, |mesh| mesh.reduce_scatter(data, op).map(drop))?;
            }
            _ => {
                let purpose = Purpose::of(&what).wanting(own.clone());
                self.all_reduce_for(data, op, &purpose)?;
            }
        }
        Ok(own)
    }

    /// Leaves every worker's part of the vector at all workers, bit for bit. Parts are those of
    /// [`Self::reduce_scatter`]: see [`Self::part`].
    ///
    /// # Errors
    /// As [`Self::broadcast`]; a worker whose part is lost.
    pub fn all_gather<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.all_gather_by(data, self.choice(Kind::AllGather, size_of_val(data)))
    }

    /// The same by a way of the caller's choice, the same at all workers.
    ///
    /// # Errors
    /// As [`Self::all_gather`]; a way that no all-gather goes.
    pub fn all_gather_by<T: Element>(&self, data: &mut [T], choice: Choice) -> Result<(), Error> {
        let what = self.describe::<T>("all-gather", data.len(), None, None, choice.way);
        if self.way::<T>(Kind::AllGather, choice)? == Way::Ring {
            return self.over_mesh(choice, &what, |mesh| mesh::all_gather(mesh, data));
        }
        let size = size_of::<T>();
        let parts: Vec<_> = (0..self.world_size())
            .map(|rank| (rank, self.part(rank, data.len())))
            .map(|(rank, part)| (rank, part.start * size..part.end * size))
            .collect();
        let bytes = bytemuck::cast_slice_mut(data);
        if self.in_host {
            return self.copy_in_host(bytes, &parts, &what);
        }
        self.exchange("all-gather", bytes, &parts, &what)
    }

    /// Everybody has contributed to everything, or there is an error.
    fn report_of_ring(&self) -> Report {
        let processes = self.local_size();
        let hosts = self.world_size() / processes;
        let contributors = rank_bits(hosts);
        Report { contributors, path: Path::Ring, processes, ..Report::default() }
    }

    /// The rank of this host that has a root's data first, in a hierarchical broadcast: the root,
    /// or the first ([`xdp_agg_mesh::Groups::heads`]).
    fn head(&self, root: u16) -> u16 {
        let first = self.first_rank_of_host();
        let is_here = (first..first + self.local_size()).contains(&root);
        if is_here { root } else { first }
    }

    /// Brings what a rank of this host has to all ranks of the host.
    fn spread_in_host<T: Element>(
        &self,
        data: &mut [T],
        head: u16,
        what: &Arc<str>,
    ) -> Result<(), Error> {
        if self.group.is_none() {
            return Ok(());
        }
        let bytes = bytemuck::cast_slice_mut(data);
        let all = 0..bytes.len();
        self.copy_in_host(bytes, &[(head, all)], what)
    }

    /// Brings parts of `bytes`, each of a rank of this host, to all ranks of the host.
    fn copy_in_host(
        &self,
        bytes: &mut [u8],
        parts: &[(u16, Range<usize>)],
        what: &Arc<str>,
    ) -> Result<(), Error> {
        let mut patience = Patience { deadline: self.deadline(), interrupted: &mut || false };
        #[expect(unsafe_code, reason = "a call on memory that a caller lends")]
        // SAFETY: the call is waited for, or taken out of all engines when this function ends in
        // any other way, before the borrow of `bytes` ends.
        let begun = unsafe { self.begin_copies(bytes, parts, &Purpose::of(what)) }?;
        self.wait(begun, &mut patience).map(drop)
    }

    /// Ends when all workers have begun it: a tiny all-reduce.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn barrier(&self) -> Result<(), Error> {
        if self.in_host {
            return self.copy_in_host(&mut [], &[], &Arc::from("barrier"));
        }
        self.all_reduce_for(&mut [1_i32], Op::Max, &Purpose::of(&Arc::from("barrier"))).map(drop)
    }

    /// A worker's part of a vector of `len` elements, in reduce-scatter and all-gather.
    #[must_use]
    pub fn part(&self, rank: u16, len: usize) -> Range<usize> {
        part(rank.into(), self.world_size().into(), len)
    }

    /// How a call of `bytes` bytes travels. Where all workers are processes of one host, calls go
    /// the aggregators' way, which ends in the host's shared memory then. Reduce-scatters follow
    /// the table there, too: a ring of the workers is faster with long ones, also on one host.
    #[must_use]
    pub fn choice(&self, kind: Kind, bytes: usize) -> Choice {
        if self.in_host && kind != Kind::ReduceScatter {
            return Choice::new(Way::Aggregator);
        }
        self.side.tuning.choose(kind, self.world_size(), bytes as u64)
    }

    pub(crate) fn check_root(&self, root: u16) -> Result<(), Error> {
        if root < self.world_size() {
            return Ok(());
        }
        let problem = format!("{root} of {} workers; ranks count from 0", self.world_size());
        Err(Error::Config { name: "root", problem })
    }

    /// The way of a call, checked. Jobs that go on without lost workers go through the aggregator,
    /// which knows the workers that are left. So do sums of types that workers cannot add among
    /// themselves.
    pub(crate) fn way<T: Element>(&self, kind: Kind, choice: Choice) -> Result<Way, Error> {
        if let Some(problem) = choice.way.problem(kind) {
            return Err(Error::Config { name: "algorithm", problem });
        }
        let adds = matches!(kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter);
        let may_serve = self.side.mesh_may_serve && (!adds || reducible::<T>());
        Ok(if may_serve { choice.way } else { Way::Aggregator })
    }

    /// What the workers must agree on.
    fn describe<T: Element>(
        &self,
        what: &str,
        len: usize,
        root: Option<u16>,
        op: Option<Op>,
        way: Way,
    ) -> Arc<str> {
        let op = op.map_or_else(String::new, |op| format!(" ({op})"));
        let root = root.map_or_else(String::new, |root| format!(" with root {root}"));
        let parameter = way.algorithm().and_then(|a| a.chunk().or(a.k()));
        let parameter = parameter.map_or_else(String::new, |value| format!(" {value}"));
        let way = format!("{way}{parameter}");
        Arc::from(format!("{what}{op} of {len} {}{root} by {way}", T::TYPE))
    }

    /// Sends byte ranges from the ranks that have them to all, through the aggregator.
    fn exchange(
        &self,
        name: &'static str,
        bytes: &mut [u8],
        parts: &[(u16, Range<usize>)],
        what: &Arc<str>,
    ) -> Result<(), Error> {
        if self.is_forked() {
            // Another thread may have held the lock.
            return Err(Error::Forked);
        }
        let mut words = self.side.words.lock();
        words.fill(bytes, parts, self.rank());
        let root = match parts {
            [(root, _)] => Some(root / self.local_size()),
            _ => None,
        };
        let purpose = Purpose::of(what).with_root(root);
        let report = self.all_reduce_for(words.as_mut_slice(), Op::Max, &purpose)?;
        self.refuse_lost(name, &report, parts)?;
        words.take(bytes, parts, self.rank());
        Ok(())
    }

    /// Refuses a result that lacks a rank's part: the zeros in its place are not its data.
    pub(crate) fn refuse_lost(
        &self,
        what: &'static str,
        report: &Report,
        parts: &[(u16, Range<usize>)],
    ) -> Result<(), Error> {
        let wanted =
            |rank: &u16| parts.iter().any(|(owner, part)| owner == rank && !part.is_empty());
        let ranks: Vec<u16> = report.missing_ranks(self.world_size()).filter(wanted).collect();
        if ranks.is_empty() { Ok(()) } else { Err(Error::DataLost { what, ranks }) }
    }
}

/// The purpose of an all-reduce with this name.
fn purpose(name: Option<&Name>, op: Op) -> Purpose {
    match name {
        None => Purpose::default(),
        name => Purpose::of(&Arc::from(named(op.name(), name))),
    }
}
