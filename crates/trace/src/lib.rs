//! Traces of a job's calls: the files, one clock for all ranks, and what went wrong.
//!
//! A file is an array of Chrome trace events, which Perfetto and `chrome://tracing` open. The
//! bracket at its end is optional in that format. So a file is whole at any moment, also when its
//! writer was killed. `docs/tracing.md` says what each event means.
//!
//! * [`Writer`] makes the events of [`Source`]s and their [`Call`]s.
//! * [`read`] reads them back, from traces and flight recordings alike.
//! * [`clock`] finds how far the hosts' clocks are apart; [`merge`] puts files on one clock.
//! * [`diagnose`] says who was late, who called something else, and who died.
//!
//! No part of it opens a file or asks for the time.

pub mod clock;
pub mod diagnose;
pub mod merge;
mod model;
pub mod read;
mod write;

pub use model::{Call, FORMAT, Kind, MESH, Source};
pub use read::{ReadError, Recording};
pub use write::Writer;

#[cfg(test)]
mod testing;
