//! How long an all-reduce takes on a network.

use thiserror::Error;
use xdp_agg_topology::Topology;
use xdp_agg_topology::graph::Network;

use crate::engine::{Options, Outcome, Progress, SimulationError, simulate};
use crate::fabric::{Costs, Fabric};
use crate::strategy::{Coupling, Job, StrategyError, Way, schedule};

/// Why a prediction failed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PredictError {
    /// The strategy does not fit the network.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The run did not end.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

/// What is to be predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// How it is summed.
    pub way: Way,
    /// The vector's bytes.
    pub bytes: f64,
    /// Workers of a host behind its one link (see [`Job::processes`]).
    pub processes: u16,
    /// How trees' links depend on each other.
    pub coupling: Coupling,
    /// What transfers cost beside the links.
    pub costs: Costs,
    /// How the run is done.
    pub options: Options,
}

impl Question {
    /// One process a host, trees in lockstep, ideal costs, exact rates.
    pub fn ideal(way: Way, bytes: f64) -> Self {
        Self {
            way,
            bytes,
            processes: 1,
            coupling: Coupling::Lockstep,
            costs: Costs::IDEAL,
            options: Options::default(),
        }
    }
}

/// Runs one all-reduce on a network; the regions of `topology` are those of `network`.
///
/// # Errors
///
/// [`PredictError`]: the strategy does not fit, or the run does not end.
pub fn predict(
    network: &Network,
    topology: &Topology,
    question: &Question,
    observe: &mut dyn FnMut(Progress),
) -> Result<Outcome, PredictError> {
    let fabric = Fabric::new(network, question.costs);
    let Question { way, bytes, processes, coupling, .. } = *question;
    let job = Job { topology, bytes, processes, coupling };
    let schedule = schedule(&fabric, way, &job)?;
    Ok(simulate(&schedule, fabric.capacities(), &question.options, observe)?)
}
