//! Why a job ended, and why a request was refused.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

use super::{Call, words};

/// What makes a member give up. The daemon hands it on as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// This process of its host is gone: its rank in the world, which a job of hosts does not know.
    Lost(u16),
    /// It has left in good order, but not as the others have.
    Left,
    /// The processes of its host call differently.
    Mismatch,
}

/// Why a job ended before its members left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AbortReason {
    /// The connection of a member ended without `Leave`.
    MemberLost {
        /// Its rank.
        rank: u16,
    },
    /// A member's call differs from the others'.
    CallMismatch {
        /// The rank that found out.
        rank: u16,
        /// What it called.
        call: Call,
    },
    /// A member gave up.
    Member {
        /// Its rank.
        rank: u16,
        /// Its words.
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
        /// What made it do so, as far as that is not its own doing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<Cause>,
    },
    /// An aggregator below the job's own cannot be reached, or cannot take part.
    Branch {
        /// Its control address.
        daemon: SocketAddrV4,
        /// Why, in words.
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
    },
    /// `Delete`, or the daemon is shutting down.
    Operator {
        /// Why.
        #[serde(deserialize_with = "words::sentence")]
        reason: String,
    },
    /// A rank did not join or did not get ready in time.
    Timeout {
        /// The ranks that were awaited.
        ranks: Vec<u16>,
        /// `join`, `probe`, `resume`, `pause`, `report its progress` or `contribute`.
        #[serde(deserialize_with = "words::name")]
        step: String,
    },
    /// The job went on without this worker, whose connection was lost for too long.
    Expelled,
    /// A block was finished in an earlier epoch, some members have its result and others do not,
    /// and no member that is left can give it to them.
    Unrecoverable {
        /// Number of the block in the job's life.
        block: u64,
    },
}

impl std::fmt::Display for AbortReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MemberLost { rank } => write!(f, "rank {rank} is gone (its connection ended)"),
            Self::CallMismatch { rank, call } => {
                write!(f, "rank {rank} made another call than the others: {call}")
            }
            Self::Member { rank, cause: Some(Cause::Left), .. } => {
                write!(f, "rank {rank} left in good order, and the others make another call")
            }
            Self::Member { rank, reason, .. } => write!(f, "rank {rank} gave up: {reason}"),
            Self::Branch { daemon, reason } => {
                write!(f, "the aggregator {daemon}, a branch of the job's tree: {reason}")
            }
            Self::Operator { reason } => f.write_str(reason),
            Self::Timeout { ranks, step } => {
                write!(f, "ranks {ranks:?} did not {step} in time: {}", limit_of(step))
            }
            Self::Expelled => f.write_str(
                "the others went on without this worker, because its connection was lost for too \
                 long; connect again to rejoin",
            ),
            Self::Unrecoverable { block } => write!(
                f,
                "block {block} was finished before, and no member that is left can give its result \
                 to those that lack it"
            ),
        }
    }
}

/// Whose limit a step's time is, and what sets it.
fn limit_of(step: &str) -> &'static str {
    match step {
        "join" => {
            "each worker asks for its XDP_AGG_JOIN_DEADLINE, and the aggregator's daemon grants \
             at most its `--join-timeout-max` (XDP_AGG_JOIN_TIMEOUT_MAX)"
        }
        "probe" => {
            "the limit is that of the aggregator's daemon, `--probe-timeout` \
             (XDP_AGG_PROBE_TIMEOUT); is a path between these ranks and the aggregator closed?"
        }
        "resume" => {
            "the limit is that of the aggregator's daemon, `--resume-timeout` \
             (XDP_AGG_RESUME_TIMEOUT)"
        }
        _ => {
            "the limit is that of the aggregator's daemon, `--straggler-timeout` \
             (XDP_AGG_STRAGGLER_TIMEOUT)"
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Another [`super::CONTROL_VERSION`]; the connection ends.
    Version,
    /// Not a frame of this protocol, or not allowed now; the connection ends.
    Protocol,
    /// A value out of its range.
    Invalid,
    /// Another worker has this rank.
    RankTaken,
    /// The job has another world size.
    WorldSize,
    /// No slots or job entries are left, or MTU too small.
    NoRoom,
    /// No such job.
    NoJob,
    /// The job exists already, or is running.
    Busy,
    /// The engine failed; see the daemon's log.
    Engine,
    /// The token is missing or wrong; the connection ends.
    Unauthorised,
    /// Too many connections or requests; the connection ends.
    Limit,
}
