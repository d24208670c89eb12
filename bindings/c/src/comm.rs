//! A communicator of C's: a membership in a job, and the calls that are made on it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::panicking;

use serde::Serialize;
use xdp_agg_client::Error;
use xdp_agg_client::lent::{Caller, Given, LentView, Memory, Options, Reduction, Stats};
use xdp_agg_client::log::{self, Level};

use crate::failure::{Failure, keep};
use crate::memory::{self, Hook, Lent, Prepared};
use crate::names;
use crate::raw::{xdp_agg_datatype_t, xdp_agg_op_t};
use crate::request::Request;
use crate::settings::Choices;

/// A membership in a job.
#[derive(Debug)]
pub(crate) struct Comm {
    caller: Arc<Caller>,
    pub(crate) choices: Choices,
    /// The function that is asked while a thread waits.
    hook: Mutex<Option<Hook>>,
}

/// What [`Comm::stats`] tells.
#[derive(Serialize)]
struct Told {
    rank: u16,
    world_size: u16,
    engine: String,
    result_mode: &'static str,
    aggregators: usize,
    #[serde(flatten)]
    stats: Stats,
}

impl Comm {
    /// Joins a job and waits until all its ranks are there.
    pub(crate) fn connect(given: &Given) -> Result<Self, Failure> {
        // A library for C has no better place for warnings.
        log::forward(Level::WARN, |_, line| eprintln!("xdp-agg: {line}"));
        let caller = Caller::connect(given.builder()?, given.settings()?)?;
        let (choices, hook) = Default::default();
        Ok(Self { caller: Arc::new(caller), choices, hook })
    }

    /// What calls are made on.
    ///
    /// # Errors
    /// This process was forked from the one that made it.
    pub(crate) fn caller(&self) -> Result<&Caller, Failure> {
        if self.caller.is_forked() { Err(Error::Forked.into()) } else { Ok(&self.caller) }
    }

    fn first_rank_of_host(&self) -> u16 {
        self.caller.communicator().first_rank_of_host()
    }

    /// Makes a call and waits for its end.
    pub(crate) fn call(&self, prepared: Prepared) -> Result<(), Failure> {
        let caller = self.caller()?;
        let Prepared { memory, task, name, after } = prepared;
        let watch = EndsWithPanic(caller);
        let hook = *self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let options = Options { name, ..self.choices.options() };
        let outcome = memory::call(caller, memory, &task, (&options, hook))
            .map_err(|error| Failure::in_world(&error, self.first_rank_of_host()))?;
        drop(watch);
        after.carry_out();
        keep(outcome);
        Ok(())
    }

    /// Makes an all-reduce that leaves the vector alone, and waits for its result.
    pub(crate) fn all_reduce_view(
        &self,
        send: Lent,
        (count, datatype): (usize, xdp_agg_datatype_t),
        op: xdp_agg_op_t,
    ) -> Result<LentView, Failure> {
        let caller = self.caller()?;
        let (memory, reduction) = to_read(send, (count, datatype), op)?;
        let watch = EndsWithPanic(caller);
        let hook = *self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let options = self.choices.options();
        let (view, outcome) = memory::all_reduce_view(caller, memory, reduction, (&options, hook))
            .map_err(|error| Failure::in_world(&error, self.first_rank_of_host()))?;
        drop(watch);
        keep(outcome);
        Ok(view)
    }

    /// Starts the same.
    pub(crate) fn start_all_reduce_view(
        &self,
        send: Lent,
        (count, datatype): (usize, xdp_agg_datatype_t),
        op: xdp_agg_op_t,
    ) -> Result<Request, Failure> {
        let caller = self.caller()?;
        let (memory, reduction) = to_read(send, (count, datatype), op)?;
        let watch = EndsWithPanic(caller);
        let call = memory::start_view(caller, memory, reduction, self.choices.options())
            .map_err(|error| Failure::in_world(&error, self.first_rank_of_host()))?;
        drop(watch);
        Ok(Request {
            flight: call.flight().clone(),
            after: Mutex::new(None),
            view: Some(call),
            caller: Arc::downgrade(&self.caller),
            first_rank_of_host: self.first_rank_of_host(),
        })
    }

    /// Starts a call.
    pub(crate) fn start(&self, prepared: Prepared) -> Result<Request, Failure> {
        let caller = self.caller()?;
        let Prepared { memory, task, name, after } = prepared;
        let watch = EndsWithPanic(caller);
        let options = Options { name, ..self.choices.options() };
        let flight = memory::start(caller, memory, task, options)
            .map_err(|error| Failure::in_world(&error, self.first_rank_of_host()))?;
        drop(watch);
        Ok(Request {
            flight,
            after: Mutex::new(Some(after)),
            view: None,
            caller: Arc::downgrade(&self.caller),
            first_rank_of_host: self.first_rank_of_host(),
        })
    }

    /// Sets the function that is asked while a thread waits; None: no function.
    pub(crate) fn ask(&self, hook: Option<Hook>) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// What was done so far, as JSON.
    pub(crate) fn stats(&self) -> Result<String, Failure> {
        let caller = self.caller()?;
        let communicator = caller.communicator();
        let told = Told {
            rank: communicator.rank(),
            world_size: communicator.world_size(),
            engine: communicator.engine(),
            result_mode: communicator.result_mode().name(),
            aggregators: communicator.aggregators(),
            stats: caller.stats()?,
        };
        json(&told)
    }

    /// Leaves the job in good order; calls in flight end with an error. Nothing happens in a
    /// process that was forked.
    pub(crate) fn close(self) {
        // A thread that gives a request up at this moment may hold the last reference to the
        // caller.
        self.caller.close();
    }
}

/// A vector that a call only reads, and how it is reduced.
fn to_read(
    send: Lent,
    (count, datatype): (usize, xdp_agg_datatype_t),
    op: xdp_agg_op_t,
) -> Result<(Memory, Reduction), Failure> {
    let (data_type, reduction) = (names::data_type(datatype)?, names::reduction(op)?);
    let bytes = count.checked_mul(data_type.size());
    let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(|| {
        let problem = format!("elements of {data_type} are no memory's length");
        Failure::argument("count", count, &problem)
    })?;
    let vector = send.vector(bytes);
    vector.check("send", data_type)?;
    Ok((vector.memory(data_type), reduction))
}

/// A value as JSON. It must have no secrets and no maps with unnamed keys: then it cannot fail.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    let internal = crate::names::xdp_agg_result_t::XDP_AGG_ERROR_INTERNAL;
    serde_json::to_string(value).map_err(|error| Failure::new(internal, error.to_string()))
}

/// Ends the membership where a call panics: later calls would wait for that one.
struct EndsWithPanic<'a>(&'a Caller);

impl Drop for EndsWithPanic<'_> {
    fn drop(&mut self) {
        if panicking() {
            self.0.abort("a fault in this library");
        }
    }
}
