//! Results, and questions about the last one.
#![expect(unsafe_code, reason = "functions of the C interface")]
#![expect(unreachable_pub, reason = "cbindgen takes what is public")]

use std::ffi::{CString, c_char, c_int};

use crate::comm::json;
use crate::failure::{Failure, guarded, last_outcome, last_ranks, last_text};
use crate::memory::{place, places};
use crate::names::xdp_agg_result_t;
use crate::raw;

/// Version of the library: major * 10000 + minor * 100 + patch. XDP_AGG_VERSION is that of the
/// header.
#[unsafe(no_mangle)]
pub extern "C" fn xdp_agg_version() -> c_int {
    let number = |text: &str| text.parse().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"))
}

/// A result in words: a constant text for each number, also for one that is none.
#[unsafe(no_mangle)]
pub extern "C" fn xdp_agg_error_string(result: raw::xdp_agg_result_t) -> *const c_char {
    xdp_agg_result_t::words(result).as_ptr()
}

/// What went wrong in this thread's last function that did not return XDP_AGG_SUCCESS: what was
/// found, what was expected, and what to do. The text is valid until the thread's next such
/// function; empty if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn xdp_agg_last_error() -> *const c_char {
    last_text()
}

/// The ranks that this thread's last error is about, in ascending order: whose contribution was
/// missing at a deadline, or who is gone.
///
/// `ranks`: room for `capacity` of them; may be NULL if that is 0.
/// `count`: how many there are, also if that is more than there is room for. 0: nobody in
/// particular.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_missing_ranks(
    ranks: *mut c_int,
    capacity: usize,
    count: *mut usize,
) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: the caller's places.
        let (room, count) = unsafe { (places(ranks, capacity, "ranks")?, place(count, "count")?) };
        let missing = last_ranks();
        count.write(missing.len());
        for (place, rank) in room.iter_mut().zip(missing) {
            place.write(rank.into());
        }
        Ok(())
    })
}

/// The report of this thread's last call that ended well, made or waited for, as JSON: who
/// contributed (`report.contributors`, a bit for each rank), `precision` ("exact" or "gradient";
/// null: nothing was rounded), and how many elements were summed again beside an infinity or a NaN
/// (`redone`).
///
/// `text`: is set to the text, to be freed with xdp_agg_string_free; "null" if there was no such
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_last_report(text: *mut *mut c_char) -> xdp_agg_result_t {
    guarded(|| {
        // SAFETY: the caller's place.
        let place = unsafe { place(text, "text") }?;
        place.write(owned(json(&last_outcome())?)?);
        Ok(())
    })
}

/// Frees a text that a function of this library gave. NULL: nothing happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_agg_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: one of `owned`'s, and freed once.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// A text that is the caller's from now on.
pub(super) fn owned(text: String) -> Result<*mut c_char, Failure> {
    let wrong = |_| {
        let internal = xdp_agg_result_t::XDP_AGG_ERROR_INTERNAL;
        Failure::new(internal, "a text with a zero in it")
    };
    Ok(CString::new(text).map_err(wrong)?.into_raw())
}
