//! What the daemon asks of its own process.
#![expect(unsafe_code, reason = "resource limits are a C interface")]

use std::io;

/// Open files that the daemon wants to be allowed: every member of every job, connections to
/// branches, and strangers.
const FILES_WANTED: libc::rlim_t = 8192;

/// Raises the limit of open files as far as needed and permitted; returns the limit.
///
/// # Errors
/// The system's.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur < FILES_WANTED {
        limit.rlim_cur = FILES_WANTED.min(limit.rlim_max);
        // SAFETY: `limit` holds a soft limit that is not above the hard one.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}
