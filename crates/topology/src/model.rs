//! A network as the planner sees it: a tree of regions, with hosts in them.
//!
//! The regions without a parent, and the hosts without a region, meet at the *core*, which is not
//! over-subscribed and has no name.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::Serialize;
use xdp_agg_common::control::CONTROL_PORT;

use crate::units::Rate;

/// Most workers of a network.
pub const MAX_WORLD: usize = 16_384;

/// A network and the job that is to run on it.
///
/// [`Topology::parse`](crate::file) makes one from a file, and checks it; code that builds one
/// itself keeps to what is said at the fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// What the network is called.
    pub name: String,
    /// How the job's vectors are summed.
    pub strategy: Strategy,
    /// Racks, pods and what else shares an uplink; parents come before their children.
    pub regions: Vec<Region>,
    /// The workers' hosts, one a rank: `hosts[r].rank == r`.
    pub hosts: Vec<Host>,
    /// What a probe measured between the hosts, if there is any.
    pub measured: Option<Measured>,
    /// What a probe measured on the hosts.
    pub costs: KnownCosts,
}

/// Hosts that share an uplink.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Region {
    /// Its name, unique among regions.
    pub name: String,
    /// The region that it is part of, as an index into [`Topology::regions`]; None: the core.
    pub parent: Option<usize>,
    /// What the uplink carries in each direction; None: more than its hosts can send.
    pub uplink: Option<Rate>,
    /// A switch of the region, or a host at it, that aggregates for it.
    pub aggregator: Option<Aggregator>,
}

/// A daemon that aggregates for a region and is not on a worker's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Aggregator {
    /// Its control address.
    pub control: SocketAddrV4,
    /// Slots that it has for the job; None: not known.
    pub slots: Option<u32>,
    /// Rate of its link in each direction; None: it is in the switch and has no link of its own.
    pub rate: Option<Rate>,
}

/// A worker's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Its name, unique among hosts.
    pub name: String,
    /// The worker's rank.
    pub rank: u16,
    /// Its address on the network that is described.
    pub address: Ipv4Addr,
    /// Its rack, as an index into [`Topology::regions`]; None: it is at the core.
    pub region: Option<usize>,
    /// Rate of its link in each direction.
    pub rate: Rate,
    /// Control address of the daemon on it; None: it has no daemon.
    pub daemon: Option<SocketAddrV4>,
    /// Slots that the daemon has for the job; None: not known.
    pub slots: Option<u32>,
    /// The interface towards the network; None: not said.
    pub interface: Option<String>,
}

/// Rates between hosts while every host sends to every other one at the same time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Names of the hosts, in the order of rows and columns.
    pub hosts: Vec<String>,
    /// `mbit[i][j]` is what host `i` got through to host `j`, in Mbit/s; 0 for `i == j`.
    pub mbit: Vec<Vec<f64>>,
}

/// What messages and bytes cost, as far as it has been measured: [`Costs`](crate::choose::Costs)
/// has the rest. In seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KnownCosts {
    /// As [`Costs::message`](crate::choose::Costs::message).
    pub message: Option<f64>,
    /// As [`Costs::tcp_message`](crate::choose::Costs::tcp_message).
    pub tcp_message: Option<f64>,
    /// As [`Costs::daemon_byte`](crate::choose::Costs::daemon_byte).
    pub daemon_byte: Option<f64>,
    /// As [`Costs::tcp_byte`](crate::choose::Costs::tcp_byte).
    pub tcp_byte: Option<f64>,
}

impl KnownCosts {
    /// All of them, by their names in the file.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, Option<f64>); 4] {
        [
            ("message", self.message),
            ("tcp_message", self.tcp_message),
            ("daemon_byte", self.daemon_byte),
            ("tcp_byte", self.tcp_byte),
        ]
    }

    /// All have been measured.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.named().iter().all(|(_, cost)| cost.is_some())
    }
}

/// How the job's vectors are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", parse_err_ty = BadStrategy, parse_err_fn = no_strategy)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Whatever [`choose`](crate::choose) finds best.
    #[default]
    Auto,
    /// Each host's daemon aggregates an equal share of the vector.
    Colocated,
    /// Trees over the over-subscribed regions (paper 2).
    Rat,
    /// A ring of racks, each aggregated within (paper 3).
    Rina,
    /// The regions' aggregators share the vector (paper 1).
    Passing,
    /// Servers on all hosts, fed by the regions' aggregators where there are any (ATP, the baseline
    /// of paper 3).
    Atp,
    /// A ring within each rack, and rings across them (paper 3, baseline).
    HAr,
    /// One ring over all workers.
    Ring,
    /// Parameter servers, one on each host.
    Ps,
}

impl Strategy {
    /// All of them, in the order of their description.
    pub const ALL: [Self; 9] = [
        Self::Auto,
        Self::Colocated,
        Self::Rat,
        Self::Rina,
        Self::Passing,
        Self::Atp,
        Self::HAr,
        Self::Ring,
        Self::Ps,
    ];

    /// Those that a job can have: `auto`, and what is carried out by aggregators. The others are
    /// baselines.
    pub const OF_JOBS: [Self; 6] =
        [Self::Auto, Self::Colocated, Self::Rat, Self::Rina, Self::Passing, Self::Atp];

    /// Checks that a job can have it.
    ///
    /// # Errors
    /// [`NotOfJobs`]: it is a baseline.
    pub fn of_job(self) -> Result<Self, NotOfJobs> {
        if Self::OF_JOBS.contains(&self) { Ok(self) } else { Err(NotOfJobs(self)) }
    }

    /// Its name in files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it is carried out by [`Forest`](crate::Forest)s, i.e. by aggregators.
    #[must_use]
    pub const fn is_forest(self) -> bool {
        matches!(self, Self::Colocated | Self::Rat | Self::Rina | Self::Passing | Self::Atp)
    }
}

/// A strategy that no job has: the aggregators take no part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "strategy {0} is a baseline without aggregators, which no job sums by; expected auto, \
     colocated, rat, rina, passing or atp; `xdp-agg-bench --strategy {0}` measures it"
)]
pub struct NotOfJobs(pub Strategy);

/// A text that names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no strategy; expected auto, colocated, rat, rina, passing, atp, h-ar, ring or ps"
)]
pub struct BadStrategy(pub String);

fn no_strategy(text: &str) -> BadStrategy {
    BadStrategy(text.into())
}

/// Where an aggregator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Site {
    /// The daemon on a worker's host, as an index into [`Topology::hosts`].
    Host(usize),
    /// A region's aggregator, as an index into [`Topology::regions`].
    Region(usize),
}

impl Topology {
    /// The name of an aggregator's host or region.
    ///
    /// # Panics
    /// If there is no such host or region.
    #[must_use]
    pub fn name_of(&self, site: Site) -> &str {
        match site {
            Site::Host(host) => &self.hosts[host].name,
            Site::Region(region) => &self.regions[region].name,
        }
    }

    /// The control address of an aggregator; None if the host has no daemon, or the region no
    /// aggregator, which happens to no site of a plan.
    ///
    /// # Panics
    /// If there is no such host or region.
    #[must_use]
    pub fn control_of(&self, site: Site) -> Option<SocketAddrV4> {
        match site {
            Site::Host(host) => self.hosts[host].daemon,
            Site::Region(region) => Some(self.regions[region].aggregator.as_ref()?.control),
        }
    }

    /// Number of workers.
    #[must_use]
    pub fn world(&self) -> usize {
        self.hosts.len()
    }

    /// The region and those around it, innermost first.
    pub fn around(&self, region: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(region, |&region| self.regions[region].parent)
    }

    /// Whether the host is in the region, or in a region of it.
    #[must_use]
    pub fn is_within(&self, host: usize, region: usize) -> bool {
        self.around(self.hosts[host].region).any(|around| around == region)
    }

    /// For each region, what the links of all hosts in it carry together, in bit/s.
    #[must_use]
    pub fn host_capacity(&self) -> Vec<u64> {
        let mut capacity = vec![0; self.regions.len()];
        for host in &self.hosts {
            for region in self.around(host.region) {
                capacity[region] += host.rate.bits();
            }
        }
        capacity
    }

    /// For each region, whether its hosts can send more than its uplink carries.
    #[must_use]
    pub fn oversubscribed(&self) -> Vec<bool> {
        let capacity = self.host_capacity();
        let regions = self.regions.iter().zip(capacity);
        regions.map(|(region, below)| region.uplink.is_some_and(|up| up.bits() < below)).collect()
    }
}

/// Gives a region an aggregator in its switch, at an address of its own.
///
/// # Panics
/// If there is no such region.
pub fn equip(topology: &mut Topology, region: usize) {
    let [.., a, b] = (region + 1).to_be_bytes();
    let control = SocketAddrV4::new(Ipv4Addr::new(172, 16, a, b), CONTROL_PORT);
    topology.regions[region].aggregator = Some(Aggregator { control, slots: None, rate: None });
}
