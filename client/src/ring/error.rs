//! What can go wrong with a ring, in words that say what to do about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::call::Call;

/// Why a ring could not be built, or why a call on it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A needed environment variable is not set.
    #[error(
        "{name} is not set: {meaning}; torchrun and the harness set it, or use Ring::builder()"
    )]
    MissingVariable {
        /// The variable.
        name: &'static str,
        /// What it says.
        meaning: &'static str,
    },
    /// An environment variable or a builder's argument cannot be used.
    #[error("{name} is {value:?}, expected {expected}")]
    InvalidSetting {
        /// The variable or argument.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would have been valid.
        expected: &'static str,
    },
    /// The rank does not fit the world size.
    #[error(
        "rank {rank} in a world of {world_size}: ranks go from 0 to the world size less one, \
         and the world has at least 1 and at most {} workers",
        super::MAX_WORLD
    )]
    Rank {
        /// This worker's rank.
        rank: u16,
        /// The world size it was given.
        world_size: u16,
    },
    /// Rank 0 cannot listen because something else does.
    #[error(
        "rank 0 cannot listen on {address}: the port is in use; end the other program \
         (an earlier run?) or choose another MASTER_PORT"
    )]
    PortInUse {
        /// The rendezvous address.
        address: SocketAddr,
    },
    /// A listening socket could not be opened.
    #[error("cannot listen on {address}: {source}; it must be an address of this host")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Rank 0 did not answer.
    #[error(
        "rank {rank}: rank 0 did not answer at {address} within {} s ({source}); \
         start rank 0, and check MASTER_ADDR and MASTER_PORT", waited.as_secs_f32()
    )]
    NoRendezvous {
        /// This worker's rank.
        rank: u16,
        /// The rendezvous address.
        address: SocketAddr,
        /// The deadline.
        waited: Duration,
        /// The last attempt's answer.
        source: io::Error,
    },
    /// Rank 0 waited for workers that never came.
    #[error(
        "{} of {world_size} ranks did not come within {} s: missing {}{}; start them with the same \
         WORLD_SIZE, MASTER_ADDR and MASTER_PORT", missing.len(), waited.as_secs_f32(),
        list(missing), refusals(refused)
    )]
    MissingRanks {
        /// The ranks that did not come.
        missing: Vec<u16>,
        /// The world size.
        world_size: u16,
        /// The deadline.
        waited: Duration,
        /// What was said to those that were turned away.
        refused: Vec<String>,
    },
    /// Rank 0 turned this worker away.
    #[error("rank {rank} was turned away by rank 0: {reason}")]
    Refused {
        /// This worker's rank.
        rank: u16,
        /// Rank 0's reason.
        reason: String,
    },
    /// A neighbour could not be reached, or did not connect.
    #[error("rank {rank}: no ring connection {direction} rank {neighbour} ({address}): {source}")]
    Link {
        /// This worker's rank.
        rank: u16,
        /// `to` or `from`.
        direction: &'static str,
        /// The neighbour's rank.
        neighbour: u16,
        /// The neighbour's address, or the one it should have connected to.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The neighbour makes another call than this worker.
    #[error(
        "the workers disagree: rank {neighbour} calls {theirs}, rank {rank} calls {ours}; all \
         workers must make the same calls in the same order"
    )]
    Mismatch {
        /// This worker's rank.
        rank: u16,
        /// The neighbour's rank.
        neighbour: u16,
        /// The neighbour's call.
        theirs: Call,
        /// This worker's call.
        ours: Call,
    },
    /// A neighbour's connection ended in the middle of a call.
    #[error("rank {neighbour} is gone (seen by rank {rank} in call {call}): {reason}")]
    PeerLost {
        /// This worker's rank.
        rank: u16,
        /// The neighbour's rank.
        neighbour: u16,
        /// The number of the call, from 0.
        call: u64,
        /// How it showed.
        reason: String,
    },
    /// Another worker gave up and said why.
    #[error("rank {by} stopped the ring: {reason}")]
    Stopped {
        /// The worker that gave up first.
        by: u16,
        /// Its error.
        reason: String,
    },
    /// A call took longer than the deadline.
    #[error(
        "call {call} did not end within {} s: rank {rank} waits for rank {neighbour}, which \
         {state}",
        waited.as_secs_f32()
    )]
    Deadline {
        /// This worker's rank.
        rank: u16,
        /// The neighbour that it waits for.
        neighbour: u16,
        /// The number of the call, from 0.
        call: u64,
        /// The deadline.
        waited: Duration,
        /// What is known about the neighbour.
        state: String,
    },
    /// An earlier call failed, which left the workers out of step.
    #[error("the ring is broken since an earlier call failed ({reason}); connect a new one")]
    Broken {
        /// The first error.
        reason: String,
    },
    /// A system call failed for another reason.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// The error of a failed `doing`.
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

/// `1, 2, 5`.
pub(super) fn list(ranks: &[u16]) -> String {
    ranks.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

fn refusals(refused: &[String]) -> String {
    if refused.is_empty() {
        return String::new();
    }
    format!(" (turned away: {})", refused.join("; "))
}
