//! Collectives between the ranks of a job themselves, over TCP.
//!
//! * [`Mesh`]: the connections of a rank with all others, and the collectives over them: all-reduce
//!   round a ring, broadcast by seven algorithms, reduce, reduce-scatter, all-gather, barrier,
//!   hierarchical all-reduce.
//! * [`schedule`]: which rank sends what range to which one, after what: the algorithms themselves,
//!   without sockets or clocks.
//! * [`model`]: what they cost, by the models (1) to (6) of the broadcast paper (Xin, Xie, Li:
//!   Large Message Broadcast Design for Distributed Machine Learning, 2020).
//! * [`Mesh::flood`]: what all get through to each other at the same time.
//!
//! One executor carries out every schedule. Calls block; all ranks make the same ones in the same
//! order. Each ends within its deadline, with the result or with an [`Error`] that names a rank.
#![deny(unsafe_code)]

mod call;
pub mod callers;
mod element;
mod error;
mod executor;
mod flood;
#[doc(hidden)]
pub mod inspect;
mod link;
pub mod meet;
pub mod meeting;
mod mesh;
pub mod model;
mod onlooker;
mod open;
mod reducer;
mod rendezvous;
pub mod schedule;
mod wire;

pub use call::{Call, Collective};
pub use element::Datum;
pub use error::Error;
pub use meet::MAX_WORLD;
pub use mesh::{By, Mesh, Pattern, Span, combine_words};
pub use onlooker::{Onlooker, Patience};
pub use open::{
    Builder, DEFAULT_DEADLINE, DEFAULT_JOIN_DEADLINE, DEFAULT_SHORT_BYTES, DEFAULT_WARN_AFTER,
    MAX_DEADLINE,
};
pub use reducer::Reducer;
pub use schedule::{Algorithm, Groups};
pub use xdp_agg_quantize::Op;

#[cfg(target_endian = "big")]
compile_error!("the mesh's payload is little-endian, and so must the machine be");
