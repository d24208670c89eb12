//! Sums end to end: both engines, all result modes, several world sizes and odd lengths, over real
//! XDP in real network namespaces.

mod support;

use support::{ENGINES, LIMIT, Lab, check_sums, element, network, on_all};
use xdp_agg_client::{Communicator, Op, ResultMode};
use xdp_agg_testbed::Topology;

/// Nothing, one element, a block and one more or less, more blocks than the window has, and a
/// length that no boundary divides.
const LENGTHS: [usize; 7] = [0, 1, 351, 352, 353, 352 * 600 + 17, 100_003];

/// Blocks of a call at MTU 1500. The seal of a call of few has one of its own where the last one is
/// full.
fn blocks_of(len: usize) -> usize {
    let data = len.div_ceil(352);
    let is_full = len.div_ceil(16) == 22 * data;
    data + usize::from((1..4).contains(&data) && is_full)
}

fn matrix(engine: &'static str, mode: ResultMode) {
    for world_size in [1, 2, 3, 4, 8] {
        let lab = Lab::start(network(world_size, mode.name()), engine);
        let workers = lab.connect("matrix", world_size, |settings| settings.result_mode(mode));
        assert_eq!(workers[0].result_mode(), mode);
        assert!(workers[0].engine().starts_with(engine), "{}", workers[0].engine());
        for len in LENGTHS {
            check_sums(&workers, len);
        }
        let blocks: usize = LENGTHS.iter().map(|len| 2 * blocks_of(*len)).sum();
        let counters = lab.job_stats("matrix").counters;
        assert_eq!(counters.blocks, blocks as u64);
        assert_eq!(counters.contributions, blocks as u64 * u64::from(world_size));
        assert_eq!(counters.rejects.iter().sum::<u64>(), 0, "{counters:?}");
    }
}

macro_rules! matrix {
    ($($name:ident: $engine:literal, $mode:ident;)*) => {$(
        #[test]
        fn $name() {
            need_root!();
            matrix($engine, ResultMode::$mode);
        }
    )*};
}

matrix! {
    xdp_ports: "xdp", Ports;
    xdp_fanout: "xdp", Fanout;
    xdp_multicast: "xdp", Multicast;
    userspace_ports: "userspace", Ports;
    userspace_fanout: "userspace", Fanout;
    userspace_multicast: "userspace", Multicast;
}

/// The mode is found where nobody asks for one.
#[test]
fn the_result_mode_fits_the_network() {
    need_root!();
    for (place, mode) in [("ports", ResultMode::Ports), ("one nic", ResultMode::Fanout)] {
        let lab = Lab::start(network(2, place), "xdp");
        let workers = lab.connect("auto", 2, |settings| settings);
        assert_eq!(workers[0].result_mode(), mode);
        check_sums(&workers, 1000);
    }
}

/// Block size follows the MTU: 352 lanes at 1500, 864 at the most that one page holds.
#[test]
fn blocks_follow_the_mtu() {
    need_root!();
    for (mtu, bytes) in [(1500, 1408), (576, 512), (3506, 3456)] {
        let topology = Topology::builder().workers(3).mtu(mtu).build().expect("a network");
        let lab = Lab::start(topology, "xdp");
        let workers = lab.connect("mtu", 3, |settings| settings);
        assert_eq!(workers[0].block_bytes(), bytes, "MTU {mtu}");
        for len in [1, bytes / 4, bytes / 4 + 1, 50_000] {
            check_sums(&workers, len);
        }
    }
}

/// Generic XDP is a fallback that says so, and sums as well.
#[test]
fn generic_mode_sums() {
    need_root!();
    // The kernel exempts packets that a TC program redirected, as the harness's links do, from
    // generic XDP.
    let topology = Topology::builder().workers(3).wire(false).build().expect("a network");
    let mut lab = Lab::start(topology, "userspace");
    drop(lab.daemon.take());
    lab.engine = "xdp";
    lab.extra = ["--xdp-mode", "generic"].map(str::to_owned).into();
    lab.start_daemon();
    let workers = lab.connect("generic", 3, |settings| settings);
    assert_eq!(workers[0].engine(), "xdp (generic)");
    check_sums(&workers, 10_000);
}

/// Several calls in flight, waited for in another order than they were started in.
#[test]
fn several_calls_in_flight() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let workers = lab.connect("handles", 3, |settings| settings);
        on_all(&workers, |worker| {
            let start = |call: usize| {
                let len = 1 + call * 977;
                let data: Vec<f32> =
                    (0..len).map(|i| (element(worker.rank(), i + call)) as f32).collect();
                worker.all_reduce_async(data, Op::Sum).expect("it starts")
            };
            let mut handles: Vec<_> = (0..8).map(|call| Some(start(call))).collect();
            // One is thrown away: the others must not notice.
            drop(handles[3].take());
            for call in [7, 0, 5, 2, 6, 1, 4] {
                let handle = handles[call].take().expect("not waited for yet");
                let (data, report) = handle.wait(LIMIT).expect("it ends");
                assert_eq!(report.blocks, blocks_of(data.len()) as u64);
                for (i, sum) in data.iter().enumerate() {
                    let expected: i32 = (0..3).map(|rank| element(rank, i + call)).sum();
                    assert_eq!(*sum, expected as f32, "call {call}, element {i}");
                }
            }
        });
        check_sums(&workers, 5000);
    }
}

/// No caller waits, and still the other workers get their sums: the progress thread drives.
#[test]
fn calls_go_on_while_nobody_waits() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = lab.connect("progress", 2, |settings| settings);
    let lazy = workers[0].all_reduce_async(vec![1.0_f32; 1_000_000], Op::Sum).expect("it starts");
    let mut eager = vec![2.0_f32; 1_000_000];
    workers[1].all_reduce(&mut eager, Op::Sum).expect("rank 0 contributes in the background");
    assert!(eager.iter().all(|x| *x == 3.0));
    let (lazy, _) = lazy.wait(LIMIT).expect("it ends");
    assert_eq!(lazy, eager);
}

/// Invariant 2: the same inputs give the same bits, whichever worker comes first.
#[test]
fn sums_are_bit_identical_in_every_run() {
    need_root!();
    let lab = Lab::start(network(4, "ports"), "xdp");
    let workers = lab.connect("bits", 4, |settings| settings.scale(1e7));
    let run = |first: u16| {
        on_all(&workers, |worker| {
            let mut data: Vec<f32> = (0..20_000)
                .map(|i| ((i as f32 + 1.0) * (f32::from(worker.rank()) + 0.7)).sin())
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(
                u64::from((worker.rank() + first) % 4) * 3,
            ));
            worker.all_reduce(&mut data, Op::Average).expect("it ends");
            data.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        })
    };
    let first = run(0);
    for round in 0..4 {
        for bits in run(round) {
            assert!(bits == first[0], "round {round}");
        }
    }
}

/// Invariant 6: NaN and infinity reach every worker, in their block and no other.
#[test]
fn non_finite_input_reaches_every_worker() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let workers = lab.connect("nan", 3, |settings| settings);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            on_all(&workers, |worker| {
                let mut data = vec![1.0_f32; 352 * 4];
                if worker.rank() == 1 {
                    data[352 * 2 + 5] = odd;
                }
                let report = worker.all_reduce(&mut data, Op::Sum).expect("it ends");
                assert_eq!(report.non_finite_blocks, 1);
                for (i, x) in data.iter().enumerate() {
                    assert_eq!(i / 352 == 2, !x.is_finite(), "element {i} of {odd}");
                    assert!(x.is_nan() || *x == 3.0);
                }
            });
        }
    }
}

/// What does not fit the fixed-point numbers is clamped, counted, and reported by the workers it
/// concerns.
#[test]
fn saturation_is_counted() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = lab.connect("saturation", 2, |settings| settings.scale(1e8));
    let reports = on_all(&workers, |worker| {
        let mut data = vec![0.25_f32; 1000];
        if worker.rank() == 0 {
            data[7] = 1e9;
            data[999] = -1e9;
        }
        let report = worker.all_reduce(&mut data, Op::Sum).expect("it ends");
        assert_eq!(data[0], 0.5);
        assert!((10.0..11.0).contains(&data[7]), "{}", data[7]);
        (report.saturated, worker.counters().saturated)
    });
    assert_eq!(reports, [(2, 2), (0, 0)]);
}

/// Two jobs at once, of different sizes, on the same hosts: neither disturbs the other.
#[test]
fn two_jobs_at_once() {
    need_root!();
    for (engine, place) in [("xdp", "ports"), ("xdp", "one nic"), ("userspace", "one nic")] {
        let lab = Lab::start(network(4, place), engine);
        let large = lab.connect("large", 4, |settings| settings);
        let small = lab.connect("small", 2, |settings| settings);
        std::thread::scope(|scope| {
            let rounds = |workers: &[Communicator]| {
                for len in [1, 50_000, 353, 20_000] {
                    check_sums(workers, len);
                }
            };
            scope.spawn(move || rounds(&large));
            scope.spawn(move || rounds(&small));
        });
        let stats = lab.stats();
        assert_eq!(stats.unattributed.rejects.iter().sum::<u64>(), 0, "{stats:?}");
    }
}
