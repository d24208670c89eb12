//! The benchmark measures what it says: every case, and each in its place.

use xdp_agg_testbed::is_root;

use super::*;

/// The benchmark itself compares what the program counted with what it let it do, and fails where
/// they differ; times depend on what else the machine does, and are not looked at.
#[test]
fn every_case_is_measured_and_the_account_adds_up() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let config = BenchConfig { chunks: vec![1, 54], slots: 64, samples: 5 };
    // The benchmark pins its thread to a CPU; this thread is the test's own.
    let rows = kernel_bench(&config).expect("it measures, and the packets did what they should");
    let cases = 13;
    assert_eq!(rows.len(), 2 * cases, "{rows:?}");
    for payload in [64, 3456] {
        let mut seen: Vec<_> =
            rows.iter().filter(|row| row.payload == payload).map(|row| row.case.name()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), cases, "every case at every size: {seen:?}");
    }
    assert!(rows.iter().all(|row| (row.samples, row.slots) == (5, 64)), "{rows:?}");
    let accounts = accounts(&rows);
    assert_eq!(accounts.len(), 2);
    for account in accounts {
        let sum = account.parse + account.admit + account.slot + account.lanes;
        assert!((sum - account.add).abs() < 0.5, "{account:?}");
    }
}

/// Here, too, the benchmark compares what was counted with what two CPUs were to add: a second CPU
/// that adds to the wrong blocks, or nothing, makes it fail.
#[test]
fn two_cpus_add_to_slots_of_their_own_and_to_the_same() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if !is_root() || cpus < 2 {
        eprintln!("skipped: not root, or one CPU");
        return;
    }
    let config = BenchConfig { chunks: Vec::new(), slots: 64, samples: 5 };
    let rows = contention(&config, 22).expect("both add what they should");
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.ns_median > 0.0));
}

#[test]
fn sizes_that_do_not_exist_are_refused() {
    for (chunks, slots) in [(vec![0], 64), (vec![55], 64), (vec![22], 48), (vec![22], 1)] {
        let config = BenchConfig { chunks, slots, samples: 1 };
        let error = kernel_bench(&config).expect_err("out of range");
        assert!(error.to_string().contains("power of two"), "{error}");
    }
}

#[test]
fn payloads_are_whole_chunks() {
    assert_eq!(chunks(&[64, 1408, 3456]).expect("they are"), [1, 22, 54]);
    for wrong in [0, 63, 1400, 3520] {
        assert!(chunks(&[wrong]).is_err(), "{wrong}");
    }
    assert_eq!(mtu_of(1408), 1458);
}
