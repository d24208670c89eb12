//! Vectors in the segment that a host's processes share: calls take their input from there, and
//! leave results there, without a copy.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytemuck::Pod;
use xdp_agg_intranode::{Group, Reserved, View};
use xdp_agg_quantize::{Element, Op};

use crate::collectives::{Kind, Way};
use crate::communicator::Communicator;
use crate::error::Error;
use xdp_agg_protocol::worker::Report;

/// A vector in the segment that the processes of this host share; where each process is a worker
/// of its own, in its own memory.
///
/// A call on such a vector, or on a part of it, costs no copy: the other processes of the host read
/// its input where it lies, and write the result there. Calls find out by the address; any call of
/// this or of another binding will do.
///
/// It lives on when its [`Communicator`] is gone. A call that ends with an error leaves it as a
/// vector of this process's own memory. In a forked child it must not be touched.
///
/// ```no_run
/// use xdp_agg_client::{Communicator, Op};
///
/// // XDP_AGG_BUFFERS=16777216
/// let communicator = Communicator::from_env()?;
/// let mut gradients = communicator.buffer::<f32>(1_000_000)?;
/// gradients.fill(0.5);
/// communicator.all_reduce(&mut gradients, Op::Average)?;
/// # Ok::<(), xdp_agg_client::Error>(())
/// ```
pub struct SharedBuffer<T> {
    memory: Memory<T>,
    len: usize,
}

enum Memory<T> {
    Segment(xdp_agg_intranode::Buffer),
    Private(Vec<T>),
}

impl<T> SharedBuffer<T> {
    /// Whether it lies in the segment of several processes.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Segment(_))
    }
}

/// A vector of this process's own.
impl<T> From<Vec<T>> for SharedBuffer<T> {
    fn from(elements: Vec<T>) -> Self {
        let len = elements.len();
        Self { memory: Memory::Private(elements), len }
    }
}

impl<T: Pod> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.memory {
            Memory::Segment(bytes) => &bytemuck::cast_slice(bytes)[..self.len],
            Memory::Private(elements) => elements,
        }
    }
}

impl<T: Pod> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Segment(bytes) => &mut bytemuck::cast_slice_mut(bytes)[..self.len],
            Memory::Private(elements) => elements,
        }
    }
}

impl<T> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, is_shared) = (self.len, self.is_shared());
        f.debug_struct("SharedBuffer").field("len", &len).field("is_shared", &is_shared).finish()
    }
}

/// The result of [`Communicator::all_reduce_view`], to read. All processes of the host read the
/// same memory, which is free when the last of them has dropped its view.
#[derive(Clone, Debug)]
pub struct ResultView<T>(Result<View, Vec<T>>);

impl<T> ResultView<T> {
    pub(crate) const fn shared(view: View) -> Self {
        Self(Ok(view))
    }

    pub(crate) const fn private(elements: Vec<T>) -> Self {
        Self(Err(elements))
    }
}

impl<T: Pod> Deref for ResultView<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Ok(view) => bytemuck::cast_slice(view),
            Err(elements) => elements,
        }
    }
}

impl Communicator {
    /// A vector of `len` zeros in the segment that the processes of this host share: see
    /// [`SharedBuffer`]. `XDP_AGG_BUFFERS` ([`Builder::buffers`](crate::Builder::buffers)) says how
    /// many bytes there are for such vectors.
    ///
    /// # Errors
    /// [`Error::Host`] with [`xdp_agg_intranode::Error::BufferRoom`]: there is no room, which does
    /// no harm to the communicator. [`Error::Forked`].
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<SharedBuffer<T>, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let Some(group) = &self.group else {
            return Ok(SharedBuffer { memory: Memory::Private(vec![T::zeroed(); len]), len });
        };
        let bytes = len.saturating_mul(size_of::<T>());
        group.check_room(bytes)?;
        let mut memory = group.buffer(bytes)?;
        memory.fill(0);
        Ok(SharedBuffer { memory: Memory::Segment(memory), len })
    }

    /// All-reduces without writing to `data`. The result is in memory that all processes of this
    /// host read, once for all of them; with `data` in a [`SharedBuffer`] nothing is copied. It
    /// takes room of `XDP_AGG_BUFFERS`, and a process may have
    /// [`MAX_VIEWS`](xdp_agg_intranode::MAX_VIEWS) such results at a time. While the
    /// results of other processes leave no room for another, this waits for them, at most for the
    /// deadline. Where this process's own leave no room, that is an error at once.
    ///
    /// All processes of the host make this call. Those of other hosts may make
    /// [`Self::all_reduce`]. Where a ring of the workers sums, or each process is a worker of its
    /// own, the result is in memory of this process.
    ///
    /// # Errors
    /// As [`Self::all_reduce`], and, as long as the call has not begun,
    /// [`xdp_agg_intranode::Error::TooManyViews`] and [`xdp_agg_intranode::Error::BufferRoom`]:
    /// these do no harm to the communicator.
    pub fn all_reduce_view<T: Element>(
        &self,
        data: &[T],
        op: Op,
    ) -> Result<(ResultView<T>, Report), Error> {
        let bytes = size_of_val(data);
        let Some(group) = self.group_of_views::<T>(bytes)? else {
            let mut copy = data.to_vec();
            let choice = self.choice(Kind::AllReduce, bytes);
            let report = self.all_reduce_by(&mut copy, op, choice)?;
            return Ok((ResultView::private(copy), report));
        };
        let place = place_of_result(group, bytes)?;
        let (view, report) = self.reduce_in_view(data, op, place)?;
        Ok((ResultView::shared(view), report))
    }

    /// The processes that share the result of an all-reduce of this number of bytes, where they do.
    pub(crate) fn group_of_views<T: Element>(
        &self,
        bytes: usize,
    ) -> Result<Option<&Arc<Group>>, Error> {
        let choice = self.choice(Kind::AllReduce, bytes);
        let is_shared = self.way::<T>(Kind::AllReduce, choice)? == Way::Aggregator;
        Ok(self.group.as_ref().filter(|_| is_shared && !self.is_forked()))
    }
}

/// A place for a result of this number of bytes, of the room that is set apart for such.
pub(crate) fn place_of_result(group: &Arc<Group>, bytes: usize) -> Result<Reserved, Error> {
    group.check_room(bytes)?;
    Ok(group.reserve_view(bytes)?)
}
