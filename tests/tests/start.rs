//! The start: a daemon, its name, or another worker may come late.

mod support;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use support::{ENGINES, LIMIT, Lab, check_sums, log, need_root, network};
use xdp_agg_client::{Builder, Communicator};
use xdp_agg_testbed::steady::{Line, Steady, Work};
use xdp_agg_testbed::{at_once, program};

const SECOND: Duration = Duration::from_secs(1);

/// A daemon that comes later than any attempt of old would have waited.
#[test]
fn a_daemon_may_come_late() {
    need_root!();
    log::keep();
    let mut lab =
        Lab { topology: network(2, "ports"), daemon: None, engine: "xdp", extra: Vec::new() };
    let tune = |settings: Builder| settings.join_deadline(60 * SECOND).warn_after(4 * SECOND);
    let start = Instant::now();
    let workers = thread::scope(|scope| {
        let topology = &lab.topology;
        let settings: Vec<_> = (0..2).map(|rank| tune(lab.worker("early", rank, 2))).collect();
        let connect = |(rank, settings): (u16, Builder)| {
            let host = topology.worker(rank.into());
            host.run(move || settings.connect()).expect("entering the namespace").expect("it joins")
        };
        let all: Vec<_> =
            (0..).zip(settings).map(|one| scope.spawn(move || connect(one))).collect();
        thread::sleep(16 * SECOND);
        let daemon = lab.spawn_daemon(&[]);
        daemon.wait_line("ready", LIMIT, |line| line.starts_with("ready ")).expect("it starts");
        let all: Vec<_> = all.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        (all, daemon)
    });
    assert!(start.elapsed() >= 16 * SECOND);
    check_sums(&workers.0, 1000);
    lab.daemon = Some(workers.1);
    let said = log::wait(&["early", "rank=1", "the job has not begun after 4 s"], SECOND);
    for words in ["no aggregator at 10.", "refused", "XDP_AGG_JOIN_DEADLINE says how long it may"] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
}

/// The daemon waits as long as its job's workers do, whatever it would do by itself.
#[test]
fn a_worker_may_come_late() {
    need_root!();
    log::keep();
    for engine in ENGINES {
        let lab = Lab::start_with(network(2, "ports"), engine, &["--join-timeout", "2"]);
        let job = format!("late {engine}");
        let tune = |settings: Builder| settings.warn_after(3 * SECOND);
        let workers = thread::scope(|scope| {
            let first = scope.spawn(|| lab.connect_ranks(&job, 0..1, 2, tune));
            thread::sleep(8 * SECOND);
            let mut all = lab.connect_ranks(&job, 1..2, 2, tune);
            all.splice(0..0, first.join().expect("it waited"));
            all
        });
        check_sums(&workers, 1000);
        for after in ["after 3 s", "after 6 s"] {
            log::wait(&[&job, "rank=0", "waiting for rank 1 to join", after], SECOND);
        }
    }
}

/// Where no aggregator is named, too, a worker says what it waits for, as often as its setting
/// wants.
#[test]
fn who_meets_without_a_daemon_says_what_it_waits_for() {
    need_root!();
    log::keep();
    let topology = network(2, "ports");
    let master = SocketAddr::from((topology.worker_addr(0), 29_600));
    let join = |rank: u16, job: &'static str| {
        let settings = Communicator::builder().rank(rank).world_size(3).master(master).job(job);
        let settings = settings.warn_after(SECOND).join_deadline(3 * SECOND);
        let host = topology.worker(rank.into());
        let joined = host.run(move || settings.connect().map(drop)).expect("entering the host");
        joined.expect_err("nobody else comes").to_string()
    };
    let alone = join(1, "empty");
    assert!(alone.contains("cannot be reached"), "{alone}");
    let said = log::wait(&["rank=1", "no meeting after 1 s"], SECOND);
    assert!(said.contains(&master.to_string()), "{said}");

    let both = at_once(0..2, |rank| join(rank, "short"));
    assert!(both.iter().all(|error| error.contains("missing 2")), "{both:?}");
    log::wait(&["waiting for ranks [2]", "the meeting", ", 1 s"], SECOND);
    log::wait(&["waiting for ranks [2]", "the meeting", ", 2 s"], SECOND);
    log::wait(&["rank=1", "at the meeting", "others are missing"], SECOND);
}

/// Whose limit ends the wait is said, and what raises it.
#[test]
fn the_limit_that_ends_the_wait_is_named() {
    need_root!();
    let lab = Lab::start_with(
        network(2, "ports"),
        "userspace",
        &["--join-timeout", "1", "--join-timeout-max", "3"],
    );
    let error = lab.connect_one(0, lab.worker("operator", 0, 2)).map(drop).expect_err("alone");
    let said = error.to_string();
    for words in ["ranks [1] of job", "within 3s", "`--join-timeout-max`"] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }

    let settings = lab.worker("own", 0, 2).join_deadline(2 * SECOND);
    let error = lab.connect_one(0, settings).map(drop).expect_err("alone");
    let said = error.to_string();
    for words in ["within 2s (XDP_AGG_JOIN_DEADLINE)", "ranks [1] did not come to job"] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
}

/// A worker that sees this file as `/etc/hosts`.
fn named(lab: &Lab, job: &str, rank: u16, hosts: &Path, name: &str) -> Steady {
    let worker = program("steady_worker").expect("the tests' programs are built");
    let mut command: Command = lab.topology.worker(rank.into()).command("unshare");
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(hosts).arg(worker);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("XDP_AGG_ADDR", name)
        .env("XDP_AGG_JOB", job)
        .env("XDP_AGG_JOIN_DEADLINE", "40");
    let work = Work { calls: 3, ..Work::default() };
    Steady::spawn(&format!("rank {rank}"), command, &work).expect("it starts")
}

/// The daemon's name is looked up until it leads to the daemon: it may come late, and be wrong at
/// first.
#[test]
fn a_name_may_come_late_and_be_wrong_at_first() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let directory = tempfile::tempdir().expect("a directory");
    let right = format!("{} agg.svc.test\n", lab.topology.aggregator_addr());
    let wrong = format!("{} agg.svc.test\n", lab.topology.worker_addr(0));
    for (job, at_first) in [("nameless", ""), ("misled", &*wrong)] {
        let files = [0, 1].map(|rank| directory.path().join(format!("{job} {rank}")));
        files.iter().for_each(|file| fs::write(file, at_first).expect("a file"));
        let workers =
            [0, 1].map(|rank| named(&lab, job, rank, &files[usize::from(rank)], "agg.svc.test"));
        thread::sleep(5 * SECOND);
        for (worker, file) in workers.iter().zip(&files) {
            assert!(worker.said().is_empty(), "{:?}", worker.said());
            // In place: the mount is of this very file.
            let mut file =
                fs::OpenOptions::new().write(true).truncate(true).open(file).expect("it");
            file.write_all(right.as_bytes()).expect("written");
        }
        for worker in &workers {
            let done = |_: Instant, line: &Line| matches!(line, Line::Done);
            worker.wait("the end of its calls", LIMIT, done).expect("it finds the daemon");
        }
    }
}

/// A name that stays unknown is an error that says so, at the end of the time.
#[test]
fn a_name_that_nobody_knows_is_named() {
    let settings = |name| match name {
        "RANK" => Some("0".into()),
        "WORLD_SIZE" => Some("1".into()),
        "XDP_AGG_ADDR" => Some("nobody.invalid".into()),
        "XDP_AGG_JOIN_DEADLINE" => Some("1.5".into()),
        _ => None,
    };
    let start = Instant::now();
    let builder = Builder::from_lookup(settings).expect("a name may come later");
    let error = builder.connect().map(drop).expect_err("nobody").to_string();
    assert!(start.elapsed() >= SECOND, "{:?}", start.elapsed());
    for words in ["XDP_AGG_ADDR", "nobody.invalid:9870 cannot be resolved", "XDP_AGG_JOIN_DEADLINE"]
    {
        assert!(error.contains(words), "{words:?} is not in {error}");
    }
}
