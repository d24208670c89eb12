//! Years in minutes: jobs come and go, links flap, the daemon dies and comes back, and neither its
//! memory nor its descriptors grow.
//!
//! A short run is a test. `cargo xtask soak` runs it for longer and prints a table.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use support::watched::{all_begin, all_said, calls_of, check_none_failed};
use support::{LIMIT, Lab, need_root, network};
use xdp_agg_client::Op;
use xdp_agg_common::control::{Join, Reply, Request, read_message, write_message};
use xdp_agg_testbed::Process;
use xdp_agg_testbed::steady::{Line, Work};

/// Workers of the job that runs all the while. On the next host are whole jobs that come and go, on
/// the others workers that join and die at once.
const STEADY: u16 = 3;
const HOSTS: u16 = 10;
/// A daemon takes 100 new connections a second from one address.
const BETWEEN_JOINS: Duration = Duration::from_micros(10_500);
const RESUME: [(&str, &str); 1] = [("XDP_AGG_ON_AGGREGATOR_LOSS", "resume")];
/// Memory that the allocator may keep between two readings of a daemon that has the same jobs.
const SLACK_KIB: u64 = 4096;
/// Connections that are ending and interfaces that are being looked at have some.
const SLACK_FILES: usize = 24;
/// How long a link is away: less than a third of the time after which it counts as dead.
const AWAY: Duration = Duration::from_millis(700);

/// How long a run takes, and what it prints.
struct Plan {
    churn: Duration,
    restarts: u64,
    joins: u64,
}

impl Plan {
    fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        Self {
            churn: Duration::from_secs(number("XDP_AGG_SOAK_SECONDS").unwrap_or(8)),
            restarts: number("XDP_AGG_SOAK_RESTARTS").unwrap_or(2),
            joins: number("XDP_AGG_SOAK_JOINS").unwrap_or(0),
        }
    }
}

/// Resident memory of a process in KiB, and its open files.
fn uses(process: &Process) -> (u64, usize) {
    let proc = format!("/proc/{}", process.pid());
    let status = fs::read_to_string(format!("{proc}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has some");
    let kib = line.split_whitespace().next().and_then(|word| word.parse().ok());
    let files = fs::read_dir(format!("{proc}/fd")).expect("it runs").count();
    (kib.expect("a number"), files)
}

/// Workers that join, hear that they are in, and die, one after another, until `stop`.
fn knock(lab: &Lab, host: u16, (stop, joins): (&AtomicBool, &AtomicU64)) {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let number = joins.fetch_add(1, Ordering::Relaxed);
        let mut stream = lab.control_from(lab.topology.worker(host.into()));
        let join = Join {
            job: format!("knock-{number}"),
            world_size: 1,
            data_port: 4000,
            max_chunks: 22,
            slots: Some(4),
            ..Join::default()
        };
        write_message(&mut stream, &Request::Join(join)).expect("sent");
        let reply: Reply = read_message(&mut stream).expect("an answer");
        assert!(matches!(reply, Reply::Admitted(_)), "join {number}: {reply:?}");
        drop(stream);
        sleep(BETWEEN_JOINS.saturating_sub(began.elapsed()));
    }
}

/// Whole jobs of one worker, one after another, until `stop`.
fn churn(lab: &Lab, host: u16, (stop, joins): (&AtomicBool, &AtomicU64)) {
    let mut values = [1_i32; 600];
    while !stop.load(Ordering::Relaxed) {
        let number = joins.fetch_add(1, Ordering::Relaxed);
        let worker = lab.connect_one(host, lab.worker(&format!("short-{host}"), 0, 1));
        let worker = worker.unwrap_or_else(|error| panic!("join {number}: {error}"));
        if number.is_multiple_of(10) {
            worker.all_reduce(&mut values, Op::Sum).expect("a sum of one");
            assert_eq!(values, [1; 600]);
        }
    }
}

#[test]
fn memory_and_descriptors_stay_flat() {
    need_root!();
    let plan = Plan::from_env();
    let Some((_bpffs, mut lab)) = Lab::start_pinned(network(HOSTS, "ports")) else { return };
    let work = Work { longest: 20_000, ..Work::default() };
    let start = |rank| lab.steady("steady", rank, STEADY, &RESUME, &work);
    let workers = all_begin((0..STEADY).map(start));
    let (begin, stop, joins) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
    let mut flaps = 0;
    let daemon = lab.daemon.as_ref().expect("it runs");
    println!("| second | joins | link flaps | memory of the daemon, KiB | open files |");
    println!("|---|---|---|---|---|");
    let mut readings = Vec::new();
    thread::scope(|scope| {
        for host in STEADY..HOSTS {
            let (lab, both) = (&lab, (&stop, &joins));
            let come_and_go = if host == STEADY { churn } else { knock };
            scope.spawn(move || come_and_go(lab, host, both));
        }
        let enough = || begin.elapsed() > plan.churn && joins.load(Ordering::Relaxed) >= plan.joins;
        let (mut next, every) = (plan.churn / 4, plan.churn / 4);
        while !enough() {
            let link = flaps % usize::from(STEADY);
            lab.topology.set_link_up(link, false).expect("it has a plug");
            sleep(AWAY);
            lab.topology.set_link_up(link, true).expect("it has a plug");
            flaps += 1;
            sleep(AWAY);
            if begin.elapsed() > next {
                next += every;
                let (kib, files) = uses(daemon);
                let (at, joins) = (begin.elapsed().as_secs(), joins.load(Ordering::Relaxed));
                println!("| {at} | {joins} | {flaps} | {kib} | {files} |");
                readings.push((kib, files));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (first, last) = (readings[0], readings[readings.len() - 1]);
    assert!(last.0 <= first.0 + SLACK_KIB, "memory grows: {readings:?}");
    assert!(last.1 <= first.1 + SLACK_FILES, "open files grow: {readings:?}");
    let gone = Instant::now();
    while lab.stats().jobs.len() > 1 {
        assert!(gone.elapsed() < LIMIT, "what came has not gone: {:?}", lab.stats().jobs);
        sleep(AWAY);
    }

    let before = uses(daemon);
    for _ in 0..plan.restarts {
        lab.daemon.take().expect("it runs").kill().expect("it was running");
        lab.start_daemon();
        calls_of(&workers, Instant::now(), 0b111, LIMIT);
    }
    let after = uses(lab.daemon.as_ref().expect("it runs"));
    assert!(after.0 <= before.0 + SLACK_KIB, "{before:?} {after:?}");
    assert!(after.1 <= before.1 + SLACK_FILES, "{before:?} {after:?}");
    let said = all_said(&workers);
    check_none_failed(&said);
    let calls = said[0].iter().filter(|(_, line)| matches!(line, Line::Call { .. })).count();
    println!(
        "{} s, {} joins, {flaps} flaps, {} restarts, {calls} calls of the job that ran all the \
         while, none failed",
        begin.elapsed().as_secs(),
        joins.load(Ordering::Relaxed),
        plan.restarts
    );
}
