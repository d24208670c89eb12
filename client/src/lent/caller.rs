//! Makes the calls: in the caller's thread, or on threads of its own for those in flight.
#![expect(unsafe_code, reason = "calls on lent memory, whose lender keeps a promise")]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xdp_agg_quantize::{bf16, f16};

use super::inner::{Call, Inner, Rest, Sum, no_exact};
use super::{DataType, InFlight, Memory, Options, Outcome, Precision, Reduction, Settings, Stats};
use super::{Task, copies, floats, integers};
use crate::communicator::Communicator;
use crate::error::{Error, JobError};
use crate::handle::Patience;
use crate::settings::Builder;

/// A membership in a job for calls on lent memory. It may be used from several threads; dropping it
/// closes it.
#[derive(Debug)]
pub struct Caller(ManuallyDrop<Arc<Inner>>);

impl Caller {
    /// Joins a job and waits until all its workers are there.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect(builder: Builder, settings: Settings) -> Result<Self, Error> {
        Ok(Self(ManuallyDrop::new(Arc::new(Inner::connect(builder, settings)?))))
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// Rank, world size, and what else there is to know.
    #[must_use]
    pub fn communicator(&self) -> &Communicator {
        &self.0.communicator
    }

    /// This process was forked from the one that made it: every call is [`Error::Forked`].
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.0.communicator.is_forked()
    }

    /// Makes a call on this thread and waits for its end. `interrupted` is asked at least every
    /// 100 ms while it waits; true ends the membership.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`Error::Interrupted`]; [`Error::Forked`]. After an error
    /// other than [`Error::Config`] the memory's contents are unspecified, and every later call
    /// gives the same error.
    ///
    /// # Safety
    /// What [`Memory::new`] was promised, until this returns.
    pub unsafe fn call(
        &self,
        memory: Memory,
        task: &Task,
        options: &Options,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let call = Call { memory, task: *task, options: options.clone(), view: None };
        self.0.check(&call)?;
        self.0.carry_out(&call, interrupted)
    }

    /// Starts a call and returns at once; threads of its own carry it out.
    ///
    /// # Errors
    /// As [`Self::call`], as far as they are known at once.
    ///
    /// # Safety
    /// What [`Memory::new`] was promised, until [`InFlight::is_done`].
    pub unsafe fn start(
        &self,
        memory: Memory,
        task: Task,
        options: Options,
    ) -> Result<InFlight, Error> {
        let call = Call { memory, task, options, view: None };
        self.0.check(&call)?;
        self.0.start(call)
    }

    /// Gives the membership up, from any thread: all calls in flight end with an error, and the
    /// other ranks are told why.
    pub fn abort(&self, reason: &str) {
        if !self.is_forked() {
            self.0.abort(&Error::Interrupted(reason.to_owned()));
        }
    }

    /// Leaves the job in good order. Calls in flight end with [`JobError::Closed`].
    pub fn close(&self) {
        if !self.is_forked() {
            self.0.close();
        }
    }

    /// What was done so far.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn stats(&self) -> Result<Stats, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        Ok(self.0.stats())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.is_forked() {
            // Threads and connections are another process's: nothing of them ends here.
            return;
        }
        self.0.close();
        // SAFETY: dropped once, here, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl Inner {
    /// What is told before the call has a turn.
    pub(super) fn check(&self, call: &Call) -> Result<(), Error> {
        if self.communicator.is_forked() {
            return Err(Error::Forked);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Job(JobError::Closed));
        }
        if call.options.precision == Some(Precision::Exact) && !self.repeats {
            return Err(no_exact("precision"));
        }
        if let Task::Broadcast { root } | Task::Reduce { root, .. } = call.task {
            self.communicator.check_root(root)?;
        }
        call.memory.check()
    }

    /// Makes a call that was checked, on this thread, to its end.
    pub(super) fn carry_out(
        &self,
        call: &Call,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let mut patience = Patience { deadline: self.deadline(&call.options), interrupted };
        let turn = self.take_turn();
        let begun = self.begin_in_turn(turn, call, &mut patience);
        self.begins.end(turn);
        self.finish(turn, begun, &mut patience)
    }

    /// Waits for the turn and begins the call.
    pub(super) fn begin_in_turn(
        &self,
        turn: u64,
        call: &Call,
        patience: &mut Patience<'_>,
    ) -> Result<Rest, Error> {
        self.wait_for(&self.begins, turn, patience)?;
        self.begin(turn, call, patience)
    }

    pub(super) fn begin(
        &self,
        turn: u64,
        call: &Call,
        patience: &mut Patience<'_>,
    ) -> Result<Rest, Error> {
        if let Some(wanted) = &call.view {
            return wanted.begin(self, turn, call, patience);
        }
        let Call { memory, task, options, .. } = call;
        let name = options.name.as_ref();
        let (reduction, part_of) = match task {
            Task::AllReduce(reduction) => (*reduction, None),
            Task::Reduce { reduction, root } => (*reduction, Some(format!("at rank {root}"))),
            Task::ReduceScatter(reduction) => (*reduction, Some("in parts".to_owned())),
            Task::Broadcast { root } => return copies::broadcast(self, *memory, *root, name),
            Task::AllGather => return copies::all_gather(self, *memory, name),
            Task::Barrier => return copies::barrier(self, name),
        };
        let average = reduction == Reduction::Average;
        let sum = Sum { reduction, average, turn, part_of, called: name.cloned() };
        let sums = average || reduction == Reduction::Sum;
        if !sums || !memory.data_type().is_float() {
            return integers::begin(self, *memory, &sum, patience);
        }
        let precision = self.precision(*memory, options);
        let memory = *memory;
        match memory.data_type() {
            DataType::F64 => floats::begin::<f64>(self, memory, &sum, precision, patience),
            DataType::F16 => floats::begin::<f16>(self, memory, &sum, precision, patience),
            DataType::Bf16 => floats::begin::<bf16>(self, memory, &sum, precision, patience),
            _ => floats::begin::<f32>(self, memory, &sum, precision, patience),
        }
    }
}
