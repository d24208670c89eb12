//! What the calls of a communicator did, and when: a trace of all of them in a file, and a flight
//! recording of the latest.
//!
//! Calls through the aggregators, and those that stay in the host, begin and end in an engine. Its
//! [`Recorder`] keeps the latest 1000 under the engine's lock, in memory of a fixed size. Calls
//! among the workers are kept by the communicator's [`Tracer`]. Where a trace is wanted, both
//! leave their events in the queue of a [`sink`], whose thread does all work on files. What does
//! not fit the queue is counted and told.
//!
//! `docs/tracing.md` says what the files hold.

mod calls;
mod files;
mod latest;
mod recorder;
mod settings;
#[expect(unsafe_code, reason = "a signal's handler")]
pub(crate) mod signal;
mod sink;
mod tracer;

pub(crate) use files::Written;
pub(crate) use recorder::Recorder;
pub(crate) use settings::Tracing;
pub(crate) use tracer::{Identity, MeshCall, Tracer};
