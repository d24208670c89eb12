//! By which strategy a communicator sums, and why.

use serde::Serialize;
use xdp_agg_common::control;
use xdp_agg_topology::choose::Crossing;

use crate::collectives::Rule;

/// By which strategy a communicator sums, and why. The same at all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Chosen {
    /// A topology's strategy, such as `rat`; `aggregators` where these were named, and `colocated`
    /// where nothing was.
    pub strategy: String,
    /// Why, for people.
    pub reason: String,
    /// All-reduces that go round a ring of the workers instead, by their size; of none: all go
    /// through the aggregators.
    pub all_reduce: Vec<Rule>,
}

impl Chosen {
    /// The same for the daemon, which shows it.
    pub(crate) fn told(&self) -> control::Chosen {
        control::Chosen { strategy: self.strategy.clone(), reason: self.reason.clone() }
    }
}

/// Who chose the strategy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Chooser {
    /// No topology says anything.
    #[default]
    Nobody,
    /// The caller, or `XDP_AGG_STRATEGY`: all sums go that way.
    Caller,
    /// The topology file.
    File,
    /// `auto`: for which sizes a ring is faster, or why that was not asked.
    Auto(Result<Crossing, String>),
}
