//! Runs the fuzzer of the kernel program for a while, and shows that it finds what there is to
//! find. `cargo xtask fuzz` runs it for longer.

use std::path::Path;

use xdp_agg::engine::EngineError;
use xdp_agg_common::maps::Reject;
use xdp_agg_fuzz_kernel::{FuzzConfig, FuzzError, fuzz_kernel};

/// Whether this process may load the program; if not, a message says why.
fn may_load() -> bool {
    let config = FuzzConfig { inputs: 1, seed: 1, corpus: None, disturb: None };
    match fuzz_kernel(&config, &mut |_| {}) {
        Err(FuzzError::Engine(
            reason @ (EngineError::NotPermitted(_) | EngineError::Unsupported(_)),
        )) => {
            eprintln!("skipped: {reason}");
            false
        }
        other => other.map(|_| true).expect("program and model agree"),
    }
}

#[test]
fn mutated_packets_do_what_the_model_does() {
    if !may_load() {
        return;
    }
    let config = FuzzConfig { inputs: 100_000, seed: 1, corpus: None, disturb: None };
    let report = fuzz_kernel(&config, &mut |_| {}).expect("program and model agree");
    eprintln!("{report:?}");
    assert_eq!(report.inputs, config.inputs);
    // It got everywhere: a fuzzer that only ever meets the first check proves little.
    for reason in Reject::ALL.into_iter().filter(|reason| *reason != Reject::Quota) {
        assert!(report.refused[reason as usize] > 100, "{reason:?}: {report:?}");
    }
    let deep = [report.passed, report.probes, report.contributions, report.blocks];
    assert!(deep.iter().all(|count| *count > 1000), "{report:?}");
    assert!(report.repetitions > 1000, "{report:?}");
    assert!(report.deliveries > 500 && report.relays > 500, "{report:?}");
}

/// A state that is not what it should be is found, told with the few inputs that it takes, kept,
/// and found again in what was kept.
#[test]
fn a_wrong_state_is_found_and_reduced() {
    if !may_load() {
        return;
    }
    let rare = |frame: &[u8]| frame.len() == 192 && frame[100] == 0x5a;
    let corpus = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-corpus");
    let _ = std::fs::remove_dir_all(&corpus);
    let mut config =
        FuzzConfig { inputs: 20_000, seed: 2, corpus: Some(corpus.clone()), disturb: Some(rare) };
    for origin in ["seed 2, input", ".frames"] {
        match fuzz_kernel(&config, &mut |_| {}) {
            Err(FuzzError::Found { origin: told, what, frames }) => {
                assert!(told.contains(origin), "{told}");
                assert!(what.contains("slot 1 holds"), "{what}");
                assert_eq!(frames.len(), 1, "what it takes is this one frame");
                assert!(rare(&frames[0]));
            }
            other => panic!("it should have been found: {other:?}"),
        }
    }
    config.disturb = None;
    config.inputs = 100;
    fuzz_kernel(&config, &mut |_| {}).expect("what was mended passes");
    std::fs::remove_dir_all(&corpus).expect("it was written");
}
