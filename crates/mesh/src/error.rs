//! What can go wrong, in words that say what to do about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::call::Call;

/// Why a mesh could not be opened, or why a call on it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is missing or out of its range.
    #[error("{name}: {problem}")]
    Setting {
        /// The variable or the builder's method.
        name: &'static str,
        /// What was wrong and what is expected.
        problem: String,
    },
    /// Rank 0 cannot listen because something else does.
    #[error(
        "rank 0 cannot listen on {address}: the port is in use; end the other program \
         (an earlier run?) or choose another port"
    )]
    PortInUse {
        /// The rendezvous address.
        address: SocketAddr,
    },
    /// A listening socket could not be opened.
    #[error("cannot listen on {address}: {source}; it must be a free port on this host")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Some ranks were not there in time.
    #[error(
        "{} of {world_size} ranks did not come within {} s: missing {}{}; start them \
         with the same WORLD_SIZE and addresses (MASTER_ADDR; XDP_AGG_ADDR at all or at none)",
        missing.len(), waited.as_secs_f32(), list(.missing), refusals(.refused)
    )]
    MissingRanks {
        /// The ranks that did not come, in ascending order.
        missing: Vec<u16>,
        /// The number of ranks.
        world_size: u16,
        /// The deadline.
        waited: Duration,
        /// The callers that were turned away meanwhile, and why.
        refused: Vec<String>,
    },
    /// Nobody held the meeting of the ranks.
    #[error(
        "the ranks did not meet at {place} within {} s: {reason}. MASTER_ADDR must name a host on \
         which a rank of this run runs, in words that lead all others to it; XDP_AGG_PORT sets \
         another port there. With aggregators named by XDP_AGG_ADDR none of this is needed",
        waited.as_secs_f32()
    )]
    NoMeeting {
        /// Where.
        place: String,
        /// The deadline.
        waited: Duration,
        /// What came of the last attempt.
        reason: String,
    },
    /// A rank could not be connected to.
    #[error("rank {rank} at {address} cannot be reached within {} s: {source}; is it running \
         there, and does no firewall close its TCP ports?", waited.as_secs_f32())]
    Unreachable {
        /// The rank that cannot be reached.
        rank: u16,
        /// Where.
        address: SocketAddr,
        /// The deadline.
        waited: Duration,
        /// The last attempt's answer.
        source: io::Error,
    },
    /// Another rank does not want this one.
    #[error("rank {by} turned this worker away: {reason}")]
    Refused {
        /// The rank that refused.
        by: u16,
        /// Its words.
        reason: String,
    },
    /// The ranks' calls differ.
    #[error(
        "the ranks' calls differ: this one makes {ours}; rank {rank} makes {theirs}; every rank \
         must make the same calls in the same order with the same lengths, types and root"
    )]
    Mismatch {
        /// The rank whose call differs.
        rank: u16,
        /// This rank's.
        ours: Box<Call>,
        /// The other's.
        theirs: Box<Call>,
    },
    /// A rank's connection ended in the middle of a call.
    #[error("rank {rank} is gone in call {call}: {reason}; is it still running?")]
    PeerLost {
        /// The rank that is gone.
        rank: u16,
        /// Number of the call.
        call: u64,
        /// What was seen.
        reason: String,
    },
    /// Another rank gave up, and said so.
    #[error("rank {by} gave up: {reason}")]
    Stopped {
        /// The rank that gave up first.
        by: u16,
        /// The rank that it blames, if any.
        culprit: Option<u16>,
        /// Its words.
        reason: String,
    },
    /// The deadline passed.
    #[error("call {call} did not end within {} s (longer: XDP_AGG_DEADLINE): waiting for rank \
         {rank}, which {state}", waited.as_secs_f32())]
    Deadline {
        /// The rank that is waited for.
        rank: u16,
        /// Number of the call.
        call: u64,
        /// The deadline.
        waited: Duration,
        /// What is known of that rank.
        state: String,
    },
    /// The onlooker ended a call.
    #[error("the call was given up: {0}")]
    Interrupted(String),
    /// An argument of a call cannot be.
    #[error("{0}")]
    Argument(String),
    /// An earlier call failed, and the ranks are out of step.
    #[error("an earlier call failed ({reason}); open the mesh again")]
    Broken {
        /// How.
        reason: String,
    },
    /// This process was forked from the one that opened the mesh.
    #[error("the mesh is that of the process this one was forked from; open another one here")]
    Forked,
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// The ranks that are to blame, as far as that is known.
    #[must_use]
    pub fn ranks(&self) -> Vec<u16> {
        match self {
            Self::MissingRanks { missing, .. } => missing.clone(),
            Self::Unreachable { rank, .. }
            | Self::Mismatch { rank, .. }
            | Self::PeerLost { rank, .. }
            | Self::Deadline { rank, .. } => vec![*rank],
            Self::Refused { by, .. } => vec![*by],
            Self::Stopped { by, culprit, .. } => vec![culprit.unwrap_or(*by)],
            _ => Vec::new(),
        }
    }
}

impl From<xdp_agg_launcher::Error> for Error {
    fn from(error: xdp_agg_launcher::Error) -> Self {
        Self::Setting { name: error.name, problem: error.problem }
    }
}

/// `1, 2, 5`.
fn list(ranks: &[u16]) -> String {
    ranks.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

fn refusals(refused: &[String]) -> String {
    match refused {
        [] => String::new(),
        some => format!(" (turned away: {})", some.join("; ")),
    }
}
