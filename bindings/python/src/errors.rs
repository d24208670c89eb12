//! Errors of the library as the exceptions of `xdp_agg._errors`.

use std::path::Path;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use xdp_agg_client::{Error, JobError};
use xdp_agg_common::control::{AbortReason, Cause, ErrorCode};

/// An attribute of an exception.
enum Value {
    Text(String),
    Seconds(f64),
    /// A worker's rank; None: no particular worker.
    Rank(Option<u16>),
    Ranks(Vec<u16>),
}

/// Name of the class, and attributes.
type Described = (&'static str, Vec<(&'static str, Value)>);

/// Where this process is, for errors and reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    /// Number of workers.
    pub(crate) size: u16,
    /// The first rank of this host: ranks are numbered host by host.
    pub(crate) first_of_host: u16,
}

/// The exception for an error of a call, or of joining. Errors of the processes of a host count
/// ranks on that host, and get the world's here.
pub(crate) fn exception_in(py: Python<'_>, error: &Error, world: World) -> PyErr {
    let Error::Host(of_this) = error else { return exception(py, error) };
    let first = world.first_of_host;
    let text = xdp_agg_client::in_world(of_this, first);
    let described = match of_others(error, first) {
        Some(described) => described,
        None => of_host(of_this, xdp_agg_client::host_ranks(of_this, first)),
    };
    make(py, &text, described)
}

/// The exception for an error.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    make(py, &error.to_string(), describe(error))
}

/// Python was forked: this is the child, and the communicator is the parent's.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    exception(py, &Error::Forked)
}

/// The same exception, with a note that names the file with the calls before it.
pub(crate) fn noting(py: Python<'_>, raised: PyErr, file: &Path) -> PyErr {
    let file = file.display();
    let note = format!("the calls before it: xdp-agg trace diagnose {file}");
    // Without the note it is the same error.
    let _ = raised.value(py).call_method1("add_note", (note,));
    raised
}

fn make(py: Python<'_>, text: &str, described: Described) -> PyErr {
    try_make(py, text, described).unwrap_or_else(|_| PyRuntimeError::new_err(text.to_owned()))
}

fn try_make(py: Python<'_>, text: &str, (class, attributes): Described) -> PyResult<PyErr> {
    let class = py.import("xdp_agg._errors")?.getattr(class)?;
    let exception = class.call1((text,))?;
    for (name, value) in attributes {
        match value {
            Value::Text(text) => exception.setattr(name, text)?,
            Value::Seconds(seconds) => exception.setattr(name, seconds)?,
            Value::Rank(rank) => exception.setattr(name, rank)?,
            Value::Ranks(ranks) => exception.setattr(name, PyTuple::new(py, ranks)?)?,
        }
    }
    Ok(PyErr::from_value(exception))
}

fn describe(error: &Error) -> Described {
    use Value::Text;
    match error {
        Error::Config { name, problem } => {
            ("Config", vec![("name", Text((*name).into())), ("problem", Text(problem.clone()))])
        }
        Error::Job(error) => of_job(error),
        Error::Tls(_) => refused("tls"),
        Error::Format(_) => ("Unsupported", vec![]),
        Error::Host(error) => of_host(error, vec![]),
        Error::Mesh(error) => of_mesh(error),
        Error::DataLost { ranks, .. } => lost(ranks.first().copied(), ranks.clone()),
        // Of an earlier call; the one that was interrupted raised what the signal's handler did.
        Error::Interrupted(_) => ("Closed", vec![]),
        Error::Forked => ("Forked", vec![]),
        Error::Ring { .. } => ("AggregatorLost", vec![]),
        _ => ("Error", vec![]),
    }
}

fn of_job(error: &JobError) -> Described {
    use Value::{Ranks, Seconds, Text};
    match error {
        JobError::Unreachable { address, .. } | JobError::DataPath { address, .. } => {
            ("Unreachable", vec![("address", Text(address.to_string()))])
        }
        JobError::Version { .. } => refused("version"),
        JobError::Refused { code, .. } => refused(name_of(*code)),
        JobError::Deadline { waited, ranks, .. } => (
            "Deadline",
            vec![("ranks", Ranks(ranks.clone())), ("waited", Seconds(waited.as_secs_f64()))],
        ),
        JobError::Absent { waited, ranks, .. } => (
            "Deadline",
            vec![("ranks", Ranks(ranks.clone())), ("waited", Seconds(waited.as_secs_f64()))],
        ),
        JobError::Aborted(reason) => of_abort(reason),
        JobError::CallMismatch { .. } => ("CallMismatch", rank(None)),
        JobError::OutOfRange(_) => ("Unsupported", vec![]),
        JobError::Closed => ("Closed", vec![]),
        JobError::AggregatorLost(_) => ("AggregatorLost", vec![]),
        _ => ("Error", vec![]),
    }
}

fn refused(code: &'static str) -> Described {
    ("Refused", vec![("code", Value::Text(code.into()))])
}

fn rank(rank: Option<u16>) -> Vec<(&'static str, Value)> {
    vec![("rank", Value::Rank(rank))]
}

fn lost(one: Option<u16>, all: Vec<u16>) -> Described {
    ("MemberLost", vec![("rank", Value::Rank(one)), ("ranks", Value::Ranks(all))])
}

fn late(ranks: Vec<u16>) -> Described {
    ("Deadline", vec![("ranks", Value::Ranks(ranks))])
}

/// The exception for an error that other workers report but did not cause.
fn of_others(error: &Error, first: u16) -> Option<Described> {
    match error.cause(first)? {
        Cause::Lost(rank) => Some(lost(Some(rank), vec![rank])),
        Cause::Mismatch => Some(("CallMismatch", rank(None))),
        Cause::Left => None,
    }
}

fn of_abort(reason: &AbortReason) -> Described {
    match reason {
        AbortReason::MemberLost { rank } => lost(Some(*rank), vec![*rank]),
        AbortReason::CallMismatch { rank: by, .. } => ("CallMismatch", rank(Some(*by))),
        AbortReason::Member { rank: by, .. } => {
            let error = Error::Job(JobError::Aborted(reason.clone()));
            of_others(&error, 0).unwrap_or_else(|| ("Aborted", rank(Some(*by))))
        }
        AbortReason::Timeout { ranks, .. } => late(ranks.clone()),
        _ => ("Aborted", rank(None)),
    }
}

/// The processes of one host; `ranks` are those of [`xdp_agg_client::host_ranks`].
fn of_host(error: &xdp_agg_intranode::Error, ranks: Vec<u16>) -> Described {
    use xdp_agg_intranode::Error as Host;
    let one = ranks.first().copied();
    match error {
        Host::Config { name, problem } => (
            "Config",
            vec![("name", Value::Text((*name).into())), ("problem", Value::Text(problem.clone()))],
        ),
        Host::NameInUse { .. } => refused("busy"),
        Host::Mismatch { .. } => ("CallMismatch", rank(None)),
        Host::PeerLost { .. } | Host::PeerLeft { .. } => lost(one, ranks),
        Host::Deadline { .. } => late(ranks),
        Host::Elsewhere { .. } => ("Aborted", rank(one)),
        Host::BufferRoom { .. } => (
            "Config",
            vec![
                ("name", Value::Text("XDP_AGG_BUFFERS".into())),
                ("problem", Value::Text(error.to_string())),
            ],
        ),
        Host::TooManyViews { .. } => (
            "Config",
            vec![
                ("name", Value::Text("results".into())),
                ("problem", Value::Text(error.to_string())),
            ],
        ),
        _ => ("Error", vec![]),
    }
}

/// Collectives among the workers themselves.
fn of_mesh(error: &xdp_agg_mesh::Error) -> Described {
    use xdp_agg_mesh::Error as Mesh;
    match error {
        Mesh::Setting { name, problem } => (
            "Config",
            vec![("name", Value::Text((*name).into())), ("problem", Value::Text(problem.clone()))],
        ),
        Mesh::MissingRanks { .. } | Mesh::NoMeeting { .. } | Mesh::Deadline { .. } => {
            late(error.ranks())
        }
        Mesh::Unreachable { .. } | Mesh::PeerLost { .. } => {
            lost(error.ranks().first().copied(), error.ranks())
        }
        Mesh::Mismatch { .. } => ("CallMismatch", rank(error.ranks().first().copied())),
        Mesh::Refused { .. } | Mesh::Stopped { .. } => {
            ("Aborted", rank(error.ranks().first().copied()))
        }
        Mesh::Argument(_) => ("Unsupported", vec![]),
        _ => ("Error", vec![]),
    }
}

fn name_of(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Version => "version",
        ErrorCode::Protocol => "protocol",
        ErrorCode::Invalid => "invalid",
        ErrorCode::RankTaken => "rank_taken",
        ErrorCode::WorldSize => "world_size",
        ErrorCode::NoRoom => "no_room",
        ErrorCode::NoJob => "no_job",
        ErrorCode::Busy => "busy",
        ErrorCode::Engine => "engine",
        ErrorCode::Unauthorised => "unauthorised",
        ErrorCode::Limit => "limit",
    }
}
