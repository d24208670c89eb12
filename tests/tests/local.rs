//! Workers on the host of an XDP aggregator: real processes and a real daemon in one namespace.

mod support;

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use support::{LIMIT, Lab, check_all, check_sums, need_root, network};
use xdp_agg_client::{Builder, Communicator};
use xdp_agg_common::control::{AggregatorLoss, CONTROL_PORT};
use xdp_agg_common::maps::Reject;
use xdp_agg_testbed::flood::Rude;
use xdp_agg_testbed::traffic::udp_socket;
use xdp_agg_testbed::{Namespace, Process, Topology, at_once};

/// A job whose first `remote` ranks have a host each, and whose others are on the aggregator's.
fn connect(lab: &Lab, remote: u16, local: u16) -> Vec<Communicator> {
    connect_with(lab, (remote, local), |settings| settings)
}

fn connect_with(
    lab: &Lab,
    (remote, local): (u16, u16),
    tune: impl Fn(Builder) -> Builder + Sync,
) -> Vec<Communicator> {
    let world_size = remote + local;
    at_once(0..world_size, |rank| {
        let settings = tune(lab.worker("local", rank, world_size));
        let host = match rank {
            rank if rank < remote => lab.topology.worker(rank.into()),
            _ => lab.topology.aggregator(),
        };
        let connected = host.run(move || settings.connect()).expect("entering a namespace");
        connected.unwrap_or_else(|error| panic!("rank {rank} of {world_size}: {error}"))
    })
}

fn pairs(namespace: &Namespace) -> Vec<String> {
    let mut names = namespace.interfaces().expect("they can be listed");
    names.retain(|name| name.starts_with("xagg"));
    names.sort();
    names
}

fn set(namespace: &Namespace, key: &'static str, value: &'static str) {
    let path = format!("/proc/sys/net/ipv4/{key}");
    let set = namespace.run(|| fs::write(&path, value)).expect("entering a namespace");
    set.unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Any daemon on the aggregator's host, listening on all addresses.
fn serve(topology: &Topology, port: u16, extra: &[&str]) -> Command {
    let mut command = support::serve(topology);
    command.args(["--engine", "xdp", "--control", &format!("0.0.0.0:{port}")]);
    for interface in topology.aggregator_interfaces() {
        command.args(["--interface", &interface]);
    }
    command.args(extra);
    command
}

fn ip(namespace: &Namespace, arguments: &str) {
    let done = namespace.command("ip").args(arguments.split(' ')).status().expect("it runs");
    assert!(done.success(), "ip {arguments}");
}

/// One or two workers beside the aggregator, others behind its interfaces, whatever the reverse
/// path filter wants.
#[test]
fn workers_beside_the_aggregator_take_part() {
    need_root!();
    for (mode, filter, local) in [("ports", "1", 1), ("one-nic", "2", 2)] {
        let topology = network(2, mode);
        set(topology.aggregator(), "conf/all/rp_filter", filter);
        let lab = Lab::start(topology, "xdp");
        let workers = connect(&lab, 2, local);
        check_all(&workers, [1, 352, 100_000]);
        let repeated: u64 = workers.iter().map(|w| w.counters().flow.timer_retransmissions).sum();
        assert!(repeated < 1000, "{repeated} repetitions");
    }
}

/// A job of workers that are all on the aggregator's host.
#[test]
fn a_job_needs_no_other_host() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "xdp");
    let workers = connect(&lab, 0, 2);
    check_sums(&workers, 10_000);
}

/// A worker that cannot be served is told why, and what to do.
#[test]
fn who_cannot_be_served_is_told() {
    need_root!();
    let refused = |extra: &[&str], addr: Ipv4Addr| {
        let lab = Lab { daemon: None, ..Lab::start(network(1, "ports"), "xdp") };
        let command = serve(&lab.topology, CONTROL_PORT, extra);
        let _daemon = Process::serve("xdp-agg serve", command).expect("it gets ready");
        let control = SocketAddrV4::new(addr, CONTROL_PORT).into();
        let settings = lab.worker("refused", 0, 1).aggregator(control);
        let connect = move || settings.connect().err().map(|error| error.to_string());
        lab.topology.aggregator().run(connect).expect("entering a namespace").expect("refused")
    };
    let ours = Ipv4Addr::new(10, 88, 0, 254);
    let words = refused(&["--local-addr", "off"], ours);
    assert!(words.contains("--local-addr is off") && words.contains("userspace"), "{words}");
    let words = refused(&["--xdp-mode", "generic"], ours);
    assert!(words.contains("generic XDP") && words.contains("userspace"), "{words}");
    let words = refused(&[], Ipv4Addr::LOCALHOST);
    assert!(words.contains("loopback") && words.contains("XDP_AGG_ADDR"), "{words}");
}

/// The pair goes with its daemon; what a killed one leaves does not disturb the next.
#[test]
fn a_killed_daemons_pair_is_replaced() {
    need_root!();
    let mut lab = Lab::start(network(2, "ports"), "xdp");
    let agg = lab.topology.aggregator().clone();
    let there = pairs(&agg);
    assert_eq!(there.len(), 2, "{there:?}");
    drop(connect(&lab, 1, 1));
    // A second daemon on the same interfaces does not take it away.
    // The port after the first one is the page's.
    let command = serve(&lab.topology, CONTROL_PORT + 2, &[]);
    let mut second = Process::spawn("xdp-agg serve", command).expect("it starts");
    let end = Instant::now() + LIMIT;
    while second.try_wait().expect("it can be asked").is_none() && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    let words = second.last_words();
    assert!(words.contains("has an XDP program already"), "{words}");
    check_sums(&connect(&lab, 1, 1), 1000);
    lab.daemon.take().expect("it runs").kill().expect("killed");
    assert_eq!(pairs(&agg), there, "nobody has removed it");
    lab.start_daemon();
    assert_eq!(pairs(&agg), there);
    check_sums(&connect(&lab, 1, 1), 10_000);
    lab.daemon.take().expect("it runs").terminate().expect("it ends");
    assert_eq!(pairs(&agg), Vec::<String>::new());
}

/// With `--pin` the way in outlives the daemon as the data path does.
#[test]
fn a_pinned_pair_outlives_its_daemon() {
    need_root!();
    let Some((_bpffs, mut lab)) = Lab::start_pinned(network(2, "ports")) else { return };
    let agg = lab.topology.aggregator().clone();
    let resume = |settings: Builder| settings.on_aggregator_loss(AggregatorLoss::Resume);
    let workers = connect_with(&lab, (1, 1), resume);
    check_sums(&workers, 10_000);
    let there = pairs(&agg);
    let before = mac_of(&agg, &there[0]);
    let epoch = lab.job_stats("local").info.epoch;
    lab.daemon.take().expect("it runs").kill().expect("killed");
    check_sums(&workers, 10_000);
    lab.start_daemon();
    check_sums(&workers, 10_000);
    assert_eq!(pairs(&agg), there);
    assert_eq!(mac_of(&agg, &there[0]), before, "the same pair");
    assert_eq!(lab.job_stats("local").info.epoch, epoch, "and the same epoch");
    drop(workers);
    // A new job learns from the pair that was taken over which workers are on this host.
    check_sums(&connect(&lab, 1, 1), 10_000);
    lab.daemon.take().expect("it runs").terminate().expect("it ends");
    assert_eq!(pairs(&agg), Vec::<String>::new());
}

/// The local address from outside, with the cookie, in the name of every rank, and a host that
/// forwards: nothing comes of it.
#[test]
fn what_comes_from_outside_to_the_local_address_changes_nothing() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let agg = lab.topology.aggregator();
    set(agg, "ip_forward", "1");
    let (agg_addr, worker) = (lab.topology.aggregator_addr(), lab.topology.worker_addr(0));
    let hosts = [(lab.topology.worker(0), worker), (agg, agg_addr)];
    let mut members = Vec::new();
    for (rank, host) in (0..).zip(hosts) {
        members.push(Rude::join(host, lab.control(), "outside", rank, 2).expect("it joins"));
    }
    members.iter_mut().for_each(|member| member.get_ready().expect("its path is open"));
    members.iter_mut().for_each(|member| member.wait_go().expect("it runs"));
    let [remote, local] = &members[..] else { panic!("two members") };
    let to = local.told().expect("it was told");
    assert_eq!(remote.told(), Some(SocketAddrV4::new(agg_addr, to.port())));
    assert_eq!(to.ip().octets()[..3], [169, 254, 109]);

    // A third host that knows all, and has both members' addresses.
    let outside = lab.topology.worker(1);
    ip(outside, &format!("route add {} via {agg_addr} dev eth0", to.ip()));
    ip(outside, &format!("address add {worker}/32 dev lo"));
    let counters = || lab.job_stats("outside").counters;
    let before = counters();
    let send = |from: SocketAddrV4, packet: &[u8]| {
        let socket = udp_socket(outside, from, LIMIT).expect("a socket");
        for _ in 0..100 {
            socket.send_to(packet, to).expect("it leaves");
        }
    };
    send(SocketAddrV4::new(worker, 4700), &remote.contribution(0));
    send(SocketAddrV4::new(lab.topology.worker_addr(1), 4700), &local.contribution(0));
    let end = Instant::now() + LIMIT;
    let refused = |now: &xdp_agg_common::maps::JobCounters| {
        let at = Reject::Member as usize;
        now.rejects[at] - before.rejects[at]
    };
    while refused(&counters()) < 200 {
        assert!(Instant::now() < end, "they are forwarded to the way in: {:?}", counters());
        thread::sleep(Duration::from_millis(10));
    }
    // With the aggregator's own address as their source they do not even get there.
    ip(outside, &format!("neighbour replace {} lladdr {} dev eth0", to.ip(), mac_of(agg, "br0")));
    ip(outside, &format!("route replace {} dev eth0", to.ip()));
    ip(outside, &format!("address add {agg_addr}/32 dev lo"));
    send(SocketAddrV4::new(agg_addr, 4701), &local.contribution(0));
    thread::sleep(Duration::from_millis(100));
    let after = counters();
    assert_eq!((refused(&after), after.contributions), (200, before.contributions));
    let sums = at_once(&members, |member| member.sum(0).expect("a sum"));
    assert!(sums.iter().all(|sum| sum.iter().all(|byte| *byte == 2)), "each counts once");
}

fn mac_of(namespace: &Namespace, interface: &str) -> String {
    let mut command = namespace.command("ip");
    let shown = command.args(["-o", "link", "show", interface]).output().expect("it runs").stdout;
    let text = String::from_utf8_lossy(&shown);
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).expect("an address").to_owned()
}
