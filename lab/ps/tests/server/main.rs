//! Servers and workers over the loopback: sums, and what happens when somebody errs or dies.

mod common;
mod faults;
mod sums;
