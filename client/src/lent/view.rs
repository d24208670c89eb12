//! Results that stay where all processes of a host read them.
#![expect(unsafe_code, reason = "steps of calls on lent memory")]

use std::time::Duration;

use xdp_agg_intranode::{Reserved, Results};
use xdp_agg_quantize::{Element, bf16, f16};

use super::floats::again;
use super::inner::{Call, Inner, Rest, Sum};
use super::result::{Held, LentView, Wanted};
use super::{Caller, DataType, InFlight, Memory, Options, Outcome, Precision, Reduction, Task};
use crate::buffer::place_of_result;
use crate::collectives::Summed;
use crate::error::{Error, JobError};
use crate::handle::Patience;

/// A call in flight whose result is to be read. Dropping it does not end the call: the memory that
/// was lent to it is the call's until [`InFlight::is_done`]. The result's room is free when the
/// call has ended, and this and all views of it are gone.
#[derive(Debug)]
pub struct ViewInFlight {
    flight: InFlight,
    wanted: Wanted,
}

impl ViewInFlight {
    /// Whether it has ended, and how.
    #[must_use]
    pub const fn flight(&self) -> &InFlight {
        &self.flight
    }

    /// Waits for its end, at most for `at_most`, and gives the result. None: it has not ended yet,
    /// and goes on. May be called again.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> Option<Result<(LentView, Outcome), Error>> {
        let ending = self.flight.wait(at_most)?;
        Some(ending.and_then(|outcome| Ok((self.wanted.view()?, outcome))))
    }
}

impl Caller {
    /// All-reduces without writing to the memory. As
    /// [`Communicator::all_reduce_view`](crate::Communicator::all_reduce_view), with the promises
    /// of these calls about numbers. Sums and averages of floats in the precision of gradients are
    /// shared by the processes of the host. Any other result is a copy of this process's own, and
    /// so is one with an infinity or a NaN, whose block was summed again.
    ///
    /// # Errors
    /// As [`Self::call`], and, as long as the call has not begun,
    /// [`xdp_agg_intranode::Error::TooManyViews`] and [`xdp_agg_intranode::Error::BufferRoom`]:
    /// these do no harm to the communicator.
    ///
    /// # Safety
    /// What [`Memory::new`] was promised, until this returns; it need not be valid for writing.
    pub unsafe fn all_reduce_view(
        &self,
        memory: Memory,
        reduction: Reduction,
        options: &Options,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(LentView, Outcome), Error> {
        let (call, wanted) = self.inner().viewing(memory, reduction, options.clone())?;
        let outcome = self.inner().carry_out(&call, interrupted)?;
        Ok((wanted.view()?, outcome))
    }

    /// Starts the same and returns at once; threads of its own carry it out. It counts as a result
    /// that this process has from now on.
    ///
    /// # Errors
    /// As [`Self::all_reduce_view`], as far as they are known at once.
    ///
    /// # Safety
    /// What [`Memory::new`] was promised, until [`InFlight::is_done`]; it need not be valid for
    /// writing.
    pub unsafe fn start_view(
        &self,
        memory: Memory,
        reduction: Reduction,
        options: Options,
    ) -> Result<ViewInFlight, Error> {
        let (call, wanted) = self.inner().viewing(memory, reduction, options)?;
        Ok(ViewInFlight { flight: self.inner().start(call)?, wanted })
    }
}

impl Inner {
    /// Such a call, which is checked and has a place for its result.
    fn viewing(
        &self,
        memory: Memory,
        reduction: Reduction,
        options: Options,
    ) -> Result<(Call, Wanted), Error> {
        let task = Task::AllReduce(reduction);
        let call = Call { memory, task, options, view: None };
        self.check(&call)?;
        let sums = matches!(reduction, Reduction::Sum | Reduction::Average);
        let is_gradient = self.precision(memory, &call.options) == Precision::Gradient;
        let is_shared = sums && memory.data_type().is_float() && !memory.is_empty() && is_gradient;
        let group = self.communicator.group.as_ref().filter(|_| is_shared);
        let place = group.map(|group| place_of_result(group, memory.bytes())).transpose()?;
        let wanted = Wanted::new(place);
        Ok((Call { view: Some(wanted.clone()), ..call }, wanted))
    }
}

impl Wanted {
    pub(super) fn begin(
        &self,
        inner: &Inner,
        turn: u64,
        call: &Call,
        patience: &mut Patience<'_>,
    ) -> Result<Rest, Error> {
        let place = self.take_place();
        let (Some(place), Task::AllReduce(reduction)) = (place, call.task) else {
            return self.begin_copy(inner, turn, call, patience);
        };
        let (average, called) = (reduction == Reduction::Average, call.options.name.clone());
        let sum = Sum { reduction, average, turn, part_of: None, called };
        match call.memory.data_type() {
            DataType::F64 => self.begin_shared::<f64>(inner, call.memory, &sum, place),
            DataType::F16 => self.begin_shared::<f16>(inner, call.memory, &sum, place),
            DataType::Bf16 => self.begin_shared::<bf16>(inner, call.memory, &sum, place),
            _ => self.begin_shared::<f32>(inner, call.memory, &sum, place),
        }
    }

    /// Begins the call on a copy of the memory.
    fn begin_copy(
        &self,
        inner: &Inner,
        turn: u64,
        call: &Call,
        patience: &mut Patience<'_>,
    ) -> Result<Rest, Error> {
        let (memory, len) = (call.memory, call.memory.bytes());
        let mut words = vec![0_u64; len.div_ceil(size_of::<u64>())];
        // SAFETY: the memory is this call's, which only reads it.
        let from = unsafe { memory.reading_bytes() };
        bytemuck::cast_slice_mut(&mut words)[..len].copy_from_slice(from);
        let start = words.as_mut_ptr().cast();
        // SAFETY: the words are valid until the call on them has ended or is dropped, which `Copy`
        // sees to, and hold these elements; nobody else has them.
        let own = unsafe { Memory::new(start, memory.len(), memory.data_type()) };
        let own = Call { memory: own, task: call.task, options: call.options.clone(), view: None };
        let copy = Copy { rest: inner.begin(turn, &own, patience)?, words };
        let wanted = self.clone();
        Ok(Box::new(move |inner, patience| {
            // All of it at once: what is left of a closure that never runs is dropped in order.
            let copy = copy;
            let outcome = (copy.rest)(inner, patience)?;
            wanted.has(Held::Private(copy.words, len));
            Ok(outcome)
        }))
    }

    fn begin_shared<T: Element>(
        &self,
        inner: &Inner,
        memory: Memory,
        sum: &Sum,
        place: Reserved,
    ) -> Result<Rest, Error> {
        let (op, purpose) = inner.of_gradients(sum);
        // SAFETY: the memory is this call's, and T what it holds.
        let data = unsafe { memory.reading::<T>() };
        // SAFETY: the call is in the engines until it has been waited for, or `begun` is dropped,
        // which both happen before this call ends.
        let (begun, results) = unsafe { inner.communicator.begin_view(data, op, &purpose, place) }?;
        let (sum, wanted) = (sum.clone(), self.clone());
        Ok(Box::new(move |inner, patience| {
            let calls = inner.communicator.wait(begun, patience)?;
            let Summed { report, left_out } = Summed::of_parts(calls);
            let view = results.and_then(Results::view).ok_or(Error::Job(JobError::Closed))?;
            let outcome = Outcome { report, precision: Some(Precision::Gradient), redone: 0 };
            if left_out.is_empty() {
                wanted.has(Held::Shared(view));
                return Ok(outcome);
            }
            // Blocks are summed again from this process's input, and their sums are written to a
            // copy: the others read the shared memory.
            let len = view.len();
            let mut words = vec![0_u64; len.div_ceil(size_of::<u64>())];
            let copy = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..len];
            copy.copy_from_slice(&view);
            let copy = bytemuck::cast_slice_mut::<u8, T>(copy);
            // SAFETY: as above; the call itself is over, and has not written to it.
            let data = unsafe { memory.reading::<T>() };
            for range in &left_out {
                copy[range.clone()].copy_from_slice(&data[range.clone()]);
            }
            let redone = again(inner, copy, &left_out, &sum, patience)?;
            wanted.has(Held::Private(words, len));
            Ok(Outcome { redone, ..outcome })
        }))
    }
}

/// What remains of a call on a copy, and the copy, which is dropped behind it.
struct Copy {
    rest: Rest,
    words: Vec<u64>,
}
