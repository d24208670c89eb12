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

    /// As [`super::Engine::heard`].
    ///
    /// # Errors
    /// The engine's.
    fn heard(&mut self, job_id: u16) -> Result<Vec<(u16, Option<Duration>)>, EngineError>;
}

/// What looks at a job.
pub trait Eye {
    /// The job, and a way to read the state of its `n`-th slot, below `conf.slots`. A slot that
    /// cannot be read is one that was never used.
    fn see(&mut self, conf: &JobConf, slot: &mut dyn FnMut(u32) -> SlotState);
}
