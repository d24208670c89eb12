//! What a daemon leaves to the next one, and finds of the last one.

use std::time::Instant;

use tracing::{error, warn};
use xdp_agg_common::maps::JobConf;

use super::Server;
use crate::state::StateFile;
use xdp_agg_protocol::daemon::{JobSnapshot, Snapshot};

impl Server {
    /// Goes on with the jobs of the daemon before, as far as the data path still runs them.
    pub(super) fn take_over(&mut self) {
        let left = match self.state.as_ref().map(StateFile::read) {
            None => return,
            Some(Ok(left)) => left.unwrap_or_default(),
            Some(Err(error)) => {
                warn!("the jobs of the daemon before are lost: {error}");
                Snapshot::default()
            }
        };
        let mut running = self.engine.adopted_jobs();
        let mut goes_on = |job: &JobSnapshot| {
            let is_it = |(job_id, conf): &(u16, JobConf)| {
                *job_id == job.job_id
                    && (conf.epoch, conf.cookie, conf.members)
                        == (job.epoch, job.cookie, job.epoch_members)
                    && (conf.slot_base, conf.slots) == (job.slot_base, job.slots)
            };
            let found = running.iter().position(is_it);
            found.map(|index| running.swap_remove(index)).is_some()
        };
        let jobs = left.jobs.into_iter().filter(|job| goes_on(job)).collect();
        // Nobody can be a member of a job that nobody knows.
        for (job_id, _) in running {
            if let Err(error) = self.engine.stop(job_id) {
                error!(job_id, "the engine could not end a job of the daemon before: {error}");
            }
        }
        self.jobs.restore(Snapshot { jobs, ..left }, Instant::now());
        self.settle();
    }

    /// Leaves the jobs to the daemon after this one, should this one die.
    pub(super) fn save(&mut self) {
        if let Some(state) = &self.state
            && let Err(error) = state.write(&self.jobs.snapshot())
        {
            // What is there still holds the jobs that have not changed.
            self.guard.unsaved(&error, Instant::now());
        }
    }
}
