//! A network with daemons in several places, and the topology file that describes it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_topology::{Aggregator, Host, KnownCosts, Rate, Region, Strategy, Topology as Plan};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::programs::program;
use crate::topology::Topology;

/// What a file says of links without a cap.
const UNCAPPED: u32 = 10;

/// Where a daemon may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spot {
    /// In a rack's switch.
    Rack(usize),
    /// In a pod's switch.
    Pod(usize),
    /// On a worker's host.
    Worker(usize),
}

/// A network with daemons in it.
#[derive(Debug)]
pub struct Fabric {
    /// The network.
    pub topology: Topology,
    daemons: BTreeMap<Spot, Process>,
}

impl Fabric {
    /// A network without daemons.
    pub fn new(topology: Topology) -> Self {
        Self { topology, daemons: BTreeMap::new() }
    }

    /// The namespace of a place.
    pub fn namespace(&self, spot: Spot) -> &Namespace {
        match spot {
            Spot::Rack(rack) => self.topology.rack(rack),
            Spot::Pod(pod) => self.topology.pod(pod),
            Spot::Worker(worker) => self.topology.worker(worker),
        }
    }

    /// Its address.
    pub fn address(&self, spot: Spot) -> Ipv4Addr {
        match spot {
            Spot::Rack(rack) => self.topology.rack_addr(rack),
            Spot::Pod(pod) => self.topology.pod_addr(pod),
            Spot::Worker(worker) => self.topology.worker_addr(worker),
        }
    }

    /// Where a daemon there listens.
    pub fn control(&self, spot: Spot) -> SocketAddrV4 {
        SocketAddrV4::new(self.address(spot), CONTROL_PORT)
    }

    /// Starts a daemon and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, or does not get ready: what it said.
    pub fn serve(&mut self, spot: Spot, engine: &str, extra: &[&str]) -> Result<(), Error> {
        let mut command = self.namespace(spot).command(program("xdp-agg")?);
        command.args(["serve", "--engine", engine]);
        command.args(["--control", &self.control(spot).to_string()]);
        command.args(["--data-addr", &self.address(spot).to_string()]);
        if engine == "xdp" {
            let interfaces = match spot {
                Spot::Rack(rack) => self.topology.rack_interfaces(rack),
                Spot::Pod(pod) => self.topology.pod_interfaces(pod),
                Spot::Worker(_) => vec!["eth0".to_owned()],
            };
            for interface in interfaces {
                command.args(["--interface", &interface]);
            }
        }
        command.args(extra);
        let daemon = Process::serve(format!("the daemon at {spot:?}"), command)?;
        self.daemons.insert(spot, daemon);
        Ok(())
    }

    /// The daemons' places.
    pub fn spots(&self) -> impl Iterator<Item = Spot> + '_ {
        self.daemons.keys().copied()
    }

    /// Processor time that all daemons have used until now.
    pub fn cpu_time(&self) -> Result<Duration, Error> {
        self.daemons.values().map(Process::cpu_time).sum()
    }

    /// Takes a daemon away, to be killed or asked.
    pub fn take(&mut self, spot: Spot) -> Option<Process> {
        self.daemons.remove(&spot)
    }

    /// The network as a topology file has it, with the daemons that run.
    pub fn plan(&self, strategy: Strategy) -> Plan {
        let topology = &self.topology;
        let rate = |bits: Option<u64>| bits.and_then(Rate::from_bits);
        let shape = topology.shape().map(|shape| shape.rate);
        let runs = |spot: Spot| self.daemons.contains_key(&spot).then(|| self.control(spot));
        let aggregator =
            |spot| runs(spot).map(|control| Aggregator { control, slots: None, rate: None });
        let pods = topology.pod_count();
        let regions = (0..pods).map(|pod| Region {
            name: format!("pod{pod}"),
            parent: None,
            uplink: rate(topology.pod_rate(pod)),
            aggregator: aggregator(Spot::Pod(pod)),
        });
        // Parents come first.
        let regions = regions.chain((0..topology.rack_count()).map(|rack| Region {
            name: format!("rack{rack}"),
            parent: topology.pod_of(rack),
            uplink: rate(topology.rack_rate(rack)),
            aggregator: aggregator(Spot::Rack(rack)),
        }));
        let rack_of = |worker: usize| {
            (0..topology.rack_count()).find(|rack| topology.rack_workers(*rack).contains(&worker))
        };
        let hosts = (0..topology.workers().len()).map(|worker| Host {
            name: format!("worker{worker}"),
            rank: worker as u16,
            address: topology.worker_addr(worker),
            region: rack_of(worker).map(|rack| pods + rack),
            rate: rate(shape).unwrap_or(Rate::gbit(UNCAPPED)),
            daemon: runs(Spot::Worker(worker)),
            slots: None,
            interface: None,
        });
        Plan {
            name: "a test network".into(),
            strategy,
            regions: regions.collect(),
            hosts: hosts.collect(),
            measured: None,
            costs: KnownCosts::default(),
        }
    }

    /// The same as a file in this directory.
    pub fn write_plan(&self, directory: &Path, strategy: Strategy) -> Result<PathBuf, Error> {
        let path = directory.join(format!("{strategy}.toml"));
        fs::write(&path, self.plan(strategy).to_toml())
            .map_err(Error::os(format!("writing {}", path.display())))?;
        Ok(path)
    }

    /// A worker's process: a program in its namespace, with the environment of a rank.
    pub fn worker(&self, name: &str, rank: u16, plan: &Path) -> Result<Command, Error> {
        let mut command = self.topology.worker(rank.into()).command(program(name)?);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.topology.workers().len().to_string())
            .env("XDP_AGG_TOPOLOGY", plan);
        Ok(command)
    }
}
