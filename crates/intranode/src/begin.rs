//! What a group's processes begin together: calls, and areas for collectives.

use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(doc)]
use crate::Options;
use crate::call::{Call, Shape};
use crate::plan::Plan;
use crate::record::{Claim, Shared};
use crate::view::{Region, Reserved, Results};
use crate::{Error, Exchange, Feeder, Geometry, Group, Waker};

impl Group {
    /// Blocks of `block_bytes` (of the caller's elements) in a slice of a full tile: as many as
    /// let two calls run at a time, at most [`Options::slice_blocks`]. The number follows from
    /// options alone, so all hosts with the same options get the same.
    #[must_use]
    pub fn slice_blocks(&self, block_bytes: usize) -> usize {
        Plan::slice_blocks(&self.core().options, self.room(), block_bytes)
    }

    /// Opens a call. The first process to come makes room, the others join in. Waits for room, up
    /// to [`Options::wait_within`]: other calls of this process have to be driven meanwhile by
    /// other threads; see [`Self::try_begin`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] at every process if their shapes or geometries differ,
    /// [`Error::TooLarge`], [`Error::Busy`] when that time is over, [`Error::PeerLost`],
    /// [`Error::Config`] of what makes no sense.
    pub fn begin(
        self: &Arc<Self>,
        shape: &Shape,
        geometry: Geometry,
    ) -> Result<(Feeder, Arc<Exchange>), Error> {
        self.when_there_is_room(|| self.try_begin(shape, geometry))
    }

    /// As [`Self::begin`], of a call whose results stay in the segment, once for all processes of
    /// the host, and are read there. `place` is what [`Self::reserve_view`] gave for their bytes.
    ///
    /// # Errors
    /// As [`Self::begin`]; [`Error::BufferRoom`] when that time is over.
    pub fn begin_view(
        self: &Arc<Self>,
        shape: &Shape,
        geometry: Geometry,
        place: Reserved,
    ) -> Result<(Feeder, Arc<Exchange>, Results), Error> {
        if !place.is_for(self, geometry.len().saturating_mul(shape.element_size)) {
            return Err(Error::config("place", "for results of another length or group"));
        }
        let mut call = self.when_there_is_room(|| Call::open(self, shape, geometry, true))?;
        // The call is there now, and this process keeps it while others drop their results.
        let region = Region::claim(shape.sequence, place).map(Arc::new);
        let region = region.inspect_err(|_| call.abandon())?;
        call.region = Some(Arc::clone(&region));
        let (feeder, exchange) = parts(call);
        Ok((feeder, exchange, Results::new(region)))
    }

    /// Opens an area for collectives: a claim that all processes make in the same order.
    pub(crate) fn area(self: &Arc<Self>, claim: &Claim<'_>) -> Result<Shared, Error> {
        let number = self.areas.fetch_add(1, Ordering::Relaxed);
        let claim = Claim { key: 1 << 63 | number, ..*claim };
        self.when_there_is_room(|| Shared::claim(self, &claim))
    }

    /// As [`Self::begin`], but does not wait.
    ///
    /// # Errors
    /// As there, and [`Error::Busy`].
    pub fn try_begin(
        self: &Arc<Self>,
        shape: &Shape,
        geometry: Geometry,
    ) -> Result<(Feeder, Arc<Exchange>), Error> {
        Ok(parts(Call::open(self, shape, geometry, false)?))
    }

    /// A way to sleep in `poll(2)`, one a thread.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn waker(self: &Arc<Self>) -> Result<Waker, Error> {
        Waker::new(self)
    }
}

/// The two sides of a call.
fn parts(call: Call) -> (Feeder, Arc<Exchange>) {
    let call = Arc::new(call);
    let exchange = Exchange::new(Arc::clone(&call));
    (Feeder::new(call, Arc::clone(&exchange)), exchange)
}
