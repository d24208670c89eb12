//! What a process keeps from its forked children.
//!
//! A forked child has copies of its parent's descriptors and memory, and none of its threads. What
//! it did with them would be in the parent's name. And as long as a copy of a connection is open,
//! nobody sees that the parent is gone. So in a child, before `fork` returns there:
//!
//! - Descriptors that were made by [`own`], or under a [`hold`], or are [`Kept`], are replaced by a
//!   socket without a connection. The number stays taken, so what closes it later closes nothing
//!   else.
//! - Memory in [`Pages`] and [`Bytes`] is not there.
//! - [`Origin::is_elsewhere`] is true of all that was made before.
//!
//! A child that was made without `fork(3)` (`vfork`, `posix_spawn`) runs nothing of this. It has
//! the descriptors until it calls `exec`: all of ours are close-on-exec.

#[expect(unsafe_code, reason = "fstat and dup3 on numbers that may be anybody's")]
mod descriptors;
#[expect(unsafe_code, reason = "pthread_atfork is a C interface")]
mod gate;
#[expect(unsafe_code, reason = "mapped memory")]
mod memory;

pub use gate::{Hold, Kept, Origin, hold, own};
pub use memory::{Bytes, Pages, cut_off, empty, give_to_children};
