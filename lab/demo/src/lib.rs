//! The demo's training: a small network, a real data set, and gradients averaged by all-reduce.
//!
//! * [`digits`]: the data set, 1797 images of handwritten digits.
//! * [`network`]: the network, its loss and its gradient.
//! * [`training`]: stochastic gradient descent on one rank, or on all of them in one process.
//! * [`exchange`]: how gradients become their average.
//! * [`record`]: what a run leaves behind, as JSON.
//! * [`report`], [`plot`]: comparison of runs.

pub mod digits;
pub mod exchange;
pub mod network;
pub mod plot;
pub mod random;
pub mod record;
pub mod report;
pub mod training;
