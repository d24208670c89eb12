//! What a run is told, and what it says.

use thiserror::Error;

use super::schedule::{ResourceId, Schedule};

/// Senders that pause: paper 2 (RAT), section 4.1.
#[derive(Clone, Debug, PartialEq)]
pub struct Pauses {
    /// What each sender sends through; a paused one's capacity is 0.
    pub senders: Vec<ResourceId>,
    /// `k`: how many of them are paused at any time.
    pub count: usize,
    /// `d`: seconds after which they are drawn anew.
    pub period: f64,
    /// Of the drawing.
    pub seed: u64,
}

/// How to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Rates are computed anew at most once in this number of seconds. Until then, freed capacity
    /// stays unused, and what has begun waits. 0: at every event, which is exact.
    pub quantum: f64,
    /// Senders that pause.
    pub pauses: Option<Pauses>,
    /// A run that takes more simulated seconds than this has failed.
    pub horizon: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { quantum: 0.0, pauses: None, horizon: 1e6 }
    }
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Chunks sent.
    pub chunks: u64,
    /// Chunks of the schedule.
    pub of_chunks: u64,
    /// Simulated seconds.
    pub seconds: f64,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Seconds until everything was delivered.
    pub seconds: f64,
    /// Bytes that passed each resource, integrated over the rates.
    pub bytes: Vec<f64>,
    /// Events that happened.
    pub events: u64,
    /// How often rates were computed anew.
    pub fillings: u64,
}

/// Why a run did not end.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SimulationError {
    /// A value that cannot be a capacity, size or time.
    #[error("{what} is {value}; expected {expected}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// Its value.
        value: f64,
        /// What it should be.
        expected: &'static str,
    },
    /// Nothing happens any more, and not all has been delivered.
    #[error(
        "{streams} streams are never done, the first is stream {first} at chunk {chunk}: they wait \
         for each other, or for a resource without capacity; check the schedule's waits"
    )]
    Stalled {
        /// How many.
        streams: usize,
        /// The first of them.
        first: usize,
        /// Its next chunk.
        chunk: u32,
    },
    /// Of the senders that a stream uses at once, some are paused whatever is drawn.
    #[error(
        "stream {stream} sends through {through} of {senders} senders at once, {paused} of which \
         are always paused: it never sends; pause fewer, or cut the stream into several"
    )]
    AlwaysPaused {
        /// The first such stream.
        stream: usize,
        /// Senders that it uses.
        through: usize,
        /// Senders there are.
        senders: usize,
        /// Those that are paused at any time.
        paused: usize,
    },
    /// The streams that could send were paused, drawing after drawing.
    #[error("nobody could send while the paused senders were drawn {0} times; pause fewer")]
    Idle(usize),
    /// It took too long.
    #[error("{0} simulated seconds have passed, the horizon; raise it if that is to be expected")]
    Horizon(f64),
}

/// Whether a run can begin.
pub(super) fn check(
    schedule: &Schedule,
    capacities: &[f64],
    options: &Options,
) -> Result<(), SimulationError> {
    let least = |what, value: f64, least: f64, expected| {
        let fine = value >= least;
        if fine { Ok(()) } else { Err(SimulationError::Invalid { what, value, expected }) }
    };
    for &capacity in capacities {
        least("a capacity", capacity, 0.0, "bytes a second, 0 or more")?;
    }
    for stream in &schedule.streams {
        least("a stream's chunks", f64::from(stream.chunks), 1.0, "at least one")?;
        least("a chunk", stream.chunk_bytes, 0.0, "bytes, 0 or more")?;
        least("a latency", stream.latency, 0.0, "seconds, 0 or more")?;
        least("an overhead", stream.overhead, 0.0, "seconds, 0 or more")?;
        least("a limit", stream.limit, f64::MIN_POSITIVE, "bytes a second, more than 0")?;
    }
    least("the quantum", options.quantum, 0.0, "seconds, 0 or more")?;
    if let Some(pauses) = &options.pauses {
        least("the pauses' period", pauses.period, 1e-9, "seconds, at least a nanosecond")?;
        let running = pauses.senders.len() as f64 - pauses.count as f64;
        least("the number of senders that do not pause", running, 0.0, "0 or more")?;
        check_pauses(schedule, capacities.len(), pauses)?;
    }
    Ok(())
}

/// Checks that every stream can send after some drawing: the other senders are enough to be paused.
fn check_pauses(
    schedule: &Schedule,
    resources: usize,
    pauses: &Pauses,
) -> Result<(), SimulationError> {
    let mut pausing = vec![false; resources];
    for sender in &pauses.senders {
        pausing[sender.index()] = true;
    }
    let (senders, paused) = (pauses.senders.len(), pauses.count);
    for stream in 0..schedule.streams.len() {
        let resources = schedule.uses(stream).map(|at| schedule.use_resources[at] as usize);
        let through = resources.filter(|&resource| pausing[resource]).count();
        if through > 0 && through + paused > senders {
            return Err(SimulationError::AlwaysPaused { stream, through, senders, paused });
        }
    }
    Ok(())
}
