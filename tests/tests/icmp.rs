//! No host off the path ends a job, and no passing error does. Whatever ICMP packets claim, and
//! while routes, addresses and firewalls change, calls go on and are exact.

mod support;

use std::net::UdpSocket;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{ENGINES, LIMIT, Lab, check_sums, need_root, network};
use xdp_agg_client::{Communicator, WorkerLoss};
use xdp_agg_common::wire::DATA_PORT;
use xdp_agg_testbed::Namespace;
use xdp_agg_testbed::icmp::{IcmpStorm, Lie, all_kinds};
use xdp_agg_testbed::traffic::tell_all_errors;

/// The few ports that workers' sockets get here: an attacker tries all of them.
const PORTS: RangeInclusive<u16> = 40_000..=40_015;
/// Host of the network that is not in the job.
const EVIL: usize = 2;

/// A network of two workers and an attacker.
fn lab(engine: &'static str) -> Lab {
    let topology = network(3, "fanout");
    for host in 0..2 {
        let (first, last) = (PORTS.start(), PORTS.end());
        // Of the namespace of the thread that writes.
        let range = "/proc/sys/net/ipv4/ip_local_port_range";
        let set = move || std::fs::write(range, format!("{first} {last}"));
        topology.worker(host).run(set).expect("entering").expect("root may set it");
    }
    Lab::start(topology, engine)
}

/// What there is to be lied about: packets of workers, and results of the aggregator.
fn lies(lab: &Lab, kinds: &[(u8, u8)]) -> Vec<Lie> {
    let aggregator = lab.topology.aggregator_addr();
    let data = std::net::SocketAddrV4::new(aggregator, DATA_PORT);
    let mut lies = Vec::new();
    for host in 0..2 {
        let worker = lab.topology.worker_addr(host);
        let kinds = kinds.to_vec();
        let to_agg = Lie { victim: worker, ports: PORTS, to: data, kinds: kinds.clone() };
        // The port of a packet's destination does not matter to an unconnected socket.
        let to = std::net::SocketAddrV4::new(worker, *PORTS.start());
        lies.extend([to_agg, Lie { victim: aggregator, ports: DATA_PORT..=DATA_PORT, to, kinds }]);
    }
    lies
}

fn errors(workers: &[Communicator]) -> u64 {
    workers.iter().map(|worker| worker.counters().socket_errors).sum()
}

/// Every kind in every state: while workers join and try their path, between calls and during them,
/// while the job gets new epochs, and when it ends.
#[test]
fn no_icmp_message_ends_anything() {
    need_root!();
    for engine in ENGINES {
        let lab = lab(engine);
        let lies = lies(&lab, &all_kinds());
        let evil = lab.topology.worker(EVIL);
        let storm = IcmpStorm::start(evil, &lies, Duration::from_millis(1)).expect("it begins");
        let mut errors_seen = 0;
        for round in 0..3 {
            let tune = |b: xdp_agg_client::Builder| b.on_worker_loss(WorkerLoss::Shrink);
            let mut workers = lab.connect("storm", 2, tune);
            for call in 0..20 {
                check_sums(&workers, [10, 1000, 40_000][call % 3]);
            }
            // Idle, and then a new epoch of one, and of two again.
            std::thread::sleep(Duration::from_millis(300));
            check_sums(&workers, 5000);
            errors_seen += errors(&workers);
            drop(workers.pop());
            let alone = vec![0.5_f32; 3000];
            let mut sum = alone.clone();
            let report = workers[0].all_reduce(&mut sum, xdp_agg_client::Op::Sum);
            let report = report.unwrap_or_else(|error| panic!("{engine}, round {round}: {error}"));
            assert!(report.reforms > 0 || report.contributors == 1, "{report:?}");
            assert_eq!(sum, alone);
        }
        eprintln!("{engine}: {} messages, {errors_seen} errors of sockets", storm.sent());
        assert!(storm.sent() > 5_000 && errors_seen > 50, "{} {errors_seen}", storm.sent());
    }
}

/// Each kind by itself, at one worker, in the middle of calls: a failure names the kind.
#[test]
fn each_kind_of_icmp_message_is_survived_by_itself() {
    need_root!();
    for engine in ENGINES {
        let lab = lab(engine);
        let workers = lab.connect("one", 2, |settings| settings);
        let evil = lab.topology.worker(EVIL);
        for kind in all_kinds() {
            let lies = lies(&lab, &[kind]);
            let storm =
                IcmpStorm::start(evil, &lies, Duration::from_micros(200)).expect("it begins");
            let start = Instant::now();
            while storm.sent() < 200 || start.elapsed() < Duration::from_millis(60) {
                check_sums(&workers, 20_000);
                assert!(start.elapsed() < LIMIT, "{engine}, {kind:?}: no end");
            }
        }
    }
}

/// "Fragmentation needed" makes no later job's blocks smaller, and no result too long to send.
#[test]
fn a_claimed_mtu_is_not_believed() {
    need_root!();
    for engine in ENGINES {
        let lab = lab(engine);
        let evil = lab.topology.worker(EVIL);
        let before = {
            let workers = lab.connect("before", 2, |settings| settings);
            let lies = lies(&lab, &[(3, 4)]);
            let storm = IcmpStorm::start(evil, &lies, Duration::ZERO).expect("it begins");
            while storm.sent() < 2000 {
                check_sums(&workers, 20_000);
            }
            workers[0].block_bytes()
        };
        let workers = lab.connect("after", 2, |settings| settings);
        check_sums(&workers, 20_000);
        assert_eq!(workers[0].block_bytes(), before, "{engine}");
        assert_eq!(before, 1408, "{engine}");
    }
}

/// The job's speed under a storm of 20 000 messages a second and more, beside its speed without.
#[test]
fn a_storm_costs_little() {
    need_root!();
    const LEN: usize = 200_000;
    for engine in ENGINES {
        let lab = lab(engine);
        let workers = lab.connect("speed", 2, |settings| settings);
        let evil = lab.topology.worker(EVIL);
        let lies = lies(&lab, &all_kinds());
        let round = || {
            let start = Instant::now();
            (0..10).for_each(|_| check_sums(&workers, LEN));
            start.elapsed()
        };
        round();
        let (mut quiet, mut stormy) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            quiet.push(round());
            let pause = Duration::from_millis(1);
            let storm = IcmpStorm::start(evil, &lies, pause).expect("it begins");
            stormy.push(round());
            drop(storm);
        }
        quiet.sort_unstable();
        stormy.sort_unstable();
        let ratio = quiet[2].as_secs_f64() / stormy[2].as_secs_f64();
        eprintln!(
            "{engine}: {:?} without, {:?} with: {ratio:.2} of the speed",
            quiet[2], stormy[2]
        );
        // 0.8 and more on a quiet machine: docs/reliability.md.
        assert!(ratio > 0.5, "{engine}: {ratio:.2}");
    }
}

/// Runs a command in a namespace.
fn command(host: &Namespace, line: &str) {
    let mut words = line.split_whitespace();
    let mut command = host.command(words.next().expect("a program"));
    let command: &mut Command = command.args(words);
    let done = command.output().unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// What a host refuses for a moment.
struct Refusal {
    there: String,
    back: String,
    /// What a program that sends is told meanwhile: one of these.
    errors: &'static [i32],
}

fn refusals(lab: &Lab) -> Vec<Refusal> {
    let aggregator = lab.topology.aggregator_addr();
    let own = lab.topology.worker_addr(0);
    let route = |kind: &str, errors| Refusal {
        there: format!("ip route add {kind} {aggregator}/32"),
        back: format!("ip route del {kind} {aggregator}/32"),
        errors,
    };
    let mut all = vec![
        route("prohibit", &[libc::EACCES]),
        route("blackhole", &[libc::EINVAL]),
        route("unreachable", &[libc::EHOSTUNREACH]),
        Refusal {
            there: format!("ip addr del {own}/24 dev eth0"),
            back: format!("ip addr add {own}/24 dev eth0"),
            // The latter by newer kernels.
            errors: &[libc::EINVAL, libc::ENETUNREACH],
        },
    ];
    let firewall = Refusal {
        there: format!(
            "nft add table ip off ; \
             add chain ip off out {{ type filter hook output priority 0 ; }} ; \
             add rule ip off out udp dport {DATA_PORT} drop"
        ),
        back: "nft delete table ip off".into(),
        errors: &[libc::EPERM],
    };
    // The program, and a kernel that has the rules.
    let works = |line: &str| {
        let words = line.split_whitespace();
        let mut command = lab.topology.worker(0).command("nft");
        command.args(words.skip(1)).output().is_ok_and(|done| done.status.success())
    };
    if works(&firewall.there) {
        command(lab.topology.worker(0), &firewall.back);
        all.push(firewall);
    } else {
        eprintln!("left out: a firewall; `nft` of the package nftables, or its kernel, is missing");
    }
    all
}

/// A route that prohibits, a source address that is gone, a firewall that drops what leaves: each
/// for a moment, while calls run. Each refuses something, and none ends the job.
#[test]
fn what_passes_at_one_host_is_survived() {
    need_root!();
    for engine in ENGINES {
        let lab = lab(engine);
        let workers = lab.connect("passing", 2, |settings| settings);
        let host = lab.topology.worker(0);
        let (from, to) = (lab.topology.worker_addr(0), lab.topology.aggregator_addr());
        // A socket such as the worker's.
        let own = host.run(move || {
            let socket = UdpSocket::bind((from, 0))?;
            socket.connect((to, DATA_PORT)).map(|()| socket)
        });
        let own = own.expect("entering the host").expect("a socket");
        let send = || own.send(&[0; 64]).err().and_then(|error| error.raw_os_error());
        for Refusal { there, back, errors: all } in refusals(&lab) {
            let before = errors(&workers);
            std::thread::scope(|scope| {
                let change = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(30));
                    command(host, &there);
                    let refused = send();
                    // Until a worker has met it, too.
                    let since = Instant::now();
                    while since.elapsed() < Duration::from_millis(200)
                        || errors(&workers) == before && since.elapsed() < LIMIT / 3
                    {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    command(host, &back);
                    refused
                });
                let start = Instant::now();
                while !change.is_finished() || start.elapsed() < Duration::from_millis(300) {
                    check_sums(&workers, 20_000);
                    assert!(start.elapsed() < LIMIT, "{engine}, {there}: no end");
                }
                let told = change.join().expect("no panic").expect("something is refused");
                assert!(all.contains(&told), "{engine}, {there}: {told}");
            });
            check_sums(&workers, 20_000);
            assert!(errors(&workers) > before, "{engine}, {there}: no worker was refused anything");
        }
    }
}

/// A queue of the host that is full is loss, and no error: the kernel says `ENOBUFS` only to
/// sockets that ask for all errors (`IP_RECVERR`), and ours do not.
#[test]
fn a_full_queue_is_loss_only() {
    need_root!();
    for engine in ENGINES {
        let lab = lab(engine);
        let workers = lab.connect("queue", 2, |settings| settings);
        let host = lab.topology.worker(0);
        let (from, to) = (lab.topology.worker_addr(0), lab.topology.aggregator_addr());
        command(host, "tc qdisc add dev eth0 root tbf rate 20mbit burst 4kb limit 8kb");
        let flood = |tells: bool| {
            let socket = UdpSocket::bind((from, 0)).expect("a socket");
            // Nobody listens there, and nobody is told.
            socket.connect((to, 9)).expect("a route");
            if tells {
                tell_all_errors(&socket).expect("an option");
            }
            (0..200).filter_map(|_| socket.send(&[0; 1400]).err()?.raw_os_error()).collect()
        };
        let [told, untold]: [Vec<i32>; 2] =
            [true, false].map(|tells| host.run(|| flood(tells)).expect("entering the host"));
        assert!(told.contains(&libc::ENOBUFS), "{told:?}");
        assert!(!untold.contains(&libc::ENOBUFS), "{untold:?}");
        let before = errors(&workers);
        for _ in 0..5 {
            check_sums(&workers, 20_000);
        }
        assert_eq!(errors(&workers), before, "{engine}");
        let shown = host.command("tc").args(["-s", "qdisc", "show", "dev", "eth0"]).output();
        let shown = String::from_utf8(shown.expect("it runs").stdout).expect("text");
        assert!(shown.contains("tbf") && !shown.contains("(dropped 0,"), "{shown}");
    }
}
