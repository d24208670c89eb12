//! What happens when packets, workers or the daemon are lost.

mod support;

use std::time::{Duration, Instant};

use support::{ENGINES, Lab, check_all, check_sums, need_root, network, on_all};
use xdp_agg_client::{Communicator, Error, JobError, Op};
use xdp_agg_common::control::AbortReason;
use xdp_agg_common::wire::DATA_PORT;
use xdp_agg_testbed::{Direction, Faults, Process, Topology, at_once};

fn lossy(faults: Faults) -> Topology {
    let faults = faults.only_udp(DATA_PORT);
    Topology::builder().workers(4).faults(faults).build().expect("a network")
}

/// Invariants 1 and 3: sums stay exact and calls end under loss in both directions of every link.
#[test]
fn sums_survive_loss() {
    need_root!();
    for engine in ENGINES {
        for loss in [0.01, 0.10] {
            let lab = Lab::start(lossy(Faults { loss, ..Faults::NONE }), engine);
            let workers = lab.connect("loss", 4, |settings| settings);
            check_all(&workers, [1, 353, 60_000]);
            let counters = lab.job_stats("loss").counters;
            assert!(counters.duplicates > 0, "nothing was lost? {counters:?}");
            assert_eq!(counters.contributions, counters.blocks * 4, "{counters:?}");
        }
    }
}

/// Results that leave the program together reach a worker as trains: they have checksums, without
/// which no kernel merges them.
#[test]
fn results_arrive_as_trains() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = lab.connect("trains", 2, |settings| settings);
    check_sums(&workers, 400_000);
    let before = lab.topology.host_counters(0).expect("counters").rx_packets;
    check_sums(&workers, 400_000);
    let packets = lab.topology.host_counters(0).expect("counters").rx_packets - before;
    let results = 2 * 400_000 / 352;
    assert!(packets < results / 4, "{packets} packets for {results} results");
}

/// A bit that flips on a result's way shows in its checksum. The worker's kernel drops the packet,
/// which then counts as lost. (A port for each worker: a switch of this machine that merges what it
/// receives has verified it, and what is damaged behind the switch is not looked at again.)
#[test]
fn damaged_results_are_never_taken_for_right() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    let workers = lab.connect("damage", 4, |settings| settings);
    for link in 0..4 {
        lab.topology.damage(link).expect("it is attached");
    }
    check_all(&workers, [1, 353, 200_000]);
    let damaged: u64 = (0..4).map(|link| lab.topology.damaged(link).expect("a count")).sum();
    let counters = lab.job_stats("damage").counters;
    // The blocks are more than 1100 results for each worker, of which one in fifty is damaged.
    assert!(damaged > 40, "{damaged}");
    assert!(counters.resends >= damaged / 2, "{damaged} damaged, {counters:?}");
}

/// A path of 20 ms does not count as a queue, and trips that vary by nothing do not end the
/// waiting: the window grows as on a short one, and without loss nothing is repeated.
#[test]
fn sums_cross_long_paths() {
    need_root!();
    let delay = Duration::from_millis(10);
    let topology = Topology::builder().workers(4).delay(delay).build().expect("a network");
    let lab = Lab::start(topology, "xdp");
    let workers = lab.connect("far", 4, |settings| settings);
    check_all(&workers, [1, 353, 353, 353, 200_000]);
    for worker in &workers {
        let counters = worker.counters();
        let flow = counters.flow;
        let repeated = flow.gap_retransmissions + flow.timer_retransmissions;
        assert!(repeated < flow.sent / 10, "{flow:?}");
        assert!(counters.window >= 100, "{counters:?}");
    }
    for link in 0..4 {
        let loss = Faults::loss(0.02).only_udp(DATA_PORT);
        lab.topology.set_faults(link, Direction::Up, &loss).expect("faults are set");
    }
    check_sums(&workers, 60_000);
}

/// The same under duplication, delay and reordering, alone and together with loss.
#[test]
fn sums_survive_duplicates_and_reordering() {
    need_root!();
    let held = Faults { hold: 0.1, hold_packets: 7, ..Faults::NONE };
    for faults in [
        Faults { duplicate: 0.2, ..Faults::NONE },
        held,
        Faults { hold_time: Duration::from_millis(3), ..held },
        Faults { loss: 0.02, duplicate: 0.1, ..held },
    ] {
        let lab = Lab::start(lossy(faults), "xdp");
        let workers = lab.connect("reorder", 4, |settings| settings);
        check_all(&workers, [353, 60_000]);
        let counters = lab.job_stats("reorder").counters;
        assert_eq!(counters.contributions, counters.blocks * 4, "{faults:?}: {counters:?}");
    }
}

/// Answers to one worker and copies for all leave by one interface in one go, and each reaches its
/// receivers. With every contribution doubled but none lost, nothing has to be repeated. (The
/// kernel runs the first frame's program for all frames that leave together.)
#[test]
fn answers_do_not_mislead_copies() {
    need_root!();
    for place in ["ports", "one nic"] {
        let lab = Lab::start(network(4, place), "xdp");
        // A window whose copies and answers fit any interface's queue: nothing is lost that way.
        let workers = lab.connect("doubled", 4, |settings| settings.slots(32));
        let doubled = Faults { duplicate: 1.0, ..Faults::NONE }.only_udp(DATA_PORT);
        for link in 0..4 {
            lab.topology.set_faults(link, Direction::Up, &doubled).expect("faults are set");
        }
        check_sums(&workers, 400_000);
        for worker in &workers {
            let flow = worker.counters().flow;
            assert!(flow.pendings + flow.duplicate_results > flow.sent / 2, "{place}: {flow:?}");
            // Some timers run out too early on a busy machine.
            let repeated = flow.gap_retransmissions + flow.timer_retransmissions;
            assert!(repeated < flow.sent / 20, "{place}: {flow:?}");
        }
    }
}

/// Fan-out through one interface loses whole bursts of copies where a ring overflows; it recovers.
#[test]
fn fanout_survives_loss() {
    need_root!();
    let faults = Faults { loss: 0.02, ..Faults::NONE }.only_udp(DATA_PORT);
    let topology = Topology::builder()
        .workers(8)
        .mode(xdp_agg_testbed::Mode::OneNic)
        .faults(faults)
        .build()
        .expect("a network");
    let lab = Lab::start(topology, "xdp");
    let workers = lab.connect("fanout", 8, |settings| settings);
    check_sums(&workers, 100_000);
}

/// A worker that never calls is named by the deadline, and no worker waits longer than that.
#[test]
fn a_deadline_names_the_missing_ranks() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(4, "ports"), engine);
        let deadline = Duration::from_millis(700);
        let workers = lab.connect("deadline", 4, |settings| settings.deadline(deadline));
        let start = Instant::now();
        let errors = on_all(&workers, |worker| {
            if [1, 3].contains(&worker.rank()) {
                return None;
            }
            let mut data = vec![1.0_f32; 10_000];
            Some(worker.all_reduce(&mut data, Op::Sum).expect_err("two workers are missing"))
        });
        assert!(start.elapsed() < deadline + Duration::from_secs(5));
        for error in errors.into_iter().flatten() {
            match &error {
                Error::Job(JobError::Deadline { ranks, .. }) => assert_eq!(ranks, &[1, 3]),
                // The other one's deadline may have passed first; it tells why it gave up.
                Error::Job(JobError::Aborted(AbortReason::Member { reason, .. })) => {
                    assert!(reason.contains("ranks [1, 3]"), "{reason}");
                }
                other => panic!("{other}"),
            }
        }
    }
}

/// A straggler is not a loss: the others wait without repeating everything.
#[test]
fn a_straggler_is_waited_for() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let workers = lab.connect("straggler", 3, |settings| settings);
    check_sums(&workers, 1000);
    on_all(&workers, |worker| {
        if worker.rank() == 2 {
            std::thread::sleep(Duration::from_millis(600));
        }
        let mut data = vec![1_i32; 200_000];
        worker.all_reduce(&mut data, Op::Sum).expect("it ends");
        assert!(data.iter().all(|x| *x == 3));
        if worker.rank() != 2 {
            let counters = worker.counters();
            assert!(counters.flow.pendings > 0, "{counters:?}");
            let repeated = counters.flow.timer_retransmissions + counters.flow.gap_retransmissions;
            assert!(repeated < counters.flow.sent / 4, "{counters:?}");
        }
    });
}

/// How a call of all workers ends in whose middle this process is killed.
fn errors_of(workers: &[Communicator], len: usize, dying: Process) -> Vec<Error> {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            on_all(workers, |worker| {
                worker.all_reduce(&mut vec![1.0_f32; len], Op::Sum).expect_err("one is dead")
            })
        });
        std::thread::sleep(Duration::from_millis(200));
        dying.kill().expect("it was running");
        waiting.join().expect("no panic")
    })
}

/// Invariant 5: a worker that dies is named to the others at once, not at their deadline.
#[test]
fn a_dead_worker_is_named() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let idle = xdp_agg_testbed::program("idle_worker").expect("it is built");
        let mut command = lab.topology.worker(2).command(idle);
        command
            .env("RANK", "2")
            .env("WORLD_SIZE", "3")
            .env("XDP_AGG_ADDR", lab.control().to_string())
            .env("XDP_AGG_JOB", "death")
            .env("XDP_AGG_SCALE", "1024");
        let dying = Process::spawn("rank 2", command).expect("it starts");
        let workers = lab.connect_ranks("death", 0..2, 3, |settings| settings);
        let start = Instant::now();
        for error in errors_of(&workers, 10_000, dying) {
            let reason = AbortReason::MemberLost { rank: 2 };
            let told = matches!(&error, Error::Job(JobError::Aborted(why)) if *why == reason);
            assert!(told, "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(10));
        drop(workers);
        // The job's name, slots and index are free again.
        let workers = lab.connect("death", 3, |settings| settings);
        check_sums(&workers, 1000);
    }
}

/// A worker that is done may leave while another still asks for its last result.
#[test]
fn leaving_early_harms_nobody() {
    need_root!();
    let lab = Lab::start(lossy(Faults { loss: 0.1, ..Faults::NONE }), "xdp");
    for _ in 0..5 {
        let workers = lab.connect("leave", 4, |settings| settings);
        at_once(workers, |worker| {
            let mut data = vec![1_i32; 3000];
            worker.all_reduce(&mut data, Op::Sum).expect("it ends");
            assert!(data.iter().all(|x| *x == 4));
        });
    }
}

/// A daemon that is killed leaves nothing that blocks the next one, and its workers know at once.
#[test]
fn the_daemon_is_killed_and_restarted() {
    need_root!();
    for engine in ENGINES {
        let mut lab = Lab::start(network(3, "ports"), engine);
        let workers = lab.connect("restart", 3, |settings| settings);
        check_sums(&workers, 1000);
        for error in errors_of(&workers, 50_000_000, lab.daemon.take().expect("it runs")) {
            assert!(matches!(error, Error::Job(JobError::AggregatorLost(_))), "{error}");
        }
        drop(workers);
        lab.start_daemon();
        let workers = lab.connect("restart", 3, |settings| settings);
        check_sums(&workers, 10_000);
        drop(workers);
        let daemon = lab.daemon.take().expect("it runs");
        let end = daemon.terminate().expect("it ends");
        assert!(end.status.success(), "{}", end.stderr);
    }
}

/// A link that goes down for a while costs time, not correctness.
#[test]
fn a_link_flap_is_survived() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let workers = lab.connect("flap", 3, |settings| settings);
    check_sums(&workers, 1000);
    std::thread::scope(|scope| {
        scope.spawn(|| check_sums(&workers, 2_000_000));
        std::thread::sleep(Duration::from_millis(30));
        let dark = Faults { loss: 1.0, ..Faults::NONE }.only_udp(DATA_PORT);
        for direction in Direction::BOTH {
            lab.topology.set_faults(1, direction, &dark).expect("faults are set");
        }
        std::thread::sleep(Duration::from_millis(400));
        for direction in Direction::BOTH {
            lab.topology.set_faults(1, direction, &Faults::NONE).expect("faults are set");
        }
    });
}
