//! What can go wrong for a worker, and what to do about it.

use std::any::Any;
use std::io;
use std::sync::Arc;

use xdp_agg_common::control::{Cause, FrameError};
use xdp_agg_protocol::worker::CallerError;
pub use xdp_agg_protocol::worker::Error as JobError;
use xdp_agg_quantize::simd::{self, SimdError};
use xdp_agg_quantize::{FormatError, OutOfRange};

/// Why a communicator could not be made, or a call did not end with a result.
///
/// A loss that the job's policy survives is not an error. After any error of a call the
/// communicator is unusable: every later call returns the same error. Drop it and connect again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is missing or out of its range.
    #[error("{name}: {problem}")]
    Config {
        /// Environment variable or builder method.
        name: &'static str,
        /// What was wrong and what is expected.
        problem: String,
    },
    /// What ended this worker's membership in its job, or refused a call.
    #[error(transparent)]
    Job(JobError),
    /// What was called cannot be done with these settings.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The processes of this host.
    #[error(transparent)]
    Host(#[from] xdp_agg_intranode::Error),
    /// A collective among the workers themselves.
    #[error("{0}")]
    Mesh(#[source] Arc<xdp_agg_mesh::Error>),
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
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// The same in ranks of the world: see [`JobError::in_ranks`].
    pub(crate) fn in_ranks(self, local_size: u16, local_rank: u16) -> Self {
        match self {
            Self::Job(error) => error.in_ranks(local_size, local_rank).into(),
            Self::Ring { ranks, reason } => {
                let ranks = ranks.into_iter().map(|host| host * local_size + local_rank).collect();
                Self::Ring { ranks, reason }
            }
            other => other,
        }
    }

    /// What made this worker give up, if another worker caused it. `first` is the first rank of its
    /// host, whose processes count for themselves.
    #[must_use]
    pub fn cause(&self, first: u16) -> Option<Cause> {
        use xdp_agg_intranode::Error as Host;
        match self {
            Self::Host(Host::Elsewhere { code, .. }) => of_code(*code),
            Self::Host(error @ (Host::PeerLost { .. } | Host::PeerLeft { .. })) => {
                host_ranks(error, first).first().copied().map(Cause::Lost)
            }
            Self::Host(Host::Mismatch { .. }) => Some(Cause::Mismatch),
            Self::Mesh(error) => match &**error {
                xdp_agg_mesh::Error::PeerLost { rank, .. } => Some(Cause::Lost(*rank)),
                xdp_agg_mesh::Error::Mismatch { .. } => Some(Cause::Mismatch),
                _ => None,
            },
            Self::Job(error) => error.cause(first),
            _ => None,
        }
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what, source: Arc::new(error) }
    }
}

impl CallerError for Error {
    fn is_local(&self) -> bool {
        matches!(self, Self::Host(_) | Self::Io { .. })
    }

    fn blames(&self, first: u16) -> Option<Cause> {
        self.cause(first)
    }

    fn told(&self, first: u16) -> String {
        match self {
            // By whom they are told.
            Self::Interrupted(why) => why.clone(),
            Self::Host(error) => in_world(error, first),
            other => other.to_string(),
        }
    }

    fn in_ranks(&self, local_size: u16, local_rank: u16) -> Option<Arc<dyn CallerError>> {
        Some(Arc::new(self.clone().in_ranks(local_size, local_rank)))
    }
}

impl From<Error> for JobError {
    fn from(error: Error) -> Self {
        match error {
            Error::Job(error) => error,
            other => Self::Caller(Arc::new(other)),
        }
    }
}

impl From<JobError> for Error {
    fn from(error: JobError) -> Self {
        let own = match &error {
            JobError::Caller(caller) => (&**caller as &dyn Any).downcast_ref::<Self>().cloned(),
            _ => None,
        };
        own.unwrap_or(Self::Job(error))
    }
}

impl From<OutOfRange> for Error {
    fn from(error: OutOfRange) -> Self {
        Self::Job(error.into())
    }
}

impl From<xdp_agg_mesh::Error> for Error {
    fn from(error: xdp_agg_mesh::Error) -> Self {
        Self::Mesh(Arc::new(error))
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
            other => other.to_string(),
        };
        Self::Config { name: simd::VARIABLE, problem }
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => JobError::AggregatorLost(error.to_string()).into(),
            other => JobError::Protocol(other.to_string()).into(),
        }
    }
}

/// The ranks in the world that an error of a host's processes names; `first` is its first rank.
#[must_use]
pub fn host_ranks(error: &xdp_agg_intranode::Error, first: u16) -> Vec<u16> {
    use xdp_agg_intranode::Error as Host;
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
pub fn in_world(error: &xdp_agg_intranode::Error, first: u16) -> String {
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

fn at_ranks(ranks: &[u16]) -> String {
    match ranks {
        [] => String::new(),
        [one] => format!(" at rank {one}"),
        many => format!(" at ranks {many:?}"),
    }
}
