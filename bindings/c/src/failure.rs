//! Results: a number for programs, and what a thread can ask about its last one.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use xdp_agg_client::lent::Outcome;
use xdp_agg_client::{Error, JobError, host_ranks, in_world};
use xdp_agg_common::control::{AbortReason, Cause};

use crate::names::xdp_agg_result_t as Code;

/// Why a function did not do what it is for.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    text: String,
    /// The ranks whose contribution is missing, or that are lost.
    ranks: Vec<u16>,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), ranks: Vec::new() }
    }

    /// An argument's value, and what is wrong with it.
    pub(crate) fn argument(name: &str, value: impl Display, problem: &str) -> Self {
        Self::new(Code::XDP_AGG_ERROR_ARGUMENT, format!("{name}: {value} {problem}"))
    }

    /// What is wrong with an argument that has no value to show.
    pub(crate) fn of(name: &str, problem: &str) -> Self {
        Self::new(Code::XDP_AGG_ERROR_ARGUMENT, format!("{name} {problem}"))
    }

    /// A call that has not ended.
    pub(crate) fn in_progress() -> Self {
        Self::new(Code::XDP_AGG_IN_PROGRESS, "the call is still in flight")
    }

    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let words = panic.downcast_ref::<&str>().map(ToString::to_string);
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
        let words = words.unwrap_or_else(|| "without words".into());
        let text = format!("libxdp_agg has a fault, please report it: {words}");
        Self::new(Code::XDP_AGG_ERROR_INTERNAL, text)
    }
}

impl Failure {
    /// An error of a call. Those of the processes of a host count ranks there; `first` is its first
    /// rank in the world.
    pub(crate) fn in_world(error: &Error, first: u16) -> Self {
        let (code, ranks) = describe(error, first);
        let text = match error {
            Error::Host(of_this) => in_world(of_this, first),
            error => error.to_string(),
        };
        Self { code, text, ranks }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::in_world(&error, 0)
    }
}

/// What a thread can ask about.
#[derive(Default)]
struct Last {
    text: CString,
    ranks: Vec<u16>,
    outcome: Option<Outcome>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Does the work of a function of the interface. No panic leaves it; what went wrong is kept for
/// the questions of this thread.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> Code {
    let ending = catch_unwind(AssertUnwindSafe(work));
    let ending = ending.unwrap_or_else(|panic| Err(Failure::panicked(&*panic)));
    let Err(Failure { code, text, ranks }) = ending else { return Code::XDP_AGG_SUCCESS };
    // A zero ends a text in C. Our texts have none, but those of other processes may.
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        (last.text, last.ranks) = (text, ranks);
    });
    code
}

/// Keeps the report of a call that ended well.
pub(crate) fn keep(outcome: Outcome) {
    let _ = LAST.try_with(|last| last.borrow_mut().outcome = Some(outcome));
}

/// The report of this thread's last call that ended well.
pub(crate) fn last_outcome() -> Option<Outcome> {
    LAST.try_with(|last| last.borrow().outcome).ok().flatten()
}

/// The words of this thread's last failure, valid until its next one.
pub(crate) fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The ranks of this thread's last failure.
pub(crate) fn last_ranks() -> Vec<u16> {
    LAST.try_with(|last| last.borrow().ranks.clone()).unwrap_or_default()
}

/// The number of an error, and the ranks to blame; `first` is the first rank of this host.
fn describe(error: &Error, first: u16) -> (Code, Vec<u16>) {
    // The process that reports one of these errors did not cause it.
    let cause = match error {
        Error::Host(xdp_agg_intranode::Error::Elsewhere { .. })
        | Error::Job(JobError::Aborted(AbortReason::Member { .. })) => error.cause(first),
        _ => None,
    };
    match cause {
        Some(Cause::Lost(rank)) => return (Code::XDP_AGG_ERROR_MEMBER_LOST, vec![rank]),
        Some(Cause::Mismatch) => return (Code::XDP_AGG_ERROR_CALL_MISMATCH, Vec::new()),
        Some(Cause::Left) | None => {}
    }
    let ranks = match error {
        Error::Job(JobError::Deadline { ranks, .. } | JobError::Absent { ranks, .. })
        | Error::Ring { ranks, .. }
        | Error::DataLost { ranks, .. }
        | Error::Job(JobError::Aborted(AbortReason::Timeout { ranks, .. })) => ranks.clone(),
        Error::Job(JobError::Aborted(AbortReason::MemberLost { rank })) => vec![*rank],
        Error::Mesh(error) => error.ranks(),
        Error::Host(error) => host_ranks(error, first),
        _ => Vec::new(),
    };
    let code = match error {
        // Lower case: what a call was given, not a variable of the environment.
        Error::Config { name: "op" | "root" | "data", .. } => Code::XDP_AGG_ERROR_ARGUMENT,
        Error::Config { .. } => Code::XDP_AGG_ERROR_CONFIG,
        Error::Job(error) => of_job(error),
        Error::Tls(_) => Code::XDP_AGG_ERROR_REFUSED,
        Error::Format(_) => Code::XDP_AGG_ERROR_UNSUPPORTED,
        Error::Host(error) => of_host(error),
        Error::Mesh(error) => of_mesh(error),
        Error::DataLost { .. } => Code::XDP_AGG_ERROR_MEMBER_LOST,
        Error::Interrupted(_) => Code::XDP_AGG_ERROR_ABORTED,
        Error::Forked => Code::XDP_AGG_ERROR_FORKED,
        Error::Ring { .. } => Code::XDP_AGG_ERROR_AGGREGATOR_LOST,
        Error::Io { .. } => Code::XDP_AGG_ERROR_SYSTEM,
        _ => Code::XDP_AGG_ERROR_INTERNAL,
    };
    (code, ranks)
}

fn of_job(error: &JobError) -> Code {
    match error {
        JobError::Unreachable { .. } | JobError::DataPath { .. } => Code::XDP_AGG_ERROR_UNREACHABLE,
        JobError::Version { .. } | JobError::Refused { .. } => Code::XDP_AGG_ERROR_REFUSED,
        JobError::Deadline { .. } | JobError::Absent { .. } => Code::XDP_AGG_ERROR_DEADLINE,
        JobError::Aborted(reason) => of_abort(reason),
        JobError::CallMismatch { .. } => Code::XDP_AGG_ERROR_CALL_MISMATCH,
        JobError::OutOfRange(_) => Code::XDP_AGG_ERROR_UNSUPPORTED,
        JobError::Closed => Code::XDP_AGG_ERROR_CLOSED,
        JobError::AggregatorLost(_) => Code::XDP_AGG_ERROR_AGGREGATOR_LOST,
        _ => Code::XDP_AGG_ERROR_INTERNAL,
    }
}

fn of_abort(reason: &AbortReason) -> Code {
    match reason {
        AbortReason::MemberLost { .. } => Code::XDP_AGG_ERROR_MEMBER_LOST,
        AbortReason::CallMismatch { .. } => Code::XDP_AGG_ERROR_CALL_MISMATCH,
        AbortReason::Timeout { .. } => Code::XDP_AGG_ERROR_DEADLINE,
        AbortReason::Branch { .. } => Code::XDP_AGG_ERROR_AGGREGATOR_LOST,
        _ => Code::XDP_AGG_ERROR_ABORTED,
    }
}

/// The processes of one host.
fn of_host(error: &xdp_agg_intranode::Error) -> Code {
    use xdp_agg_intranode::Error as Host;
    match error {
        Host::Config { .. } | Host::BufferRoom { .. } | Host::TooManyViews { .. } => {
            Code::XDP_AGG_ERROR_CONFIG
        }
        Host::NameInUse { .. } => Code::XDP_AGG_ERROR_REFUSED,
        Host::Mismatch { .. } => Code::XDP_AGG_ERROR_CALL_MISMATCH,
        Host::PeerLost { .. } | Host::PeerLeft { .. } => Code::XDP_AGG_ERROR_MEMBER_LOST,
        Host::Deadline { .. } => Code::XDP_AGG_ERROR_DEADLINE,
        Host::Elsewhere { .. } => Code::XDP_AGG_ERROR_ABORTED,
        _ => Code::XDP_AGG_ERROR_SYSTEM,
    }
}

/// Collectives among the workers themselves.
fn of_mesh(error: &xdp_agg_mesh::Error) -> Code {
    use xdp_agg_mesh::Error as Mesh;
    match error {
        Mesh::Setting { .. } => Code::XDP_AGG_ERROR_CONFIG,
        Mesh::MissingRanks { .. } | Mesh::NoMeeting { .. } | Mesh::Deadline { .. } => {
            Code::XDP_AGG_ERROR_DEADLINE
        }
        Mesh::Unreachable { .. } | Mesh::PeerLost { .. } => Code::XDP_AGG_ERROR_MEMBER_LOST,
        Mesh::Mismatch { .. } => Code::XDP_AGG_ERROR_CALL_MISMATCH,
        Mesh::Refused { .. } | Mesh::Stopped { .. } => Code::XDP_AGG_ERROR_ABORTED,
        Mesh::Argument(_) => Code::XDP_AGG_ERROR_UNSUPPORTED,
        _ => Code::XDP_AGG_ERROR_SYSTEM,
    }
}
