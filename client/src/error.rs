//! What can go wrong for a worker, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use xdp_agg_common::control::{AbortReason, Cause, ErrorCode, FrameError};
use xdp_agg_numbers::simd::{self, SimdError};
use xdp_agg_numbers::{FormatError, OutOfRange};

/// Why a communicator could not be made, or a call did not end with a result.
///
/// What the job's policy survives is no error. After any error of a call the communicator is
/// unusable: every later call returns the same error. Drop it and connect again.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A setting is missing or out of its range.
    #[error("{name}: {problem}")]
    Config {
        /// Environment variable or builder method.
        name: &'static str,
        /// What was wrong and what is expected.
        problem: String,
    },
    /// The daemon does not answer.
    #[error("no aggregator at {address} ({reason}){}", advice(.of))]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// The system's words.
        reason: String,
        /// Whose it is to be, and by which topology; None: it was named by its address.
        of: Option<String>,
    },
    /// The daemon speaks another version.
    #[error(
        "the aggregator speaks version {theirs} of the control protocol, this library version \
         {ours}; install the same release on all hosts"
    )]
    Version {
        /// This library's.
        ours: u32,
        /// The daemon's.
        theirs: u32,
    },
    /// The daemon refused.
    #[error("the aggregator refused: {message}")]
    Refused {
        /// For programs.
        code: ErrorCode,
        /// For people.
        message: String,
    },
    /// The data path is closed.
    #[error(
        "the aggregator's data path at {address} did not answer {probes} probes of {bytes} bytes; \
         the control connection works, so look for a firewall (UDP), an interface that \
         `xdp-agg serve` does not serve, an MTU below {bytes} on the way, or, on veth, a peer \
         without NAPI (`xdp-agg doctor` on the aggregator names all of these)"
    )]
    DataPath {
        /// Where the probes went.
        address: SocketAddr,
        /// How many.
        probes: u32,
        /// IP packet size of a probe.
        bytes: usize,
    },
    /// The deadline passed.
    #[error(
        "{}no result after {waited:?}: {}", call_name(*.sequence), missing(.ranks, .known)
    )]
    Deadline {
        /// The call's number, if it was a call.
        sequence: Option<u64>,
        /// How long it was waited for.
        waited: Duration,
        /// The ranks whose contribution is missing at the aggregator. Empty: it did not say.
        ranks: Vec<u16>,
        /// What else is known about why; may be empty.
        known: String,
    },
    /// A call before this worker became a member.
    #[error("this worker is no member of its job yet; wait until it has joined")]
    NotJoined,
    /// The job ended.
    #[error("the job has ended: {0}")]
    Aborted(AbortReason),
    /// This worker's call differs from the others'.
    #[error(
        "the workers' calls differ: this one made {ours}; {theirs}; every worker must make the \
         same calls in the same order with the same lengths, types and scale, name several \
         aggregators in the same order, and have the same XDP_AGG_SEGMENT"
    )]
    CallMismatch {
        /// This worker's call.
        ours: String,
        /// What is known of the others'.
        theirs: String,
    },
    /// An integer is too large for the sum to stay within its bits.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// What was called cannot be done with these settings.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The processes of this host.
    #[error(transparent)]
    Host(#[from] xdp_agg_host::Error),
    /// A collective among the workers themselves.
    #[error("{0}")]
    Mesh(std::sync::Arc<xdp_agg_mesh::Error>),
    /// A collective wanted data of workers that are lost.
    #[error(
        "the {what} ended without the data of ranks {ranks:?}: they are lost, and the job goes on \
         without them"
    )]
    DataLost {
        /// Which collective.
        what: &'static str,
        /// Whose data, in ascending order.
        ranks: Vec<u16>,
    },
    /// The caller did not want to wait any longer, or gave the membership up.
    #[error("this worker gave up: {0}; its communicator is of no use any more")]
    Interrupted(String),
    /// A call in a process that was forked from the communicator's.
    #[error(
        "this process was forked from the one that made the communicator, which stays that one's \
         alone; make one of its own here, or start the process without fork (spawn, forkserver)"
    )]
    Forked,
    /// The communicator is closed.
    #[error("the communicator was closed while this call was in flight; wait for it before")]
    Closed,
    /// The control connection ended.
    #[error(
        "the aggregator is gone ({0}); calls in flight are lost; connect again once it is back, or \
         let calls outlive it (XDP_AGG_ON_AGGREGATOR_LOSS)"
    )]
    AggregatorLost(String),
    /// No aggregator could be reached, and the ring that was to take its place failed.
    #[error(
        "no aggregator can be reached, and the TCP ring in its place failed{}: {reason}",
        at_ranks(.ranks)
    )]
    Ring {
        /// The ranks that it failed at, as far as that is known.
        ranks: Vec<u16>,
        /// How.
        reason: String,
    },
    /// One side of TLS does not accept the other.
    #[error("TLS with the aggregator failed: {0}")]
    Tls(String),
    /// The operating system refused something.
    #[error("{what}: {reason}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
    /// The daemon said something that does not fit.
    #[error("the aggregator sent something unexpected: {0}; are both of one release?")]
    Protocol(String),
}

impl Error {
    /// The same in ranks of the world, where it names workers that are hosts with `local_size`
    /// processes each. This process is number `local_rank` of its host. A host whose contribution
    /// is missing stands for all its processes.
    pub(crate) fn in_ranks(self, local_size: u16, local_rank: u16) -> Self {
        match self {
            Self::Deadline { sequence: Some(number), waited, ranks, known } => {
                let processes = |host: u16| host * local_size..(host + 1) * local_size;
                let ranks = ranks.into_iter().flat_map(processes).collect();
                Self::Deadline { sequence: Some(number), waited, ranks, known }
            }
            other => other.map_ranks(|host| host * local_size + local_rank),
        }
    }

    /// The same with other numbers for the ranks that it names.
    fn map_ranks(self, map: impl Fn(u16) -> u16) -> Self {
        let all = |ranks: Vec<u16>| ranks.into_iter().map(&map).collect();
        match self {
            Self::Deadline { sequence, waited, ranks, known } => {
                Self::Deadline { sequence, waited, ranks: all(ranks), known }
            }
            Self::Ring { ranks, reason } => Self::Ring { ranks: all(ranks), reason },
            Self::Aborted(reason) => Self::Aborted(match reason {
                AbortReason::MemberLost { rank } => AbortReason::MemberLost { rank: map(rank) },
                AbortReason::CallMismatch { rank, call } => {
                    AbortReason::CallMismatch { rank: map(rank), call }
                }
                AbortReason::Member { rank, reason, cause } => {
                    AbortReason::Member { rank: map(rank), reason, cause }
                }
                AbortReason::Timeout { ranks, step } => {
                    AbortReason::Timeout { ranks: all(ranks), step }
                }
                other => other,
            }),
            other => other,
        }
    }

    /// What made this worker give up, if that is another one's doing. `first` is the first rank of
    /// its host, whose processes count for themselves.
    #[must_use]
    pub fn cause(&self, first: u16) -> Option<Cause> {
        use xdp_agg_host::Error as Host;
        match self {
            Self::Host(Host::Elsewhere { code, .. }) => of_code(*code),
            Self::Host(error @ (Host::PeerLost { .. } | Host::PeerLeft { .. })) => {
                host_ranks(error, first).first().copied().map(Cause::Lost)
            }
            Self::Host(Host::Mismatch { .. })
            | Self::CallMismatch { .. }
            | Self::Aborted(AbortReason::CallMismatch { .. }) => Some(Cause::Mismatch),
            Self::Aborted(
                AbortReason::MemberLost { rank }
                | AbortReason::Member { rank, cause: Some(Cause::Left), .. },
            ) => Some(Cause::Lost(*rank)),
            Self::Aborted(AbortReason::Member { cause, .. }) => *cause,
            _ => None,
        }
    }

    /// In words for other workers, who count ranks in the world; `first` as for [`Self::cause`].
    pub(crate) fn told(&self, first: u16) -> String {
        match self {
            // By whom they are told.
            Self::Interrupted(why) => why.clone(),
            Self::Host(error) => in_world(error, first),
            other => other.to_string(),
        }
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what, reason: error.to_string() }
    }
}

impl From<xdp_agg_mesh::Error> for Error {
    fn from(error: xdp_agg_mesh::Error) -> Self {
        Self::Mesh(std::sync::Arc::new(error))
    }
}

impl From<xdp_agg_launcher::Error> for Error {
    fn from(error: xdp_agg_launcher::Error) -> Self {
        Self::Config { name: error.name, problem: error.problem }
    }
}

impl From<SimdError> for Error {
    fn from(error: SimdError) -> Self {
        let problem = match error {
            SimdError::Unknown(unknown) => unknown.to_string(),
            unsupported @ SimdError::Unsupported { .. } => unsupported.to_string(),
        };
        Self::Config { name: simd::VARIABLE, problem }
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => Self::AggregatorLost(error.to_string()),
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// The ranks in the world that an error of a host's processes names; `first` is its first rank.
#[must_use]
pub fn host_ranks(error: &xdp_agg_host::Error, first: u16) -> Vec<u16> {
    use xdp_agg_host::Error as Host;
    let local: &[usize] = match error {
        Host::PeerLost { local_rank, .. }
        | Host::PeerLeft { local_rank }
        | Host::Elsewhere { local_rank, .. } => std::slice::from_ref(local_rank),
        Host::Deadline { waiting_for, .. } => waiting_for,
        _ => &[],
    };
    local.iter().filter_map(|local| first.checked_add(u16::try_from(*local).ok()?)).collect()
}

/// Such an error in words, with these ranks before.
#[must_use]
pub fn in_world(error: &xdp_agg_host::Error, first: u16) -> String {
    match host_ranks(error, first)[..] {
        [] => error.to_string(),
        [rank] => format!("rank {rank}: {error}"),
        ref ranks => format!("ranks {ranks:?}: {error}"),
    }
}

/// A cause as the processes of a host tell it each other; 0: none.
pub(crate) fn code_of(cause: Option<Cause>) -> u32 {
    match cause {
        Some(Cause::Lost(rank)) => 1 + u32::from(rank),
        Some(Cause::Mismatch) => MISMATCH,
        Some(Cause::Left) | None => 0,
    }
}

const MISMATCH: u32 = 1 << 17;

fn of_code(code: u32) -> Option<Cause> {
    match code {
        0 => None,
        MISMATCH => Some(Cause::Mismatch),
        rank => u16::try_from(rank - 1).ok().map(Cause::Lost),
    }
}

fn advice(of: &Option<String>) -> String {
    let start = "start one there with `xdp-agg serve`";
    match of {
        Some(of) => format!(
            ", where that of {of} is to be; {start}, or correct its address in the topology: \
             `aggregator`, or a host's `address`"
        ),
        None => {
            format!("; {start}, or set XDP_AGG_ADDR to the address and port of its control service")
        }
    }
}

fn call_name(sequence: Option<u64>) -> String {
    sequence.map_or_else(String::new, |number| format!("call {number}: "))
}

fn at_ranks(ranks: &[u16]) -> String {
    match ranks {
        [] => String::new(),
        [one] => format!(" at rank {one}"),
        many => format!(" at ranks {many:?}"),
    }
}

fn missing(ranks: &[u16], known: &str) -> String {
    let ranks = match ranks {
        [] if !known.is_empty() => return known.into(),
        [] => {
            "the aggregator did not say whose contribution is missing; is it still running?".into()
        }
        [one] => format!("the contribution of rank {one} is missing; is that worker alive?"),
        many => {
            format!("the contributions of ranks {many:?} are missing; are those workers alive?")
        }
    };
    if known.is_empty() { ranks } else { format!("{ranks} ({known})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_names_the_missing_ranks() {
        let error = Error::Deadline {
            sequence: Some(7),
            waited: Duration::from_millis(1500),
            ranks: vec![2, 5],
            known: String::new(),
        };
        assert_eq!(
            error.to_string(),
            "call 7: no result after 1.5s: the contributions of ranks [2, 5] are missing; \
             are those workers alive?"
        );
    }
}
