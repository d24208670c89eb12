//! Where a plan comes from, and what of it can be checked on a worker's host.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use xdp_agg_topology::file::interfaces;
use xdp_agg_topology::{Strategy, Topology, TopologyFile};

use super::{Builder, Place};
use crate::error::{Error, JobError};

/// The network that a job sums on.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Read from this file.
    File(String, Arc<TopologyFile>),
    /// Handed over by the program.
    Given(Arc<Topology>),
}

impl Source {
    pub(super) fn topology(&self) -> &Topology {
        match self {
            Self::File(_, file) => file.topology(),
            Self::Given(topology) => topology,
        }
    }

    /// Number of hosts.
    pub(crate) fn hosts(&self) -> usize {
        self.topology().world()
    }

    /// A strategy that no job has is wrong, with the file and the line if there is one.
    pub(super) fn check_job(&self) -> Result<(), String> {
        match self {
            Self::File(path, file) => file.check_job().map_err(|error| format!("{path}: {error}")),
            Self::Given(topology) => match topology.strategy.of_job() {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("{self}: {error}")),
            },
        }
    }

    /// What the strategy lacks, with the file and the line if there is one.
    pub(super) fn check_agents(&self, strategy: Strategy) -> Result<(), String> {
        match self {
            Self::File(path, file) => {
                file.check_agents(strategy).map_err(|error| format!("{path}: {error}"))
            }
            Self::Given(topology) => {
                let checked = topology.as_ref().clone().inferred().check_agents(strategy);
                checked.map_err(|lack| format!("{self}: {lack}"))
            }
        }
    }

    /// What is wrong, with the file and the line if there is one.
    fn interface(&self, host: u16, known: &[String]) -> Result<(), String> {
        match self {
            Self::File(path, file) => {
                let checked = file.check_interface(host, known);
                checked.map_err(|error| format!("{path}: {error}"))
            }
            Self::Given(topology) => match topology.missing_interface(host, known) {
                Some(fault) => Err(format!("{self}: {fault}")),
                None => Ok(()),
            },
        }
    }
}

/// Where people find it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, _) => f.write_str(path),
            Self::Given(topology) => write!(f, "the topology {:?}", topology.name),
        }
    }
}

impl Source {
    /// Whose daemon has this control address.
    fn whose(&self, control: SocketAddr) -> Option<String> {
        let SocketAddr::V4(control) = control else { return None };
        let Topology { hosts, regions, .. } = self.topology();
        let host = hosts.iter().find(|host| host.daemon == Some(control));
        let host = host.map(|host| format!("host {:?} of {self}", host.name));
        let region = regions.iter().find(|region| {
            region.aggregator.as_ref().is_some_and(|aggregator| aggregator.control == control)
        });
        host.or_else(|| region.map(|region| format!("region {:?} of {self}", region.name)))
    }
}

impl Builder {
    /// Adds whose daemon it is that cannot be reached.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match (error, &self.source) {
            (Error::Job(JobError::Unreachable { address, reason, .. }), Some(source)) => {
                Error::Job(JobError::Unreachable { address, reason, of: source.whose(address) })
            }
            (other, _) => other,
        }
    }

    /// The interface that the topology gives this host exists.
    pub(crate) fn check_own_host(&self, place: &Place) -> Result<(), Error> {
        let source = self.source.as_ref();
        // Of another number of hosts nobody knows which one this is; that is refused later.
        let Some(source) = source.filter(|source| source.hosts() == usize::from(place.hosts))
        else {
            return Ok(());
        };
        // The thread's network namespace; /sys has that of whoever mounted it.
        let Ok(text) = std::fs::read_to_string("/proc/thread-self/net/dev") else {
            tracing::debug!("/proc has no list of interfaces: the topology's is not checked");
            return Ok(());
        };
        source
            .interface(place.host, &interfaces(&text))
            .map_err(|problem| Error::Config { name: "XDP_AGG_TOPOLOGY", problem })
    }
}
