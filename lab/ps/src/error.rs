//! What can go wrong, in words that say what to do about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::frame::{Cause, Failure};

/// Why a server could not start, a worker could not join, or a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server's port is taken.
    #[error(
        "cannot listen on {address}: the port is in use; end the other program (an earlier \
         server?) or choose another port"
    )]
    PortInUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The server cannot listen there.
    #[error("cannot listen on {address}: {source}; it must be an address of this host")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The system refuses something that should always work.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A setting cannot be used.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would have been valid.
        expected: &'static str,
    },
    /// A server does not answer.
    #[error(
        "no parameter server answers at {server} within {} s ({source}); start it with \
         `xdp-agg-ps --listen {server}`, and check the address", waited.as_secs_f32()
    )]
    Unreachable {
        /// Its address.
        server: SocketAddr,
        /// How long it was tried.
        waited: Duration,
        /// The system's last answer.
        source: io::Error,
    },
    /// A server does not take this worker.
    #[error("the parameter server {server} refuses: {reason}")]
    Refused {
        /// Its address.
        server: SocketAddr,
        /// Its words.
        reason: String,
    },
    /// Another worker's connection has ended.
    #[error("{reason} (says the parameter server {server}); the job has ended")]
    WorkerLost {
        /// The worker.
        rank: u16,
        /// The server that says so.
        server: SocketAddr,
        /// Its words.
        reason: String,
    },
    /// The workers' calls differ.
    #[error("{reason} (says the parameter server {server}); all workers must make the same calls")]
    Mismatch {
        /// The worker that came second with its part.
        rank: u16,
        /// The server that says so.
        server: SocketAddr,
        /// Both calls.
        reason: String,
    },
    /// Workers have not pushed their parts in time.
    #[error("{reason} (says the parameter server {server})")]
    Missing {
        /// The workers.
        ranks: Vec<u16>,
        /// The server that says so.
        server: SocketAddr,
        /// Its words.
        reason: String,
    },
    /// Integers whose sum `i32` does not hold.
    #[error("{reason} (says the parameter server {server}); use f64, or smaller numbers")]
    Overflow {
        /// The server that says so.
        server: SocketAddr,
        /// Where.
        reason: String,
    },
    /// The server was stopped.
    #[error("the parameter server {server} was stopped; the job has ended")]
    Stopped {
        /// Its address.
        server: SocketAddr,
    },
    /// The connection to the server has ended without a word.
    #[error("the connection to the parameter server {server} has ended: {source}")]
    ServerLost {
        /// Its address.
        server: SocketAddr,
        /// The system's words.
        source: io::Error,
    },
    /// The server sends what it must not send.
    #[error("{server} does not speak as a parameter server: {what}; are both of one release?")]
    Protocol {
        /// Its address.
        server: SocketAddr,
        /// What was wrong.
        what: String,
    },
    /// The call did not end in time, and no server has told why.
    #[error(
        "the call did not end within {} s: {outstanding} pieces are outstanding; is a link or a \
         server overloaded? The deadline can be longer", waited.as_secs_f32()
    )]
    Deadline {
        /// The deadline.
        waited: Duration,
        /// Pieces whose sum is missing.
        outstanding: u64,
    },
    /// An earlier call has failed, so the workers are out of step.
    #[error("an earlier call has failed ({reason}); connect again for further ones")]
    Broken {
        /// That failure.
        reason: String,
    },
    /// A call on a client that is in the middle of another one.
    #[error("{what}")]
    OutOfTurn {
        /// What was expected.
        what: String,
    },
}

impl Error {
    /// The error that a server's notice stands for.
    pub(crate) fn told(server: SocketAddr, failure: Failure) -> Self {
        let Failure { cause, ranks, text: reason } = failure;
        let rank = ranks.first().copied().unwrap_or(u16::MAX);
        match cause {
            Cause::Refused => Self::Refused { server, reason },
            Cause::Lost => Self::WorkerLost { rank, server, reason },
            Cause::Mismatch => Self::Mismatch { rank, server, reason },
            Cause::Deadline => Self::Missing { ranks, server, reason },
            Cause::Overflow => Self::Overflow { server, reason },
            Cause::Stopped => Self::Stopped { server },
        }
    }
}
