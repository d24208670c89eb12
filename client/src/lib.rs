//! The worker library: gradients go in, sums come out.
//!
//! * [`Communicator`]: all-reduce through an xdp-agg aggregator; [`Builder`] its settings,
//!   [`Handle`] a call in flight.
//! * [`collectives`]: broadcast, reduce and others beside it, and how they are chosen.
//! * [`lent`]: calls on memory of other languages, whose type is known at run time alone.
//! * [`machine`]: the whole protocol of a worker, and [`flow`] in it: when to send which block (no
//!   sockets, no clock).
#![deny(unsafe_code)]

mod begin;
mod blocks;
mod buffer;
mod call;
pub mod collectives;
mod communicator;
mod digest;
mod engine;
pub mod error;
mod fallback;
pub mod flow;
mod fork;
mod grouped;
mod handle;
mod inhost;
mod layout;
pub mod lent;
pub mod machine;
mod roll;
mod route;
mod session;
mod settings;
mod shared;
mod stripe;
mod sys;
mod together;
mod udp;

pub use call::{Path, Report};
pub use communicator::Communicator;
pub use error::{Error, host_ranks, in_world};
pub use handle::Handle;
pub use machine::{Counters, State};
pub use settings::{Builder, Chosen, Place, addresses, deadline_from_env, variable};
pub use xdp_agg_common::control::{AggregatorLoss, Policy, Token, WorkerLoss};
pub use xdp_agg_common::maps::ResultMode;
pub use xdp_agg_numbers::{
    Element, ElementType, Format, FormatError, LaneWidth, Op, OutOfRange, Scaling, bf16, f16,
};
