//! Several processes of a host as one worker, and vectors over several aggregators.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use support::watched::{self, Failure, call_of, failure_of, work};
use support::{LIMIT, Lab, check_all, check_sums, need_root, network, on_all, second_daemon};
use xdp_agg_client::{
    AggregatorLoss, Builder, Communicator, Element, Error, JobError, LaneWidth, Op, Path, Scaling,
    bf16, f16,
};
use xdp_agg_testbed::at_once;
use xdp_agg_testbed::steady::{Line, Steady, Work, judge};

/// How long the others may take to say, or to go on, after a process was killed.
const PROMISED: Duration = Duration::from_secs(3);

/// A whole job of `hosts` hosts with `size` processes each, in order of rank.
fn connect(
    lab: &Lab,
    job: &str,
    hosts: u16,
    size: u16,
    tune: impl Fn(Builder) -> Builder + Sync,
) -> Vec<Communicator> {
    lab.connect_hosts(job, (hosts, size), |settings, _| tune(settings))
}

#[test]
fn processes_of_a_host_sum_as_one_worker() {
    need_root!();
    for engine in support::ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        for size in [2, 4] {
            for scaling in [Scaling::Fixed(1024.0), Scaling::Block] {
                let job = format!("group of {size}, {scaling}");
                let workers = connect(&lab, &job, 2, size, |settings| settings.scaling(scaling));
                check_all(&workers, [1, 352, 353, 5000, 1_000_003]);
                assert_eq!(workers[0].members().len(), 2 * usize::from(size));
            }
        }
    }
}

/// Real numbers, whose sums are rounded.
fn reals(rank: u16, len: usize) -> Vec<f32> {
    let number = |i: usize| ((i as f32 + 1.0) * (f32::from(rank) + 0.7)).sin() * 1e-3;
    (0..len).map(|i| number(i) * 2_f32.powi((i / 1000 % 40) as i32 - 20)).collect()
}

fn bits_of(workers: &[Communicator], len: usize) -> Vec<Vec<u32>> {
    on_all(workers, |worker| {
        let mut data = reals(worker.rank(), len);
        worker.all_reduce(&mut data, Op::Average).expect("it ends");
        data.iter().map(|x| x.to_bits()).collect()
    })
}

/// Invariant 2: the same bits at all workers, whatever the engine, the number of slots, and the
/// number of aggregators.
#[test]
fn bits_depend_on_nothing_but_the_input() {
    need_root!();
    let mut expected: Option<Vec<u32>> = None;
    for engine in support::ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        let (_daemon, second) = second_daemon(&lab);
        let first = lab.control();
        let both = |settings: Builder| settings.aggregators([first, second]);
        let slots = |settings: Builder| settings.slots(16);
        let plain = |settings: Builder| settings.scaling(Scaling::Block);
        let tunes: [(&str, &(dyn Fn(Builder) -> Builder + Sync)); 3] =
            [("plain", &plain), ("slots", &|s| slots(plain(s))), ("both", &|s| both(plain(s)))];
        for (name, tune) in tunes {
            for round in 0..2 {
                let workers = connect(&lab, &format!("{name} {round}"), 2, 2, tune);
                for bits in bits_of(&workers, 300_000) {
                    let expected = expected.get_or_insert_with(|| bits.clone());
                    assert!(bits == *expected, "{engine}, {name}");
                }
            }
        }
    }
}

/// Each flow has every second block of a vector that is too long for the segment. It looks as many
/// of its own blocks ahead as a flow that has all blocks.
#[test]
fn long_vectors_of_several_processes_go_over_two_aggregators() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let (_daemon, second) = second_daemon(&lab);
    let first = lab.control();
    let workers = connect(&lab, "long", 2, 2, |settings| {
        settings.scaling(Scaling::Block).aggregators([first, second])
    });
    check_sums(&workers, 4_000_000);
}

/// A vector over two aggregators, each process for itself.
#[test]
fn a_vector_is_split_over_aggregators() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let (_daemon, second) = second_daemon(&lab);
    let first = lab.control();
    let workers = lab.connect("split", 3, |settings| settings.aggregators([first, second]));
    check_all(&workers, [0, 1, 352, 353, 704, 100_000]);
    on_all(&workers, |worker| {
        let data: Vec<f32> = (0..5000).map(|i| (i + i32::from(worker.rank())) as f32).collect();
        let handles: Vec<_> = (0..4)
            .map(|_| worker.all_reduce_async(data.clone(), Op::Sum).expect("it starts"))
            .collect();
        for handle in handles {
            let (sum, report) = handle.wait(LIMIT).expect("it ends");
            assert_eq!(report.contributors, 0b111);
            assert!(sum.iter().enumerate().all(|(i, x)| *x == (3 * i + 3) as f32));
        }
    });
    // Only now: it ends the job, and another worker may still wait for a result that got lost.
    on_all(&workers, |worker| {
        let error =
            worker.all_reduce_async(vec![0, i32::MAX], Op::Sum).expect_err("the sum would not fit");
        assert!(error.to_string().contains("element 1 is 2147483647"), "{error}");
    });
}

fn check_type<T: Element>(workers: &[Communicator], of: impl Fn(i32) -> T + Sync) {
    let world = workers.len() as i32;
    on_all(workers, |worker| {
        let rank = i32::from(worker.rank());
        let input: Vec<T> = (0..3000).map(|i| of((i % 10) * (rank + 1) - 12)).collect();
        let all = |i: i32| (0..world).map(move |rank| (i % 10) * (rank + 1) - 12);
        for op in [Op::Sum, Op::Min, Op::Max] {
            let mut data = input.clone();
            worker.all_reduce(&mut data, op).unwrap_or_else(|error| panic!("{op}: {error}"));
            for (i, got) in (0..).zip(&data) {
                let expected = match op {
                    Op::Min => all(i).min(),
                    Op::Max => all(i).max(),
                    _ => Some(all(i).sum()),
                };
                assert_eq!(*got, of(expected.unwrap_or_default()), "{op} of {}, {i}", T::TYPE);
            }
        }
    });
}

/// All types and operations; sums of small whole numbers are exact in all of them.
#[test]
fn all_types_and_operations() {
    need_root!();
    for engine in support::ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        let workers = connect(&lab, "types", 2, 2, |settings| settings.scaling(Scaling::Block));
        check_type(&workers, |x| x as f32);
        check_type(&workers, f64::from);
        check_type(&workers, |x| f16::from_f32(x as f32));
        check_type(&workers, |x| bf16::from_f32(x as f32));
        check_type(&workers, |x| x);
        check_type(&workers, i64::from);
    }
}

/// What leaves a host is one copy of the vector, whatever the number of its processes.
#[test]
fn one_copy_leaves_a_host() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    for size in [1, 2, 4] {
        for (width, share) in [(LaneWidth::W32, 1.0), (LaneWidth::W16, 0.5)] {
            let tune = |settings: Builder| settings.scaling(Scaling::Block).lanes(width);
            let workers = connect(&lab, &format!("bytes {size} {share}"), 2, size, tune);
            let sent = || lab.topology.host_counters(0).expect("an interface").tx_bytes;
            let before = sent();
            let len = 2_000_000;
            on_all(&workers, |worker| {
                let mut data = vec![1.0_f32; len];
                worker.all_reduce(&mut data, Op::Sum).expect("it ends");
                assert!(data.iter().all(|x| *x == 2.0 * f32::from(size)));
            });
            let repeated: u64 = workers
                .iter()
                .filter(|worker| worker.rank() < size)
                .map(|worker| worker.counters().flow)
                .map(|flow| flow.gap_retransmissions + flow.timer_retransmissions)
                .sum();
            let vector = len as f64 * 4.0 * share;
            let blocks = (vector / 1408.0).ceil();
            // Ethernet, IPv4, UDP, our header, and what was sent again.
            let allowed = (vector + blocks * 64.0) * 1.01 + repeated as f64 * 1472.0;
            let sent = (sent() - before) as f64;
            assert!(sent <= allowed, "{size} processes: {sent} bytes, {allowed} are allowed");
            assert!(sent >= vector, "{sent}");
        }
    }
}

/// Workers of a job of three hosts with two processes each. With `buffers`, vectors are in the
/// segment at half of the ranks, and some results are read in place.
fn steady_hosts(lab: &Lab, job: &str, policy: &str, buffers: bool) -> Vec<Steady> {
    let start = |rank: u16| {
        let settings = [("XDP_AGG_ON_WORKER_LOSS", policy), ("XDP_AGG_BUFFERS", "16777216")];
        let settings = if buffers { &settings[..] } else { &settings[..1] };
        lab.steady_of(job, (rank, 6), (rank % 2, 2), settings, &work())
    };
    watched::all_begin((0..6).map(start))
}

/// A killed process takes its host out of the job. Its fellows there name the lost process; the
/// other hosts go on, or report the loss, as the policy wants.
#[test]
fn a_killed_process_is_a_lost_host() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    for (round, policy) in ["shrink", "fail", "shrink", "fail"].into_iter().enumerate() {
        let mut workers = steady_hosts(&lab, &format!("host {round}"), policy, round >= 2);
        thread::sleep(Duration::from_millis(11 * round as u64));
        let victim = 2 + round % 2;
        let since = Instant::now();
        let dead = workers.remove(victim);
        let mut said = vec![dead.said()];
        drop(dead);
        let fellow = workers.remove(2);
        let Failure { after, kind, text, .. } = failure_of(&fellow, since);
        assert!(after < PROMISED && kind == "host", "{after:?} {text}");
        assert!(text.contains(&format!("local rank {}", victim - 2)), "{text}");
        for worker in &workers {
            if policy == "fail" {
                let Failure { after, text, .. } = failure_of(worker, since);
                assert!(after < PROMISED, "{after:?} {text}");
                assert!(text.contains("rank 2") || text.contains("rank 3"), "{text}");
            } else {
                let after = call_of(worker, since, 0b11_0011) - since;
                assert!(after < PROMISED, "{after:?}");
            }
        }
        said.extend(workers.iter().chain([&fellow]).map(Steady::said));
        let verdict = judge(&said);
        if verdict.wrong > 0 {
            for (at, lines) in said.iter().enumerate() {
                for (_, line) in lines {
                    if let Line::Call { wrong: 1.., .. } = line {
                        eprintln!("{at}: {line:?}");
                    }
                }
            }
        }
        assert_eq!(verdict.wrong, 0, "{policy} {verdict:?}");
    }
}

/// All processes of a host are killed, and started again: they begin with one call and take part in
/// the next ones. Their slices' jobs may be at different calls when they come.
#[test]
fn a_killed_host_comes_back_whole() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let settings = [("XDP_AGG_ON_WORKER_LOSS", "shrink")];
    // Short calls: the jobs are rarely at the same one.
    let work = Work { longest: 20_000, ..Work::default() };
    let start = |rank: u16| lab.steady_of("whole", (rank, 6), (rank % 2, 2), &settings, &work);
    let mut workers = watched::all_begin((0..6).map(start));
    for _ in 0..5 {
        let gone: Vec<_> = workers.drain(2..4).collect();
        let since = Instant::now();
        let mut said: Vec<_> = gone.iter().map(Steady::said).collect();
        drop(gone);
        watched::calls_of(&workers, since, 0b11_0011, LIMIT);
        let since = Instant::now();
        workers.splice(2..2, [2, 3].map(start));
        watched::calls_of(&workers, since, 0b11_1111, LIMIT);
        said.extend(workers.iter().map(Steady::said));
        watched::check(&said);
    }
}

/// A process that joins again while its host's other process is missing is not let in: the other
/// hosts would wait for the whole host. They go on, and the host is back when it is complete.
#[test]
fn a_process_without_its_fellows_holds_nobody_up() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let settings = [("XDP_AGG_ON_WORKER_LOSS", "shrink")];
    let work = Work { longest: 20_000, reconnects: true, ..Work::default() };
    let start = |rank: u16| lab.steady_of("half", (rank, 6), (rank % 2, 2), &settings, &work);
    let mut workers = watched::all_begin((0..6).map(start));
    for victim in [2, 3, 2] {
        let dead = workers.remove(victim);
        let mut said = vec![dead.said()];
        drop(dead);
        // The fellow tries again 50 ms after it has been told of the loss.
        failure_of(&workers[2], Instant::now() - PROMISED);
        for _ in 0..8 {
            thread::sleep(Duration::from_millis(250));
            let since = Instant::now();
            let others = workers[..2].iter().chain(&workers[3..]);
            others.for_each(|worker| {
                let after = call_of(worker, since, 0b11_0011) - since;
                assert!(after < PROMISED, "{after:?}");
            });
        }
        let since = Instant::now();
        workers.insert(victim, start(victim as u16));
        watched::calls_of(&workers, since, 0b11_1111, LIMIT);
        said.extend(workers.iter().map(Steady::said));
        watched::check(&said);
    }
}

/// A killed worker whose vectors go over two aggregators begins with one call at both.
#[test]
fn a_killed_worker_of_two_aggregators_comes_back() {
    need_root!();
    let lab = Lab::start(network(3, "ports"), "xdp");
    let (_daemon, second) = second_daemon(&lab);
    let both = format!("{},{second}", lab.control());
    let settings = [("XDP_AGG_ON_WORKER_LOSS", "shrink"), ("XDP_AGG_ADDR", &*both)];
    let work = Work { longest: 20_000, ..Work::default() };
    let mut workers = lab.steady_job("both", 3, &settings, &work);
    for _ in 0..5 {
        let since = Instant::now();
        let said = workers.remove(1).said();
        watched::calls_of(&workers, since, 0b101, LIMIT);
        let since = Instant::now();
        workers.insert(1, lab.steady("both", 1, 3, &settings, &work));
        watched::calls_of(&workers, since, 0b111, LIMIT);
        watched::check(&[watched::all_said(&workers), vec![said]].concat());
    }
}

/// What a rank hears where calls differ. One that stops first may say so before it has heard what
/// the other one's call was.
fn is_told(error: &Error) -> bool {
    matches!(
        error,
        Error::Host(_) | Error::Job(JobError::CallMismatch { .. } | JobError::Aborted(_))
    )
}

/// Ranks that call differently all get an error that says so; no rank gets a sum.
#[test]
fn calls_that_differ_within_a_host_are_refused() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    for (round, odd) in [0, 1, 3].into_iter().enumerate() {
        let tune = |settings: Builder| settings.deadline(Duration::from_secs(5));
        let workers = connect(&lab, &format!("differ {round}"), 2, 2, tune);
        let errors = on_all(&workers, |worker| {
            let len = if worker.rank() == odd { 999 } else { 1000 };
            worker.all_reduce(&mut vec![1.0_f32; len], Op::Sum).expect_err("it differs")
        });
        assert!(errors.iter().all(is_told), "{errors:?}");
        let named = |error: &&Error| {
            let text = error.to_string();
            text.contains("999") && text.contains("1000")
        };
        assert!(errors.iter().filter(named).count() >= 2, "{errors:?}");
    }
}

/// Hosts that name their aggregators in another order, or cut a vector into other slices, would sum
/// different elements of it. Both are told what differs, and no rank gets a sum.
#[test]
fn vectors_that_are_cut_otherwise_on_another_host_are_refused() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let (_daemon, second) = second_daemon(&lab);
    let both = [lab.control(), second];
    let limit = |settings: Builder| settings.deadline(Duration::from_secs(5));
    let ordered = lab.connect("order", 2, |settings| limit(settings).aggregators(both));
    check_sums(&ordered, 10_000);
    drop(ordered);
    let refused = |job: &str, size: u16, tune: &(dyn Fn(Builder, u16) -> Builder + Sync)| {
        let hosts: Vec<u16> = (0..2 * size).map(|rank| rank / size).collect();
        let ends = lab.try_connect(job, &hosts, |settings, rank| {
            let settings = tune(settings.local(rank % size, size), rank / size);
            settings.join_deadline(Duration::from_secs(4))
        });
        ends.into_iter().map(|end| end.expect_err("it differs").to_string()).collect::<Vec<_>>()
    };
    // They meet at the first one.
    let reversed = refused("reversed", 1, &|settings, host| {
        let host = usize::from(host);
        limit(settings).aggregators([both[host], both[1 - host]])
    });
    let sliced = refused("sliced", 2, &|settings, host| {
        limit(settings).segment(if host == 0 { 32 << 20 } else { 1 << 20 })
    });
    for (errors, words) in [(reversed, "the same XDP_AGG_ADDR"), (sliced, "XDP_AGG_SEGMENT: ")] {
        assert!(errors.iter().all(|error| error.contains(words)), "{errors:?}");
    }
}

/// More calls in flight than the segment has room for, and none is waited for before all are
/// started. The room of a call that is done is free, whether or not its caller has asked for it.
#[test]
fn more_calls_than_room_are_in_flight() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = connect(&lab, "many", 2, 2, |settings| settings.segment(4 << 20));
    on_all(&workers, |worker| {
        let data = vec![f32::from(worker.rank()); 300_000];
        let start = |_| worker.all_reduce_async(data.clone(), Op::Sum).expect("room comes free");
        let handles: Vec<_> = (0..8).map(start).collect();
        for handle in handles {
            let (sum, _) = handle.wait(LIMIT).expect("it ends");
            assert!(sum.iter().all(|x| *x == 6.0));
        }
    });
}

/// One of two aggregators is lost: what follows is the job's choice, as with a single one.
#[test]
fn a_lost_aggregator_of_two_is_dealt_with() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let first = lab.control();
    for loss in [AggregatorLoss::Fail, AggregatorLoss::Resume, AggregatorLoss::Ring] {
        let (daemon, second) = second_daemon(&lab);
        let tune = |settings: Builder| {
            settings
                .aggregators([first, second])
                .on_aggregator_loss(loss)
                .fallback_after(Duration::from_millis(500))
                .dead_after(Duration::from_secs(2))
        };
        let workers = connect(&lab, loss.name(), 2, 2, tune);
        check_sums(&workers, 20_000);
        daemon.kill().expect("it was running");
        if loss == AggregatorLoss::Fail {
            let since = Instant::now();
            on_all(&workers, |worker| {
                let error = (0..1000)
                    .find_map(|_| worker.all_reduce(&mut vec![1.0_f32; 20_000], Op::Sum).err());
                let text = error.expect("half of the vector has no aggregator").to_string();
                assert!(text.contains("aggregator is gone") || text.contains("gave up"), "{text}");
            });
            assert!(since.elapsed() < PROMISED, "{:?}", since.elapsed());
            continue;
        }
        let handles: Vec<_> = workers
            .iter()
            .map(|worker| {
                let data: Vec<f32> = vec![f32::from(worker.rank()) + 1.0; 50_000];
                worker.all_reduce_async(data, Op::Sum).expect("it starts")
            })
            .collect();
        let again = (loss == AggregatorLoss::Resume).then(|| second_daemon(&lab));
        for handle in handles {
            let (sum, report) = handle.wait(LIMIT).expect("it goes on");
            assert!(sum.iter().all(|x| *x == 10.0));
            let over_ring = loss == AggregatorLoss::Ring;
            assert_eq!(report.path != Path::Aggregator, over_ring, "{loss:?} {report:?}");
        }
        check_sums(&workers, 20_000);
        if loss == AggregatorLoss::Ring {
            let _again = second_daemon(&lab);
            comes_back(&workers);
        }
        drop(again);
    }
}

/// Each slice's job leaves its ring when its aggregator is there again; the other aggregator's part
/// went on all the time.
fn comes_back(workers: &[Communicator]) {
    let since = Instant::now();
    loop {
        let paths = on_all(workers, |worker| {
            let mut data = vec![f32::from(worker.rank()) + 1.0; 50_000];
            let report = worker.all_reduce(&mut data, Op::Sum).expect("it goes on");
            assert!(data.iter().all(|x| *x == 10.0));
            report.path
        });
        if paths.iter().all(|path| *path == Path::Aggregator) {
            return check_sums(workers, 20_000);
        }
        assert!(since.elapsed() < LIMIT, "{paths:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A segment that cannot be is told before anything else, and so are lanes that make no sense.
#[test]
fn what_cannot_be_is_told_at_once() {
    need_root!();
    let lab = Lab::start(network(1, "ports"), "xdp");
    let connect = |tune: &(dyn Fn(Builder) -> Builder + Sync)| {
        at_once(0..2, |rank| {
            let settings = lab.worker("odd", rank, 2).local(rank, 2);
            let worker = lab.connect_one(0, tune(settings.join_deadline(Duration::from_secs(5))));
            worker.map(drop).expect_err("refused").to_string()
        })
    };
    let nowhere = connect(&|settings| settings.segment_dir("/does/not/exist"));
    assert!(nowhere.iter().any(|text| text.contains("/does/not/exist")), "{nowhere:?}");
    let small = connect(&|settings| settings.segment(1000));
    assert!(small.iter().all(|text| text.contains("segment: 1000 bytes")), "{small:?}");
    let wide = connect(&|settings| settings.lanes(LaneWidth::W64));
    assert!(wide.iter().all(|text| text.contains("64-bit lanes")), "{wide:?}");
}

/// All-reduces a vector that is in the segment at odd ranks, with the result in its place.
fn reduce_mixed<T: Element>(worker: &Communicator, input: &[T], op: Op) -> Vec<T> {
    if worker.rank().is_multiple_of(2) {
        let mut data = input.to_vec();
        worker.all_reduce(&mut data, op).expect("it ends");
        return data;
    }
    let mut buffer = worker.buffer::<T>(input.len()).expect("room for a buffer");
    assert!(buffer.is_shared());
    buffer.copy_from_slice(input);
    worker.all_reduce(&mut buffer, op).expect("it ends");
    buffer.to_vec()
}

/// The same bits as a vector that is copied, in place and as a view, of every type.
fn check_places<T: Element>(workers: &[Communicator], of: impl Fn(f64) -> T + Sync, len: usize) {
    let results = on_all(workers, |worker| {
        let scale = f64::from(worker.rank()) + 0.7;
        let input: Vec<T> =
            (0..len).map(|i| of(((i as f64 + 1.0) * scale).sin() * 1000.0)).collect();
        let mut copied = input.clone();
        worker.all_reduce(&mut copied, Op::Sum).expect("it ends");
        let mixed = reduce_mixed(worker, &input, Op::Sum);
        let mut buffer = worker.buffer::<T>(len).expect("room for a buffer");
        buffer.copy_from_slice(&input);
        let (view, report) = worker.all_reduce_view(&buffer, Op::Sum).expect("it ends");
        assert_eq!(report.processes, worker.local_size());
        let (of_copied, _) = worker.all_reduce_view(&input, Op::Sum).expect("it ends");
        // Both in flight, and waited for in another order.
        let started = worker.all_reduce_view_async(input.clone(), Op::Sum).expect("it starts");
        let last = worker.all_reduce_view_async(buffer, Op::Sum).expect("it starts");
        let (mut buffer, of_last, _) = last.wait(LIMIT).expect("it ends");
        let (same, of_started, report) = started.wait(LIMIT).expect("it ends");
        assert!(*same == input && *buffer == input && buffer.is_shared(), "the input stays");
        assert_eq!(report.processes, worker.local_size());
        // A part of a vector, whose input is where another result was read.
        worker.all_reduce(&mut buffer[len / 3..], Op::Sum).expect("it ends");
        let mut part = input[len / 3..].to_vec();
        worker.all_reduce(&mut part, Op::Sum).expect("it ends");
        let (again, _) = worker.all_reduce_view(&view, Op::Max).expect("it ends");
        let mut of_view = view.to_vec();
        worker.all_reduce(&mut of_view, Op::Max).expect("it ends");
        [
            copied,
            mixed,
            view.to_vec(),
            of_copied.to_vec(),
            of_started.to_vec(),
            of_last.to_vec(),
            again.to_vec(),
            of_view,
            [&input[..len / 3], &part].concat(),
            buffer.to_vec(),
        ]
        .map(|result| bytemuck::cast_slice::<T, u8>(&result).to_vec())
    });
    for [copied, mixed, rest @ .., again, of_view, part, in_buffer] in &results {
        let [view, of_copied, of_started, of_last] = rest;
        assert!(*copied == results[0][0], "the ranks differ in {}", T::TYPE);
        for (name, other) in [
            ("mixed", mixed),
            ("a view", view),
            ("of a copy", of_copied),
            ("started", of_started),
            ("started in the segment", of_last),
        ] {
            assert!(other == copied, "{name}, {len} of {}", T::TYPE);
        }
        assert!(again == of_view, "of a view, {len} of {}", T::TYPE);
        assert!(part == in_buffer, "a part, {len} of {}", T::TYPE);
    }
}

/// Vectors in the segment give the bits of vectors that are copied: over one aggregator or two, in
/// place or as a view, at some processes of a host or at all.
#[test]
fn vectors_in_the_segment_are_summed_where_they_are() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let (_daemon, second) = second_daemon(&lab);
    let first = lab.control();
    for (name, addresses) in [("one", vec![first]), ("two", vec![first, second])] {
        let workers = connect(&lab, &format!("segment {name}"), 2, 2, |settings| {
            settings.aggregators(addresses.clone()).buffers(32 << 20)
        });
        check_places(&workers, |x| x as f32, 300_001);
        check_places(&workers, |x| x, 20_000);
        check_places(&workers, |x| f16::from_f32(x as f32 / 8.0), 20_000);
        check_places(&workers, |x| bf16::from_f32(x as f32), 352);
        check_places(&workers, |x| x as i32, 1);
        check_places(&workers, |x| x as i64, 5000);
    }
    // Each process a worker of its own: the same calls, in memory of their own.
    let alone = lab.connect("segment alone", 2, |settings| settings);
    on_all(&alone, |worker| {
        let mut buffer = worker.buffer::<f32>(1000).expect("it is private");
        assert!(!buffer.is_shared());
        buffer.fill(1.0);
        let (view, _) = worker.all_reduce_view(&buffer, Op::Sum).expect("it ends");
        assert!(view.iter().all(|x| *x == 2.0) && buffer.iter().all(|x| *x == 1.0));
        let started = worker.all_reduce_view_async(buffer, Op::Sum).expect("it starts");
        let (buffer, view, _) = started.wait(LIMIT).expect("it ends");
        assert!(view.iter().all(|x| *x == 2.0) && buffer.iter().all(|x| *x == 1.0));
    });
}

/// Started calls count among the results that a process may have. One that is dropped goes on for
/// the others' sake, and its room comes back. One that fails says so, and so does its successor.
#[test]
fn started_views_have_their_room_and_give_it_back() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let workers =
        connect(&lab, "started views", 2, 2, |settings| settings.buffers(16 << 20).deadline(LIMIT));
    let len = 100_000;
    let input = |worker: &Communicator| vec![f32::from(worker.rank()); len];
    on_all(&workers, |worker| {
        let start = || worker.all_reduce_view_async(input(worker), Op::Sum);
        let start_in_segment = || {
            let mut buffer = worker.buffer::<f32>(len)?;
            buffer.copy_from_slice(&input(worker));
            worker.all_reduce_view_async(buffer, Op::Sum)
        };
        // A call that nobody waits for may end a moment after the others.
        let start_soon = |index: usize| {
            let since = Instant::now();
            loop {
                match if index.is_multiple_of(2) { start() } else { start_in_segment() } {
                    Ok(handle) => return handle,
                    Err(error) => assert!(since.elapsed() < LIMIT, "no room came back: {error}"),
                }
                thread::sleep(Duration::from_millis(1));
            }
        };
        for round in 0..30_usize {
            // As many as there may be, and one more.
            let handles: Vec<_> = (0..8).map(start_soon).collect();
            let error = start().expect_err("a ninth").to_string();
            assert!(error.contains("reads 8 results"), "{error}");
            for (index, handle) in handles.into_iter().enumerate() {
                // Others drop others.
                if (index + round + usize::from(worker.rank())) % 3 == 0 {
                    drop(handle);
                    continue;
                }
                let (same, view, _) = handle.wait(LIMIT).expect("it ends");
                assert!(view.iter().all(|x| *x == 6.0) && *same == input(worker));
            }
        }
        let error = worker.all_reduce_view_async(vec![1.0_f32; 5 << 20], Op::Sum);
        let error = error.expect_err("too large").to_string();
        assert!(error.contains("XDP_AGG_BUFFERS"), "{error}");
        let mut data = [1.0_f32; 100];
        worker.all_reduce(&mut data, Op::Sum).expect("nothing has happened");
        assert!(data == [4.0; 100]);
    });
    on_all(&workers, |worker| {
        let len = 1000 + usize::from(worker.rank() == 1);
        let handle = worker.all_reduce_view_async(vec![1.0_f32; len], Op::Sum);
        let error = handle.and_then(|handle| handle.wait(LIMIT)).expect_err("the calls differ");
        assert!(is_told(&error), "{error}");
        let after = worker.all_reduce_view_async(vec![1.0_f32; 10], Op::Sum);
        after.and_then(|handle| handle.wait(LIMIT)).expect_err("it is unusable");
    });
}

/// What a number cannot say, what does not fit and what was clamped is told to all processes, as
/// without groups, wherever the vector is.
#[test]
fn values_that_are_no_sums_are_told_of() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "userspace");
    let fixed = |settings: Builder| settings.scale(1e8).buffers(8 << 20);
    let workers = connect(&lab, "clamped", 2, 2, fixed);
    on_all(&workers, |worker| {
        let mut data = vec![0.25_f32; 5000];
        if worker.rank() == 1 {
            (data[7], data[4999]) = (1e9, -1e9);
        }
        let report = worker.all_reduce(&mut data, Op::Sum).expect("it ends");
        // The owners' reports are joined in each host.
        let expected = if worker.rank() < 2 { 2 } else { 0 };
        assert_eq!((report.saturated, data[0]), (expected, 1.0));
    });
    let tune = |settings: Builder| settings.scaling(Scaling::Block).buffers(8 << 20);
    let workers = connect(&lab, "no numbers", 2, 2, tune);
    on_all(&workers, |worker| {
        for (odd, value) in [(1, f32::NAN), (2, f32::INFINITY)] {
            let mut own = vec![f32::from(worker.rank()); 352 * 20];
            if worker.rank() == odd {
                own[352 * 9 + 5] = value;
            }
            let mut buffer = worker.buffer::<f32>(own.len()).expect("room");
            buffer.copy_from_slice(&own);
            for data in [&mut own[..], &mut buffer[..]] {
                let report = worker.all_reduce(data, Op::Average).expect("it ends");
                assert_eq!(report.non_finite_blocks, 1, "{value}");
                for (i, x) in data.iter().enumerate() {
                    assert!(if i / 352 == 9 { !x.is_finite() } else { *x == 1.5 }, "{i}: {x}");
                }
            }
        }
    });
    // It would fit if each host were one process.
    let errors = on_all(&workers, |worker| {
        worker
            .all_reduce(&mut [i32::MAX / 3; 10], Op::Sum)
            .expect_err("it does not fit")
            .to_string()
    });
    assert!(errors.iter().any(|error| error.contains("715827882")), "{errors:?}");
}

/// What is missing is said with the number to set, and the communicator goes on.
#[test]
fn room_for_buffers_is_asked_for_by_its_name() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    for room in [0, 1 << 20] {
        let workers =
            connect(&lab, &format!("room {room}"), 2, 2, |settings| settings.buffers(room));
        on_all(&workers, |worker| {
            for error in [
                worker.buffer::<f32>(1_000_000).expect_err("too large").to_string(),
                worker
                    .all_reduce_view(&vec![1.0_f32; 1_000_000], Op::Sum)
                    .expect_err("too large")
                    .to_string(),
            ] {
                assert!(error.contains("4000000 bytes of the shared segment"), "{error}");
                assert!(error.contains("XDP_AGG_BUFFERS=4194304"), "{error}");
            }
            let mut data = [1.0_f32; 100];
            worker.all_reduce(&mut data, Op::Sum).expect("nothing has happened");
            assert!(data == [4.0; 100]);
        });
    }
}

/// The aggregator is lost in the midst of calls on vectors in the segment: a ring goes on with the
/// inputs where they are.
#[test]
fn a_ring_goes_on_with_vectors_in_the_segment() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    for round in 0..3 {
        let (daemon, second) = second_daemon(&lab);
        let workers = connect(&lab, &format!("segment ring {round}"), 2, 2, |settings| {
            settings
                .aggregators([second])
                .on_aggregator_loss(AggregatorLoss::Ring)
                .fallback_after(Duration::from_millis(500))
                .dead_after(Duration::from_secs(2))
                .buffers(16 << 20)
        });
        thread::scope(|scope| {
            let killed = scope.spawn(move || {
                thread::sleep(Duration::from_millis(30 + 17 * round));
                daemon.kill().expect("it was running");
            });
            on_all(&workers, |worker| {
                let len = 400_000;
                let mut over_ring = 0;
                let since = Instant::now();
                for call in 0..40_u16 {
                    let of = |rank: u16, i: usize| f32::from(rank + call) + (i % 7) as f32;
                    let input: Vec<f32> = (0..len).map(|i| of(worker.rank(), i)).collect();
                    let sum = |i: usize| (0..4).map(|rank| of(rank, i)).sum::<f32>();
                    let result = if call % 3 == 2 {
                        let (view, report) =
                            worker.all_reduce_view(&input, Op::Sum).expect("it goes on");
                        over_ring += u32::from(report.path != Path::Aggregator);
                        view.to_vec()
                    } else {
                        reduce_mixed(worker, &input, Op::Sum)
                    };
                    assert!(result.iter().enumerate().all(|(i, x)| *x == sum(i)), "call {call}");
                    assert!(since.elapsed() < LIMIT);
                }
                assert!(over_ring > 0, "the ring never took over");
            });
            killed.join().expect("it was killed");
        });
    }
}
