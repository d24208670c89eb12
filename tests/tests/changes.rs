//! What changes while a job runs: cables, addresses, ports, MTUs. Every sum is checked.

mod support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{ENGINES, LIMIT, Lab, need_root, network};
use xdp_agg_testbed::steady::{Line, Steady, Work, judge};
use xdp_agg_testbed::{Namespace, Process, Topology, program};

/// Workers of the jobs.
const WORKERS: u16 = 3;
/// All of them contributed.
const ALL: u64 = 0b111;
const SHRINK: (&str, &str) = ("XDP_AGG_ON_WORKER_LOSS", "shrink");
const MULTICAST: (&str, &str) = ("XDP_AGG_RESULT_MODE", "multicast");

fn ip(namespace: &Namespace, arguments: &str) {
    let done = namespace.command("ip").args(arguments.split(' ')).output().expect("it runs");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Waits for a call that began after this moment, of all workers.
fn call_after(lab: &Lab, workers: &[Steady], since: Instant) {
    for worker in workers {
        let is_it = |at: Instant, line: &Line| match line {
            Line::Call { ms, .. } => at - Duration::from_secs_f64(ms / 1000.0) > since,
            _ => false,
        };
        if let Err(error) = worker.wait("a later call", LIMIT, is_it) {
            let all = workers.iter().map(|worker| worker.process.last_words());
            let daemon = lab.daemon.as_ref().map(Process::last_words);
            let all = all.collect::<String>();
            panic!("{error}{all}{}\n{:?}", daemon.unwrap_or_default(), lab.stats());
        }
    }
}

/// No call failed, none was wrong, nor different from another worker's, and nobody was left out.
fn check(workers: &[Steady]) {
    let said: Vec<_> = workers.iter().map(Steady::said).collect();
    for (_, line) in said.iter().flatten() {
        match line {
            Line::Failed { text, .. } => panic!("{text}"),
            Line::Call { contributors, .. } => assert_eq!(*contributors, ALL),
            Line::Joined { .. } | Line::Done => {}
        }
    }
    let verdict = judge(&said);
    assert!(verdict.calls > 0);
    assert_eq!((verdict.wrong, verdict.different), (0, 0), "{verdict:?}");
}

/// How a link goes away, and comes back.
#[derive(Clone, Copy, Debug)]
enum Flap {
    /// Somebody pulls the plug: both ends lose their carrier.
    Cable,
    /// The worker's interface goes down, and its routes with it.
    Interface,
    /// The switch's port goes down.
    Port,
    /// The worker loses its address: a lease is renewed.
    Address,
}

impl Flap {
    const ALL: [Self; 4] = [Self::Cable, Self::Interface, Self::Port, Self::Address];

    fn make(self, topology: &Topology, worker: usize, away: bool) {
        let host = topology.worker(worker);
        let state = if away { "down" } else { "up" };
        match self {
            Self::Cable => topology.set_link_up(worker, !away).expect("the cable is there"),
            Self::Interface => ip(host, &format!("link set eth0 {state}")),
            Self::Port => ip(topology.aggregator(), &format!("link set p{worker} {state}")),
            Self::Address => {
                let verb = if away { "del" } else { "add" };
                let address = topology.worker_addr(worker);
                ip(host, &format!("addr {verb} {address}/24 dev eth0"));
            }
        }
    }
}

/// Whether TCP's pauses between repetitions can be bounded (`TCP_RTO_MAX_MS`), so that a link may
/// flap again at once.
fn bounds_pauses() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it is Linux");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    (next(), next()) >= (6, 15)
}

/// A link that is away for three seconds costs time only, also if it is away again within a second.
/// `XDP_AGG_FLAPS` says how often.
#[test]
fn a_link_that_is_away_for_three_seconds_costs_time_only() {
    need_root!();
    let times: usize = std::env::var("XDP_AGG_FLAPS").map_or(2, |n| n.parse().expect("a number"));
    let soon = bounds_pauses();
    // Where in the calls, and which worker: the same in every run.
    let mut random = 7_u64;
    let mut draw = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    for (policy, settings) in [("fail", &[][..]), ("shrink", &[SHRINK][..])] {
        let lab = Lab::start(network(WORKERS, "ports"), "xdp");
        let workers = lab.steady_job(policy, WORKERS, settings, &Work::default());
        let mut worker = 0;
        for at in 0..times {
            let flap = Flap::ALL[draw(Flap::ALL.len() as u64) as usize];
            // Every other one follows the last within a second, at the same worker.
            let again = soon && at % 2 == 1;
            let pause = match (again, soon) {
                (true, _) => 0,
                // The last repetitions of TCP are over by then: every second, or later and later.
                (false, true) => 1500,
                (false, false) => 4000,
            };
            if !again {
                worker = draw(WORKERS.into()) as usize;
            }
            sleep(Duration::from_millis(pause + draw(1000)));
            flap.make(&lab.topology, worker, true);
            sleep(Duration::from_secs(3));
            flap.make(&lab.topology, worker, false);
            let since = Instant::now();
            if soon && !again && at + 1 < times {
                continue;
            }
            call_after(&lab, &workers, since);
            eprintln!("{policy}, {at}, {flap:?} of {worker}: on after {:?}", since.elapsed());
        }
        check(&workers);
        assert_eq!(lab.job_stats(policy).info.epoch, 1, "{policy}: no member was lost");
    }
}

/// Elements that a worker has summed between two moments, in a second.
fn rate(worker: &Steady, from: Instant, until: Instant) -> f64 {
    let said = worker.said();
    let within = said.iter().filter(|(at, _)| (from..until).contains(at));
    let elements = within.map(|(_, line)| if let Line::Call { len, .. } = line { *len } else { 0 });
    elements.sum::<usize>() as f64 / (until - from).as_secs_f64()
}

/// Results that are sent to one worker once more, for each sum, over some time.
fn resends(lab: &Lab, job: &str) -> f64 {
    let before = lab.job_stats(job).counters;
    sleep(Duration::from_secs(1));
    let after = lab.job_stats(job).counters;
    let (sums, resends) = (after.blocks - before.blocks, after.resends - before.resends);
    if sums < 10 { f64::INFINITY } else { resends as f64 / sums as f64 }
}

/// Some time after a change the job is as fast as before, by the better part, and results come by
/// themselves.
fn is_as_fast_again(lab: &Lab, workers: &[Steady], job: &str, change: impl FnOnce()) {
    const WINDOW: Duration = Duration::from_secs(3);
    sleep(WINDOW);
    let now = Instant::now();
    let before = rate(&workers[0], now - WINDOW, now);
    change();
    let since = Instant::now();
    loop {
        let resends = resends(lab, job);
        let now = Instant::now();
        let after = rate(&workers[0], now - WINDOW, now) / before;
        if now - since > WINDOW && after >= 0.8 && resends < 0.2 {
            eprintln!("{job}: {:.0} % after {:?}, {resends:.3}", 100.0 * after, since.elapsed());
            break;
        }
        let too_long = since.elapsed() > LIMIT;
        assert!(!too_long, "{job}: {:.0} %, {resends:.3} resends a sum", 100.0 * after);
    }
    check(workers);
}

/// Calls of middling length.
fn work() -> Work {
    Work { longest: 20_000, ..Work::default() }
}

/// The hosts around a worker ask for its link-layer address again.
fn forget(topology: &Topology, worker: usize) {
    let address = topology.worker_addr(worker);
    let interface = topology.aggregator_stack_interface();
    ip(topology.aggregator(), &format!("neigh del {address} dev {interface}"));
    for (other, host) in topology.workers().iter().enumerate().take(WORKERS.into()) {
        if other != worker {
            ip(host, &format!("neigh del {address} dev eth0"));
        }
    }
}

/// A worker gets another link-layer address: its virtual machine has moved, or its bond uses
/// another card.
#[test]
fn a_worker_with_another_address_of_the_link_is_found() {
    need_root!();
    for (engine, place, settings) in [
        ("xdp", "ports", &[][..]),
        ("xdp", "one nic", &[]),
        ("xdp", "one nic", &[MULTICAST]),
        ("userspace", "one nic", &[]),
        ("userspace", "one nic", &[MULTICAST]),
    ] {
        let lab = Lab::start(network(WORKERS, place), engine);
        let workers = lab.steady_job("mac", WORKERS, settings, &work());
        let what = format!("{engine}, {place}, {settings:?}");
        eprintln!("{what}");
        is_as_fast_again(&lab, &workers, "mac", || {
            ip(lab.topology.worker(1), "link set eth0 address 02:99:00:00:00:01");
            forget(&lab.topology, 1);
        });
        let moves = lab.job_stats("mac").counters.moves;
        assert_eq!(moves > 0, engine == "xdp", "{what}: {moves}");
        assert!(moves < 100, "{what}: {moves} moves");
    }
}

/// A worker goes on behind another served port, with another card.
#[test]
fn a_worker_behind_another_port_is_found() {
    need_root!();
    for (engine, settings) in [("xdp", &[][..]), ("xdp", &[MULTICAST]), ("userspace", &[])] {
        let topology = Topology::builder().workers(4).wire(false).build().expect("a network");
        let lab = Lab::start(topology, engine);
        let workers = lab.steady_job("port", WORKERS, settings, &work());
        eprintln!("{engine}, {settings:?}");
        is_as_fast_again(&lab, &workers, "port", || {
            let (moving, spare) = (lab.topology.worker(1), lab.topology.worker(3));
            // A name for its namespace that `ip` takes.
            let pid = workers[1].process.pid();
            ip(spare, &format!("link set eth0 netns {pid} name eth1"));
            let address = lab.topology.worker_addr(1);
            ip(moving, &format!("addr del {address}/24 dev eth0"));
            ip(moving, "link set eth0 down");
            ip(moving, "link set eth1 up");
            moving.command("ethtool").args(["-K", "eth1", "gro", "on"]).status().expect("it runs");
            ip(moving, &format!("addr add {address}/24 dev eth1"));
            forget(&lab.topology, 1);
        });
    }
}

/// A router on the way to a worker gets another link-layer address: another one has taken over.
#[test]
fn a_worker_behind_another_router_is_found() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(WORKERS, "one nic"), engine);
        let (router, behind) = (lab.topology.worker(2), Namespace::new("behind").expect("root"));
        let (near, far) = ("10.77.0.1".parse().expect("one"), "10.77.0.2".parse().expect("one"));
        router.connect(("in", near), &behind, ("eth0", far)).expect("it fits");
        let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        router.run(forward).expect("a thread").expect("it routes");
        let (way, at) = (lab.topology.worker_addr(2), lab.topology.aggregator_stack_interface());
        ip(&behind, &format!("route add {} via {near}", lab.topology.aggregator_addr()));
        ip(lab.topology.aggregator(), &format!("route add {far} via {way} dev {at}"));
        let start = |rank: u16| {
            let host = if rank == 2 { &behind } else { lab.topology.worker(rank.into()) };
            let mut command = host.command(program("steady_worker").expect("it is built"));
            command
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", WORKERS.to_string())
                .env("XDP_AGG_ADDR", lab.control().to_string())
                .env("XDP_AGG_JOB", "router");
            Steady::spawn(&format!("rank {rank}"), command, &work()).expect("it starts")
        };
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        for worker in &workers {
            worker.wait_calls(1, LIMIT).expect("the job begins");
        }
        is_as_fast_again(&lab, &workers, "router", || {
            ip(router, "link set eth0 address 02:99:00:00:00:02");
            forget(&lab.topology, 2);
        });
    }
}

/// A served interface is removed and made anew, or moved away and back: it is served again.
#[test]
fn an_interface_that_comes_back_is_served_again() {
    need_root!();
    for way in ["removed", "moved away"] {
        let topology = Topology::builder().workers(3).wire(false).build().expect("a network");
        let lab = Lab::start(topology, "xdp");
        let workers = lab.steady_job("again", WORKERS, &[], &work());
        let (agg, host) = (lab.topology.aggregator(), lab.topology.worker(1));
        let pid = workers[1].process.pid();
        is_as_fast_again(&lab, &workers, "again", || {
            if way == "removed" {
                ip(agg, "link del p1");
                sleep(Duration::from_secs(1));
                ip(agg, &format!("link add p1 type veth peer name eth0 netns {pid}"));
                host.command("ethtool")
                    .args(["-K", "eth0", "gro", "on"])
                    .status()
                    .expect("it runs");
                ip(host, "link set eth0 up");
                ip(host, &format!("addr add {}/24 dev eth0", lab.topology.worker_addr(1)));
            } else {
                ip(agg, &format!("link set p1 netns {pid}"));
                sleep(Duration::from_secs(1));
                let own = lab.daemon.as_ref().expect("it runs").pid();
                ip(host, &format!("link set p1 netns {own}"));
            }
            ip(agg, "link set p1 master br0 up");
            forget(&lab.topology, 1);
        });
        let said = lab.daemon.as_ref().expect("it runs").stderr();
        assert!(said.contains("p1 is gone") && said.contains("is over"), "{said}");
    }
}

/// Where results cannot reach a worker any more, the job ends with the reason, before its calls'
/// deadline; under `shrink` the others go on.
#[test]
fn what_keeps_results_from_a_worker_is_told() {
    need_root!();
    let quick = ["--dead-after", "4"];
    for (engine, change, words) in [
        ("xdp", "link set p1 mtu 1000", "the MTU of p1 is 1000 now"),
        ("userspace", "link set br0 mtu 1000", "the MTU towards workers is 1000 now"),
        ("xdp", "link del p1", "p1 is gone"),
        ("xdp", "link set p1 down", "p1 is down"),
    ] {
        let topology = Topology::builder().workers(3).wire(false).build().expect("a network");
        let lab = Lab::start_with(topology, engine, &quick);
        let workers = lab.steady_job("told", WORKERS, &[], &Work::default());
        let since = Instant::now();
        ip(lab.topology.aggregator(), change);
        let failed = |_, line: &Line| matches!(line, Line::Failed { .. });
        let (at, line) = workers[0].wait("an error", LIMIT, failed).expect("it ends");
        let Line::Failed { text, .. } = line else { panic!("{line:?}") };
        assert!(text.contains(words) && at - since < Duration::from_secs(8), "{change}: {text}");
    }
    let topology = Topology::builder().workers(3).wire(false).build().expect("a network");
    let lab = Lab::start_with(topology, "xdp", &quick);
    let workers = lab.steady_job("shrinks", WORKERS, &[SHRINK], &Work::default());
    ip(lab.topology.aggregator(), "link set p1 mtu 1000");
    for worker in [&workers[0], &workers[2]] {
        let without = |_, line: &Line| matches!(line, Line::Call { contributors: 0b101, .. });
        worker.wait("a call without rank 1", LIMIT, without).expect("the others go on");
    }
    let failed = |_, line: &Line| matches!(line, Line::Failed { .. });
    let (_, line) = workers[1].wait("an error", LIMIT, failed).expect("it is told");
    assert!(
        matches!(&line, Line::Failed { text, .. } if text.contains("the MTU of p1")),
        "{line:?}"
    );
}
