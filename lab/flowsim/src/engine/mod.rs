//! The event-driven engine: streams of chunks that share resources max-min fairly.
//!
//! Time passes from event to event: a chunk's start, its last byte, its delivery, a redrawing of
//! the paused senders. Between events every stream sends at a constant rate. A change of the set of
//! sending streams changes the rates of its connected component alone.

mod fair;
mod options;
mod run;
mod schedule;

pub use options::{Options, Outcome, Pauses, Progress, SimulationError};
pub use run::simulate;
pub use schedule::{After, ResourceId, Schedule, Stream, StreamId, Uses};
