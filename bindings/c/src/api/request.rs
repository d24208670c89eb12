//! Calls in flight, to their end.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(non_camel_case_types, reason = "names of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::c_int;
use std::time::Duration;

use crate::failure::{Failure, guarded};
use crate::memory::{handle, place};
use crate::names::xdp_agg_result_t;
use crate::request::Request;

/// A call in flight.
pub struct xdp_agg_request {
    pub(super) request: Request,
}

/// A call in flight. Its vectors are the caller's again when xdp_agg_test or xdp_agg_wait has said
/// that it has ended, with a result or an error. It has to be freed then; it outlives its
/// communicator.
pub type xdp_agg_request_t = *mut xdp_agg_request;

impl From<Request> for xdp_agg_request {
    fn from(request: Request) -> Self {
        Self { request }
    }
}

/// Whether a call has ended. Returns the call's error if it has ended with one.
///
/// `done`: is set to 1 if it has ended, with a result or an error, and to 0 if it has not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_test(
    request: xdp_agg_request_t,
    done: *mut c_int,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library, and the caller's place.
        let (request, done) = unsafe { (handle(request, "request")?, place(done, "done")?) };
        done.write(0);
        let ending = request.request.wait(Duration::ZERO);
        done.write(i32::from(!matches!(ending, Ok(false))));
        ending.map(drop)
    })
}

/// Waits for the end of a call. May be called again, and by several threads.
///
/// `timeout_ms`: XDP_AGG_IN_PROGRESS is returned after so many milliseconds, and the call goes on;
/// below 0: as long as the call takes, which its deadline ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_wait(
    request: xdp_agg_request_t,
    timeout_ms: i64,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library.
        let request = unsafe { handle(request, "request") }?;
        let at_most = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        if request.request.wait(at_most)? { Ok(()) } else { Err(Failure::in_progress()) }
    })
}

/// Gives a call up, and with it the communicator: the other ranks wait for this one's part. As
/// xdp_agg_comm_abort; nothing happens if the call has ended. The call ends with an error soon, and
/// is to be waited for and freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_cancel(request: xdp_agg_request_t) -> xdp_agg_result_t {
    // SAFETY: a handle of this library.
    guarded(|| unsafe { handle(request, "request") }?.request.cancel())
}

/// Frees the request of a call that has ended. Returns XDP_AGG_IN_PROGRESS, and frees nothing, if
/// it has not. NULL: nothing happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_request_free(request: xdp_agg_request_t) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: null, or a handle of this library.
        let Some(found) = (unsafe { request.as_ref() }) else { return Ok(()) };
        if !found.request.is_over() {
            return Err(Failure::in_progress());
        }
        // SAFETY: a handle of this library, and freed once.
        drop(unsafe { Box::from_raw(request) });
        Ok(())
    })
}
