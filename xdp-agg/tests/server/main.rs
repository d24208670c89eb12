//! The daemon with its user-space engine, over real sockets on loopback.

mod daemon;
mod strangers;
mod sums;
mod worker;
