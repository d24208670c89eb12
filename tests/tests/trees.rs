//! Trees of aggregators: real daemons in racks and on workers' hosts, real XDP in all of them.

mod support;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use support::watched::{self, RING, Said};
use support::{ENGINES, LIMIT, at_all, check_all, check_sums, need_root};
use xdp_agg_client::{Builder, Communicator, Op, Path};
use xdp_agg_common::control::{AggregatorLoss, JobStats, Stats};
use xdp_agg_common::maps::JobCounters;
use xdp_agg_testbed::steady::{Line, Steady, Work};
use xdp_agg_testbed::{Fabric, Faults, Process, Spot, Topology, at_once, program};
use xdp_agg_topology::{KnownCosts, Strategy, Topology as Plan};

/// In what time the others go on.
const PROMISED: Duration = Duration::from_secs(3);

fn racks(racks: usize, workers: usize) -> Topology {
    let builder = Topology::builder().racks(racks).workers(racks * workers);
    builder.xdp_on_hosts(true).build().expect("a network")
}

/// With an aggregator in each rack's switch.
fn fabric(topology: Topology, engines: &[&str]) -> Fabric {
    let mut fabric = Fabric::new(topology);
    for (rack, engine) in engines.iter().enumerate() {
        fabric.serve(Spot::Rack(rack), engine, &[]).expect("a daemon");
    }
    fabric
}

fn connect(
    fabric: &Fabric,
    strategy: Strategy,
    tune: impl Fn(Builder) -> Builder + Sync,
) -> Vec<Communicator> {
    connect_by(fabric, &fabric.plan(strategy), tune)
}

fn connect_by(
    fabric: &Fabric,
    plan: &Plan,
    tune: impl Fn(Builder) -> Builder + Sync,
) -> Vec<Communicator> {
    let world_size = fabric.topology.workers().len() as u16;
    at_once(0..world_size, |rank| {
        let settings = Communicator::builder()
            .topology(plan, None)
            .expect("a plan")
            .job("trees")
            .rank(rank)
            .world_size(world_size)
            .scale(1024.0)
            .learning(false)
            .deadline(LIMIT)
            .join_deadline(LIMIT);
        let (settings, host) = (tune(settings), fabric.topology.worker(rank.into()));
        let connected = host.run(move || settings.connect()).expect("entering a namespace");
        connected.unwrap_or_else(|error| panic!("rank {rank} of {world_size}: {error}"))
    })
}

/// Two racks, a tree rooted in each (RAT): both directions of the uplinks carry sums and results.
#[test]
fn sums_go_through_the_aggregators_of_two_racks() {
    need_root!();
    for engine in ENGINES {
        let fabric = fabric(racks(2, 2), &[engine; 2]);
        let workers = connect(&fabric, Strategy::Rat, |settings| settings);
        check_all(&workers, [1, 352, 100_000]);
    }
}

/// What leaves a rack is one copy of the vector, and what comes in is one (paper 2): half of it
/// sums for the other rack's tree, half of it results of its own.
#[test]
fn one_copy_crosses_an_uplink() {
    need_root!();
    let fabric = fabric(racks(2, 2), &["xdp"; 2]);
    let workers = connect(&fabric, Strategy::Rat, |settings| settings);
    check_sums(&workers, 352);
    let before = fabric.topology.rack_counters(0).expect("counters");
    let len = 1_000_000;
    let repeated = |all: &[Communicator]| -> u64 {
        let flows = all.iter().map(|worker| worker.counters().flow);
        flows.map(|flow| flow.gap_retransmissions + flow.timer_retransmissions).sum()
    };
    let first = repeated(&workers);
    check_sums(&workers, len);
    let after = fabric.topology.rack_counters(0).expect("counters");
    // Two calls of four bytes an element, in frames of 1408 bytes with 64 bytes of headers.
    let copy = 2.0 * len as f64 * 4.0 * (1408.0 + 64.0) / 1408.0;
    // What was repeated on a busy machine may have been repeated upwards, once each.
    let slack = (repeated(&workers) - first) as f64 * 1472.0;
    for bytes in [after.tx_bytes - before.tx_bytes, after.rx_bytes - before.rx_bytes] {
        let share = (bytes as f64 - slack) / copy;
        assert!(share < 1.02 && bytes as f64 / copy > LEAST, "{share} copies, {slack} repeated");
    }
}

/// Of a copy's bytes what a link counts at least: where packets cross it merged to trains, the
/// network's 42 bytes of headers are counted once a train, and 1 % less is a counter's.
const LEAST: f64 = 0.99 * (1408.0 + 22.0) / (1408.0 + 64.0);

/// Two pods of two racks of two hosts, all uplinks over-subscribed.
fn pods() -> Topology {
    let builder = Topology::builder().workers(8).racks(4).pods(2).xdp_on_hosts(true);
    let builder = builder.rate(Some(200_000_000)).uplink(Some(200_000_000));
    builder.pod_uplink(Some(100_000_000)).build().expect("a network")
}

/// RAT over two levels (paper 2, sections 3.2 and 3.3): a rack's hosts are summed in the rack, its
/// racks in the pod, and what leaves a pod or comes in is one copy of the vector. Hosts aggregate,
/// as the paper has it, or the switches of racks and pods.
#[test]
fn one_copy_crosses_a_pods_uplink() {
    need_root!();
    let on_hosts = hosts(pods(), "xdp");
    let mut in_switches = fabric(pods(), &["xdp"; 4]);
    for pod in 0..2 {
        in_switches.serve(Spot::Pod(pod), "xdp", &[]).expect("a daemon");
    }
    for (fabric, trees) in [(on_hosts, 8), (in_switches, 2)] {
        let workers = connect(&fabric, Strategy::Rat, |settings| settings);
        assert_eq!(workers[0].aggregators(), trees);
        check_sums(&workers, 352);
        let links = || {
            let pods = (0..2).map(|pod| fabric.topology.pod_counters(pod).expect("counters"));
            let racks = (0..4).map(|rack| fabric.topology.rack_counters(rack).expect("counters"));
            pods.chain(racks).collect::<Vec<_>>()
        };
        let repeated = || -> u64 {
            let flows = workers.iter().map(|worker| worker.counters().flow);
            flows.map(|flow| flow.gap_retransmissions + flow.timer_retransmissions).sum()
        };
        let (before, first, len) = (links(), repeated(), 300_000);
        check_sums(&workers, len);
        let copy = 2.0 * len as f64 * 4.0 * (1408.0 + 64.0) / 1408.0;
        let slack = (repeated() - first) as f64 * 1472.0;
        for (link, (after, before)) in links().iter().zip(&before).enumerate() {
            for bytes in [after.tx_bytes - before.tx_bytes, after.rx_bytes - before.rx_bytes] {
                let copies = [(bytes as f64 - slack) / copy, bytes as f64 / copy];
                // A rack whose host aggregates for its pod has its other rack's sums on top: one
                // copy for half of the trees that are rooted elsewhere.
                let most = if link < 2 || trees == 2 { 1.03 } else { 2.03 };
                assert!(copies[0] < most && copies[1] > LEAST, "{link} of {trees}: {copies:?}");
            }
        }
    }
}

/// Sums go through three racks one after the other, and results back (Rina); engines differ.
#[test]
fn sums_go_along_a_path_of_racks() {
    need_root!();
    for engines in [["xdp"; 3], ["xdp", "userspace", "xdp"]] {
        let fabric = fabric(racks(3, 2), &engines);
        let workers = connect(&fabric, Strategy::Rina, |settings| settings);
        check_sums(&workers, 100_000);
        // Each block is summed by every group, goes up from all but the last, and comes back.
        let counters: Vec<_> = (0..3).map(|rack| counters(&fabric, Spot::Rack(rack))).collect();
        let sum = |of: fn(&JobCounters) -> u64| counters.iter().map(of).sum::<u64>();
        let blocks = sum(|counters| counters.blocks) / 3;
        let steps = sum(|counters| counters.forwards) + sum(|counters| counters.deliveries);
        assert!(blocks > 0);
        assert_eq!(steps, 2 * (3 - 1) * blocks, "2(G-1) steps between groups: {counters:?}");
    }
}

/// Copies of the vector that leave each rack, and that come into it, in two calls of this length.
fn copies(fabric: &Fabric, workers: &[Communicator], len: usize) -> Vec<[f64; 2]> {
    let racks = 0..fabric.topology.rack_count();
    let read = || -> Vec<_> {
        let all = racks.clone().map(|rack| fabric.topology.rack_counters(rack));
        all.collect::<Result<_, _>>().expect("counters")
    };
    let before = read();
    check_sums(workers, len);
    // In frames of 1408 bytes of payload with 64 bytes of headers. A train has these once.
    let copy = 2.0 * len as f64 * 4.0 * (1408.0 + 64.0) / 1408.0;
    let share = |bytes: u64| bytes as f64 / copy;
    let both = read().into_iter().zip(before);
    let both = both
        .map(|(now, was)| [share(now.tx_bytes - was.tx_bytes), share(now.rx_bytes - was.rx_bytes)]);
    both.collect()
}

/// A rack without any daemon: its workers need no privileges, and are members of the group before
/// theirs. Each of them sends a copy of its own, which is what that costs; the other racks' sums
/// are one copy as before.
#[test]
fn workers_of_a_rack_without_daemon_join_the_group_before() {
    need_root!();
    for engine in ENGINES {
        let fabric = fabric(racks(3, 2), &[engine; 2]);
        let workers = connect(&fabric, Strategy::Rina, |settings| settings);
        assert_eq!(workers[0].aggregators(), 2);
        check_all(&workers, [1, 352, 100_000]);
        // In either tree a sum to the root or a result from it, and the bare rack's two copies.
        for ([up, down], most) in copies(&fabric, &workers, 200_000).into_iter().zip([1, 3, 2]) {
            let most = f64::from(most);
            // One copy more would be a third or more. Beside other tests some packets go twice.
            let fits = |share: f64| (0.94..1.25).contains(&(share / most));
            assert!(fits(up) && fits(down), "{engine}: {up} and {down} copies, and not {most}");
        }
    }
}

/// A rack in which nothing is installed: one of its workers runs behind `xdp-agg serve`, without a
/// say over the network, as workers have none. Its rack is a group of the ring then, and one copy
/// leaves it.
#[test]
fn a_worker_brings_the_aggregator_of_its_rack_along() {
    need_root!();
    let fabric = fabric(racks(2, 2), &["xdp"]);
    let mut plan = fabric.plan(Strategy::Rina);
    plan.hosts[2].daemon = Some(fabric.control(Spot::Worker(2)));
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rina.toml");
    fs::write(&file, plan.to_toml()).expect("it is written");
    let work = Work { longest: 100_000, ..Work::default() };
    let start = |rank: u16| {
        let host = fabric.topology.worker(rank.into());
        let worker = program("steady_worker").expect("it is built");
        let mut command = if rank == 2 {
            let control = fabric.control(Spot::Worker(2));
            let mut serve = host.unprivileged_command(program("xdp-agg").expect("it is built"));
            serve.args(["serve", "--engine", "userspace", "--control", &control.to_string()]);
            serve.args(["--data-addr", &control.ip().to_string(), "--"]).arg(worker);
            serve
        } else {
            host.unprivileged_command(worker)
        };
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "4")
            .env("XDP_AGG_TOPOLOGY", &file)
            .env("XDP_AGG_JOB", "training");
        watched::start(rank, command, &work)
    };
    let workers = watched::all_begin((0..4).map(start));
    let read = || {
        let rack = fabric.topology.rack_counters(1).expect("counters").tx_bytes;
        // What a host sends is a copy.
        (rack, fabric.topology.host_counters(3).expect("counters").tx_bytes)
    };
    let before = read();
    thread::sleep(Duration::from_millis(500));
    goes_on(&workers, Vec::new(), Instant::now(), 0b1111);
    let after = read();
    let copies = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
    assert!((0.9..1.1).contains(&copies), "{copies} copies leave the rack");
}

/// Rina, three racks: two with an aggregator and hosts that may stand in for it, one without, for
/// which a process of one of its workers' hosts forwards in user space. An agent is killed and
/// comes back. One copy of a group's sum leaves each rack throughout, and all sums are right.
#[test]
fn one_copy_leaves_each_rack_without_an_agent_too() {
    need_root!();
    let mut fabric = fabric(racks(3, 2), &["xdp"; 2]);
    for worker in 0..5 {
        fabric.serve(Spot::Worker(worker), "userspace", &[]).expect("a daemon");
    }
    let workers = connect(&fabric, Strategy::Rina, |settings| {
        settings.on_aggregator_loss(AggregatorLoss::Ring).fallback_after(Duration::from_millis(300))
    });
    assert_eq!(workers[0].aggregators(), 3);
    let len = 300_000;
    // In one tree a rack is the first, in one the last, and in one between two others.
    let planned = 4.0 / 3.0;
    let as_planned = |copies: &[[f64; 2]]| {
        copies.iter().flatten().all(|share| (0.94..1.06).contains(&(share / planned)))
    };
    check_sums(&workers, 1000);
    let before = copies(&fabric, &workers, len);
    assert!(as_planned(&before), "{before:?}");
    fabric.take(Spot::Rack(1)).expect("it runs").kill().expect("killed");
    // Over these the job finds its new trees.
    check_sums(&workers, 1000);
    check_sums(&workers, 1000);
    let without = copies(&fabric, &workers, len);
    // The tree that it led is a ring of the six workers in the order of the racks, each of whose
    // links carries 5/3 of a third. In the others a host has its place: where the rack is the
    // first, a sum goes up and a result comes down, and where it is between, two of each. With a
    // copy a worker these would be 4/3, and not 1.
    let most = [1.0, 1.0, 1.0].map(|trees| trees + 5.0 / 9.0);
    for (copies, most) in without.iter().zip(most) {
        assert!(copies.iter().all(|share| *share < 1.08 * most), "{without:?}, at most {most}");
    }
    fabric.serve(Spot::Rack(1), "xdp", &[]).expect("a daemon");
    let since = Instant::now();
    loop {
        let now = copies(&fabric, &workers, 50_000);
        // A host in its place sends as much: it leads its tree again, and is a branch of others.
        let agent = counters(&fabric, Spot::Rack(1));
        if as_planned(&now) && agent.blocks > agent.forwards && agent.forwards > 0 {
            break;
        }
        assert!(since.elapsed() < LIMIT, "the trees are not as they were: {now:?}, {agent:?}");
        thread::sleep(Duration::from_millis(200));
    }
    let after = copies(&fabric, &workers, len);
    assert!(as_planned(&after), "{after:?}");
}

/// One rack of two has an aggregator, which is the root of a tree for each of its workers (RAT).
#[test]
fn one_aggregator_is_the_root_of_several_trees() {
    need_root!();
    let mut fabric = fabric(racks(2, 2), &["xdp"]);
    for worker in 0..4 {
        fabric.serve(Spot::Worker(worker), "xdp", &[]).expect("a daemon");
    }
    let workers = connect(&fabric, Strategy::Rat, |settings| settings);
    check_all(&workers, [1, 100_000]);
    let jobs = stats(&fabric, Spot::Rack(0), &["--json"]);
    let jobs: Stats = serde_json::from_str(&jobs).expect("stats");
    let further = |job: &&JobStats| job.info.job == "trees#1";
    assert_eq!(jobs.jobs.iter().filter(further).count(), 1, "{jobs:?}");
}

/// What a daemon has counted for its jobs, as `xdp-agg stats` shows it.
fn counters(fabric: &Fabric, spot: Spot) -> JobCounters {
    let stats: Stats = serde_json::from_str(&stats(fabric, spot, &["--json"])).expect("stats");
    let mut all = JobCounters::default();
    stats.jobs.iter().for_each(|job| all.merge(&job.counters));
    all
}

fn stats(fabric: &Fabric, spot: Spot, options: &[&str]) -> String {
    let mut stats = fabric.namespace(spot).command(program("xdp-agg").expect("it is built"));
    stats.args(["stats", "--control", &fabric.control(spot).to_string()]).args(options);
    let shown = Process::spawn("stats", stats).and_then(|stats| stats.wait(LIMIT));
    shown.expect("it ends").stdout
}

/// A rack with an aggregator and one without: its workers sum for themselves, on their own hosts,
/// in one job with the others (Rina's abstracted and autonomous workers).
#[test]
fn abstracted_and_autonomous_workers_share_a_job() {
    need_root!();
    for engine in ENGINES {
        let mut fabric = fabric(racks(2, 2), &["xdp"]);
        for worker in 0..4 {
            fabric.serve(Spot::Worker(worker), engine, &[]).expect("a daemon");
        }
        let workers = connect(&fabric, Strategy::Rina, |settings| settings);
        // A group of two workers, and two of one.
        assert_eq!(workers[0].aggregators(), 3);
        check_sums(&workers, 100_000);
    }
}

/// Every host sums its share, and no further machine is needed.
#[test]
fn every_host_sums_a_share() {
    need_root!();
    for engine in ENGINES {
        let topology = Topology::builder().workers(4).xdp_on_hosts(true).build();
        let fabric = hosts(topology.expect("a network"), engine);
        let workers = connect(&fabric, Strategy::Colocated, |settings| settings);
        assert_eq!(workers[0].aggregators(), 4);
        check_all(&workers, [1, 352, 100_000]);
    }
}

/// RAT on hosts: every host's daemon roots a tree, and the one of its rack's hosts that aggregates
/// for a tree serves its own host's worker, too.
#[test]
fn every_host_roots_a_tree() {
    need_root!();
    for engine in ENGINES {
        let fabric = hosts(racks(2, 2), engine);
        let workers = connect(&fabric, Strategy::Rat, |settings| settings);
        assert_eq!(workers[0].aggregators(), 4);
        check_all(&workers, [1, 352, 100_000]);
    }
}

/// A daemon on every worker's host.
fn hosts(topology: Topology, engine: &str) -> Fabric {
    let mut fabric = Fabric::new(topology);
    for worker in 0..fabric.topology.workers().len() {
        fabric.serve(Spot::Worker(worker), engine, &[]).expect("a daemon");
    }
    fabric
}

/// Loss on every link, those between the aggregators among them.
#[test]
fn loss_anywhere_in_a_tree_is_survived() {
    need_root!();
    let on_hosts = || hosts(racks(2, 2), "xdp");
    for (fabric, strategy) in [
        (fabric(racks(2, 2), &["xdp"; 2]), Strategy::Rat),
        (fabric(racks(2, 2), &["userspace"; 2]), Strategy::Rina),
        (on_hosts(), Strategy::Rat),
        (on_hosts(), Strategy::Colocated),
    ] {
        let faults = Faults { loss: 0.02, duplicate: 0.02, ..Faults::NONE }.only_udp(48864);
        fabric.topology.set_all_faults(&faults).expect("faults");
        let workers = connect(&fabric, strategy, |settings| settings);
        for _ in 0..3 {
            check_sums(&workers, 50_000);
        }
    }
}

/// Two racks of two workers in training, with daemons on all hosts, too.
fn training(strategy: Strategy, racks_with: usize) -> (Fabric, Vec<Steady>, tempfile::TempDir) {
    training_with(strategy, racks_with, &[])
}

/// The same, with more words for the daemons.
fn training_with(
    strategy: Strategy,
    racks_with: usize,
    options: &[&str],
) -> (Fabric, Vec<Steady>, tempfile::TempDir) {
    let mut fabric = Fabric::new(racks(2, 2));
    let racks = (0..racks_with).map(Spot::Rack);
    for spot in racks.chain((0..4).map(Spot::Worker)) {
        fabric.serve(spot, "xdp", options).expect("a daemon");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let plan = fabric.write_plan(directory.path(), strategy).expect("a file");
    let work = Work { longest: 100_000, ..Work::default() };
    let start = |rank: u16| {
        let mut command = fabric.worker("steady_worker", rank, &plan).expect("a program");
        command.env("XDP_AGG_JOB", "training").envs(RING);
        watched::start(rank, command, &work)
    };
    let workers = watched::all_begin((0..4).map(start));
    (fabric, workers, directory)
}

/// All of these have a whole call of these ranks after this moment, in time; no call was wrong.
fn goes_on(workers: &[Steady], ended: Said, since: Instant, ranks: u64) {
    watched::calls_of(workers, since, ranks, PROMISED);
    watched::check(&[watched::all_said(workers), ended].concat());
}

/// Waits until all of these have had a call over aggregators alone, or not over these alone, after
/// this moment.
fn call_over(workers: &[Steady], since: Instant, aggregators_alone: bool) {
    let alone = |path: &str| (path == "aggregator") == aggregators_alone;
    let what = format!("a call over aggregators alone ({aggregators_alone})");
    for worker in workers {
        let is_it = |line: &Line| matches!(line, Line::Call { path, .. } if alone(path));
        watched::first(worker, &what, since, is_it);
    }
}

/// Rina: a rack's agent is lost, and its workers go on without it; and with it when it is back.
#[test]
fn training_goes_on_without_an_agent() {
    need_root!();
    for rack in 0..2 {
        let (mut fabric, workers, _directory) = training(Strategy::Rina, 2);
        thread::sleep(Duration::from_millis(50));
        let agent = fabric.take(Spot::Rack(rack)).expect("it runs");
        let since = Instant::now();
        agent.kill().expect("killed");
        goes_on(&workers, Vec::new(), since, 0b1111);
        call_over(&workers, since, false);
        fabric.serve(Spot::Rack(rack), "xdp", &[]).expect("a daemon");
        let since = Instant::now();
        call_over(&workers, since, true);
        goes_on(&workers, Vec::new(), Instant::now(), 0b1111);
    }
}

/// Rina: a worker of a rack is lost, and its rack goes on without it.
#[test]
fn training_goes_on_without_a_worker_of_a_rack() {
    need_root!();
    let (_fabric, mut workers, _directory) = training(Strategy::Rina, 2);
    thread::sleep(Duration::from_millis(50));
    let dying = workers.remove(2);
    let since = Instant::now();
    let said = dying.said();
    drop(dying);
    goes_on(&workers, vec![said], since, 0b1011);
}

/// A worker that is stopped counts as lost where a limit is set; no other worker does. It is not
/// the lowest rank of its rack, is at the root of one tree and behind a branch of the other.
#[test]
fn training_goes_on_without_a_stopped_worker_of_a_rack() {
    need_root!();
    let limit = ["--straggler-timeout", "0.5"];
    let (_fabric, mut workers, _directory) = training_with(Strategy::Rat, 2, &limit);
    thread::sleep(Duration::from_millis(50));
    let mut stopped = workers.remove(3);
    let since = Instant::now();
    stopped.process.signal(libc::SIGSTOP).expect("it runs");
    goes_on(&workers, vec![stopped.said()], since, 0b0111);
}

/// Rina: an autonomous worker is lost with its host's daemon, and its neighbours bypass it.
#[test]
fn training_goes_on_without_an_autonomous_worker() {
    need_root!();
    let (mut fabric, mut workers, _directory) = training(Strategy::Rina, 1);
    thread::sleep(Duration::from_millis(50));
    let dying = workers.remove(3);
    let daemon = fabric.take(Spot::Worker(3)).expect("it runs");
    let since = Instant::now();
    let said = dying.said();
    drop(dying);
    daemon.kill().expect("killed");
    goes_on(&workers, vec![said], since, 0b0111);
}

/// `auto` chooses by the costs in the file, per size, and tells the choice and its reason.
#[test]
fn auto_chooses_by_measured_costs_and_says_so() {
    need_root!();
    let mut fabric = Fabric::new(Topology::builder().workers(3).build().expect("a network"));
    for worker in 0..3 {
        fabric.serve(Spot::Worker(worker), "userspace", &[]).expect("a daemon");
    }
    let mut plan = fabric.plan(Strategy::Auto);
    // Daemons take 100 ns for a byte: a ring is faster from a few hundred bytes on.
    plan.costs = KnownCosts {
        message: Some(1e-5),
        tcp_message: Some(1e-5),
        daemon_byte: Some(1e-7),
        tcp_byte: Some(1e-10),
    };
    let workers = connect_by(&fabric, &plan, |settings| settings);
    let chosen = workers[0].chosen();
    assert_eq!((chosen.strategy.as_str(), workers[0].aggregators()), ("colocated", 3));
    assert!(chosen.reason.contains("by measured costs"), "{chosen:?}");
    assert!(chosen.reason.contains("a ring of the workers above"), "{chosen:?}");
    let paths = |len: usize| -> Vec<Path> {
        let sum = |worker: &Communicator| {
            let mut data: Vec<f32> = vec![f32::from(worker.rank()); len];
            let report = worker.all_reduce(&mut data, Op::Average).expect("all are well");
            assert!(data.iter().all(|x| *x == 1.0), "{data:?}");
            assert_eq!(report.missing_ranks(3).count(), 0);
            report.path
        };
        at_all(&fabric.topology, &workers, sum)
    };
    assert_eq!(paths(10), [Path::Aggregator; 3]);
    assert_eq!(paths(100_000), [Path::Ring; 3]);
    let shown = stats(&fabric, Spot::Worker(1), &[]);
    assert!(shown.contains("strategy of trees: colocated (auto by measured"), "{shown}");
    // The caller's word counts more than any cost.
    drop(workers);
    let tune =
        |settings: Builder| settings.topology(&plan, Some(Strategy::Colocated)).expect("a plan");
    let workers = connect_by(&fabric, &plan, tune);
    assert!(workers[0].chosen().all_reduce.is_empty());
    assert!(workers[0].chosen().reason.contains("XDP_AGG_STRATEGY"), "{:?}", workers[0].chosen());
    check_sums(&workers, 100_000);
}
