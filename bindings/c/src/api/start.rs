//! Calls in flight, from their beginning.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use super::comm::xdp_agg_comm_t;
use super::request::{xdp_agg_request, xdp_agg_request_t};
use crate::calls::{Arguments, NO_VECTOR, What};
use crate::comm::Comm;
use crate::failure::{Failure, guarded};
use crate::memory::{Lent, handle, optional_text, place};
use crate::names::xdp_agg_result_t;
use crate::raw::{xdp_agg_datatype_t, xdp_agg_op_t};
use crate::request::Request;

/// Starts a call.
///
/// # Safety
/// Null, or a handle of this library; vectors and the place for the request as the header says.
unsafe fn start(
    (comm, request): (xdp_agg_comm_t, *mut xdp_agg_request_t),
    send: *const c_void,
    recv: *mut c_void,
    (count, datatype): (usize, xdp_agg_datatype_t),
    what: What,
) -> xdp_agg_result_t {
    // SAFETY: as the caller promises.
    unsafe { start_named(null(), (comm, request), send, recv, (count, datatype), what) }
}

/// The same with a name, unless that is null.
///
/// # Safety
/// As [`start`]; a name is a string.
unsafe fn start_named(
    name: *const c_char,
    (comm, request): (xdp_agg_comm_t, *mut xdp_agg_request_t),
    send: *const c_void,
    recv: *mut c_void,
    (count, datatype): (usize, xdp_agg_datatype_t),
    what: What,
) -> xdp_agg_result_t {
    let start = |comm: &Comm| {
        // SAFETY: vectors of this call, until it has ended.
        let (send, recv) = unsafe { (Lent::new(send), Lent::new(recv)) };
        // SAFETY: as the caller promises.
        let name = unsafe { optional_text(name, "name") }?;
        comm.start(Arguments { send, recv, count, datatype, what, name }.prepare(comm)?)
    };
    // SAFETY: as the caller promises.
    unsafe { put_into((comm, request), start) }
}

/// Puts the request that a function starts into its place.
///
/// # Safety
/// Null, or a handle of this library; the place for the request as the header says.
unsafe fn put_into(
    (comm, request): (xdp_agg_comm_t, *mut xdp_agg_request_t),
    start: impl FnOnce(&Comm) -> Result<Request, Failure>,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (comm, place) = unsafe { (handle(comm, "comm")?.comm(), place(request, "request")?) };
        place.write(null_mut());
        place.write(Box::into_raw(Box::new(xdp_agg_request::from(start(comm)?))));
        Ok(())
    })
}

/// Starts what xdp_agg_all_reduce does, and returns at once.
///
/// `request`: is set to the call in flight; to NULL after an error. Until xdp_agg_test or
/// xdp_agg_wait has said that the call has ended, the vectors are the call's: `send` must not
/// change, and `recv` must be left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { start((comm, request), send, recv, (count, datatype), What::AllReduce { op }) }
}

/// Starts what xdp_agg_all_reduce_view does; `request` as in xdp_agg_start_all_reduce. When the
/// call has ended, xdp_agg_request_view gives its result. That counts among the process's 8 from
/// the start on, and until the request and all views of it are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_all_reduce_view(
    send: *const c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    // SAFETY: a vector as the header says, until the call has ended.
    let send = unsafe { Lent::new(send) };
    let start = |comm: &Comm| comm.start_all_reduce_view(send, (count, datatype), op);
    // SAFETY: as the header asks for.
    unsafe { put_into((comm, request), start) }
}

/// Starts what xdp_agg_all_reduce_named does; `request` as in xdp_agg_start_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_all_reduce_named(
    name: *const c_char,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    let what = What::AllReduce { op };
    // SAFETY: as the header asks for.
    unsafe { start_named(name, (comm, request), send, recv, (count, datatype), what) }
}

/// Starts what xdp_agg_broadcast does; `request` as in xdp_agg_start_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_broadcast(
    data: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    root: c_int,
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { start((comm, request), null(), data, (count, datatype), What::Broadcast { root }) }
}

/// Starts what xdp_agg_reduce does; `request` as in xdp_agg_start_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    root: c_int,
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { start((comm, request), send, recv, (count, datatype), What::Reduce { op, root }) }
}

/// Starts what xdp_agg_reduce_scatter does; `request` as in xdp_agg_start_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { start((comm, request), send, recv, (count, datatype), What::ReduceScatter { op }) }
}

/// Starts what xdp_agg_all_gather does; `request` as in xdp_agg_start_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_all_gather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { start((comm, request), send, recv, (count, datatype), What::AllGather) }
}

/// Starts a barrier: the call ends when all ranks have started it; `request` as in
/// xdp_agg_start_all_reduce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_start_barrier(
    comm: xdp_agg_comm_t,
    request: *mut xdp_agg_request_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { start((comm, request), null(), null_mut(), NO_VECTOR, What::Barrier) }
}
