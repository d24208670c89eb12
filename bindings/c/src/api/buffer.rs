//! Memory that calls do not copy inside a host, and results that are read there.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(non_camel_case_types, reason = "names of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::c_void;

use super::comm::{xdp_agg_comm, xdp_agg_comm_t};
use super::request::xdp_agg_request_t;
use crate::failure::guarded;
use crate::memory::{Lent, handle, place};
use crate::names::xdp_agg_result_t;
use crate::raw::{xdp_agg_datatype_t, xdp_agg_op_t};
use xdp_agg_client::SharedBuffer;
use xdp_agg_client::lent::LentView;

/// Memory that the processes of a host share.
#[derive(Debug)]
pub struct xdp_agg_buffer {
    _words: SharedBuffer<u64>,
}

/// Memory of this process that the other processes of its host can read: vectors of calls that lie
/// in it are not copied there.
pub type xdp_agg_buffer_t = *mut xdp_agg_buffer;

/// Makes room for `bytes` bytes, which are 0 at first, in the memory that the processes of this
/// host share. XDP_AGG_BUFFERS says how many bytes there are; XDP_AGG_ERROR_CONFIG, and no harm to
/// the communicator: they are not enough. Where each rank is a worker of its own, it is memory of
/// this process.
///
/// Any call may be given the memory, or a part of it. It must not be touched in a forked child.
///
/// `memory`: is set to where it is, aligned for elements of every type.
/// `buffer`: is set to what has to be given to xdp_agg_buffer_destroy; both to NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_buffer_create(
    comm: *const xdp_agg_comm,
    bytes: usize,
    memory: *mut *mut c_void,
    buffer: *mut xdp_agg_buffer_t,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: a handle of this library, and the caller's places.
        let (memory, buffer) = unsafe { (place(memory, "memory")?, place(buffer, "buffer")?) };
        memory.write(std::ptr::null_mut());
        buffer.write(std::ptr::null_mut());
        // SAFETY: a handle of this library.
        let comm = unsafe { handle(comm, "comm") }?;
        let communicator = comm.comm().caller()?.communicator();
        let mut words = communicator.buffer::<u64>(bytes.div_ceil(8))?;
        memory.write(words.as_mut_ptr().cast());
        buffer.write(Box::into_raw(Box::new(xdp_agg_buffer { _words: words })));
        Ok(())
    })
}

/// Frees the memory, before or after its communicator. All calls that it was given to have ended.
/// NULL: nothing happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_buffer_destroy(buffer: xdp_agg_buffer_t) -> xdp_agg_result_t {
    guarded(|| {
        if !buffer.is_null() {
            // SAFETY: a handle of this library, and freed once.
            drop(unsafe { Box::from_raw(buffer) });
        }
        Ok(())
    })
}

/// The result of a call, to read.
#[derive(Debug)]
pub struct xdp_agg_view {
    _bytes: LentView,
}

/// The result of xdp_agg_all_reduce_view, which stays what it is until this is destroyed.
pub type xdp_agg_view_t = *mut xdp_agg_view;

/// Reduces the ranks' vectors, element by element, and leaves them as they are.
///
/// Sums and averages of floats in the precision of gradients are in memory that the processes of
/// this host share, once for all of them: with `send` in an xdp_agg_buffer_t nothing is copied
/// inside the host. Any other result is in memory of this process. All processes of a host make
/// this call; those of other hosts may call xdp_agg_all_reduce.
///
/// A process may have 8 results at a time, in the room of XDP_AGG_BUFFERS. A lack of either is
/// XDP_AGG_ERROR_CONFIG before the call has begun, and does no harm to the communicator. Where
/// other processes of the host have results in all of the room, it waits for them.
///
/// `send`: `count` elements; they are only read.
/// `result`: is set to where the `count` elements of the result are, which must not be written, and
/// not be touched in a forked child.
/// `view`: is set to what has to be given to xdp_agg_view_destroy; both to NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_all_reduce_view(
    send: *const c_void,
    count: usize,
    datatype: xdp_agg_datatype_t,
    op: xdp_agg_op_t,
    comm: xdp_agg_comm_t,
    result: *mut *const c_void,
    view: *mut xdp_agg_view_t,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: the caller's places.
        let (result, view) = unsafe { (place(result, "result")?, place(view, "view")?) };
        result.write(std::ptr::null());
        view.write(std::ptr::null_mut());
        // SAFETY: a handle of this library, and a vector as the header says.
        let (comm, send) = unsafe { (handle(comm, "comm")?.comm(), Lent::new(send)) };
        let bytes = comm.all_reduce_view(send, (count, datatype), op)?;
        result.write(bytes.as_ptr().cast());
        view.write(Box::into_raw(Box::new(xdp_agg_view { _bytes: bytes })));
        Ok(())
    })
}

/// The result of a call that xdp_agg_start_all_reduce_view started and that has ended well. May be
/// called again: each view keeps the result, and so does the request. Returns XDP_AGG_IN_PROGRESS
/// if the call has not ended, and the call's error if it has ended with one.
///
/// `result`, `view`: as of xdp_agg_all_reduce_view.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_request_view(
    request: xdp_agg_request_t,
    result: *mut *const c_void,
    view: *mut xdp_agg_view_t,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: the caller's places.
        let (result, view) = unsafe { (place(result, "result")?, place(view, "view")?) };
        result.write(std::ptr::null());
        view.write(std::ptr::null_mut());
        // SAFETY: a handle of this library.
        let bytes = unsafe { handle(request, "request") }?.request.view()?;
        result.write(bytes.as_ptr().cast());
        view.write(Box::into_raw(Box::new(xdp_agg_view { _bytes: bytes })));
        Ok(())
    })
}

/// Frees a result, before or after its communicator. NULL: nothing happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_view_destroy(view: xdp_agg_view_t) -> xdp_agg_result_t {
    guarded(|| {
        if !view.is_null() {
            // SAFETY: a handle of this library, and freed once.
            drop(unsafe { Box::from_raw(view) });
        }
        Ok(())
    })
}
