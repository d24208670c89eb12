//! What several do at the same time.

use std::{panic, thread};

/// Does the same for all of these at once, each on a thread of its own; what came of each, in their
/// order.
///
/// # Panics
/// One of the threads panicked.
pub fn at_once<I: Send, T: Send>(
    all: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended.map(|end| end.unwrap_or_else(|payload| panic::resume_unwind(payload))).collect()
    })
}
