//! What can end a worker's membership, or refuse a call.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use xdp_agg_common::control::{AbortReason, Cause, ErrorCode, Standing};
use xdp_agg_quantize::OutOfRange;

use super::standing;

/// An error that did not arise in a [`Machine`](super::Machine): its driver's, or that of a call's
/// [`Blocks`](super::Blocks). The machine tells it to the others, and gives it back.
pub trait CallerError: std::error::Error + Any + Send + Sync {
    /// Nothing is wrong but with this process: a job that shrinks goes on without it.
    fn is_local(&self) -> bool {
        false
    }

    /// See [`Error::cause`].
    fn blames(&self, first: u16) -> Option<Cause> {
        let _ = first;
        None
    }

    /// In words for other workers, which count ranks in the world; `first` as for [`Error::cause`].
    fn told(&self, first: u16) -> String {
        let _ = first;
        self.to_string()
    }

    /// See [`Error::in_ranks`]. None: it names no workers.
    fn in_ranks(&self, local_size: u16, local_rank: u16) -> Option<Arc<dyn CallerError>> {
        let _ = (local_size, local_rank);
        None
    }
}

/// What bounds a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The longest that a call may take.
    Call,
    /// The longest that a call may stand still although all its workers are in it.
    Stall,
    /// The longest that the job may take to begin.
    Join,
}

impl Limit {
    /// The variable that sets it.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Call => "XDP_AGG_DEADLINE",
            Self::Stall => "XDP_AGG_STALL_DEADLINE",
            Self::Join => "XDP_AGG_JOIN_DEADLINE",
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.variable())
    }
}

/// Why a membership ended, or a call was refused.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    /// A wait came to its limit.
    #[error("{}", overdue(*.sequence, *.limit, *.waited, .ranks, .standing, .known))]
    Deadline {
        /// The call's number, if it was a call.
        sequence: Option<u64>,
        /// Which limit that is.
        limit: Limit,
        /// How long it was waited for.
        waited: Duration,
        /// The ranks whose contribution is missing at the aggregator. Empty: it did not say.
        ranks: Vec<u16>,
        /// How they do, as far as the daemon knows.
        standing: Box<[Standing]>,
        /// What else is known about why; may be empty.
        known: String,
    },
    /// Not all processes came.
    #[error(
        "ranks {ranks:?} did not come to job {job:?} within {waited:?} (XDP_AGG_JOIN_DEADLINE){}; \
         start them with the same XDP_AGG_ADDR (in one order), XDP_AGG_JOB, XDP_AGG_RUN and \
         WORLD_SIZE",
        .elsewhere.iter().fold(String::new(), |all, one| format!("{all}; {one}"))
    )]
    Absent {
        /// The job that they were to come to.
        job: String,
        /// Those that did not.
        ranks: Vec<u16>,
        /// How long they were waited for.
        waited: Duration,
        /// Where some of them wait instead, in words.
        elsewhere: Vec<String>,
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
    /// The communicator is closed.
    #[error("the communicator was closed while this call was in flight; wait for it before")]
    Closed,
    /// The control connection ended.
    #[error(
        "the aggregator is gone ({0}); calls in flight are lost; connect again once it is back, or \
         let calls outlive it (XDP_AGG_ON_AGGREGATOR_LOSS)"
    )]
    AggregatorLost(String),
    /// The daemon said something that does not fit.
    #[error("the aggregator sent something unexpected: {0}; are both of one release?")]
    Protocol(String),
    /// What the caller said, or a call's blocks.
    #[error("{0}")]
    Caller(Arc<dyn CallerError>),
}

impl Error {
    /// The same in ranks of the world, where it names workers that are hosts with `local_size`
    /// processes each. This process is number `local_rank` of its host. A host whose contribution
    /// is missing stands for all its processes.
    #[must_use]
    pub fn in_ranks(self, local_size: u16, local_rank: u16) -> Self {
        let map = |host: u16| host * local_size + local_rank;
        match self {
            Self::Deadline { sequence, limit, waited, ranks, standing, known } => {
                let processes = |host: u16| match sequence {
                    Some(_) => host * local_size..(host + 1) * local_size,
                    None => map(host)..map(host) + 1,
                };
                let ranks = ranks.into_iter().flat_map(processes).collect();
                let standing = standing::in_ranks(standing, local_size, local_rank);
                Self::Deadline { sequence, limit, waited, ranks, standing, known }
            }
            Self::Aborted(reason) => Self::Aborted(match reason {
                AbortReason::MemberLost { rank } => AbortReason::MemberLost { rank: map(rank) },
                AbortReason::CallMismatch { rank, call } => {
                    AbortReason::CallMismatch { rank: map(rank), call }
                }
                AbortReason::Member { rank, reason, cause } => {
                    AbortReason::Member { rank: map(rank), reason, cause }
                }
                AbortReason::Timeout { ranks, step } => {
                    AbortReason::Timeout { ranks: ranks.into_iter().map(map).collect(), step }
                }
                other => other,
            }),
            Self::Caller(error) => {
                Self::Caller(error.in_ranks(local_size, local_rank).unwrap_or(error))
            }
            other => other,
        }
    }

    /// What made this worker give up, if another worker caused it. `first` is the first rank of its
    /// host, whose processes count for themselves.
    #[must_use]
    pub fn cause(&self, first: u16) -> Option<Cause> {
        match self {
            Self::CallMismatch { .. } | Self::Aborted(AbortReason::CallMismatch { .. }) => {
                Some(Cause::Mismatch)
            }
            Self::Aborted(
                AbortReason::MemberLost { rank }
                | AbortReason::Member { rank, cause: Some(Cause::Left), .. },
            ) => Some(Cause::Lost(*rank)),
            Self::Aborted(AbortReason::Member { cause, .. }) => *cause,
            Self::Caller(error) => error.blames(first),
            _ => None,
        }
    }

    /// In words for other workers, which count ranks in the world; `first` as for [`Self::cause`].
    pub(crate) fn told(&self, first: u16) -> String {
        match self {
            Self::Caller(error) => error.told(first),
            other => other.to_string(),
        }
    }

    /// See [`CallerError::is_local`].
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Caller(error) if error.is_local())
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

/// A wait that came to its limit: what was waited for, and what changes the limit.
fn overdue(
    sequence: Option<u64>,
    limit: Limit,
    waited: Duration,
    ranks: &[u16],
    standing: &[Standing],
    known: &str,
) -> String {
    // What is beyond tenths of a second is the clock's, and what came before the wait.
    let tenths = (waited.as_millis() as u64 + 50) / 100;
    let waited = Duration::from_millis(100 * tenths.max(1));
    let what = match limit {
        Limit::Call => format!("no result after {waited:?} (longer: {limit})"),
        Limit::Stall => format!(
            "nothing has moved for {waited:?} (longer: {limit}), though all workers that it waits \
             for are in it"
        ),
        Limit::Join => format!("the job did not begin within {waited:?} (longer: {limit})"),
    };
    format!("{}{what}: {}", call_name(sequence), reasons(sequence, ranks, standing, known))
}

/// What a wait is for.
pub(super) fn reasons(
    sequence: Option<u64>,
    ranks: &[u16],
    standing: &[Standing],
    known: &str,
) -> String {
    let lacks = match ranks {
        [] if !known.is_empty() => return known.into(),
        [] => {
            return "the aggregator has all contributions, or did not say whose it lacks: is its \
                    daemon running, and do its packets (UDP) reach this worker?"
                .into();
        }
        ranks if sequence.is_none() => format!("waiting for {} to join", standing::subject(ranks)),
        ranks => format!("waiting for {}", standing::subject(ranks)),
    };
    let known = if known.is_empty() { String::new() } else { format!(" ({known})") };
    match standing::sentences(standing, sequence) {
        _ if sequence.is_none() => lacks + &known,
        said if said.is_empty() => lacks + &known,
        said => format!("{lacks}: {said}{known}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_names_the_missing_ranks() {
        let error = Error::Deadline {
            sequence: Some(7),
            limit: Limit::Call,
            waited: Duration::from_millis(1500),
            ranks: vec![2, 5],
            standing: Box::default(),
            known: String::new(),
        };
        assert_eq!(
            error.to_string(),
            "call 7: no result after 1.5s (longer: XDP_AGG_DEADLINE): waiting for ranks [2, 5]"
        );
    }
}
