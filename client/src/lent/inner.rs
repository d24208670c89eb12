//! What the threads of a membership share: settings, turns, and the job of elements that are summed
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xdp_agg_common::control::WorkerLoss;
use xdp_agg_quantize::exact::Digits;
use xdp_agg_quantize::{ElementType, Format, Op, Scaling};

use super::guess::Guesses;
use super::order::Order;
use super::result::Wanted;
use super::started::Threads;
use super::{Memory, Options, Outcome, Precision, Reduction, Settings, Stats, Task};
use crate::communicator::Communicator;
use crate::error::{Error, JobError};
use crate::handle::{Patience, fail};
use crate::name::{Name, named};
use crate::settings::Builder;
use xdp_agg_protocol::worker::Purpose;

/// Slots of the job in which blocks with an infinity or a NaN are summed again: such are rare.
const SIDE_SLOTS: u32 = 128;
/// How often a caller that waits for its turn is asked whether it still wants to.
const ASKED: Duration = Duration::from_millis(50);

/// What remains to be done of a call that has begun.
pub(super) type Rest = Box<dyn FnOnce(&Inner, &mut Patience<'_>) -> Result<Outcome, Error> + Send>;

/// What the threads share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) communicator: Communicator,
    settings: Settings,
    /// How exact sums are cut.
    pub(super) digits: Digits,
    /// Every rank contributes to every call, so calls may be made of several.
    pub(super) repeats: bool,
    /// For the job in which something is summed again.
    builder: Builder,
    side: Mutex<Option<Arc<Communicator>>>,
    /// Of the spans of exact sums.
    pub(super) guesses: Mutex<Guesses>,
    /// In which calls begin.
    pub(super) begins: Order,
    /// In which they end, as far as they do something again.
    pub(super) ends: Order,
    pub(super) threads: Mutex<Threads>,
    pub(super) closed: AtomicBool,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    exact: AtomicU64,
    gradient: AtomicU64,
    redone_calls: AtomicU64,
    redone: AtomicU64,
}

/// A call as it was made.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) memory: Memory,
    pub(super) task: Task,
    pub(super) options: Options,
    /// The result is to be read, and the memory left alone.
    pub(super) view: Option<Wanted>,
}

/// A reduction, and what it is a part of.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    pub(super) reduction: Reduction,
    pub(super) average: bool,
    /// The call's turn.
    pub(super) turn: u64,
    /// What follows the name of the reduction; None: an all-reduce.
    pub(super) part_of: Option<String>,
    /// The caller's name for the call.
    pub(super) called: Option<Name>,
}

impl Sum {
    /// On which the ranks must agree.
    pub(super) fn name(&self) -> String {
        let reduction = self.part_of.as_ref().map_or_else(
            || self.reduction.to_string(),
            |part_of| format!("{} {part_of}", self.reduction),
        );
        named(&reduction, self.called.as_ref())
    }

    /// For a call that a [`Communicator`] would make.
    pub(super) fn purpose(&self) -> Purpose {
        match (&self.part_of, &self.called) {
            (None, None) => Purpose::default(),
            _ => Purpose::of(&Arc::from(self.name())),
        }
    }
}

impl Inner {
    /// Joins the job.
    pub(super) fn connect(builder: Builder, settings: Settings) -> Result<Self, Error> {
        let communicator = builder.clone().connect()?;
        let place = communicator.place();
        let lanes = Format::new(ElementType::I32, Op::Sum, Scaling::Block, None, place.hosts)?;
        let (lowest, highest) = lanes.integer_range(place.local_size);
        let repeats = communicator.policy().worker_loss == WorkerLoss::Fail;
        if !repeats && settings.precision == Some(Precision::Exact) {
            return Err(no_exact("XDP_AGG_PRECISION"));
        }
        let digits = Digits::new(highest.min(-lowest));
        Ok(Self {
            communicator,
            settings,
            digits,
            repeats,
            builder,
            side: Mutex::default(),
            guesses: Mutex::default(),
            begins: Order::default(),
            ends: Order::default(),
            threads: Mutex::default(),
            closed: AtomicBool::new(false),
            tally: Tally::default(),
        })
    }

    /// What was done so far.
    pub(super) fn stats(&self) -> Stats {
        let Tally { exact, gradient, redone_calls, redone } = &self.tally;
        let [exact_calls, gradient_calls, redone_calls, redone_elements] =
            [exact, gradient, redone_calls, redone].map(|count| count.load(Ordering::Relaxed));
        let counters = self.communicator.counters();
        Stats { counters, exact_calls, gradient_calls, redone_calls, redone_elements }
    }

    pub(super) fn deadline(&self, options: &Options) -> Duration {
        options.deadline.unwrap_or(self.communicator.deadline())
    }

    pub(super) fn take_turn(&self) -> u64 {
        // Both in one order: every thread takes its turns under this lock.
        let _threads = self.threads.lock();
        self.next_turn()
    }

    pub(super) fn next_turn(&self) -> u64 {
        let turn = self.begins.next();
        let same = self.ends.next();
        debug_assert_eq!(turn, same);
        turn
    }

    /// Waits for a turn as long as the caller wants to.
    pub(super) fn wait_for(
        &self,
        order: &Order,
        turn: u64,
        patience: &mut Patience<'_>,
    ) -> Result<(), Error> {
        let start = Instant::now();
        while !order.wait(turn, ASKED) {
            // The calls before end by their own deadlines; this one's counts, too.
            let late = start.elapsed() >= patience.deadline;
            if (patience.interrupted)() || late {
                let why =
                    if late { "calls before it have not ended" } else { "it was interrupted" };
                let error = Error::Interrupted(format!("{why}, in a call that had not begun"));
                self.abort(&error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// How a sum in the precision of gradients is called. Blocks with an infinity or a NaN are left
    /// out, to be summed again, where that can be.
    pub(super) fn of_gradients(&self, sum: &Sum) -> (Op, Purpose) {
        let op = if sum.average { Op::Average } else { Op::Sum };
        let purpose = sum.purpose();
        (op, if self.repeats { purpose.leaving_out() } else { purpose })
    }

    /// The same at all ranks: it follows from settings and lengths alone.
    pub(super) fn precision(&self, memory: Memory, options: &Options) -> Precision {
        let chosen = options.precision.or(self.settings.precision);
        let short = memory.bytes() <= self.settings.exact_up_to;
        let usual = if short && self.repeats { Precision::Exact } else { Precision::Gradient };
        chosen.unwrap_or(usual)
    }

    /// What remains of a call, and the account of it.
    pub(super) fn finish(
        &self,
        turn: u64,
        begun: Result<Rest, Error>,
        patience: &mut Patience<'_>,
    ) -> Result<Outcome, Error> {
        let ending = begun.and_then(|rest| rest(self, patience));
        self.ends.end(turn);
        let outcome = ending?;
        let count = |counter: &AtomicU64, more| counter.fetch_add(more, Ordering::Relaxed);
        match outcome.precision {
            Some(Precision::Exact) => count(&self.tally.exact, 1),
            Some(Precision::Gradient) => count(&self.tally.gradient, 1),
            None => 0,
        };
        if outcome.redone > 0 {
            count(&self.tally.redone_calls, 1);
            count(&self.tally.redone, outcome.redone);
        }
        Ok(outcome)
    }

    /// The job in which blocks are summed again: all ranks come to it with the same calls, in the
    /// order in which these were made.
    pub(super) fn side(
        &self,
        turn: u64,
        patience: &mut Patience<'_>,
    ) -> Result<Arc<Communicator>, Error> {
        self.wait_for(&self.ends, turn, patience)?;
        let mut side = self.side.lock();
        if let Some(side) = &*side {
            return Ok(Arc::clone(side));
        }
        let job = format!("{}+", self.builder.job);
        let slots = self.builder.slots.map_or(SIDE_SLOTS, |slots| slots.min(SIDE_SLOTS));
        // All ranks come to it in the course of a call, and a call waits for them.
        let patience = self.builder.join_deadline.max(self.builder.deadline);
        // Its calls are too rare to learn from.
        let settings = self.builder.clone().job(job).slots(slots).learning(false);
        let settings = settings.join_deadline(patience);
        let opened = settings.connect();
        let opened = Arc::new(opened.inspect_err(|error| self.abort_main(error))?);
        *side = Some(Arc::clone(&opened));
        if self.closed.load(Ordering::Acquire) {
            fail(&opened.stripes(), &Error::Job(JobError::Closed));
        }
        Ok(opened)
    }

    fn abort_main(&self, error: &Error) {
        self.communicator.fail(error);
    }

    pub(super) fn abort(&self, error: &Error) {
        self.abort_main(error);
        // While a thread opens it, that thread sees how the main communicator ended.
        if let Some(Some(side)) = self.side.try_lock().as_deref() {
            side.fail(error);
        }
    }

    pub(super) fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.communicator.leave();
        if let Some(Some(side)) = self.side.try_lock().as_deref() {
            side.leave();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        let Threads { begin, finish, all } = threads;
        drop((begin, finish));
        let own = thread::current().id();
        // What a call's end does may close the communicator: that thread ends by itself.
        for thread in all.into_iter().filter(|thread| thread.thread().id() != own) {
            // A panic of it was reported when it happened.
            let _ = thread.join();
        }
        drop(self.side.lock().take());
    }
}

/// Why a job that goes on without lost workers sums nothing exactly: an element's digits might have
/// other contributors each.
pub(super) fn no_exact(name: &'static str) -> Error {
    let problem = "exact, in a job that goes on without lost workers \
                   (XDP_AGG_ON_WORKER_LOSS=shrink), which sums in the precision of gradients \
                   alone; choose gradient, or fail"
        .into();
    Error::Config { name, problem }
}
