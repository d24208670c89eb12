//! Everything at once: links that lose, repeat and reorder, and others that do their worst.

mod support;

use std::time::{Duration, Instant};

use support::{LIMIT, Lab, check_sums, need_root, network, on_all};
use xdp_agg_client::Communicator;
use xdp_agg_common::maps::Reject;
use xdp_agg_common::wire::DATA_PORT;
use xdp_agg_testbed::flood::{Attacker, Flood, Rude, Secret};
use xdp_agg_testbed::steady::{Claim, SCALE, Shape, input};
use xdp_agg_testbed::{Direction, Faults, Topology, at_once};

/// One call of all workers; elements that are wrong, and the longest time that it took.
fn call(workers: &[Communicator], seed: u64, sequence: u64, longest: usize) -> (u64, Duration) {
    let shape = Shape::of(seed, sequence, longest);
    let done = on_all(workers, |worker| {
        let integers = input(seed, sequence, worker.rank(), shape.len);
        let start = Instant::now();
        let (report, bits): (_, Vec<u32>) = if shape.floats {
            let mut floats: Vec<f32> = integers.iter().map(|x| *x as f32).collect();
            let report = worker.all_reduce(&mut floats, shape.op);
            (report, floats.into_iter().map(f32::to_bits).collect())
        } else {
            let mut integers = integers;
            let report = worker.all_reduce(&mut integers, shape.op);
            (report, integers.into_iter().map(i32::cast_unsigned).collect())
        };
        let time = start.elapsed();
        let report = report.unwrap_or_else(|error| panic!("call {sequence}: {error}"));
        let (contributors, partial) = (report.contributors, report.partial);
        let block_len = worker.block_bytes() / 4;
        let claim = Claim { bits: &bits, shape, sequence, contributors, partial, block_len };
        assert_eq!((contributors, partial), ((1 << workers.len()) - 1, 0));
        (claim.wrong(seed), time)
    });
    let longest = done.iter().map(|(_, time)| *time).max().unwrap_or_default();
    (done.iter().map(|(wrong, _)| wrong).sum(), longest)
}

/// The "end to end": 5 % loss, 5 % duplication, reordering by more than a window, on every
/// link in both directions; 4 workers, 200 calls of all sizes and types.
#[test]
fn two_hundred_calls_in_a_storm() {
    need_root!();
    /// A window of 16 blocks.
    const SLOTS: u32 = 32;
    let faults = Faults {
        loss: 0.05,
        duplicate: 0.05,
        // A held packet lets twice the window of its own link go by.
        hold: 0.05,
        hold_packets: SLOTS,
        ..Faults::NONE
    };
    let topology = Topology::builder().workers(4).faults(faults.only_udp(DATA_PORT));
    let lab = Lab::start(topology.build().expect("a network"), "xdp");
    let deadline = Duration::from_secs(10);
    let tune =
        |settings: xdp_agg_client::Builder| settings.slots(SLOTS).scale(SCALE).deadline(deadline);
    let workers = lab.connect("storm", 4, tune);
    let start = Instant::now();
    let (mut wrong, mut longest) = (0, Duration::ZERO);
    for sequence in 0..200 {
        let (more, time) = call(&workers, 11, sequence, 12_000);
        wrong += more;
        longest = longest.max(time);
    }
    let total = start.elapsed();
    let mut met = xdp_agg_testbed::FaultCounters::default();
    for link in 0..4 {
        for direction in Direction::BOTH {
            let counters = lab.topology.fault_counters(link, direction).expect("they are there");
            assert!(counters.lost > 0 && counters.duplicated > 0 && counters.released > 0);
            met.seen += counters.seen;
            met.lost += counters.lost;
            met.duplicated += counters.duplicated;
            met.released += counters.released;
        }
    }
    let counters = lab.job_stats("storm").counters;
    eprintln!("{total:?}, longest call {longest:?}; links: {met:?}; aggregator: {counters:?}");
    assert_eq!(wrong, 0);
    assert!(longest < deadline && total < Duration::from_secs(40), "{longest:?}, {total:?}");
    assert_eq!(counters.contributions, counters.blocks * 4, "{counters:?}");
    // Contributions came so late that their slot held a later block already.
    assert!(counters.stale > 0, "nothing was late by more than a window: {counters:?}");
}

/// Forged packets of every kind at full speed, with the job's own cookie among them. No sum is
/// wrong, and only packets of the job were taken in.
#[test]
fn a_flood_of_forgeries_changes_nothing() {
    need_root!();
    let topology = network(4, "ports");
    let attacker = Attacker::connect(topology.aggregator()).expect("an attacker");
    let lab = Lab::start_with(topology, "xdp", &["--interface", Attacker::INTERFACE]);
    let workers = lab.connect("flooded", 4, |settings| settings.scale(SCALE));
    let secret = std::thread::scope(|scope| {
        let listening = scope.spawn(|| Secret::overhear(lab.topology.worker(1)));
        while !listening.is_finished() {
            check_sums(&workers, 1000);
        }
        listening.join().expect("no panic").expect("a contribution")
    });
    let flood: Flood = attacker.flood(&secret, None).expect("it begins");
    let start = Instant::now();
    let (mut wrong, mut calls) = (0, 0);
    while start.elapsed() < Duration::from_secs(4) {
        wrong += call(&workers, 5, calls, 20_000).0;
        calls += 1;
    }
    let (sent, time) = flood.stop();
    let stats = lab.stats();
    let counters = lab.job_stats("flooded").counters;
    eprintln!("{calls} calls, {sent} forgeries in {time:?}: {counters:?} {:?}", stats.unattributed);
    assert_eq!(wrong, 0);
    assert_eq!(counters.contributions, counters.blocks * 4, "{counters:?}");
    let mut all = counters;
    all.merge(&stats.unattributed);
    for reason in [
        Reject::Truncated,
        Reject::Version,
        Reject::Malformed,
        Reject::Job,
        Reject::Cookie,
        Reject::Epoch,
        Reject::Member,
        Reject::Size,
    ] {
        assert!(all.rejects[reason as usize] > 100, "{}: {all:?}", reason.name());
    }
    assert!(calls > 5, "only {calls} calls");
}

/// A job of which one member never contributes and the other repeats itself without end: another
/// job runs to its end, and the quota keeps the packets of the first one out.
#[test]
fn a_job_that_never_ends_starves_nobody() {
    need_root!();
    for quota in [None, Some("20000")] {
        let extra = quota.map_or(vec![], |rate| vec!["--job-packet-rate", rate]);
        let lab = Lab::start_with(network(4, "ports"), "xdp", &extra);
        let join = |rank: u16| {
            let host = usize::from(rank);
            let host = (lab.topology.worker(host), lab.topology.worker_addr(host));
            Rude::join(host, lab.control(), "rude", rank, 2).expect("it joins")
        };
        let mut rude = [join(0), join(1)];
        rude.iter_mut().for_each(|worker| worker.get_ready().expect("it is ready"));
        rude.iter_mut().for_each(|worker| worker.wait_go().expect("it runs"));
        let flood = rude[0].repeat(None).expect("it begins");
        let workers = at_once(0..2, |rank| {
            let settings = lab.worker("polite", rank, 2).scale(SCALE).deadline(LIMIT);
            lab.connect_one(rank + 2, settings).expect("it connects")
        });
        let wrong: u64 = (0..50).map(|sequence| call(&workers, 9, sequence, 20_000).0).sum();
        let (sent, time) = flood.stop();
        let rude_counters = lab.job_stats("rude").counters;
        let polite = lab.job_stats("polite").counters;
        eprintln!("{sent} repetitions in {time:?}: {rude_counters:?}; {polite:?}");
        assert_eq!(wrong, 0);
        assert_eq!(polite.contributions, polite.blocks * 2, "{polite:?}");
        assert_eq!(rude_counters.blocks, 0);
        let refused = rude_counters.rejects[Reject::Quota as usize];
        assert_eq!(refused > 1000, quota.is_some(), "{rude_counters:?}");
        // Its quota is a job's own: the other one is below it, or has none.
        assert!(quota.is_some() || polite.rejects[Reject::Quota as usize] == 0);
    }
}
