//! Results that stay where all processes of a host read them.
#![expect(unsafe_code, reason = "steps of calls on lent memory")]

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use xdp_agg_intranode::{Results, View};
use xdp_agg_quantize::{Element, Op, bf16, f16};

use super::floats::again;
use super::inner::{Call, Inner, Rest, Sum};
use super::{Caller, DataType, Memory, Options, Outcome, Precision, Reduction, Task};
use crate::collectives::Summed;
use crate::error::{Error, JobError};
use crate::handle::Patience;

/// The bytes of a result, to read. Where they are shared all processes of the host read the same
/// memory, which is free when the last of them has dropped its own. They stay what they are as long
/// as this is there, whatever is called meanwhile. In a forked child they must not be touched.
#[derive(Debug)]
pub struct LentView {
    result: Held,
    len: usize,
}

#[derive(Debug)]
enum Held {
    Shared(View),
    /// Whole words, so that elements of every type are aligned.
    Private(Vec<u64>),
}

impl LentView {
    /// Whether the processes of the host share it. Else it is a copy of this process's own.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self.result, Held::Shared(_))
    }
}

impl Deref for LentView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.result {
            Held::Shared(view) => view,
            Held::Private(words) => &bytemuck::cast_slice(words)[..self.len],
        }
    }
}

/// Where a call leaves its result.
type Slot = Arc<Mutex<Option<Held>>>;

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
        let task = Task::AllReduce(reduction);
        let (inner, call) = (self.inner(), Call { memory, task, options: options.clone() });
        inner.check(&call)?;
        let len = memory.bytes();
        let sums = matches!(reduction, Reduction::Sum | Reduction::Average);
        let is_gradient = inner.precision(memory, options) == Precision::Gradient;
        let floats = sums && memory.data_type().is_float() && len > 0;
        let group = inner.communicator.group.as_ref().filter(|_| floats && is_gradient);
        let Some(group) = group else {
            let mut words = vec![0_u64; len.div_ceil(size_of::<u64>())];
            // SAFETY: the memory is this call's, which only reads it.
            let from = unsafe { memory.reading_bytes() };
            bytemuck::cast_slice_mut(&mut words)[..len].copy_from_slice(from);
            // SAFETY: the words are this function's until it returns, and hold these elements.
            let own =
                unsafe { Memory::new(words.as_mut_ptr().cast(), memory.len(), memory.data_type()) };
            // SAFETY: as above.
            let outcome = unsafe { self.call(own, &task, options, interrupted) }?;
            return Ok((LentView { result: Held::Private(words), len }, outcome));
        };
        group.check_view(len)?;
        let mut patience = Patience { deadline: inner.deadline(options), interrupted };
        let (turn, slot) = (inner.take_turn(), Slot::default());
        let begun = inner.wait_for(&inner.begins, turn, &mut patience).and_then(|()| {
            let (average, called) = (reduction == Reduction::Average, options.name.clone());
            let sum = Sum { reduction, average, turn, part_of: None, called };
            let slot = Arc::clone(&slot);
            match memory.data_type() {
                DataType::F64 => begin::<f64>(inner, memory, &sum, slot),
                DataType::F16 => begin::<f16>(inner, memory, &sum, slot),
                DataType::Bf16 => begin::<bf16>(inner, memory, &sum, slot),
                _ => begin::<f32>(inner, memory, &sum, slot),
            }
        });
        inner.begins.end(turn);
        let outcome = inner.finish(turn, begun, &mut patience)?;
        let result = slot.lock().take().ok_or(Error::Job(JobError::Closed))?;
        Ok((LentView { result, len }, outcome))
    }
}

fn begin<T: Element>(inner: &Inner, memory: Memory, sum: &Sum, slot: Slot) -> Result<Rest, Error> {
    let op = if sum.average { Op::Average } else { Op::Sum };
    let purpose = sum.purpose();
    let purpose = if inner.repeats { purpose.leaving_out() } else { purpose };
    // SAFETY: the memory is this call's, and T what it holds.
    let data = unsafe { memory.reading::<T>() };
    // SAFETY: the call is in the engines until it has been waited for, or `begun` is dropped, which
    // both happen before this call ends.
    let (begun, results) = unsafe { inner.communicator.begin_view(data, op, &purpose) }?;
    let sum = sum.clone();
    Ok(Box::new(move |inner, patience| {
        let calls = inner.communicator.wait(begun, patience)?;
        let Summed { report, left_out } = Summed::of_parts(calls);
        let view = results.and_then(Results::view).ok_or(Error::Job(JobError::Closed))?;
        let outcome = Outcome { report, precision: Some(Precision::Gradient), redone: 0 };
        if left_out.is_empty() {
            *slot.lock() = Some(Held::Shared(view));
            return Ok(outcome);
        }
        // Blocks are summed again from this process's input, and their sums are written to a copy:
        // the others read the shared memory.
        let mut words = vec![0_u64; view.len().div_ceil(size_of::<u64>())];
        let copy = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..view.len()];
        copy.copy_from_slice(&view);
        let copy = bytemuck::cast_slice_mut::<u8, T>(copy);
        // SAFETY: as above; the call itself is over, and has not written to it.
        let data = unsafe { memory.reading::<T>() };
        for range in &left_out {
            copy[range.clone()].copy_from_slice(&data[range.clone()]);
        }
        let redone = again(inner, copy, &left_out, &sum, patience)?;
        *slot.lock() = Some(Held::Private(words));
        Ok(Outcome { redone, ..outcome })
    }))
}
