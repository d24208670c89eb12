//! Waiting for a call, in whatever way it was started.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xdp_agg_mesh::MAX_DEADLINE;
use xdp_agg_protocol::worker::{Call, Ending, Kept, Limit, Report};
use xdp_agg_quantize::Element;

use crate::driver::drive;
use crate::driver::stripe::Stripe;
use crate::error::{Error, JobError};
use crate::flight;
use crate::settings::Place;

/// An all-reduce in flight. Dropping it unwaited lets the call go on, for the other workers' sake,
/// and throws its result away.
#[derive(Debug)]
pub struct Handle<T: Element> {
    stripes: Arc<[Stripe]>,
    sequence: u64,
    /// None once it was waited for.
    carrier: Option<Carrier<T>>,
    told: Told,
}

/// What is to be told how long a call took.
struct Told(Option<Box<dyn FnOnce(Duration) + Send + Sync>>);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Told").field(&self.0.is_some()).finish()
    }
}

/// How long a call took at the aggregator where it took longest.
pub(crate) fn longest(calls: &[Call]) -> Duration {
    let took = |call: &Call| {
        let times = call.record(Ending::Done).times;
        times.done.map_or(Duration::MAX, |done| done.saturating_sub(times.made))
    };
    calls.iter().map(took).max().unwrap_or(Duration::MAX)
}

/// What becomes of a call that somebody else carries out.
type Outcome<T> = Result<(Vec<T>, Report), Error>;

/// What a call's elements travel by.
#[derive(Debug)]
enum Carrier<T> {
    /// The aggregators.
    Aggregators {
        place: Place,
        memory: Kept<T>,
        /// Its waiter drives all stripes: see [`drive`].
        short: bool,
    },
    /// A thread, over the workers' own connections.
    Thread { outcome: Mutex<Receiver<Outcome<T>>> },
}

impl<T: Element> Handle<T> {
    /// A call that was begun at all aggregators.
    pub(crate) const fn through(
        stripes: Arc<[Stripe]>,
        place: Place,
        memory: Kept<T>,
        (sequence, short): (u64, bool),
    ) -> Self {
        let carrier = Some(Carrier::Aggregators { place, memory, short });
        Self { stripes, sequence, carrier, told: Told(None) }
    }

    /// A call whose elements come from a thread, and the report with them.
    pub(crate) const fn carried(
        stripes: Arc<[Stripe]>,
        sequence: u64,
        outcome: Receiver<Outcome<T>>,
    ) -> Self {
        let outcome = Mutex::new(outcome);
        let carrier = Some(Carrier::Thread { outcome });
        Self { stripes, sequence, carrier, told: Told(None) }
    }

    /// Tells how long the call took at this worker, once it was waited for and has ended well.
    pub(crate) fn telling(mut self, told: impl FnOnce(Duration) + Send + Sync + 'static) -> Self {
        self.told = Told(Some(Box::new(told)));
        self
    }

    /// Number of the call in the communicator's life, from 0. A call round a ring of the workers
    /// has that of the first call through the aggregators at or behind it.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits for the result, at most for `deadline`, and gives the elements back.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    pub fn wait(mut self, deadline: Duration) -> Result<(Vec<T>, Report), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        match self.carrier.take() {
            Some(Carrier::Aggregators { place, memory, short }) => {
                let finished = finish(&self.stripes, (self.sequence, short), deadline);
                let calls = finished.map_err(|error| globally(error, &place))?;
                if let Some(told) = self.told.0.take() {
                    told(longest(&calls));
                }
                Ok(given_back(calls, memory))
            }
            Some(Carrier::Thread { outcome }) => {
                let outcome = outcome.into_inner().recv_timeout(deadline);
                outcome.unwrap_or_else(|why| Err(self.without(why, deadline)))
            }
            // Unreachable: waiting takes the handle.
            None => Err(Error::Job(JobError::Closed)),
        }
    }

    /// This process was forked from the one that started it.
    fn is_forked(&self) -> bool {
        self.stripes.iter().any(Stripe::is_forked)
    }

    /// Why there is no outcome.
    fn without(&self, why: RecvTimeoutError, deadline: Duration) -> Error {
        if why == RecvTimeoutError::Disconnected {
            return Error::Job(JobError::Closed);
        }
        let known =
            "it goes round a ring of the workers, behind the calls that were started before; \
                     wait longer, or see which worker is late"
                .into();
        let error = Error::Job(JobError::Deadline {
            sequence: None,
            limit: Limit::Call,
            waited: deadline,
            ranks: Vec::new(),
            standing: Box::default(),
            known,
        });
        fail(&self.stripes, &error);
        error
    }
}

impl<T: Element> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.is_forked() {
            // Another thread may have held what the carrier's end would lock.
            std::mem::forget(self.carrier.take());
        } else if let Some(Carrier::Aggregators { .. }) = self.carrier {
            abandon(&self.stripes, self.sequence);
        }
    }
}

/// Lets a call that nobody waits for any more go on, for the other workers' sake.
pub(crate) fn abandon(stripes: &[Stripe], sequence: u64) {
    for stripe in stripes {
        stripe.shared.lock().machine.abandon(sequence);
    }
}

/// A call that was begun at all aggregators. It is out of the engines when this is gone.
#[derive(Debug)]
pub(crate) struct Begun {
    stripes: Arc<[Stripe]>,
    sequence: u64,
    /// The thread that waits for it drives all stripes: see [`drive`].
    short: bool,
    since: Instant,
    /// The parts that have ended.
    calls: Vec<Option<Call>>,
}

/// A call on memory of its own, begun at all aggregators.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    pub(crate) begun: Begun,
    pub(crate) memory: Kept<T>,
}

/// The elements of a call that has ended, and what became of it.
pub(crate) fn given_back<T>(calls: Vec<Call>, memory: Kept<T>) -> (Vec<T>, Report) {
    let report = Report::of_parts(&calls);
    // The memory is the call's as long as a part of it is there.
    drop(calls);
    (memory.into_owned(), report)
}

/// Why a call ended of which the caller was interrupted.
pub(crate) const INTERRUPTED: &str = "it was interrupted in a call";
/// How often a caller is asked whether it still wants to wait.
pub(crate) const ASKED: Duration = Duration::from_millis(50);

/// How long a caller waits for a call.
pub(crate) struct Patience<'a> {
    /// From the call's beginning on.
    pub(crate) deadline: Duration,
    /// Asked now and then: true ends the membership.
    pub(crate) interrupted: &'a mut dyn FnMut() -> bool,
}

impl Begun {
    pub(crate) fn new(stripes: Arc<[Stripe]>, (sequence, short): (u64, bool)) -> Self {
        let calls = stripes.iter().map(|_| None).collect();
        Self { stripes, sequence, short, since: Instant::now(), calls }
    }

    /// Waits for the call at all aggregators; the finished parts. An error at one ends it at all.
    pub(crate) fn wait(mut self, patience: &mut Patience<'_>) -> Result<Vec<Call>, Error> {
        let deadline = patience.deadline.min(MAX_DEADLINE);
        let until = self.since + deadline;
        loop {
            let soon = Instant::now() + ASKED;
            if self.drive(until.min(soon)).map_err(|error| self.fail(error))? {
                return Ok(self.calls.drain(..).flatten().collect());
            }
            if Instant::now() >= until {
                return Err(self.end(patience.deadline));
            }
            if (patience.interrupted)() {
                return Err(self.fail(Error::Interrupted(INTERRUPTED.into())));
            }
        }
    }

    /// Drives one stripe after the other, or all; those whose turn is not yet have threads of their
    /// own. True: the call has ended.
    fn drive(&mut self, until: Instant) -> Result<bool, Error> {
        let at_once = if self.short { self.stripes.len() } else { 1 }.max(1);
        let mut groups = self.stripes.chunks(at_once).zip(self.calls.chunks_mut(at_once));
        groups.try_fold(true, |ended, (stripes, calls)| {
            Ok(ended && drive::drive(stripes, self.sequence, calls, until)?)
        })
    }

    /// The time is over: the first stripe that has not ended names the ranks that it waits for.
    fn end(&self, deadline: Duration) -> Error {
        let late = self.calls.iter().position(Option::is_none).unwrap_or(0);
        self.fail(drive::give_up(&self.stripes[late].shared, self.sequence, deadline))
    }

    fn fail(&self, error: Error) -> Error {
        fail(&self.stripes, &error);
        error
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.stripes.iter().any(Stripe::is_forked) {
            return;
        }
        for (stripe, call) in self.stripes.iter().zip(&self.calls) {
            if call.is_none() {
                stripe.shared.lock().remove(self.sequence);
            }
        }
    }
}

/// Waits for a call at all aggregators; the finished parts. An error at one ends it at all.
pub(crate) fn finish(
    stripes: &Arc<[Stripe]>,
    call: (u64, bool),
    deadline: Duration,
) -> Result<Vec<Call>, Error> {
    let begun = Begun::new(Arc::clone(stripes), call);
    begun.wait(&mut Patience { deadline, interrupted: &mut || false })
}

/// An error in terms of the world's ranks, where an aggregator knows hosts.
pub(crate) fn globally(error: Error, place: &Place) -> Error {
    if place.local_size == 1 {
        return error;
    }
    error.in_ranks(place.local_size, place.local_rank)
}

/// Ends the membership at all aggregators.
pub(crate) fn fail(stripes: &[Stripe], error: &Error) {
    for stripe in stripes {
        stripe.shared.lock().machine.fail(error.clone());
        stripe.shared.nudge.ring();
    }
    flight::call_failed(stripes, error);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_ever_may_say_so() {
        let finished = finish(&Arc::from([]), (0, false), Duration::MAX);
        let finished = finished.expect("there is nothing to wait for");
        assert!(finished.is_empty());
    }
}
