//! A parameter server over TCP, and its workers' half.
//!
//! `N` workers of a job push pieces of their vectors. When all parts of a piece are there, the
//! server adds them in order of rank and sends the sum to every worker. This is the baseline `ps`
//! of the paper's comparison (with `p` servers). It also serves `psring`, and takes an ATP-like
//! aggregator's overflow.
//!
//! What makes it quick: pieces of 64 KiB flow in both directions at once. A header and the payload
//! before it come in with one system call. Payloads are received where they are added from (and at
//! a worker where the result belongs). One pass over the parts of a piece adds them all. A job is
//! one thread at the server, which waits for all of its connections at once.
//!
//! Sums are taken in order of rank whatever the order of arrival. So the same inputs give the same
//! bits in every run and at every worker, for any number of servers.
#![forbid(unsafe_code)]

mod bytes;
mod client;
mod element;
mod error;
mod frame;
mod outbox;
mod server;
mod socket;

pub use client::{DEFAULT_BLOCK, Op, Options, Piece, PsClient};
pub use element::{Element, ElementType};
pub use error::Error;
pub use frame::{MAX_PIECE, MAX_WORLD, VERSION};
pub use server::{ServeOptions, Server, Stopper};

#[cfg(target_endian = "big")]
compile_error!("the parameter server's payload is little-endian, and so must the machine be");
