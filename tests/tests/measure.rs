//! `xdp-agg topology measure` in real racks: what it finds, and what follows from it.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::need_root;
use xdp_agg_client::collectives::Tuning;
use xdp_agg_testbed::{Fabric, Process, Sink, Spot, Topology, program};
use xdp_agg_topology::infer::infer;
use xdp_agg_topology::{Rate, Topology as Plan};

/// How long all hosts may take.
const LIMIT: Duration = Duration::from_secs(120);
const LINK: u64 = 100_000_000;
/// Where it is not rates that matter.
const QUICK: [&str; 4] = ["--ramp", "0.2", "--time", "0.5"];

/// Racks whose hosts can send four times what their uplink carries.
fn narrow(racks: usize, hosts: usize) -> Topology {
    let network = Topology::builder().racks(racks).workers(racks * hosts).rate(Some(LINK));
    network.uplink(Some(LINK * hosts as u64 / 4)).build().expect("a network")
}

/// Runs the probe on all hosts; the file that rank 0 wrote.
fn probe(fabric: &Fabric, directory: &Path, extra: &[&str]) -> PathBuf {
    let file = directory.join("measured.toml");
    let args = ["topology", "measure", "--write"].map(OsStr::new);
    let extra = extra.iter().map(OsStr::new);
    run(
        fabric,
        "xdp-agg",
        &args.into_iter().chain([file.as_os_str()]).chain(extra).collect::<Vec<_>>(),
        None,
    );
    file
}

/// Runs `xdp-agg` with these arguments on all hosts, as ranks.
fn run(fabric: &Fabric, name: &str, args: &[&OsStr], plan: Option<&Path>) {
    let topology = &fabric.topology;
    let count = topology.workers().len();
    let start = |rank: usize| {
        let mut command = topology.worker(rank).command(program(name).expect("it is built"));
        command
            .args(args)
            // As `mpirun -x MASTER_ADDR -x MASTER_PORT` starts it.
            .env("OMPI_COMM_WORLD_RANK", rank.to_string())
            .env("OMPI_COMM_WORLD_SIZE", count.to_string())
            .env("MASTER_ADDR", topology.worker_addr(0).to_string())
            .env("MASTER_PORT", "29600");
        if let Some(plan) = plan {
            command.env("XDP_AGG_TOPOLOGY", plan).env("XDP_AGG_DEADLINE", "60");
        }
        let name = format!("host {rank}");
        Process::spawn_with(name, command, Sink::Capture, Sink::Capture).expect("it starts")
    };
    let hosts: Vec<_> = (0..count).map(start).collect();
    for host in hosts {
        let ended = host.wait(LIMIT).expect("it ends").success();
        let ended = ended.unwrap_or_else(|error| panic!("{error}"));
        println!("{}{}", ended.stdout, ended.stderr);
    }
}

/// Two racks of three hosts, 4:1: the racks are found, and their over-subscription within 15 %.
#[test]
fn racks_and_their_uplinks_are_found() {
    need_root!();
    let fabric = Fabric::new(narrow(2, 3));
    let directory = tempfile::tempdir().expect("a directory");
    let file = probe(&fabric, directory.path(), &["--no-daemons"]);
    let text = fs::read_to_string(&file).expect("rank 0 wrote it");
    let read = Plan::parse(&text).expect("it is a topology");
    let measured = read.measured.as_ref().expect("rates");
    let found = infer(measured);
    let racks: Vec<_> = found.regions.iter().map(|region| region.hosts.clone()).collect();
    assert_eq!(racks, [vec![0, 1, 2], vec![3, 4, 5]], "{text}");
    let inferred = read.inferred();
    for (index, region) in inferred.regions.iter().enumerate() {
        let offered = inferred.host_capacity()[index] as f64;
        let uplink = region.uplink.map(Rate::bits).expect("it is narrow") as f64;
        let ratio = offered / uplink;
        assert!((3.4..=4.6).contains(&ratio), "{}: {ratio}:1\n{text}", region.name);
    }
    assert!(inferred.oversubscribed().iter().all(|narrow| *narrow));
    assert!(inferred.costs.tcp_message.is_some_and(|cost| cost > 1e-6), "{text}");
    assert_eq!(inferred.costs.message, None);
    assert!(inferred.hosts.iter().all(|host| host.daemon.is_none()));
    let interface = inferred.hosts[0].interface.as_deref();
    assert_eq!(interface, Some("eth0"));
}

/// Daemons on the hosts are found and timed, and a second run keeps what people wrote.
#[test]
fn daemons_are_timed_and_a_file_is_kept() {
    need_root!();
    let mut fabric = Fabric::new(Topology::builder().workers(2).build().expect("a network"));
    for worker in 0..2 {
        fabric.serve(Spot::Worker(worker), "userspace", &[]).expect("a daemon");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = probe(&fabric, directory.path(), &QUICK);
    let text = fs::read_to_string(&file).expect("rank 0 wrote it");
    let read = Plan::parse(&text).expect("it is a topology");
    assert!(read.costs.are_complete(), "{text}");
    assert!(read.hosts.iter().all(|host| host.daemon.is_some()), "{text}");
    assert!(
        read.regions.is_empty() && infer(read.measured.as_ref().expect("rates")).regions.is_empty()
    );
    // `tune` measures all-reduce over these trees, too, and a job goes by its table.
    let (table, report) =
        (directory.path().join("table.toml"), directory.path().join("{rank}.json"));
    let tune = ["tune", "--collective", "all-reduce", "--bytes", "4K,64K", "--iters", "4"];
    let tune = tune.into_iter().map(OsStr::new).chain(["--write".as_ref(), table.as_os_str()]);
    run(&fabric, "xdp-agg", &tune.collect::<Vec<_>>(), Some(&file));
    let rules = fs::read_to_string(&table).expect("rank 0 wrote it");
    let rules = Tuning::parse(&rules).unwrap_or_else(|error| panic!("{error}: {rules}"));
    assert!(rules.all_reduce.iter().all(|rule| rule.ranks == Some(2)), "{rules:?}");
    assert!(!rules.all_reduce.is_empty());
    let bench = ["--bytes", "4K", "--iters", "2", "--json"].map(OsStr::new);
    run(&fabric, "xdp-agg-bench", &[&bench[..], &[report.as_os_str()]].concat(), Some(&file));
    let json = fs::read_to_string(directory.path().join("0.json")).expect("it is there");
    assert!(json.contains("auto by measured costs"), "{json}");
    // What people changed stays, and what was measured is new.
    let edited = text.replace("name = \"measured\"", "name = \"mine\"");
    let edited = edited.replace("\"auto\"", "\"colocated\"");
    let (edited, _) = edited.split_once("[costs]").expect("costs come last");
    fs::write(&file, edited).expect("it is written");
    probe(&fabric, directory.path(), &QUICK);
    let again = Plan::parse(&fs::read_to_string(&file).expect("it is there"));
    let again = again.expect("it is a topology");
    assert_eq!((again.name.as_str(), again.strategy.name()), ("mine", "colocated"));
    assert!(again.costs.are_complete() && again.measured.is_some());
}
