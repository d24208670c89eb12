//! Results that are read in place, of calls in flight.

use std::sync::Arc;
use std::time::Duration;

use xdp_agg_intranode::Results;
use xdp_agg_protocol::worker::{Buffer, Report};
use xdp_agg_quantize::{Element, Op};

use crate::buffer::{ResultView, SharedBuffer, place_of_result};
use crate::communicator::Communicator;
use crate::driver::stripe::Stripe;
use crate::error::{Error, JobError};
use crate::handle::{Handle, abandon, finish, globally};
use crate::settings::Place;

/// A call of [`Communicator::all_reduce_view_async`] in flight. Dropping it unwaited lets the call
/// go on, for the other workers' sake. Its result's room is free when the call has ended.
#[derive(Debug)]
pub struct ViewHandle<T: Element> {
    /// The memory of the input.
    data: Arc<SharedBuffer<T>>,
    carrier: Carrier<T>,
}

#[derive(Debug)]
enum Carrier<T: Element> {
    /// Results are in the segment.
    Shared(Underway),
    /// A call on a copy of the input.
    Copy(Handle<T>),
}

/// A call in the engines. Dropping it leaves it there.
#[derive(Debug)]
struct Underway {
    stripes: Arc<[Stripe]>,
    place: Place,
    call: (u64, bool),
    /// None once it was waited for.
    results: Option<Results>,
}

impl Drop for Underway {
    fn drop(&mut self) {
        if self.stripes.iter().any(Stripe::is_forked) {
            // Another thread may have held what the end of the results would lock.
            std::mem::forget(self.results.take());
        } else if self.results.is_some() {
            abandon(&self.stripes, self.call.0);
        }
    }
}

impl<T: Element> ViewHandle<T> {
    /// Waits for the result, at most for `deadline`, and gives the input back, as it was.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn wait(
        self,
        deadline: Duration,
    ) -> Result<(SharedBuffer<T>, ResultView<T>, Report), Error> {
        let Self { data, carrier } = self;
        let (view, report) = match carrier {
            Carrier::Copy(handle) => {
                let (copy, report) = handle.wait(deadline)?;
                (ResultView::private(copy), report)
            }
            Carrier::Shared(underway) => underway.wait(deadline)?,
        };
        // The call is out of the engines, and has left the memory to this handle alone.
        let data = Arc::into_inner(data).ok_or(Error::Job(JobError::Closed))?;
        Ok((data, view, report))
    }
}

impl Underway {
    fn wait<T: Element>(mut self, deadline: Duration) -> Result<(ResultView<T>, Report), Error> {
        if self.stripes.iter().any(Stripe::is_forked) {
            return Err(Error::Forked);
        }
        let results = self.results.take();
        let finished = finish(&self.stripes, self.call, deadline);
        let calls = finished.map_err(|error| globally(error, &self.place))?;
        let report = Report::of_parts(&calls);
        drop(calls);
        let view = results.and_then(Results::view).ok_or(Error::Job(JobError::Closed))?;
        Ok((ResultView::shared(view), report))
    }
}

impl Communicator {
    /// Starts what [`Self::all_reduce_view`] does and returns at once; [`ViewHandle::wait`] gives
    /// the view, and the input back. Several may be in flight. Each counts as a result that this
    /// process has, from its start on.
    ///
    /// While the results of other processes leave no room for another, the start waits for them, as
    /// [`Self::all_reduce_view`] does.
    ///
    /// # Errors
    /// As [`Self::all_reduce_view`], as far as it is known at once.
    pub fn all_reduce_view_async<T: Element>(
        &self,
        data: impl Into<SharedBuffer<T>>,
        op: Op,
    ) -> Result<ViewHandle<T>, Error> {
        let data: Arc<SharedBuffer<T>> = Arc::new(data.into());
        let bytes = size_of_val(&data[..]);
        let Some(group) = self.group_of_views::<T>(bytes)? else {
            let handle = self.all_reduce_async(data.to_vec(), op)?;
            return Ok(ViewHandle { data, carrier: Carrier::Copy(handle) });
        };
        let place = place_of_result(group, bytes)?;
        #[expect(unsafe_code, reason = "memory that the call keeps")]
        // SAFETY: what is behind the `Arc` does not move, and nobody gets it for writing before the
        // call is out of all engines.
        let buffer = unsafe { Buffer::kept(&data, Arc::<SharedBuffer<T>>::clone(&data)) };
        let (call, results) = self.start_view(buffer, op, place)?;
        let (stripes, place) = (self.stripes(), *self.place());
        let underway = Underway { stripes, place, call, results };
        Ok(ViewHandle { data, carrier: Carrier::Shared(underway) })
    }
}
