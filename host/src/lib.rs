//! Processes of one host over one shared segment: the in-host half of PASSING.
//!
//! * [`Group`]: the processes of a job on this host, made by [`Group::join`] with [`Options`].
//! * [`Group::begin`] opens a call: a [`Feeder`] for the thread that has the vector, and an
//!   [`Exchange`] for those that carry this process's blocks over the network. [`Geometry`] says
//!   which block is whose, [`Marks`] what is reported of it.
//! * [`Waker`]: sleeping in `poll(2)` without missing what the other processes do.
#![deny(unsafe_code)]
#![expect(clippy::todo, unused, reason = "skeleton")]

pub mod error;
mod exchange;
mod feeder;
mod geometry;
mod group;
mod options;
mod wake;

pub use error::Error;
pub use exchange::{Exchange, Inputs, Marks};
pub use feeder::{Feeder, Progress};
pub use geometry::Geometry;
pub use group::{Group, Shape};
pub use options::{MAX_PROCESSES, MIN_SEGMENT, Options, Place};
pub use wake::Waker;
