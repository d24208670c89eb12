//! The worker library: gradients go in, sums come out.
//!
//! * [`Communicator`]: all-reduce through an xdp-agg aggregator; [`Builder`] its settings,
//!   [`Handle`] a call in flight.
//! * [`collectives`]: broadcast, reduce and others beside it, and how they are chosen.
//! * [`lent`]: calls on memory of other languages, whose type is known at run time alone.
//!
//! The protocol itself, without sockets and clocks, is [`xdp_agg_protocol::worker`].
#![deny(unsafe_code)]

mod begin;
pub mod collectives;
mod communicator;
mod digest;
mod driver;
pub mod error;
mod fallback;
mod fork;
mod grouped;
mod handle;
mod intranode;
pub mod lent;
mod settings;

pub use communicator::Communicator;
pub use error::{Error, JobError, host_ranks, in_world};
pub use handle::Handle;
pub use settings::{Builder, Chosen, Place, addresses, deadline_from_env, variable};
pub use xdp_agg_common::control::{AggregatorLoss, Policy, Token, WorkerLoss};
pub use xdp_agg_common::maps::ResultMode;
pub use xdp_agg_protocol::worker::{Counters, Path, Report, State};
pub use xdp_agg_quantize::{
    Element, ElementType, Format, FormatError, LaneWidth, Op, OutOfRange, Scaling, bf16, f16,
};
