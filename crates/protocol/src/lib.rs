//! The protocol of xdp-agg: what a worker and a daemon decide, without sockets, clocks or threads.
//!
//! * [`worker`]: a worker's membership, calls and blocks.
//! * [`daemon`]: who is a member of which job.
//! * [`sum`]: what a packet does to the sums, where no kernel program does it.
//! * [`engine`]: what a daemon's jobs and whatever sums for them tell each other.
#![deny(unsafe_code)]

pub mod daemon;
pub mod engine;
pub mod sum;
pub mod worker;
