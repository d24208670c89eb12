//! An all-reduce that has begun by the way that was learned, or by one that is to be tried.

use xdp_agg_protocol::worker::{Call, Purpose, Report};
use xdp_agg_quantize::{Element, Op};

use super::Planned;
use super::state::Timed;
use super::sums::Summed;
use crate::collectives::mesh::Aside;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::handle::{Begun, Owned, Patience, given_back, longest};

/// The way of a call that has begun.
pub(super) enum Way {
    /// Through the aggregators; its time counts, where it learns.
    Aggregators(Option<Timed>),
    /// Among the workers.
    Workers(Box<Among>),
}

/// A sum among the workers that has its turn.
pub(super) struct Among {
    pub(super) aside: Aside,
    pub(super) planned: Planned,
}

/// A call on memory that a caller lends, under way.
pub(crate) struct LentSum(Sum<Begun, ()>);

/// A call on memory of its own, under way.
pub(crate) struct OwnedSum<T>(Sum<Owned<T>, Vec<T>>);

/// A call under way, as the aggregators have it or as the workers will.
enum Sum<A, W> {
    Aggregators(A, Option<Timed>),
    Workers(Box<Among>, W),
}

impl Communicator {
    /// Begins an all-reduce on memory that a caller lends, by the way that was learned.
    ///
    /// # Safety
    /// The memory must be valid, and used by nobody else, until the returned call has been waited
    /// for or dropped.
    #[expect(unsafe_code, reason = "memory is lent to a call")]
    pub(crate) unsafe fn begin_lent_sum<T: Element>(
        &self,
        data: &mut [T],
        op: Op,
        purpose: &Purpose,
        patience: &mut Patience<'_>,
    ) -> Result<LentSum, Error> {
        match self.way_of_sum(data, op, purpose, patience)? {
            Way::Aggregators(timed) => {
                // SAFETY: as the caller promises.
                let begun = unsafe { self.begin_lent(data, op, purpose) }?;
                Ok(LentSum(Sum::Aggregators(begun, timed)))
            }
            Way::Workers(among) => Ok(LentSum(Sum::Workers(among, ()))),
        }
    }

    /// Waits for such a call; it is made now, if it goes among the workers. `data`: gives the same
    /// memory.
    pub(crate) fn finish_lent_sum<'a, T: Element>(
        &self,
        sum: LentSum,
        data: impl FnOnce() -> &'a mut [T],
        patience: &mut Patience<'_>,
    ) -> Result<Summed, Error> {
        match sum.0 {
            Sum::Aggregators(begun, timed) => {
                self.wait_timed(begun, timed, patience).map(Summed::of_parts)
            }
            Sum::Workers(among, ()) => self.sum_among(*among, data(), patience),
        }
    }

    /// Waits for a call at the aggregators, and counts its time.
    fn wait_timed(
        &self,
        begun: Begun,
        timed: Option<Timed>,
        patience: &mut Patience<'_>,
    ) -> Result<Vec<Call>, Error> {
        let calls = self.wait(begun, patience)?;
        if let Some(timed) = timed {
            timed.took(longest(&calls));
        }
        Ok(calls)
    }

    /// Begins an all-reduce of elements that are the call's until its end.
    pub(crate) fn begin_owned_sum<T: Element>(
        &self,
        data: Vec<T>,
        op: Op,
        purpose: &Purpose,
        patience: &mut Patience<'_>,
    ) -> Result<OwnedSum<T>, Error> {
        Ok(OwnedSum(match self.way_of_sum(&data, op, purpose, patience)? {
            Way::Aggregators(timed) => {
                Sum::Aggregators(self.begin_owned(data, op, purpose)?, timed)
            }
            Way::Workers(among) => Sum::Workers(among, data),
        }))
    }

    /// Waits for such a call; it is made now, if it goes among the workers.
    pub(crate) fn finish_owned_sum<T: Element>(
        &self,
        sum: OwnedSum<T>,
        patience: &mut Patience<'_>,
    ) -> Result<(Vec<T>, Report), Error> {
        match sum.0 {
            Sum::Aggregators(Owned { begun, memory }, timed) => {
                Ok(given_back(self.wait_timed(begun, timed, patience)?, memory))
            }
            Sum::Workers(among, mut data) => {
                let summed = self.sum_among(*among, &mut data, patience)?;
                Ok((data, summed.report))
            }
        }
    }
}
