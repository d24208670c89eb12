//! What a communicator keeps for the collectives among the workers themselves.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xdp_agg_common::control::WorkerLoss;

use super::bytes::Words;
use super::learning::state::Learning;
use super::onlooker::Watcher;
use super::queue::Queue;
use super::tuning::Tuning;
use crate::driver::reach::Pause;
use crate::driver::session;
use crate::error::Error;
use crate::settings::Builder;

/// What a communicator needs besides for these collectives.
#[derive(Debug)]
pub(crate) struct Side {
    pub(super) tuning: Tuning,
    pub(super) learning: Arc<Learning>,
    /// No worker is left out after it was lost: a mesh has all of them.
    pub(super) mesh_may_serve: bool,
    /// Words that are used again from call to call.
    pub(super) words: Mutex<Words>,
    /// This host's address on the way to the first aggregator.
    pub(super) address: Ipv4Addr,
    pub(super) queue: Arc<Queue>,
    /// Looks on while calls among the workers wait, once there were any.
    pub(super) watcher: Mutex<Option<Arc<Watcher>>>,
    pub(super) warn_after: Duration,
    pub(super) stall_deadline: Duration,
}

impl Side {
    /// By a communicator's settings.
    pub(crate) fn new(settings: &Builder, until: Instant) -> Result<Self, Error> {
        let patience = (until, Pause::new(settings.warn_after));
        let address = match settings.aggregators.first() {
            Some(target) => session::path(target.address, settings.mtu, patience)?.0,
            None => Ipv4Addr::UNSPECIFIED,
        };
        Ok(Self {
            tuning: settings.tuning.clone(),
            learning: Arc::default(),
            mesh_may_serve: settings.policy.worker_loss == WorkerLoss::Fail,
            words: Mutex::default(),
            address,
            queue: Arc::default(),
            watcher: Mutex::default(),
            warn_after: settings.warn_after,
            stall_deadline: settings.stall_deadline,
        })
    }

    /// What must outlive a copy of the communicator in another process.
    pub(crate) fn keep(&self) -> impl Sized + use<> {
        Arc::clone(&self.queue)
    }

    /// The communicator is going.
    pub(crate) fn close(&self) {
        self.queue.close();
    }
}
