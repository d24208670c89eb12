//! Memory that calls do not copy inside a host.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(non_camel_case_types, reason = "names of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::c_void;

use super::comm::xdp_agg_comm;
use crate::failure::guarded;
use crate::memory::{handle, place};
use crate::names::xdp_agg_result_t;
use xdp_agg_client::SharedBuffer;

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
