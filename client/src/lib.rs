//! The worker library: gradients go in, sums come out.
//!
//! * [`Communicator`]: all-reduce through an xdp-agg aggregator; [`Builder`] its settings,
//!   [`Handle`] a call in flight.
//! * [`ring`]: the baseline, a TCP ring all-reduce.
//! * [`collective`]: what both offer: [`Collective`], [`Op`].
//! * [`machine`]: the whole protocol of a worker, and [`flow`] in it: when to send which block (no
//!   sockets, no clock).
//! * [`quantise`]: floats to fixed-point lanes and back.
#![deny(unsafe_code)]

mod buffer;
mod call;
pub mod collective;
mod communicator;
mod element;
mod engine;
pub mod error;
mod fallback;
pub mod flow;
pub mod machine;
pub mod quantise;
pub mod ring;
mod session;
mod settings;
mod shared;
mod sys;
mod udp;

pub use call::{Path, Report};
pub use collective::{Collective, Op};
pub use communicator::{Communicator, Handle};
pub use element::Element;
pub use error::Error;
pub use machine::{Counters, State};
pub use settings::{Builder, DEFAULT_SCALE};
pub use xdp_agg_common::control::{AggregatorLoss, Policy, Token, WorkerLoss};
pub use xdp_agg_common::maps::ResultMode;
