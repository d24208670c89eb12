//! Members and daemons that are lost, and those that take their place.

use std::net::Ipv4Addr;
use std::time::Duration;

use xdp_agg_common::control::{
    AggregatorLoss, Join, Meet, Policy, Progress, Reply, Request, Resume, WorkerLoss,
};

use crate::daemon::{Daemon, settings};
use crate::worker::{Client, Joining, Worker, wish};

const POLICY: Policy =
    Policy { worker_loss: WorkerLoss::Shrink, aggregator_loss: AggregatorLoss::Resume };

fn shrinking(rank: u16) -> Join {
    Join { policy: POLICY, ..wish("train", rank, 3) }
}

/// All blocks before `base` are done, and no call is under way.
fn done(base: u64) -> Progress {
    Progress { base, next_sequence: base, held: vec![] }
}

/// The members' sum of block `block`, of a contribution of 1, 2 and 3 of ranks 0, 1 and 2.
fn sums(workers: &[Worker], block: u64, expected: i32) {
    for worker in workers {
        worker.contribute(block, &[i32::from(worker.rank) + 1]);
    }
    // The decoding of these tests takes off a bias for each of the world, also where it is absent.
    let zero = workers[0].payload(&[0]);
    let bias = zero.first_chunk().map_or(0, |lane| i32::from_le_bytes(*lane));
    let vacancies = 3 - workers.len() as i32;
    for worker in workers {
        let (got, values) = worker.result();
        assert_eq!((got, values[0]), (block, expected - vacancies * bias));
    }
}

fn next_epoch(workers: &mut [Worker]) {
    for worker in workers.iter_mut() {
        worker.enter();
    }
    for worker in workers {
        worker.go();
    }
}

#[test]
fn the_others_go_on_and_a_new_process_takes_the_place() {
    let daemon = Daemon::start();
    let mut workers = Worker::all(daemon.control, &shrinking(0));
    sums(&workers, 0, 6);
    drop(workers.remove(1));
    for worker in &mut workers {
        let heard = worker.client.hear();
        assert!(matches!(&heard, Reply::Reform { lost, .. } if lost == &[1]), "{heard:?}");
        // A contribution to the epoch that is over is refused.
        worker.contribute(1, &[1]);
        worker.client.say(&Request::Progress(done(1)));
    }
    next_epoch(&mut workers);
    assert_eq!(workers[0].admitted.members, 0b101);
    sums(&workers, 0, 4);

    let joining = Joining::new(daemon.control, shrinking(1));
    for worker in &mut workers {
        assert_eq!(worker.client.hear(), Reply::Pause { joining: vec![1] });
        worker.client.say(&Request::Paused { next_sequence: 2 });
    }
    for worker in &mut workers {
        assert_eq!(worker.client.hear(), Reply::RunTo { sequence: 2 });
        worker.client.say(&Request::Progress(done(2)));
    }
    let mut new = joining.probe();
    for worker in &mut workers {
        worker.enter();
    }
    new.go();
    for worker in &mut workers {
        worker.go();
    }
    workers.insert(1, new);
    assert_eq!(workers[1].admitted.plan.as_ref().map(|plan| plan.next_sequence), Some(2));
    sums(&workers, 0, 6);
    let info = &workers[0].client.stats().jobs[0].info;
    assert_eq!((info.reforms, info.members.len(), info.lost.len()), (1, 3, 0));
}

/// Requests that a connection may make at once, and that the daemon reads one a round: they keep it
/// from the end of that connection, as a load does.
const BEFORE_ITS_END: usize = 60;

/// A process dies, and the next one asks before the daemon has read the end of its connection.
fn die(mut client: Client) {
    for _ in 0..BEFORE_ITS_END {
        client.say(&Request::Heartbeat);
    }
}

#[test]
fn a_worker_that_is_started_again_at_once_has_its_rank() {
    let daemon = Daemon::start();
    for _ in 0..10 {
        let first = Joining::new(daemon.control, wish("train", 0, 2));
        let next = Client::connect(daemon.control);
        die(first.client);
        let first = Joining::over(next, Ipv4Addr::LOCALHOST, wish("train", 0, 2));
        let second = Joining::new(daemon.control, wish("train", 1, 2));
        let mut workers = [first.probe(), second.probe()];
        workers.iter_mut().for_each(Worker::go);
        // A running job that fails: another process is refused until the members are gone.
        let next = Client::connect(daemon.control);
        let [first, second] = workers;
        die(first.client);
        drop(second);
        let mut alone = Joining::over(next, Ipv4Addr::LOCALHOST, wish("train", 0, 1)).probe();
        alone.go();
    }
}

#[test]
fn a_process_that_is_started_again_at_once_meets_the_others() {
    let daemon = Daemon::start();
    let meet = |rank| {
        let (job, words) = ("train".into(), format!("I am {rank}"));
        Request::Meet(Meet { job, run: None, rank, world_size: 2, words })
    };
    for _ in 0..10 {
        let mut first = Client::connect(daemon.control);
        assert!(matches!(first.ask(&meet(0)), Reply::Meeting { .. }));
        let mut next = Client::connect(daemon.control);
        die(first);
        assert!(matches!(next.ask(&meet(0)), Reply::Meeting { .. }));
        let mut second = Client::connect(daemon.control);
        assert!(matches!(second.ask(&meet(1)), Reply::Met { .. }));
        assert!(matches!(next.hear(), Reply::Met { .. }));
    }
}

#[test]
fn a_job_goes_on_at_the_next_daemon() {
    let daemon = Daemon::start();
    let mut workers = Worker::all(daemon.control, &shrinking(0));
    sums(&workers, 0, 6);
    let remembered = workers[0].admitted.clone();
    drop(workers.remove(2));
    let control = daemon.control;
    daemon.stop();
    drop(workers);
    let mut again = settings();
    again.control = Some(control);
    again.resume_timeout = Some(1);
    let daemon = Daemon::with(again).expect("the port is free again");
    let back = |rank| {
        let resume = Resume {
            epoch: remembered.epoch,
            cookie: remembered.cookie,
            members: remembered.members,
            chunks: remembered.chunks,
            progress: done(1),
            rings: 0,
        };
        Joining::new(daemon.control, Join { resume: Some(resume), ..shrinking(rank) })
    };
    // Rank 2 does not come.
    let all = [back(0), back(1)];
    let mut workers: Vec<_> = all.into_iter().map(Joining::probe).collect();
    for worker in &mut workers {
        worker.go();
        assert_eq!((worker.admitted.members, worker.admitted.epoch), (0b011, remembered.epoch + 1));
        assert_ne!(worker.admitted.cookie, remembered.cookie);
    }
    sums(&workers, 0, 3);
}

#[test]
fn a_member_is_asked_whether_it_is_there() {
    let mut short = settings();
    short.dead_after = Some(0.2);
    let daemon = Daemon::with(short).expect("free ports are always free");
    let mut workers = Worker::all(daemon.control, &shrinking(0));
    std::thread::sleep(Duration::from_millis(100));
    // Heartbeats are answered on the way to the answer.
    workers[0].client.stats();
    let members = workers[0].client.stats().jobs[0].info.members.clone();
    assert!(members[0].heartbeat_ms.is_some_and(|ms| ms < 1000), "{members:?}");
}
