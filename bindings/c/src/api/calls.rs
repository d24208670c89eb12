//! Calls that are waited for.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use super::comm::xdp_agg_comm_t;
use crate::calls::{Arguments, NO_VECTOR, What};
use crate::failure::guarded;
use crate::memory::{Lent, handle, optional_text};
use crate::names::xdp_agg_result_t;
use crate::raw::{xdp_agg_datatype_t, xdp_agg_op_t};

/// Makes a call and waits for its end.
///
/// # Safety
/// Null, or a handle of this library; vectors as the header says.
unsafe fn call(
    comm: xdp_agg_comm_t,
    send: *const c_void,
    recv: *mut c_void,
    (count, datatype): (usize, xdp_agg_datatype_t),
    what: What,
) -> xdp_agg_result_t {
    // SAFETY: as the caller promises.
    unsafe { call_named(null(), comm, send, recv, (count, datatype), what) }
}

/// The same with a name, unless that is null.
///
/// # Safety
/// As [`call`]; a name is a string.
unsafe fn call_named(
    name: *const c_char,
    comm: xdp_agg_comm_t,
    send: *const c_void,
    recv: *mut c_void,
    (count, datatype): (usize, xdp_agg_datatype_t),
    what: What,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: as the caller promises.
        let comm = unsafe { handle(comm, "comm") }?.comm();
        // SAFETY: as the caller promises.
        let (send, recv) = unsafe { (Lent::new(send), Lent::new(recv)) };
        // SAFETY: as the caller promises.
        let name = unsafe { optional_text(name, "name") }?;
        comm.call(Arguments { send, recv, count, datatype, what, name }.prepare(comm)?)
    })
}

/// Reduces the ranks' vectors, element by element; all ranks get the result, the same bits.
///
/// `send`: `count` elements; NULL or `recv`: in place. Apart from that the two must not overlap.
/// `recv`: `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_all_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { call(comm, send, recv, (count, datatype), What::AllReduce { op }) }
}

/// Does what xdp_agg_all_reduce does, for a call that the caller calls `name`.
///
/// All ranks must give the same name. Calls of one shape that another rank makes in another order
/// are XDP_AGG_ERROR_CALL_MISMATCH then; without names they are reduced with each other. So calls
/// that are made from several threads should have names.
///
/// `name`: a string of 1 to 128 bytes in UTF-8; NULL: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_all_reduce_named(
    name: *const c_char,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { call_named(name, comm, send, recv, (count, datatype), What::AllReduce { op }) }
}

/// Gives the root's vector to all ranks, bit for bit.
///
/// `data`: `count` elements; read at the root, written elsewhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_broadcast(
    data: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    root: c_int,
    comm: xdp_agg_comm_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { call(comm, null(), data, (count, datatype), What::Broadcast { root }) }
}

/// Reduces the ranks' vectors, element by element; the root gets the result.
///
/// `send`: `count` elements; NULL or `recv`: in place, and then the contents are unspecified at the
/// other ranks.
/// `recv`: `count` elements at the root; elsewhere, unless in place, it is not touched and may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_reduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    root: c_int,
    comm: xdp_agg_comm_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { call(comm, send, recv, (count, datatype), What::Reduce { op, root }) }
}

/// Reduces the ranks' vectors, element by element; each rank gets its part of the result, the
/// elements from rank * `count` on.
///
/// `send`: size * `count` elements; NULL: in place in `recv`.
/// `recv`: `count` elements. In place: size * `count` elements, of which the rank's part has the
/// result then, in its place, and the rest is unspecified; no copy is made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { call(comm, send, recv, (count, datatype), What::ReduceScatter { op }) }
}

/// Gives each rank's vector to all ranks, bit for bit: rank r's is at r * `count` then.
///
/// `send`: `count` elements; NULL, or the rank's place in `recv`: in place.
/// `recv`: size * `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_all_gather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    comm: xdp_agg_comm_t,
) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { call(comm, send, recv, (count, datatype), What::AllGather) }
}

/// Returns when all ranks have called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_barrier(comm: xdp_agg_comm_t) -> xdp_agg_result_t {
    // SAFETY: as the header asks for.
    unsafe { call(comm, null(), null_mut(), NO_VECTOR, What::Barrier) }
}
