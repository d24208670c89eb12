//! Calls in flight: a thread begins those that wait for other ranks, another one ends all.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::flight::Carried;
use super::inner::{Call, Inner, Rest};
use super::result::Wanted;
use super::{InFlight, Precision, Task};
use crate::error::{Error, JobError};
use crate::handle::Patience;

/// The threads for calls in flight, once there was one.
#[derive(Debug, Default)]
pub(super) struct Threads {
    pub(super) begin: Option<Sender<Queued>>,
    pub(super) finish: Option<Sender<Begun>>,
    pub(super) all: Vec<JoinHandle<()>>,
}

/// A call that waits for its turn to begin.
pub(super) struct Queued {
    turn: u64,
    call: Call,
    flight: Carried,
}

/// A call in flight.
pub(super) struct Begun {
    turn: u64,
    rest: Rest,
    deadline: Duration,
    flight: Carried,
}

impl Inner {
    pub(super) fn start(self: &Arc<Self>, call: Call) -> Result<InFlight, Error> {
        let mut threads = self.threads.lock();
        if threads.all.is_empty() {
            self.open(&mut threads)?;
        }
        let flight = InFlight::new();
        let turn = self.next_turn();
        if !self.begins.is_due(turn) || self.takes_its_time(&call) {
            let queued = Queued { turn, call, flight: Carried::new(&flight) };
            if let Some(Err(unsent)) = threads.begin.as_ref().map(|begin| begin.send(queued)) {
                self.give_up(unsent.0.turn);
                return Err(Error::Job(JobError::Closed));
            }
            return Ok(flight);
        }
        let mut patience =
            Patience { deadline: self.deadline(&call.options), interrupted: &mut || false };
        let rest = self.begin(turn, &call, &mut patience);
        let deadline = patience.deadline;
        let told = rest.map(|rest| {
            let begun = Begun { turn, rest, deadline, flight: Carried::new(&flight) };
            threads.finish.as_ref().is_some_and(|finish| finish.send(begun).is_ok())
        });
        self.begins.end(turn);
        match told {
            Ok(true) => Ok(flight),
            Ok(false) => {
                self.ends.end(turn);
                Err(Error::Job(JobError::Closed))
            }
            Err(error) => {
                self.ends.end(turn);
                Err(error)
            }
        }
    }

    fn give_up(&self, turn: u64) {
        self.begins.end(turn);
        self.ends.end(turn);
    }

    /// Its beginning waits for the other ranks, or for room that they have to free.
    fn takes_its_time(&self, Call { memory, task, options, view }: &Call) -> bool {
        if view.as_ref().is_some_and(Wanted::is_shared) {
            return true;
        }
        match task {
            Task::AllReduce(_) | Task::Reduce { .. } | Task::ReduceScatter(_) => {
                let float = memory.data_type().is_float();
                let exact = self.precision(*memory, options) == Precision::Exact;
                let asks = float && exact || !float && memory.bytes() > super::EXACT_UP_TO;
                asks || self.communicator.may_wait_to_learn(memory.bytes())
            }
            Task::Broadcast { .. } | Task::AllGather | Task::Barrier => false,
        }
    }

    /// Starts the threads: one that begins calls which wait for others, and one that ends calls.
    fn open(self: &Arc<Self>, threads: &mut Threads) -> Result<(), Error> {
        let (begin, queued) = channel::<Queued>();
        let (finish, begun) = channel::<Begun>();
        let (inner, ended) = (Arc::clone(self), finish.clone());
        let beginner = move || {
            for Queued { turn, call, flight } in queued {
                let deadline = inner.deadline(&call.options);
                let mut patience = Patience { deadline, interrupted: &mut || false };
                match inner.begin_in_turn(turn, &call, &mut patience) {
                    Ok(rest) => {
                        let begun = Begun { turn, rest, deadline, flight };
                        if let Err(unsent) = ended.send(begun) {
                            inner.ends.end(turn);
                            unsent.0.flight.end(Err(Error::Job(JobError::Closed)));
                        }
                        inner.begins.end(turn);
                    }
                    Err(error) => {
                        inner.give_up(turn);
                        flight.end(Err(error));
                    }
                }
            }
        };
        let inner = Arc::clone(self);
        let finisher = move || {
            for Begun { turn, rest, deadline, flight } in begun {
                let mut patience = Patience { deadline, interrupted: &mut || false };
                let ending = inner.finish(turn, Ok(rest), &mut patience);
                flight.end(ending);
            }
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name(name.into()).spawn(work);
            thread.map_err(Error::io("starting a thread for calls in flight"))
        };
        threads.all.push(spawn("xdp-agg begins", Box::new(beginner))?);
        threads.all.push(spawn("xdp-agg ends", Box::new(finisher))?);
        (threads.begin, threads.finish) = (Some(begin), Some(finish));
        Ok(())
    }
}
