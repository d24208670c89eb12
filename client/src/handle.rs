//! Waiting for a call, in whatever way it was started.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xdp_agg_mesh::MAX_DEADLINE;
use xdp_agg_numbers::Element;

use crate::blocks::Local;
use crate::buffer::Buffer;
use crate::call::{Call, Report};
use crate::error::Error;
use crate::grouped::Grouped;
use crate::settings::Place;
use crate::stripe::Stripe;
use crate::together;

/// An all-reduce in flight. Dropping it unwaited lets the call go on, for the other workers' sake,
/// and throws its result away.
#[derive(Debug)]
pub struct Handle<T: Element> {
    stripes: Arc<[Stripe]>,
    sequence: u64,
    /// None once it was waited for.
    carrier: Option<Carrier<T>>,
}

/// What becomes of a call that somebody else carries out.
type Outcome<T> = Result<Vec<T>, Error>;

/// What a call's elements travel by.
#[derive(Debug)]
enum Carrier<T> {
    /// The aggregators.
    Aggregators {
        place: Place,
        /// Its waiter drives all stripes: see [`together`].
        short: bool,
    },
    /// A thread, over the workers' own connections.
    Thread { outcome: Mutex<Receiver<Outcome<T>>>, report: Report },
}

impl<T: Element> Handle<T> {
    /// A call that was begun at all aggregators.
    pub(crate) const fn through(
        stripes: Arc<[Stripe]>,
        place: Place,
        (sequence, short): (u64, bool),
    ) -> Self {
        Self { stripes, sequence, carrier: Some(Carrier::Aggregators { place, short }) }
    }

    /// A call whose elements come from a thread, and this report with them.
    pub(crate) const fn carried(
        stripes: Arc<[Stripe]>,
        sequence: u64,
        outcome: Receiver<Outcome<T>>,
        report: Report,
    ) -> Self {
        let outcome = Mutex::new(outcome);
        Self { stripes, sequence, carrier: Some(Carrier::Thread { outcome, report }) }
    }

    /// Number of the call in the communicator's life, from 0; of one that goes round a ring of the
    /// workers, of the first call through the aggregators at or behind it.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits for the result, at most so long, and gives the elements back.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    pub fn wait(mut self, deadline: Duration) -> Result<(Vec<T>, Report), Error> {
        match self.carrier.take() {
            Some(Carrier::Aggregators { place, short }) => self.gathered(place, short, deadline),
            Some(Carrier::Thread { outcome, report }) => {
                let outcome = outcome.into_inner().recv_timeout(deadline);
                let outcome = outcome.unwrap_or_else(|why| Err(self.without(why, deadline)));
                Ok((outcome?, report))
            }
            // Unreachable: waiting takes the handle.
            None => Err(Error::Closed),
        }
    }

    fn gathered(
        &self,
        place: Place,
        short: bool,
        deadline: Duration,
    ) -> Result<(Vec<T>, Report), Error> {
        let finished = finish(&self.stripes, (self.sequence, short), deadline);
        let calls = finished.map_err(|error| globally(error, &place))?;
        let report = Report::of_parts(&calls);
        let mut buffers: Vec<Buffer<T>> = calls.into_iter().filter_map(buffer_of).collect();
        // The last of them has the memory.
        let last = buffers.pop();
        drop(buffers);
        Ok((last.map(Buffer::into_owned).unwrap_or_default(), report))
    }

    /// Why there is no outcome.
    fn without(&self, why: RecvTimeoutError, deadline: Duration) -> Error {
        if why == RecvTimeoutError::Disconnected {
            return Error::Closed;
        }
        let known =
            "it goes round a ring of the workers, behind the calls that were started before; \
                     wait longer, or see which worker is late"
                .into();
        let error = Error::Deadline { sequence: None, waited: deadline, ranks: vec![], known };
        fail(&self.stripes, &error);
        error
    }
}

/// The vector of a call's part, if it has it.
fn buffer_of<T: Element>(call: Call) -> Option<Buffer<T>> {
    let any: Box<dyn Any> = call.into_blocks().into_any();
    match any.downcast::<Local<T>>() {
        Ok(local) => Some(local.into_buffer()),
        Err(any) => any.downcast::<Grouped<T>>().ok().and_then(|part| part.into_buffer()),
    }
}

impl<T: Element> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Some(Carrier::Aggregators { .. }) = self.carrier {
            for stripe in &*self.stripes {
                stripe.shared.lock().machine.abandon(self.sequence);
            }
        }
    }
}

/// A call on a caller's memory. It is out of the engines when this is gone.
pub(crate) struct Lent<'a> {
    pub(crate) stripes: &'a [Stripe],
    pub(crate) sequence: u64,
    /// As of a [`Handle`]'s.
    pub(crate) short: bool,
}

impl Lent<'_> {
    pub(crate) fn wait(self, deadline: Duration) -> Result<Report, Error> {
        let calls = finish(self.stripes, (self.sequence, self.short), deadline)?;
        Ok(Report::of_parts(&calls))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        for stripe in self.stripes {
            // After `finish` there is nothing left to take; after a panic in it there is.
            stripe.shared.lock().machine.remove(self.sequence);
        }
    }
}

/// Waits for a call at all aggregators; the finished parts. An error at one ends it at all.
fn finish(
    stripes: &[Stripe],
    (sequence, short): (u64, bool),
    deadline: Duration,
) -> Result<Vec<Call>, Error> {
    let finished = if short {
        together::finish(stripes, sequence, deadline)
    } else {
        one_by_one(stripes, sequence, deadline)
    };
    finished.map_err(|error| {
        let error = match error {
            Error::Deadline { sequence, ranks, known, .. } => {
                Error::Deadline { sequence, waited: deadline, ranks, known }
            }
            other => other,
        };
        fail(stripes, &error);
        error
    })
}

/// Drives one stripe after the other; those whose turn is not yet have threads of their own.
fn one_by_one(stripes: &[Stripe], sequence: u64, deadline: Duration) -> Result<Vec<Call>, Error> {
    let until = Instant::now() + deadline.min(MAX_DEADLINE);
    let left = || until.saturating_duration_since(Instant::now());
    stripes.iter().map(|stripe| stripe.shared.drive(sequence, left())).collect()
}

/// An error in terms of the world's ranks, where an aggregator knows hosts.
pub(crate) fn globally(error: Error, place: &Place) -> Error {
    if place.local_size == 1 {
        return error;
    }
    error.map_ranks(|host| place.fellow(host))
}

/// Ends the membership at all aggregators.
pub(crate) fn fail(stripes: &[Stripe], error: &Error) {
    for stripe in stripes {
        stripe.shared.lock().machine.fail(error.clone());
        stripe.shared.nudge.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_ever_may_say_so() {
        let finished = one_by_one(&[], 0, Duration::MAX).expect("there is nothing to wait for");
        assert!(finished.is_empty());
    }
}
