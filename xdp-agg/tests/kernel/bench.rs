//! The benchmark measures what it says: every case, and each in its place.

use xdp_agg::engine::xdp::{BenchCase, BenchConfig, BenchRow, accounts, kernel_bench};

use crate::setup::engine;

#[test]
fn every_case_is_measured_and_the_account_adds_up() {
    if engine(2).is_none() {
        return;
    }
    let config = BenchConfig { chunks: vec![1, 54], slots: 64, samples: 5 };
    // The benchmark pins its thread to a CPU; this thread is the test's own.
    let rows = kernel_bench(&config).expect("it measures");
    let cases = 11;
    assert_eq!(rows.len(), 2 * cases, "{rows:?}");
    let of = |case, payload| -> &BenchRow {
        let row = rows.iter().find(|row| row.case == case && row.payload == payload);
        row.expect("every case at every size")
    };
    let lanes = of(BenchCase::Add, 3456).ns_median - of(BenchCase::Add, 64).ns_median;
    assert!(lanes > 20.0, "53 more chunks in {lanes} ns: nothing was added");
    // What is refused before the slot does not depend on the size.
    assert!(of(BenchCase::WrongCookie, 3456).ns_median < of(BenchCase::Add, 3456).ns_median);
    for account in accounts(&rows) {
        let sum = account.parse + account.admit + account.slot + account.lanes;
        assert!((sum - account.add).abs() < 0.5, "{account:?}");
    }
}

#[test]
fn sizes_that_do_not_exist_are_refused() {
    for (chunks, slots) in [(vec![0], 64), (vec![55], 64), (vec![22], 48), (vec![22], 1)] {
        let config = BenchConfig { chunks, slots, samples: 1 };
        let error = kernel_bench(&config).expect_err("out of range");
        assert!(error.to_string().contains("power of two"), "{error}");
    }
}
