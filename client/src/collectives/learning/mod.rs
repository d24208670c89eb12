//! All-reduces that learn which way is fastest: see [`learner`] for what is tried and decided, and
//! [`sums`] for why the bits do not depend on the way.

mod begun;
mod blocks;
mod hosts;
mod learner;
mod route;
pub(super) mod state;
mod sums;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use xdp_agg_common::lanes::CHUNK_LEN;
use xdp_agg_mesh::{Mesh, Patience as MeshPatience};
use xdp_agg_protocol::worker::{Purpose, Report};
use xdp_agg_quantize::{Element, Format, Op};

use super::tuning::{self, Choice};
use crate::communicator::Communicator;
use crate::digest::digest;
use crate::error::Error;
use crate::handle::{Handle, Patience};
use crate::name::Name;
pub(crate) use begun::OwnedSum;
use begun::{Among, Way};
use blocks::Cut;
use hosts::Hosts;
use learner::{Class, Next, Size};
pub use route::Route;
use state::{Classes, Going, Known, Learning, Timed};
pub(crate) use sums::Summed;

/// The workers find out by a tag whether their calls differ.
const UNCHECKED: Choice = Choice::new(tuning::Way::Ring).unchecked();
/// Longest time for the workers to connect with each other when a way among them is tried first.
const CONNECTING: Duration = Duration::from_secs(5);
/// Workers up to which they are all connected with each other to learn. Every one of them has a
/// connection with every other one.
pub(crate) const MOST_WORKERS: u16 = 128;
/// Bytes up to which an exchange of whole vectors is tried.
const MOST_EXCHANGED: u64 = 128 << 10;
/// Bytes up to which doubling is tried.
const MOST_DOUBLED: u64 = 512 << 10;
/// Bytes from which on halving and the ring are tried.
const LEAST_HALVED: u64 = 16 << 10;
/// Bytes up to which halving is tried. Its messages are halves of the vector: longer ones overrun
/// queues once TCP's windows have grown, which a trial does not show. The ring's are pipelined.
const MOST_HALVED: u64 = 512 << 10;

/// What has been learned of calls of a size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Learned {
    /// The most bytes of these calls, a power of two.
    pub up_to: u64,
    /// Calls of floats whose exponents are agreed on first (block scaling).
    pub scaled: bool,
    /// The way that they go.
    pub route: Route,
    /// How many there were.
    pub calls: u64,
    /// How many of them tried another way.
    pub tried: u64,
    /// The time of each way when it was tried last, in nanoseconds: the mean of the faster half of
    /// its calls. A call's time is the longest one of all workers, which began it together.
    pub times: Vec<(Route, u64)>,
}

/// How an all-reduce goes.
enum Plan {
    /// Through the aggregators; its time counts, where it learns.
    Aggregators(Option<Timed>),
    /// Among the workers.
    Workers(Planned),
}

/// A sum among the workers.
struct Planned {
    /// What they must agree on, in words.
    what: Arc<str>,
    cut: Cut,
    route: Route,
    timed: Timed,
    /// Where hosts have several processes each.
    hosts: Option<Hosts>,
}

impl Planned {
    /// Makes it, and counts its time.
    fn sum<T: Element>(
        self,
        mesh: &mut Mesh,
        data: &mut [T],
        learning: &Learning,
        patience: &mut MeshPatience<'_>,
    ) -> Result<Summed, Error> {
        let start = Instant::now();
        let (cut, route, scratch) = (&self.cut, self.route, &mut learning.scratch.lock());
        let summed = match &self.hosts {
            None => cut.sum(mesh, route, data, scratch, patience)?,
            Some(hosts) => hosts.sum(cut, route, (mesh, data), scratch, patience)?,
        };
        self.timed.took(start.elapsed());
        Ok(summed)
    }
}

impl Communicator {
    /// What all-reduces have learned so far, by size. Empty where they do not learn: see
    /// [`Tuning::learns`](super::Tuning::learns).
    #[must_use]
    pub fn learned(&self) -> Vec<Learned> {
        if self.is_forked() {
            return Vec::new();
        }
        let classes = self.side.learning.classes.lock();
        let learned = |(size, known): (&Size, &Known)| {
            let (calls, tried) = known.class.counts();
            let (up_to, scaled) = (size.up_to(), size.scaled());
            let times = known.class.times().to_vec();
            Learned { up_to, scaled, route: known.class.chosen(), calls, tried, times }
        };
        classes.all.iter().map(learned).collect()
    }

    /// All-reduces choose their ways by themselves.
    pub(crate) fn learns(&self) -> bool {
        let table = &self.side.tuning;
        let may = self.side.mesh_may_serve && !self.in_host && table.may_learn();
        may && (2..=MOST_WORKERS).contains(&self.world_size())
    }

    /// An all-reduce by the way that was learned, or by one that is to be tried.
    pub(crate) fn all_reduce_learning<T: Element>(
        &self,
        name: Option<&Name>,
        data: &mut [T],
        op: Op,
    ) -> Result<Report, Error> {
        let purpose = super::purpose(name, op);
        let mut patience = Patience { deadline: self.deadline(), interrupted: &mut || false };
        match self.way_of_sum(data, op, &purpose, &mut patience)? {
            Way::Aggregators(timed) => {
                let start = Instant::now();
                let report = self.all_reduce_for(data, op, &purpose)?;
                if let Some(timed) = timed {
                    timed.took(start.elapsed());
                }
                Ok(report)
            }
            Way::Workers(among) => Ok(self.sum_among(*among, data, &mut patience)?.report),
        }
    }

    /// The same, started. One worker may start a call that another one waits for at once, so it
    /// counts alike. Times of calls that overlap say little, and are left out.
    pub(crate) fn all_reduce_async_learning<T: Element>(
        &self,
        name: Option<&Name>,
        data: Vec<T>,
        op: Op,
    ) -> Result<Handle<T>, Error> {
        let purpose = super::purpose(name, op);
        let mut patience = Patience { deadline: self.deadline(), interrupted: &mut || false };
        match self.plan(&data, op, &purpose, &mut patience)? {
            Plan::Aggregators(timed) => {
                let handle = self.start_for(data, op, &purpose)?;
                let Some(timed) = timed else { return Ok(handle) };
                Ok(handle.telling(move |time| timed.took(time)))
            }
            Plan::Workers(planned) => {
                let learning = Arc::clone(&self.side.learning);
                let (what, deadline) = (Arc::clone(&planned.what), self.deadline());
                self.start_over_mesh(UNCHECKED, &what, data, move |mesh, data| {
                    let mut patience = MeshPatience { deadline, interrupted: &mut || false };
                    let summed = planned.sum(mesh, data, &learning, &mut patience)?;
                    Ok(summed.report)
                })
            }
        }
    }

    /// How an all-reduce goes.
    fn plan<T: Element>(
        &self,
        data: &[T],
        op: Op,
        purpose: &Purpose,
        patience: &mut Patience<'_>,
    ) -> Result<Plan, Error> {
        if data.is_empty() || !self.learns() {
            return Ok(Plan::Aggregators(None));
        }
        let format = self.format::<T>(op)?;
        if purpose.leaves_out() && T::NAN.is_some() && !format.needs_exponents() {
            // Among the workers, what is left out is known by the exponents.
            return Ok(Plan::Aggregators(None));
        }
        let going = self.next_way(size_of_val(data), &format, patience)?;
        let timed = Timed::begin(&self.side.learning, going.counts);
        let route = going.route;
        if route == Route::Aggregator {
            return Ok(Plan::Aggregators(Some(timed)));
        }
        self.check_range(&format, data)?;
        let (what, cut) = self.cut_for(purpose, &format, data.len(), going);
        let hosts = self.group.as_ref().map(|group| Hosts {
            group: Arc::clone(group),
            place: *self.place(),
            chunks: self.chunks,
            purpose: purpose.clone(),
        });
        Ok(Plan::Workers(Planned { what, cut, route, timed, hosts }))
    }

    /// The same. A call among the workers has its turn then.
    fn way_of_sum<T: Element>(
        &self,
        data: &[T],
        op: Op,
        purpose: &Purpose,
        patience: &mut Patience<'_>,
    ) -> Result<Way, Error> {
        Ok(match self.plan(data, op, purpose, patience)? {
            Plan::Aggregators(timed) => Way::Aggregators(timed),
            Plan::Workers(planned) => {
                let aside = self.begin_aside(UNCHECKED, &planned.what)?;
                Way::Workers(Box::new(Among { aside, planned }))
            }
        })
    }

    /// Makes a sum among the workers, in its turn.
    fn sum_among<T: Element>(
        &self,
        Among { aside, planned }: Among,
        data: &mut [T],
        patience: &mut Patience<'_>,
    ) -> Result<Summed, Error> {
        let mut summed = Summed::default();
        self.carry_out(aside, patience, |mesh, patience| {
            summed = planned.sum(mesh, data, &self.side.learning, patience)?;
            Ok(())
        })?;
        Ok(summed)
    }

    /// The next call of such a size may wait for the other workers before it begins. `bytes`: of
    /// the caller's elements, which may travel as elements of up to eight times their size.
    pub(crate) fn may_wait_to_learn(&self, bytes: usize) -> bool {
        let wide = bytes.saturating_mul(8);
        let sizes = Size::of(bytes, false)..=Size::of(wide, true);
        let waits = |classes: &Classes| {
            let mut classes = classes.all.range(sizes.clone());
            classes.any(|(_, known)| known.class.is_about_to_wait())
        };
        // Another thread has them while it waits itself.
        self.learns() && self.side.learning.classes.try_lock().is_none_or(|classes| waits(&classes))
    }

    /// The next call's way. Where the workers must agree first, they do.
    fn next_way(
        &self,
        bytes: usize,
        format: &Format,
        patience: &mut Patience<'_>,
    ) -> Result<Going, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let size = Size::of(bytes, format.needs_exponents());
        // Held while the workers agree: another thread's call comes after this one everywhere.
        let mut classes = self.side.learning.classes.lock();
        let (alone, processes) = (classes.alone, self.local_size().into());
        classes.all.entry(size).or_insert_with(|| {
            let routes = if alone { vec![Route::Aggregator] } else { routes(size, processes) };
            Known { class: Class::new(routes), chunks: 0 }
        });
        while let Some(known) = classes.all.get_mut(&size) {
            match known.class.next() {
                Next::Go(step) => {
                    if step.together {
                        self.largest(&mut [0], "learning, which begins together", patience)?;
                    }
                    let counts = step.slot.map(|slot| (size, slot));
                    return Ok(Going { route: step.route, chunks: known.chunks, counts });
                }
                Next::Agree => self.agree_on(size, &mut classes, patience)?,
            }
        }
        Ok(Going { route: Route::Aggregator, chunks: 0, counts: None })
    }

    /// The largest of all workers' words each, through the aggregators.
    fn largest(
        &self,
        words: &mut [i64],
        what: &str,
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        let purpose = Purpose::of(&Arc::from(what));
        self.all_reduce_patiently(words, Op::Max, &purpose, patience).map(drop)
    }

    /// The workers agree on the times that a class has, on the network and on blocks.
    fn agree_on(
        &self,
        size: Size,
        classes: &mut Classes,
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        let Some(known) = classes.all.get_mut(&size) else { return Ok(()) };
        let mut words = known.class.question(self.network());
        words.push(-((self.block_bytes() / CHUNK_LEN) as i64));
        // Workers that have learned something else are refused here, and not at a later call.
        let state = known.class.digest();
        let what = format!("learning of calls of up to {} bytes, state {state:x}", size.up_to());
        self.largest(&mut words, &what, patience)?;
        known.chunks = -words.pop().unwrap_or_default();
        let reachable = known.chunks > 0 && self.connects(patience)?;
        let Some(known) = classes.all.get_mut(&size) else { return Ok(()) };
        if let Some(decision) = known.class.agreed(&words) {
            let learner::Decision { from, to, times } = &decision;
            let micros = |(route, time): &(Route, u64)| format!("{route} {} us", time / 1000);
            let times = times.iter().map(micros).collect::<Vec<_>>().join(", ");
            let up_to = size.up_to();
            if from == to {
                tracing::debug!("all-reduces of up to {up_to} bytes stay with {to}: {times}");
            } else {
                tracing::info!("all-reduces of up to {up_to} bytes go by {to} now: {times}");
            }
        }
        if !reachable {
            classes.alone = true;
            classes.all.values_mut().for_each(|known| known.class.keep_to_first());
        }
        Ok(())
    }

    /// The workers are connected with each other, or are now. False at all of them alike.
    fn connects(&self, patience: &mut Patience<'_>) -> Result<bool, Error> {
        let mut beginning = self.side.queue.begin();
        if beginning.is_open() {
            return Ok(true);
        }
        let mesh = self.try_mesh(CONNECTING.min(self.side.stall_deadline))?;
        let mut failed = [i64::from(mesh.is_err())];
        self.largest(&mut failed, "whether workers reach each other", patience)?;
        match mesh {
            Ok(mesh) if failed == [0] => {
                beginning.opened(mesh);
                return Ok(true);
            }
            Ok(_) => tracing::info!(
                "all-reduces go through the aggregators alone: another worker could not connect \
                 with all workers"
            ),
            Err(error) => tracing::warn!(
                "all-reduces go through the aggregators alone, as workers cannot connect with \
                 each other ({error}); XDP_AGG_TUNING=aggregator keeps them from trying"
            ),
        }
        Ok(false)
    }

    /// A number that grows when the network has changed at this worker.
    fn network(&self) -> i64 {
        let counters = self.counters();
        i64::from(counters.epoch)
    }

    fn format<T: Element>(&self, op: Op) -> Result<Format, Error> {
        let lanes = self.lanes_of::<T>(op);
        Ok(Format::new(T::TYPE, op, self.scaling, lanes, self.place().hosts)?)
    }

    /// Refuses integers whose sum may not fit, as the aggregators' way does.
    fn check_range<T: Element>(&self, format: &Format, data: &[T]) -> Result<(), Error> {
        format.check(data, self.local_size()).map_err(|error| {
            let error = Error::from(error);
            self.fail(&error);
            error
        })
    }

    /// What the workers must agree on, in words and as a tag, and how the vector is cut.
    fn cut_for(
        &self,
        purpose: &Purpose,
        format: &Format,
        len: usize,
        going: Going,
    ) -> (Arc<str>, Cut) {
        let (element, route) = (format.element(), going.route);
        let what = purpose.what().unwrap_or_else(|| format.op().name());
        let what = format!("all-reduce ({what}) of {len} {element} by {route}");
        let numbers = xdp_agg_protocol::worker::numbers(format);
        let leaves_out = purpose.leaves_out();
        let numbers = format!("{numbers}, {} chunks, left out: {leaves_out}", going.chunks);
        let tag = digest(format!("{what}, {numbers}").bytes());
        let block = going.chunks as usize * format.lanes_per_chunk();
        (Arc::from(what), Cut { format: *format, block, tag, leaves_out })
    }
}

/// The ways that calls of a size may go, the usual one first. Each of a host's `processes` takes
/// its share of the vector between hosts.
fn routes(size: Size, processes: u64) -> Vec<Route> {
    let bytes = size.up_to() / processes;
    let tried = |route: &Route| match route {
        Route::Aggregator => true,
        // Between hosts of several processes, lanes are summed by patterns alone.
        Route::Exchange => bytes <= MOST_EXCHANGED && processes == 1,
        Route::Doubling => bytes <= MOST_DOUBLED,
        Route::Halving => (LEAST_HALVED..=MOST_HALVED).contains(&bytes),
        Route::Ring => bytes >= LEAST_HALVED,
    };
    [Route::Aggregator, Route::Exchange, Route::Doubling, Route::Halving, Route::Ring]
        .into_iter()
        .filter(tried)
        .collect()
}
