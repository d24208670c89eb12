//! The aggregator: engines that sum, the jobs they sum for, and the daemon around both.
//!
//! * [`engine`]: what sums contributions: the XDP program in the kernel, or user space.
#![deny(unsafe_code)]

pub mod engine;
