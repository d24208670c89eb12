//! Forked children, as training programs have them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::process::{
    ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, WaitOptions, pidfd_getfd, pidfd_open, waitpid,
};

use crate::sys;

/// Forks a child that does this work and ends, within `limit`; whether the work said that all is
/// well. Nothing of the parent's is dropped in the child, and tests' output goes nowhere new.
///
/// # Errors
/// The system's; the child was killed, as its time was over.
pub fn in_child(limit: Duration, work: impl FnOnce() -> bool) -> io::Result<bool> {
    let child = sys::fork(limit, || match catch_unwind(AssertUnwindSafe(work)) {
        Ok(true) => 0,
        _ => 1,
    })?;
    let ended = waitpid(Some(child), WaitOptions::empty())?;
    Ok(ended.and_then(|(_, status)| status.exit_status()) == Some(0))
}

/// Forks children that keep what they inherited and do nothing, for `life` at most.
///
/// # Errors
/// The system's.
pub fn idle_children(count: u32, life: Duration) -> io::Result<()> {
    for _ in 0..count {
        sys::fork(life, || {
            // The pipes of this process are not to outlive it.
            sys::close_standard_streams();
            loop {
                std::thread::sleep(life);
            }
        })?;
    }
    Ok(())
}

/// The sockets of a process, and the files in memory: `socket:[123]`, `/memfd:name (deleted)`.
#[must_use]
pub fn kept(process: &str) -> BTreeSet<String> {
    let links = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = links.filter_map(|link| fs::read_link(link.path()).ok());
    let names = links.map(|link| link.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("socket:") || name.starts_with("/memfd:")).collect()
}

/// Copies of all sockets of a process, as a child that it had made in some other way than by
/// `fork(3)` would hold them.
///
/// # Errors
/// The system's.
pub fn take_sockets(process: u32) -> io::Result<Vec<OwnedFd>> {
    let process_id = Pid::from_raw(process.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    let of = pidfd_open(process_id, PidfdFlags::empty())?;
    let mut taken = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let path = entry?.path();
        let number: Option<ForeignRawFd> =
            path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let name = fs::read_link(&path)?.display().to_string();
        if let (Some(number), true) = (number, name.starts_with("socket:")) {
            taken.push(pidfd_getfd(&of, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(taken)
}

/// A part of this name is mapped in this process.
#[must_use]
pub fn is_mapped(part: &str) -> bool {
    fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(part))
}
