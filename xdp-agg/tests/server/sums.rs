//! Workers that keep to the rules, and jobs that end in every way.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use xdp_agg::config::Partial;
use xdp_agg::engine::EngineError;
use xdp_agg::server::ServerError;
use xdp_agg_common::control::{AbortReason, ErrorCode, Join, Reply, Request};
use xdp_agg_common::maps::{JobCounters, Reject, ResultMode};
use xdp_agg_common::wire::{Header, Kind};

use crate::daemon::{Daemon, Refused, settings};
use crate::worker::{Client, Joining, Worker, wish};

/// Some integers of a rank and block, spread over the whole range of a world of `workers`.
fn values(rank: u16, block: u64, workers: u16) -> Vec<i32> {
    let most = i64::from(i32::MAX / i32::from(workers) - 1);
    (0..32_i64)
        .map(|i| {
            let mixed = (i + 1) * 0x9E37_79B9 * (i64::from(rank) + 3) + block as i64 * 0x85EB_CA6B;
            (mixed % most) as i32
        })
        .collect()
}

fn sum(block: u64, workers: u16) -> Vec<i32> {
    let mut sum = vec![0; 32];
    for rank in 0..workers {
        for (sum, value) in sum.iter_mut().zip(values(rank, block, workers)) {
            *sum += value;
        }
    }
    sum
}

/// Sums `blocks` blocks with half the pool under way, and checks every result at every worker.
fn reduce(workers: &[Worker], blocks: u64) {
    let n = workers.len() as u16;
    let window = u64::from(workers[0].admitted.slots / 2);
    for first in (0..blocks).step_by(window as usize) {
        let block_range = first..(first + window).min(blocks);
        for worker in workers {
            for block in block_range.clone() {
                worker.contribute(block, &values(worker.rank, block, n));
            }
        }
        for worker in workers {
            let mut results: Vec<_> = block_range.clone().map(|_| worker.result()).collect();
            results.sort_unstable_by_key(|(block, _)| *block);
            for ((block, result), expected) in results.into_iter().zip(block_range.clone()) {
                assert_eq!(block, expected);
                assert_eq!(result, sum(block, n), "block {block} at rank {}", worker.rank);
            }
        }
    }
}

#[test]
fn sums_are_exact_for_one_to_four_workers() {
    let daemon = Daemon::start();
    for n in 1..=4 {
        let mut workers = Worker::all(daemon.control, &wish("train", 0, n));
        reduce(&workers, 50);
        let stats = Client::connect(daemon.control).stats();
        let expected = JobCounters {
            contributions: 50 * u64::from(n),
            blocks: 50,
            probes: u64::from(n),
            copies: 50 * u64::from(n),
            ..JobCounters::default()
        };
        let mut counters = stats.jobs[0].counters;
        let timed = std::mem::take(&mut counters.times);
        assert_eq!(counters, expected);
        // The last slot of eight; a block that its first contribution completes takes no time.
        assert_eq!(timed.total(), if n == 1 { 0 } else { 6 });
        assert!(timed.nanos < 3_000_000_000 * timed.total().max(1), "{timed:?}");
        assert_eq!(stats.jobs[0].info.mode, Some(ResultMode::Fanout));
        for worker in &mut workers {
            assert_eq!(worker.client.ask(&Request::Leave), Reply::Done);
        }
    }
}

#[test]
fn every_result_mode_delivers() {
    let daemon = Daemon::start();
    for mode in [ResultMode::Ports, ResultMode::Fanout, ResultMode::Multicast] {
        let join = Join { result_mode: Some(mode), ..wish(mode.name(), 0, 3) };
        let workers = Worker::all(daemon.control, &join);
        reduce(&workers, 20);
        let stats = Client::connect(daemon.control).stats();
        let job = stats.jobs.iter().find(|job| job.info.job == mode.name()).expect("it runs");
        assert_eq!(job.info.mode, Some(mode));
        assert_eq!(job.counters.copies, if mode == ResultMode::Multicast { 20 } else { 60 });
    }
}

#[test]
fn two_jobs_run_side_by_side() {
    let daemon = Daemon::start();
    let one = Worker::all(daemon.control, &wish("one", 0, 2));
    let two = Worker::all(daemon.control, &wish("two", 0, 3));
    std::thread::scope(|scope| {
        scope.spawn(|| reduce(&one, 200));
        scope.spawn(|| reduce(&two, 200));
    });
    // One goes on after the other died.
    drop(one);
    for worker in &two {
        worker.contribute(200, &values(worker.rank, 200, 3));
    }
    for worker in &two {
        assert_eq!(worker.result(), (200, sum(200, 3)));
    }
}

#[test]
fn a_repetition_is_answered_by_pending_and_then_by_the_result() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    for _ in 0..2 {
        workers[0].contribute(0, &[5]);
    }
    let (header, payload) = workers[0].receive().expect("a repetition is answered");
    assert_eq!((header.kind, header.block, payload.len()), (Kind::Pending, 0, 64));
    assert_eq!(payload[..8], 0b01_u64.to_le_bytes());
    workers[1].contribute(0, &[7]);
    assert_eq!(workers[0].result().1[0], 12);
    assert_eq!(workers[1].result().1[0], 12);
    // The result got lost on the way to rank 1, which contributes again.
    workers[1].contribute(0, &[7]);
    assert_eq!(workers[1].result().1[0], 12);
    workers[0].hears_nothing();
    let stats = Client::connect(daemon.control).stats();
    let counters = stats.jobs[0].counters;
    assert_eq!((counters.duplicates, counters.pendings, counters.resends), (2, 1, 1));
    assert_eq!((counters.contributions, counters.blocks), (2, 1));
}

#[test]
fn foreign_packets_change_nothing_and_are_counted() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    workers[0].contribute(0, &[5]);
    let honest = workers[1].header(Kind::Contribution, 0);
    let payload = workers[1].payload(&[100]);
    workers[1].send_as(&Header { cookie: honest.cookie ^ 1, ..honest }, &payload);
    workers[1].send_as(&Header { epoch: honest.epoch + 1, ..honest }, &payload);
    workers[1].send_as(&Header { rank: 0, ..honest }, &payload);
    workers[1].send_as(&Header { job: 9, ..honest }, &payload);
    workers[1].send_as(&Header { block: 8, ..honest }, &payload);
    workers[1].send_as(&honest, &payload[..100]);
    workers[1].send_as(&honest, &[]);
    workers[1].send_as(&honest, &[payload.clone(), payload.clone()].concat());
    workers[1].send_raw(&[0x11; 86]);
    workers[1].send_raw(&[0x21; 5]);
    workers[1].send_raw(&[]);
    workers[1].send_raw(b"GET / HTTP/1.1\r\n\r\nand so on");
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let mut packet = vec![0; 22];
    honest.emit(packet.first_chunk_mut().expect("it is that long"));
    packet.extend(&payload);
    stranger.send_to(&packet, workers[1].admitted.data).expect("loopback takes it");

    workers[1].contribute(0, &[7]);
    assert_eq!(workers[0].result().1[0], 12);
    assert_eq!(workers[1].result().1[0], 12);
    let stats = Client::connect(daemon.control).stats();
    let of_job = |reason: Reject| stats.jobs[0].counters.rejects[reason as usize];
    let of_none = |reason: Reject| stats.unattributed.rejects[reason as usize];
    assert_eq!(of_job(Reject::Cookie), 1);
    assert_eq!(of_job(Reject::Epoch), 1);
    assert_eq!(of_job(Reject::Member), 2);
    assert_eq!(of_job(Reject::Window), 1);
    assert_eq!(of_job(Reject::Truncated), 1);
    assert_eq!(of_job(Reject::Size), 2);
    assert_eq!(of_none(Reject::Job), 1);
    // 0x11… is version 1; 'G' is 0x47.
    assert_eq!(of_none(Reject::Version), 2);
    assert_eq!(of_none(Reject::Truncated), 2);
    assert_eq!(stats.jobs[0].counters.contributions, 2);
}

#[test]
fn another_call_is_answered_and_ends_the_job_by_name() {
    let daemon = Daemon::start();
    let mut workers = Worker::all(daemon.control, &wish("train", 0, 2));
    workers[0].contribute(0, &[5]);
    let header = Header { tag: 8, ..workers[1].header(Kind::Contribution, 0) };
    workers[1].send_as(&header, &workers[1].payload(&[5]));
    let (header, payload) = workers[1].receive().expect("a mismatch is answered");
    assert_eq!((header.kind, payload.len()), (Kind::Mismatch, 64));
    assert_eq!(payload[..8], 7_u64.to_le_bytes());
    assert_eq!(
        workers[0].client.ask(&Request::Missing { block: 0, of: None }),
        Reply::Missing { block: 0, ranks: vec![1] }
    );
    let call = xdp_agg_common::control::Call {
        sequence: 0,
        count: 9,
        element: "f32".into(),
        operation: "sum".into(),
        numbers: "block in 32-bit lanes".into(),
    };
    workers[1].client.say(&Request::CallMismatch { call: call.clone() });
    for worker in &mut workers {
        assert_eq!(worker.aborted(), AbortReason::CallMismatch { rank: 1, call: call.clone() });
    }
}

#[test]
fn a_rank_or_size_that_does_not_fit_is_refused_and_harms_nobody() {
    let daemon = Daemon::start();
    let first = Joining::new(daemon.control, wish("train", 0, 2));
    for (wrong, code, words) in [
        (wish("train", 0, 2), ErrorCode::RankTaken, "rank 0"),
        (wish("train", 1, 3), ErrorCode::WorldSize, "world size of 2"),
    ] {
        let mut refused = Joining::new(daemon.control, wrong);
        match refused.client.hear() {
            Reply::Error { code: said, message } => {
                assert_eq!(said, code);
                assert!(message.contains(words), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    let second = Joining::new(daemon.control, wish("train", 1, 2));
    let (first, second) = (first.probe(), second.probe());
    for mut worker in [first, second] {
        assert!(matches!(worker.client.hear(), Reply::Go { .. }));
    }
}

#[test]
fn a_death_names_the_rank() {
    let daemon = Daemon::start();
    let mut workers = Worker::all(daemon.control, &wish("train", 0, 3));
    drop(workers.remove(1));
    for worker in &mut workers {
        assert_eq!(worker.aborted(), AbortReason::MemberLost { rank: 1 });
    }
    // The name is free again.
    reduce(&Worker::all(daemon.control, &wish("train", 0, 2)), 10);
}

#[test]
fn a_rank_that_never_comes_or_never_probes_is_named() {
    let timeouts = Partial { join_timeout: Some(1), probe_timeout: Some(1), ..settings() };
    let daemon = Daemon::with(timeouts).expect("free ports are always free");
    let mut alone = Joining::new(daemon.control, wish("train", 1, 3));
    let reason = AbortReason::Timeout { ranks: vec![0, 2], step: "join".into() };
    assert_eq!(alone.client.hear(), Reply::Aborted(reason));
    let silent = Joining::new(daemon.control, wish("train", 0, 2));
    let mut worker = Joining::new(daemon.control, wish("train", 1, 2)).probe();
    let reason = AbortReason::Timeout { ranks: vec![0], step: "probe".into() };
    assert_eq!(worker.aborted(), reason);
    drop(silent);
}

#[test]
fn ready_without_a_probe_is_found_out() {
    let daemon = Daemon::start();
    let mut liar = Joining::new(daemon.control, wish("train", 0, 1));
    assert!(matches!(liar.client.hear(), Reply::Admitted(_)));
    match liar.client.ask(&Request::Ready) {
        Reply::Aborted(AbortReason::Operator { reason }) => {
            assert!(reason.contains("no probe of rank 0"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn going_down_tells_the_members_and_frees_the_ports() {
    let daemon = Daemon::start();
    let mut workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let (control, data_port) = (daemon.control, daemon.data_port);
    daemon.stop();
    for worker in &mut workers {
        match worker.aborted() {
            AbortReason::Operator { reason } => {
                assert_eq!(reason, "the aggregator is shutting down");
            }
            other => panic!("{other:?}"),
        }
    }
    let again = Partial { control: Some(control), data_port: Some(data_port), ..settings() };
    let daemon = Daemon::with(again).expect("the ports are free again");
    reduce(&Worker::all(daemon.control, &wish("train", 0, 2)), 10);
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::start();
    let same = Partial { control: Some(daemon.control), ..settings() };
    match Daemon::with(same).err() {
        Some(Refused::Control(error @ ServerError::AddressInUse(_))) => {
            let text = error.to_string();
            assert!(text.contains(&daemon.control.to_string()), "{text}");
            assert!(text.contains("--control"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let same = Partial { data_port: Some(daemon.data_port), ..settings() };
    match Daemon::with(same).err() {
        Some(Refused::Engine(error @ EngineError::PortInUse(_))) => {
            assert!(error.to_string().contains("--data-port"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let elsewhere = Partial { control: Some(SocketAddr::from(([192, 0, 2, 1], 0))), ..settings() };
    match Daemon::with(elsewhere).err() {
        Some(Refused::Control(error @ ServerError::Bind { .. })) => {
            assert!(error.to_string().contains("address of this host"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    reduce(&Worker::all(daemon.control, &wish("train", 0, 2)), 10);
}

#[test]
fn an_engine_that_cannot_be_is_refused_with_the_reason() {
    let no_interface = Partial { interface: Some(vec!["no-such-if0".into()]), ..settings() };
    match Daemon::with(no_interface).err() {
        Some(Refused::Engine(EngineError::NoInterface(name))) => assert_eq!(name, "no-such-if0"),
        other => panic!("{other:?}"),
    }
    let elsewhere = Partial { data_addr: Some(Ipv4Addr::new(192, 0, 2, 1)), ..settings() };
    match Daemon::with(elsewhere).err() {
        Some(Refused::Engine(error)) => {
            assert!(error.to_string().contains("--data-addr: 192.0.2.1"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
