//! All-reduces that are started and waited for later, among the workers and through the aggregator.

mod support;

use std::time::{Duration, Instant};

use support::{LIMIT, Lab, at_all, expected, input, need_root, network};
use xdp_agg_client::collectives::{Choice, Tuning, Way};
use xdp_agg_client::{Communicator, Error, Handle, JobError, Op, Path, f16};

/// The longest that a call of 4-byte elements may be to go round the ring.
const SHORT: usize = 10_000;
const RING: Choice = Choice::new(Way::Ring);
/// An error has to be there in this time.
const SOON: Duration = Duration::from_secs(10);

/// All-reduces of up to [`SHORT`] elements go round a ring of the workers.
fn table() -> Tuning {
    let bytes = 4 * SHORT;
    let text = format!(
        "[[all-reduce]]\nup-to = {bytes}\nalgorithm = \"ring\"\n\
         [[all-reduce]]\nalgorithm = \"aggregator\"\n"
    );
    Tuning::parse(&text).expect("it is a table")
}

fn start(worker: &Communicator, len: usize) -> Handle<i32> {
    worker.all_reduce_async(input(worker.rank(), len), Op::Sum).expect("it starts")
}

fn check(handle: Handle<i32>, world_size: u16, len: usize) {
    let (sum, report) = handle.wait(LIMIT).expect("it ends");
    assert!(sum == expected(world_size, len), "{len} elements");
    let path = if len <= SHORT { Path::Ring } else { Path::Aggregator };
    assert_eq!(report.path, path, "{len} elements");
    assert_eq!(report.contributors, (1 << world_size) - 1);
}

/// As the table says for their sizes, several in flight, waited for in another order; calls that
/// are waited for at once come between them, and at some workers in place of them.
#[test]
fn they_go_the_way_that_was_chosen_for_their_size() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    let workers = lab.connect("started", 4, |settings| settings.tuning(table()));
    at_all(&lab.topology, &workers, |worker| {
        let lens = [100, SHORT, SHORT + 1, 0, 60_000, 5000, 3];
        for round in 0..3 {
            let mut handles: Vec<_> = lens.map(|len| Some(start(worker, len))).into();
            let mut between = input(worker.rank(), 2000);
            let report = worker.all_reduce(&mut between, Op::Sum).expect("it ends");
            assert!(between == expected(4, 2000), "round {round}");
            assert_eq!(report.path, Path::Ring);
            // One is thrown away: the others must not notice.
            drop(handles[round].take());
            let (rank, len) = (worker.rank(), 777);
            if usize::from(rank) == round {
                let mut data = input(rank, len);
                worker.all_reduce(&mut data, Op::Sum).expect("it ends");
                assert!(data == expected(4, len));
            } else {
                check(start(worker, len), 4, len);
            }
            for call in [6, 2, 0, 4, 1, 5, 3] {
                if let Some(handle) = handles[call].take() {
                    check(handle, 4, lens[call]);
                }
            }
        }
        let average = worker.all_reduce_async(vec![f32::from(worker.rank()); 9], Op::Average);
        let (average, _) = average.and_then(|handle| handle.wait(LIMIT)).expect("it ends");
        assert_eq!(average, [1.5; 9]);
        // No ring adds them.
        let halves =
            worker.all_reduce_async(vec![f16::from_f32(0.5); 50], Op::Sum).expect("it starts");
        let (halves, report) = halves.wait(LIMIT).expect("it ends");
        assert!(halves.iter().all(|half| half.to_f32() == 2.0));
        assert_eq!(report.path, Path::Aggregator);
    });
}

/// By the caller's choice, with and without the agreement, and many at once.
#[test]
fn the_caller_chooses_a_way() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "userspace");
    let workers = lab.connect("chosen", 3, |settings| settings);
    at_all(&lab.topology, &workers, |worker| {
        for choice in [RING.unchecked(), RING, Choice::new(Way::Aggregator)] {
            let start =
                |len| worker.all_reduce_async_by(input(worker.rank(), len), Op::Sum, choice);
            let handles: Vec<_> = (0..40).map(|i| start(i * 331).expect("it starts")).collect();
            for (i, handle) in handles.into_iter().enumerate() {
                let (sum, report) = handle.wait(LIMIT).expect("it ends");
                assert!(sum == expected(3, i * 331), "{choice:?}, call {i}");
                assert_eq!(report.path == Path::Ring, choice.way == Way::Ring);
            }
        }
        let odd = worker.all_reduce_async_by(
            vec![0_i32; 2],
            Op::Sum,
            Choice::new(Way::Mesh(xdp_agg_client::collectives::Algorithm::Binomial)),
        );
        assert!(matches!(odd, Err(Error::Config { .. })), "no all-reduce goes that way");
    });
}

/// A length that differs is an error at every worker, the first time and later; what was started
/// behind it ends, too.
#[test]
fn calls_that_differ_are_errors_everywhere() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    for before in [0, 2] {
        let job = format!("odd{before}");
        let workers = lab.connect(&job, 3, |settings| settings.tuning(table()));
        let begun = Instant::now();
        let errors = at_all(&lab.topology, &workers, |worker| {
            for _ in 0..before {
                check(start(worker, 50), 3, 50);
            }
            let len = 1000 + usize::from(worker.rank() == 1);
            let odd = worker.all_reduce_async(vec![1_i32; len], Op::Sum);
            let behind = worker.all_reduce_async(vec![1_i32; 10], Op::Sum);
            let error = odd.and_then(|handle| handle.wait(LIMIT)).expect_err("the calls differ");
            // All may have agreed on it before.
            let behind = behind.and_then(|handle| handle.wait(LIMIT));
            assert!(behind.is_err() || behind.is_ok_and(|(sum, _)| sum == [3; 10]));
            assert!(worker.all_reduce(&mut [1_i32], Op::Sum).is_err(), "it is unusable");
            error.to_string()
        });
        assert!(begun.elapsed() < SOON, "{before} before: {:?}", begun.elapsed());
        for error in errors {
            assert!(error.contains("call"), "{before} before: {error}");
        }
    }
}

/// A worker that waits for another that does not come, or is gone, has an error in time. A
/// communicator that is dropped ends what was started on it.
#[test]
fn nobody_waits_for_ever() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let patient = |settings: xdp_agg_client::Builder| settings.deadline(Duration::from_secs(3));
    let mut workers = lab.connect("late", 2, |settings| patient(settings).tuning(table()));
    at_all(&lab.topology, &workers, |worker| check(start(worker, 50), 2, 50));
    let begun = Instant::now();
    let late = |choice| {
        workers[0].all_reduce_async_by(vec![1_i32; 50], Op::Sum, choice).expect("it starts")
    };
    let [first, second] = [late(RING.unchecked()), late(RING.unchecked())];
    let error = first.wait(Duration::from_millis(300)).expect_err("rank 1 is late");
    assert!(matches!(error, Error::Job(JobError::Deadline { .. })), "{error}");
    assert!(error.to_string().contains("ring of the workers"), "{error}");
    drop(workers.remove(1));
    let error = second.wait(LIMIT).expect_err("rank 1 is gone");
    assert!(
        matches!(
            error,
            Error::Mesh(_) | Error::Job(JobError::Closed) | Error::Job(JobError::Deadline { .. })
        ),
        "{error}"
    );
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());

    let mut workers = lab.connect("dropped", 2, |settings| patient(settings).tuning(table()));
    at_all(&lab.topology, &workers, |worker| check(start(worker, 50), 2, 50));
    let begun = Instant::now();
    let one = workers.remove(0);
    let handles: Vec<_> = (0..3).map(|_| start(&one, 50)).collect();
    drop(one);
    for handle in handles {
        handle.wait(LIMIT).expect_err("rank 1 never came, and the communicator is closed");
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}
