//! Communicators.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(non_camel_case_types, reason = "names of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::{c_char, c_int, c_void};

use super::config::xdp_agg_config;
use super::error::owned;
use crate::comm::Comm;
use crate::failure::guarded;
use crate::memory::{Hook, handle, optional_text, place, text};
use crate::names::xdp_agg_result_t;
use xdp_agg_client::lent::Given;

/// A membership in a job.
#[derive(Debug)]
pub struct xdp_agg_comm {
    comm: Comm,
}

/// A membership in a job. Several threads may use it; calls are carried out in the order in which
/// they were made, which must be the same at all ranks.
///
/// It belongs to the process that made it. In a child that was forked each function on it returns
/// XDP_AGG_ERROR_FORKED, except xdp_agg_comm_destroy, which leaves the parent's membership alone.
pub type xdp_agg_comm_t = *mut xdp_agg_comm;

/// Asked while a thread waits in a call. Not 0: the call is given up, and the communicator with it.
pub type xdp_agg_waiting_t = Option<unsafe extern "C" fn(argument: *mut c_void) -> c_int>;

impl xdp_agg_comm {
    pub(super) const fn comm(&self) -> &Comm {
        &self.comm
    }
}

/// Joins a job and waits until all its ranks are there, at most for XDP_AGG_JOIN_DEADLINE.
///
/// `comm`: is set to the communicator, to be given to xdp_agg_comm_destroy; to NULL after an error.
/// `config`: settings that go before the environment; NULL: the environment alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_init(
    comm: *mut xdp_agg_comm_t,
    config: *const xdp_agg_config,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: the caller's place; null, or a handle of this library.
        let (place, config) = unsafe { (place(comm, "comm")?, config.as_ref()) };
        place.write(std::ptr::null_mut());
        let none = Given::default();
        let comm = Comm::connect(config.map_or(&none, xdp_agg_config::given))?;
        place.write(Box::into_raw(Box::new(xdp_agg_comm { comm })));
        Ok(())
    })
}

/// This process's number in the job, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_rank(
    comm: *const xdp_agg_comm,
    rank: *mut c_int,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library, and the caller's place.
        let (comm, rank) = unsafe { (handle(comm, "comm")?, place(rank, "rank")?) };
        rank.write(comm.comm.caller()?.communicator().rank().into());
        Ok(())
    })
}

/// Number of processes in the job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_size(
    comm: *const xdp_agg_comm,
    size: *mut c_int,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library, and the caller's place.
        let (comm, size) = unsafe { (handle(comm, "comm")?, place(size, "size")?) };
        size.write(comm.comm.caller()?.communicator().world_size().into());
        Ok(())
    })
}

/// Changes a setting for calls that are made from now on; the same at all ranks, between the same
/// calls.
///
/// `name`: "XDP_AGG_PRECISION" ("exact", "gradient"), the same at all ranks; or "XDP_AGG_DEADLINE"
/// (seconds from a call's beginning to its end).
/// `value`: its value; NULL: again as when the communicator was made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_set(
    comm: xdp_agg_comm_t,
    name: *const c_char,
    value: *const c_char,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library.
        let comm = unsafe { handle(comm, "comm") }?;
        // SAFETY: strings of the caller's.
        let (name, value) = unsafe { (text(name, "name")?, optional_text(value, "value")?) };
        comm.comm.caller()?;
        comm.comm.choices.set(name, value)
    })
}

/// Has a function asked, about twenty times a second, while a thread waits in a call that it made:
/// to look for a signal, or to keep something else going. It is called on that thread; not by
/// xdp_agg_wait and not for calls in flight. It must return soon, and must not throw or jump out.
///
/// `waiting`: the function; NULL: nobody is asked. If it returns anything but 0, the call returns
/// XDP_AGG_ERROR_ABORTED, and the communicator is of no more use.
/// `argument`: is given to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_on_wait(
    comm: xdp_agg_comm_t,
    waiting: xdp_agg_waiting_t,
    argument: *mut c_void,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library.
        let comm = unsafe { handle(comm, "comm") }?;
        comm.comm.caller()?;
        // SAFETY: a function that takes this argument, on threads that make calls.
        comm.comm.ask(waiting.map(|function| unsafe { Hook::new(function, argument) }));
        Ok(())
    })
}

/// What was done so far, as JSON: `rank`, `world_size`, `engine`, calls, packets sent and lost,
/// calls of each precision, and so on.
///
/// `text`: is set to the text, to be freed with xdp_agg_string_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_stats(
    comm: *const xdp_agg_comm,
    text: *mut *mut c_char,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library, and the caller's place.
        let (comm, place) = unsafe { (handle(comm, "comm")?, place(text, "text")?) };
        place.write(owned(comm.comm.stats()?)?);
        Ok(())
    })
}

/// Gives the membership up, from any thread: calls that wait in other threads, and those in flight,
/// end at once with XDP_AGG_ERROR_ABORTED, and the other ranks' with them. The communicator has to
/// be destroyed all the same.
///
/// `reason`: is shown to the other ranks; may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_abort(
    comm: xdp_agg_comm_t,
    reason: *const c_char,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library, and a string of the caller's.
        let (comm, reason) = unsafe { (handle(comm, "comm")?, optional_text(reason, "reason")?) };
        comm.comm.caller()?.abort(reason.unwrap_or("it called xdp_agg_comm_abort"));
        Ok(())
    })
}

/// Leaves the job in good order and frees the communicator; calls in flight end with
/// XDP_AGG_ERROR_CLOSED, and their requests have still to be freed. No other thread may be in a
/// function on it: abort it before, where one may. NULL: nothing happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_comm_destroy(comm: xdp_agg_comm_t) -> xdp_agg_result_t {
    guarded(|| {
        if !comm.is_null() {
            // SAFETY: a handle of this library, and freed once.
            let comm = unsafe { Box::from_raw(comm) };
            comm.comm.close();
        }
        Ok(())
    })
}
