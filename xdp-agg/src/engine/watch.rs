//! A look at a running data path from another thread than the engine's.

use std::time::Duration;

use xdp_agg_common::maps::{JobConf, JobCounters};
use xdp_agg_common::slot::SlotState;

use super::EngineError;

/// Reads the data path and changes nothing. It has descriptors or a lock of its own, so that who
/// looks does not hold up who serves.
pub trait Watch: Send {
    /// As [`super::Engine::counters`].
    ///
    /// # Errors
    /// The engine's.
    fn counters(&mut self) -> Result<Vec<JobCounters>, EngineError>;

    /// Shows a job that is on the data path, and its slots. False: it is not there.
    ///
    /// # Errors
    /// The engine's.
    fn look(&mut self, job_id: u16, eye: &mut dyn Eye) -> Result<bool, EngineError>;

    /// The members of a job that is on the data path, by rank; none if it is not there.
    ///
    /// # Errors
    /// The engine's.
    fn members(&mut self, job_id: u16) -> Result<Vec<Watched>, EngineError>;
}

/// What the data path knows of a member of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Its rank.
    pub rank: u16,
    /// The epoch that all of this is about.
    pub epoch: u16,
    /// How long ago it last contributed; None: not in this epoch.
    pub heard: Option<Duration>,
    /// Its contributions that came again.
    pub repetitions: u64,
}

/// What looks at a job.
pub trait Eye {
    /// The job, and a way to read the state of its `n`-th slot, below `conf.slots`. A slot that
    /// cannot be read is one that was never used.
    fn see(&mut self, conf: &JobConf, slot: &mut dyn FnMut(u32) -> SlotState);
}
