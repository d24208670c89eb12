//! Trees of aggregators: real daemons in racks, real XDP in all of them.

mod support;

use std::net::{SocketAddr, SocketAddrV4};
use std::thread;

use support::{ENGINES, LIMIT, check_sums};
use xdp_agg_client::{Builder, Communicator};
use xdp_agg_common::control::{Branch, CONTROL_PORT, Tree};
use xdp_agg_tests::{Direction, Faults, Process, Topology, program};

/// Racks of workers, with an aggregator in each rack's switch.
struct Racks {
    topology: Topology,
    daemons: Vec<Option<Process>>,
}

impl Racks {
    fn start(topology: Topology, engines: &[&str]) -> Self {
        let mut racks = Self { topology, daemons: Vec::new() };
        for (rack, engine) in engines.iter().enumerate() {
            let daemon = racks.serve(rack, engine);
            racks.daemons.push(Some(daemon));
        }
        racks
    }

    fn serve(&self, rack: usize, engine: &str) -> Process {
        let host = self.topology.rack(rack);
        let mut command = host.command(program("xdp-agg").expect("the tests' programs are built"));
        command.args(["serve", "--engine", engine]);
        command.args(["--control", &self.control(rack).to_string()]);
        command.args(["--data-addr", &self.topology.rack_addr(rack).to_string()]);
        if engine == "xdp" {
            for interface in self.topology.rack_interfaces(rack) {
                command.args(["--interface", &interface]);
            }
        }
        let daemon = Process::spawn(format!("rack {rack}"), command).expect("the daemon starts");
        daemon
            .wait_line("its readiness", LIMIT, |line| line.starts_with("ready "))
            .expect("the daemon gets ready");
        daemon
    }

    fn control(&self, rack: usize) -> SocketAddrV4 {
        SocketAddrV4::new(self.topology.rack_addr(rack), CONTROL_PORT)
    }

    /// A tree rooted in one rack, with all others as its branches.
    fn tree(&self, root: usize) -> (SocketAddr, Tree) {
        let others = (0..self.topology.rack_count()).filter(|rack| *rack != root);
        let branch = |rack| Branch {
            daemon: self.control(rack),
            parent: None,
            ranks: self.topology.rack_workers(rack).map(|worker| worker as u16).collect(),
        };
        (self.control(root).into(), Tree { branches: others.map(branch).collect() })
    }

    /// A path of racks, as Rina's ring of groups has it: sums go to the one before.
    fn path(&self, root: usize) -> (SocketAddr, Tree) {
        let count = self.topology.rack_count();
        let branch = |step: usize| {
            let rack = (root + step) % count;
            Branch {
                daemon: self.control(rack),
                parent: (step > 1).then(|| step as u16 - 2),
                ranks: self.topology.rack_workers(rack).map(|worker| worker as u16).collect(),
            }
        };
        (self.control(root).into(), Tree { branches: (1..count).map(branch).collect() })
    }

    fn connect(
        &self,
        trees: &[(SocketAddr, Tree)],
        tune: impl Fn(Builder) -> Builder + Sync,
    ) -> Vec<Communicator> {
        let world_size = self.topology.workers().len() as u16;
        let connect = |rank: u16| {
            let settings = Communicator::builder()
                .trees(trees.to_vec())
                .job("trees")
                .rank(rank)
                .world_size(world_size)
                .scale(1024.0)
                .deadline(LIMIT)
                .join_deadline(LIMIT);
            let (settings, host) = (tune(settings), self.topology.worker(rank.into()));
            let connected = host.run(move || settings.connect()).expect("entering a namespace");
            connected.unwrap_or_else(|error| panic!("rank {rank} of {world_size}: {error}"))
        };
        thread::scope(|scope| {
            let connect = &connect;
            let all: Vec<_> =
                (0..world_size).map(|rank| scope.spawn(move || connect(rank))).collect();
            all.into_iter().map(|thread| thread.join().expect("it connects")).collect()
        })
    }
}

fn racks(racks: usize, workers: usize) -> Topology {
    Topology::builder().racks(racks).workers(racks * workers).build().expect("a network")
}

/// Two racks, a tree rooted in each: both directions of the uplinks carry sums and results.
#[test]
fn sums_go_through_the_aggregators_of_two_racks() {
    need_root!();
    for engine in ENGINES {
        let racks = Racks::start(racks(2, 2), &[engine; 2]);
        let workers = racks.connect(&[racks.tree(0), racks.tree(1)], |settings| settings);
        for len in [1, 352, 100_000] {
            check_sums(&workers, len);
        }
    }
}

/// Sums go through three racks one after the other, and results back; engines differ.
#[test]
fn sums_go_along_a_path_of_racks() {
    need_root!();
    for engines in [["xdp"; 3], ["xdp", "userspace", "xdp"]] {
        let racks = Racks::start(racks(3, 2), &engines);
        let trees = [racks.path(0), racks.path(1), racks.path(2)];
        let workers = racks.connect(&trees, |settings| settings);
        check_sums(&workers, 100_000);
    }
}

/// Loss on every link, those between the aggregators among them.
#[test]
fn loss_anywhere_in_a_tree_is_survived() {
    need_root!();
    for engine in ENGINES {
        let racks = Racks::start(racks(2, 2), &[engine; 2]);
        let faults = Faults { loss: 0.02, duplicate: 0.02, ..Faults::NONE }.only_udp(48864);
        for link in 0..racks.topology.link_count() {
            for direction in Direction::BOTH {
                racks.topology.set_faults(link, direction, &faults).expect("faults");
            }
        }
        let workers = racks.connect(&[racks.tree(0), racks.path(1)], |settings| settings);
        for _ in 0..3 {
            check_sums(&workers, 50_000);
        }
    }
}
