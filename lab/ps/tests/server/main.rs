//! Servers and workers over the loopback: sums, and what happens when a worker errs or dies.

mod common;
mod faults;
mod sums;
