//! Test networks: hosts in namespaces, links with rates and faults, and proof of both.
//!
//! Tests, the demo and the benchmarks run xdp-agg on networks that this crate builds:
//!
//! * [`Topology`]: an aggregator and workers, in namespaces without names, on a switch. Everything
//!   goes with the process, however that ends; nothing has to be cleaned up.
//! * [`Namespace::command`] and [`Process`]: programs in those hosts, which never outlive the test,
//!   and whose last words are part of every error.
//! * [`Faults`]: packets lost, repeated and held back, per link and direction, at any time.
//! * [`Builder::delay`]: links that take their time, and how well that was kept.
//! * [`LinkMeter`]: counts whether the links kept to their rate. XDP sends past queueing
//!   disciplines, so a figure counts only where the meter says so.
//! * [`traffic`]: pings, TCP transfers and trains of UDP packets; [`echo`]: packets there and back;
//!   [`CpuMeter`].
//!
//! ```no_run
//! use std::time::Duration;
//! use xdp_agg_testbed::{Direction, Faults, Mode, Process, Topology, program};
//!
//! # fn main() -> Result<(), xdp_agg_testbed::Error> {
//! let net = Topology::builder()
//!     .workers(4)
//!     .mode(Mode::Ports)
//!     .rate(Some(500_000_000))
//!     .faults(Faults::loss(0.01).only_udp(0xBEE0))
//!     .build()?;
//! eprint!("{}", net.describe()); // how to get a shell in each host
//!
//! let mut serve = net.aggregator().command(program("xdp-agg")?);
//! serve.arg("serve");
//! for interface in net.aggregator_interfaces() {
//!     serve.args(["--interface", &interface]);
//! }
//! let daemon = Process::spawn("daemon", serve)?;
//! let limit = Duration::from_secs(10);
//! daemon.wait_line("that it is ready", limit, |line| line.starts_with("ready "))?;
//!
//! let meter = net.meter()?;
//! let workers = (0..4)
//!     .map(|rank| {
//!         let mut worker = net.worker(rank).command(program("xdp-agg-bench")?);
//!         worker.env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
//!         worker.env("XDP_AGG_ADDR", format!("{}:9870", net.aggregator_addr()));
//!         Process::spawn(format!("worker {rank}"), worker)
//!     })
//!     .collect::<Result<Vec<_>, _>>()?;
//! net.set_faults(2, Direction::Down, &Faults::loss(0.1))?; // it gets worse for worker 2
//! for worker in workers {
//!     println!("{}", worker.wait(Duration::from_secs(60))?.success()?.stdout);
//! }
//! for report in meter.finish()? {
//!     assert!(report.kept, "{report}");
//! }
//! daemon.terminate()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The network
//!
//! ```text
//! Mode::Ports                                    Mode::OneNic
//!
//! worker0:eth0 ── x0 [wires] y0 ── p0:agg        worker0:eth0 ── x0 [wires] y0 ── p0:switch
//! worker1:eth0 ── x1 [wires] y1 ── p1:agg        worker1:eth0 ── x1 [wires] y1 ── p1:switch
//!                             br0 over p0, p1        agg:eth0 ── xa [wires] ya ── pa:switch
//!                                                                    br0 over p0, p1, pa
//! ```
//!
//! Worker `i` has 10.88.0.(1+i), the aggregator 10.88.0.254. All know each other's link-layer
//! addresses beforehand, and TCP uses cubic. A program on the way in of `x` and `y` hands each
//! packet to the other one's queue. Up is shaped where the worker sends (the aggregator's own
//! interface in [`Mode::OneNic`]: at `ya`, since its XDP passes no queue before), down is shaped at
//! `x`. Where XDP sends into a link, the far end has a receive queue of its own, because GRO is on
//! there: redirection works, while `XDP_TX` would need a program there as well. It merges what XDP
//! sends into trains, where trains cross links whole ([`Builder::offloads`]) and meet no faults.
//!
//! Without root, [`enter_user_namespace`] and [`Builder::wire`]`(false)` give the same hosts on
//! links of one veth pair: rates hold for what the stack sends, there are no faults and no XDP.

/// Ends the test here, saying so, where the process may not make networks and load programs; with
/// this value, if one is given.
#[macro_export]
macro_rules! need_root {
    ($($otherwise:expr)?) => {
        if !$crate::is_root() {
            eprintln!("skipped: {} needs root for namespaces and XDP", module_path!());
            return $($otherwise)?;
        }
    };
}

mod at_once;
pub mod beside;
mod bpffs;
pub mod cpu;
mod daemon;
mod delay;
pub mod echo;
mod error;
pub mod ethtool;
mod fabric;
pub mod flood;
pub mod fork;
pub mod http;
pub mod icmp;
pub mod layout;
mod log;
mod machine;
mod meter;
mod namespace;
mod netlink;
mod process;
mod programs;
mod qdisc;
pub mod steady;
mod sys;
pub mod tap;
mod topology;
pub mod traffic;
mod uring;
mod wire;

pub use at_once::at_once;
pub use bpffs::BpfFs;
pub use cpu::{CpuMeter, CpuTime};
pub use daemon::{Daemon, USERSPACE, without_settings};
pub use delay::{DelayReport, MAX_DELAY};
pub use error::Error;
pub use fabric::{Fabric, Spot};
pub use layout::{Counters as FaultCounters, Seen};
pub use log::Log;
pub use machine::Machine;
pub use meter::{LinkMeter, LinkReport};
pub use namespace::{Namespace, enter_user_namespace, is_root};
pub use netlink::{InterfaceCounters, Mac};
pub use process::{Finished, LineHook, Process, Sink};
pub use programs::{DIRECTORY_VARIABLE, program};
pub use qdisc::{QueueCounters, Shape, parse_rate};
pub use topology::{Builder, Direction, MAX_WORKERS, MAX_XDP_MTU, Mode, Topology};
pub use wire::{Faults, Probe};
