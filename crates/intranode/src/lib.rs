//! Processes of one host over one shared segment: the in-host half of PASSING.
//!
//! * [`Group`]: the processes of a job on this host, made by [`Group::join`] with [`Options`].
//! * [`Group::begin`] opens a call: a [`Feeder`] for the thread that has the vector, and an
//!   [`Exchange`] for those that carry this process's blocks over the network. [`Geometry`] says
//!   which process owns which block, [`Marks`] what is reported of it.
//! * [`Group::begin_copies`] opens a call that brings parts of a vector to all: CSC for whoever
//!   must not block.
//! * [`csc`]: collectives on whole buffers, each part written once and one synchronisation;
//!   [`send_receive`]: the same round a ring of sends and receives, the paper's baseline; [`ring`]:
//!   round a ring of mailboxes in the segment.
//! * [`Buffer`]: memory in the segment, from which a call takes its input without a copy;
//!   [`View`]: results that all processes read in place.
//! * [`model`]: what collectives cost, by the equations of paper 5.
//! * [`Waker`]: sleeping in `poll(2)` without missing what the other processes do.
#![deny(unsafe_code)]

pub mod add;
mod arena;
mod begin;
mod buffer;
mod call;
mod cgroup;
mod copies;
mod core;
#[expect(unsafe_code, reason = "a system call that rustix has no right type for")]
mod credentials;
pub mod csc;
pub mod error;
mod exchange;
mod feeder;
mod geometry;
mod group;
mod held;
mod keys;
mod layout;
mod marks;
mod message;
pub mod model;
mod options;
mod pages;
#[expect(unsafe_code, reason = "pages under memory that a caller has")]
mod placed;
mod plan;
#[doc(hidden)]
pub mod protocol;
mod record;
mod rendezvous;
pub mod ring;
#[expect(unsafe_code, reason = "mapped memory, and references into it")]
mod segment;
pub mod send_receive;
#[expect(unsafe_code, reason = "non-temporal stores")]
mod stream;
#[expect(unsafe_code, reason = "this process's own memory, lent to a call")]
mod vector;
mod view;
mod wake;
mod watch;

use std::hash::Hasher;

pub use buffer::Buffer;
pub use call::{ABANDONED, Shape};
pub use copies::{Copied, Copies};
pub use error::Error;
pub use exchange::{Exchange, Inputs};
pub use feeder::{Feeder, Progress};
pub use geometry::Geometry;
pub use group::Group;
pub use keys::Key;
pub use marks::Marks;
pub use options::{Backing, MAX_PROCESSES, MIN_SEGMENT, Options};
pub use placed::Placed;
pub use vector::InSegment;
pub use view::{MAX_VIEWS, Reserved, Results, View};
pub use wake::Waker;

/// A digest of bytes that are not secret (FNV-1a).
pub(crate) fn digest(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mut state = fnv::FnvHasher::default();
    bytes.into_iter().for_each(|byte| state.write_u8(byte));
    state.finish()
}
