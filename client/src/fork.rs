//! Whether this process is the one that made something, or was forked from it.
//!
//! A forked child has the parent's descriptors and memory, and none of its threads. Anything it did
//! with them would be in the parent's name. So it does nothing, not even when it drops them.
#![expect(unsafe_code, reason = "pthread_atfork is a C interface")]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(u32);

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler touches one atomic number, which a child of a process with many
            // threads may. Where there is no memory for one more handler, forks go unnoticed.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// This process was forked from that one.
    pub(crate) fn is_elsewhere(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_elsewhere() {
        let origin = Origin::here();
        assert!(!origin.is_elsewhere());
        // SAFETY: the child does nothing but look at a number and end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(!origin.is_elsewhere());
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(status) };
        }
        let mut status = 1;
        // SAFETY: the status is an integer that outlives the call.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert!(!origin.is_elsewhere());
    }
}
