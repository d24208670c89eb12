//! Waiting is not failing: a call waits for workers that are alive, says what it waits for, and
//! ends with the reason.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use support::{
    ENGINES, LIMIT, Lab, at_all, check_sums, log, need_root, network, on_all, second_daemon,
};
use xdp_agg_client::collectives::{Algorithm, Choice, Way};
use xdp_agg_client::{Builder, Communicator, Error, JobError, Op};
use xdp_agg_common::control::AbortReason;
use xdp_agg_common::wire::DATA_PORT;
use xdp_agg_testbed::{Direction, Faults, Process, at_once, program};

const SECOND: Duration = Duration::from_secs(1);

/// What an iteration takes in which everything is compiled first.
const COMPILING: Duration = Duration::from_secs(40);

/// A worker with the settings that a user has who sets none.
fn default_settings(lab: &Lab, job: &str, rank: u16) -> Builder {
    let settings = Communicator::builder().aggregator(lab.control()).job(job);
    settings.rank(rank).world_size(2)
}

/// A first iteration takes one rank 40 s: the other one waits, and says for which rank, how that
/// does, and what bounds the wait.
#[test]
fn a_first_iteration_of_forty_seconds_is_waited_for() {
    need_root!();
    log::keep();
    thread::scope(|scope| {
        for engine in ENGINES {
            scope.spawn(move || {
                let lab = Lab::start(network(2, "ports"), engine);
                let job = format!("compiles {engine}");
                let connect = |rank| {
                    let connected = lab.connect_one(rank, default_settings(&lab, &job, rank));
                    connected.expect("it joins")
                };
                let [patient, slow] = at_once([0, 1], connect).try_into().expect("two");
                let start = Instant::now();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        thread::sleep(COMPILING);
                        slow.all_reduce(&mut [1.0_f32; 1000], Op::Sum).expect("the other waits");
                    });
                    let mut data = [1.0_f32; 1000];
                    patient.all_reduce(&mut data, Op::Sum).expect("it waits");
                    assert_eq!(data, [2.0; 1000]);
                });
                assert!(start.elapsed() >= COMPILING);
                // After 10 s, and after 20 s; the next one would have been after 40 s.
                let said = log::with(&[&job]);
                assert!(said.len() >= 2, "{said:?}");
                for words in [
                    "call 0 has waited 10 s: waiting for rank 1: rank 1 is alive (its process \
                     answered ",
                    " and has not made this call: it is in no call, and the next one that it makes \
                     is number 0",
                    "; XDP_AGG_DEADLINE says how long it may",
                ] {
                    assert!(said[0].contains(words), "{}", said[0]);
                }
                assert!(said[1].contains("has waited 20 s"), "{}", said[1]);
            });
        }
    });
}

/// The first worker's error, with the others of a job of three doing what they do.
fn fails(workers: &[Communicator]) -> (Error, Duration) {
    let start = Instant::now();
    let error = workers[0].all_reduce(&mut vec![1_i32; 5000], Op::Sum).expect_err("rank 2");
    (error, start.elapsed())
}

fn words(error: &Error, expected: &[&str]) {
    let said = error.to_string();
    for words in expected {
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
}

/// Five reasons to wait, and five messages.
#[test]
fn each_reason_to_wait_has_its_own_message() {
    need_root!();
    log::keep();
    for engine in ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let brief = |settings: Builder| settings.deadline(8 * SECOND).warn_after(4 * SECOND);

        // Left in good order.
        let mut workers = lab.connect("left", 3, brief);
        drop(workers.pop());
        let (error, took) = fails(&workers);
        let left =
            matches!(&error, Error::Job(JobError::Aborted(AbortReason::Member { rank: 2, .. })));
        assert!(left && took < 5 * SECOND, "{error}");
        words(&error, &["rank 2 left in good order"]);
        drop(workers);

        // Dead, and stopped.
        for (job, signal) in [("dead", libc::SIGKILL), ("stopped", libc::SIGSTOP)] {
            let mut command =
                lab.topology.worker(2).command(program("idle_worker").expect("built"));
            command.envs([("RANK", "2"), ("WORLD_SIZE", "3"), ("XDP_AGG_JOB", job)]);
            command.env("XDP_AGG_ADDR", lab.control().to_string()).env("XDP_AGG_SCALE", "1024");
            let mut third = Process::spawn("rank 2", command).expect("it starts");
            let workers = lab.connect_ranks(job, 0..2, 3, brief);
            third.wait_line("its job", LIMIT, |line| line.contains("joined")).expect("it joins");
            third.signal(signal).expect("it runs");
            let (error, took) = fails(&workers);
            if signal == libc::SIGKILL {
                let lost = matches!(
                    &error,
                    Error::Job(JobError::Aborted(AbortReason::MemberLost { rank: 2 }))
                );
                assert!(lost && took < 3 * SECOND, "{took:?}: {error}");
                continue;
            }
            words(&error, &["XDP_AGG_DEADLINE", "rank 2 is stopped", "answered no heartbeat"]);
            assert!(took >= 8 * SECOND, "{took:?}");
            // The other one had not called either.
            words(&error, &["rank 1 is alive", "has not made this call"]);
            let said = log::wait(&["stopped", "rank 2 is stopped"], SECOND);
            assert!(said.contains("call 0 has waited "), "{said}");
        }

        // Alive, and has not called.
        let workers = lab.connect("idle", 3, brief);
        check_sums(&workers, 1000);
        thread::scope(|scope| {
            scope.spawn(|| workers[1].all_reduce(&mut vec![1_i32; 5000], Op::Sum));
            let (error, took) = fails(&workers);
            assert!(took >= 7 * SECOND, "{took:?}: {error}");
            words(&error, &["waiting for rank 2: rank 2 is alive (its process answered "]);
            words(&error, &["has not made this call", "the next one that it makes is number 2"]);
            words(&error, &["XDP_AGG_DEADLINE"]);
        });
        drop(workers);

        // Calls something else.
        let workers = lab.connect("other", 3, brief);
        thread::scope(|scope| {
            for worker in &workers[1..] {
                scope.spawn(move || {
                    let len = if worker.rank() == 2 { 5001 } else { 5000 };
                    worker.all_reduce(&mut vec![1_i32; len], Op::Sum).expect_err("they differ")
                });
            }
            let (error, took) = fails(&workers);
            assert!(took < 3 * SECOND, "{took:?}");
            words(&error, &["calls differ", "of 5000 i32"]);
        });
    }
}

/// Calls among the workers themselves, and a broadcast of which the root is late.
#[test]
fn calls_among_the_workers_say_what_they_wait_for() {
    need_root!();
    log::keep();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let brief = |settings: Builder| settings.deadline(8 * SECOND).warn_after(2 * SECOND);
    let ring = Choice::new(Way::Mesh(Algorithm::Chain)).unchecked();
    let workers = lab.connect("mesh", 3, brief);
    at_all(&lab.topology, &workers, |worker| {
        worker.broadcast_by(&mut [i32::from(worker.rank()); 999], 0, ring).expect("all are there");
    });
    let errors = at_all(&lab.topology, &workers, |worker| match worker.rank() {
        // The root has not called.
        0 => {
            thread::sleep(12 * SECOND);
            None
        }
        _ => worker.broadcast_by(&mut [0_i32; 999], 0, ring).err(),
    });
    let said: Vec<_> = errors.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{errors:?}");
    let known = "rank 0 is alive (its process answered ";
    // Which of the two gives up first, and says why, is open.
    let alive = "is alive (its process answered ";
    assert!(said.iter().any(|said| said.contains(alive)), "{said:?}");
    assert!(said.iter().any(|said| said.contains("XDP_AGG_DEADLINE")), "{said:?}");
    let warned = log::wait(&["broadcast", "has waited 2 s", known], SECOND);
    assert!(warned.contains("has not made this call"), "{warned}");

    // One makes another call, which goes through the aggregator.
    let workers = lab.connect("aside", 3, brief);
    at_all(&lab.topology, &workers, |worker| {
        worker.broadcast_by(&mut [0_i32; 999], 0, ring).expect("all are there");
    });
    let start = Instant::now();
    let errors = at_all(&lab.topology, &workers, |worker| match worker.rank() {
        0 => worker.all_reduce(&mut vec![1_i32; 5000], Op::Sum).expect_err("the others do not"),
        _ => worker.broadcast_by(&mut [0_i32; 999], 0, ring).expect_err("rank 0 does not"),
    });
    assert!(start.elapsed() < 6 * SECOND, "{:?}", start.elapsed());
    words(&errors[0], &["calls differ", "sum of 5000 i32", "made broadcast of 999 i32"]);

    let workers = lab.connect("solo", 3, brief);
    let waited = at_all(&lab.topology, &workers, |worker| match worker.rank() {
        0 => None,
        _ => worker.broadcast_by(&mut [0_i32; 999], 0, Choice::new(Way::Aggregator)).err(),
    });
    let said: Vec<_> = waited.iter().flatten().map(ToString::to_string).collect();
    assert!(said.iter().all(|said| said.contains("rank 0 is alive")), "{said:?}");
}

/// The process of a host that its fellows and another host wait for is named, and how it does.
#[test]
fn processes_of_a_host_are_waited_for() {
    need_root!();
    log::keep();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let tune = |settings: Builder, _| settings.deadline(6 * SECOND).warn_after(2 * SECOND);
    let workers = lab.connect_hosts("hosts", (2, 2), tune);
    check_sums(&workers, 20_000);
    let errors = on_all(&workers, |worker| {
        let calls = worker.rank() != 3;
        calls.then(|| worker.all_reduce(&mut vec![1_i32; 20_000], Op::Sum).expect_err("rank 3"))
    });
    let said: Vec<_> = errors.iter().flatten().map(ToString::to_string).collect();
    let names_it = |said: &String| said.contains("rank 3") || said.contains("local ranks [1]");
    assert!(said.iter().all(names_it), "{said:?}");
    let warned = log::wait(&["hosts", "rank=0", "has waited 2 s"], SECOND);
    assert!(warned.contains("waits for rank 3 of its host"), "{warned}");
    let warned = log::wait(&["hosts", "rank=2", "after 2 s"], SECOND);
    assert!(warned.contains("rank 3"), "{warned}");
}

/// All are alive and have called, and packets do not pass: this is not waited for as long as
/// workers are.
#[test]
fn a_data_path_that_is_closed_is_told_from_a_late_worker() {
    need_root!();
    log::keep();
    for engine in ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        let job = format!("closed {engine}");
        let tune = |settings: Builder| settings.stall_deadline(4 * SECOND).warn_after(2 * SECOND);
        let workers = lab.connect(&job, 2, |settings| tune(settings).deadline(1000 * SECOND));
        check_sums(&workers, 1000);
        let dark = Faults { loss: 1.0, ..Faults::NONE }.only_udp(DATA_PORT);
        for direction in Direction::BOTH {
            lab.topology.set_faults(1, direction, &dark).expect("faults are set");
        }
        let start = Instant::now();
        let errors = at_all(&lab.topology, &workers, |worker| {
            worker.all_reduce(&mut vec![1_i32; 5000], Op::Sum).expect_err("nothing passes")
        });
        assert!(start.elapsed() < 15 * SECOND, "{:?}", start.elapsed());
        let said: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert!(said.iter().all(|said| said.contains("XDP_AGG_STALL_DEADLINE")), "{said:?}");
        assert!(said.iter().all(|said| said.contains("waiting for rank 1")), "{said:?}");
        let warned = log::wait(&[&job, "has waited 2 s", "rank=0"], SECOND);
        assert!(warned.contains("does not arrive at the aggregator"), "{warned}");
    }
}

/// With several aggregators the one that lacks something says what.
#[test]
fn several_aggregators_wait_as_one_does() {
    need_root!();
    log::keep();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let (_daemon, second) = second_daemon(&lab);
    let both = [lab.control(), second];
    let tune = |settings: Builder| settings.aggregators(both).warn_after(2 * SECOND);
    let workers = lab.connect("two", 2, tune);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(5 * SECOND);
            workers[1].all_reduce(&mut vec![1_i32; 50_000], Op::Sum).expect("it is waited for");
        });
        workers[0].all_reduce(&mut vec![1_i32; 50_000], Op::Sum).expect("it waits");
    });
    log::wait(&["two", "rank=0", "has waited 2 s", "rank 1 is alive"], SECOND);
}
