//! The worker library: gradients go in, sums come out.
//!
//! * [`collective`]: what both implementations offer: [`Collective`], [`Op`].
//! * [`ring`]: the baseline, a TCP ring all-reduce.

pub mod collective;
pub mod ring;

pub use collective::{Collective, Op};
