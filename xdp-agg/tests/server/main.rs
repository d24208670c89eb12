//! The daemon with its user-space engine, over real sockets on loopback.

mod branches;
mod daemon;
mod limits;
mod membership;
mod observe;
mod reload;
mod strangers;
mod sums;
mod tls;
mod words;
mod worker;
