//! A small part of `cargo xtask fuzz`, always the same, as a test of each target.

use std::path::Path;
use std::time::Duration;

use xdp_agg_fuzz::driver::{self, Plan};
use xdp_agg_fuzz::{Target, targets};

/// Inputs for each target, and the time that they may take on a busy machine.
const PLAN: Plan = Plan { inputs: 25_000, seed: 3, time: Some(Duration::from_secs(30)) };

/// Runs a target; of its inputs, at least one in twenty gets somewhere.
fn fuzz(name: &str) {
    fuzz_with(name, 20);
}

/// Runs a target; of its inputs, at least one in `one_in` gets somewhere.
fn fuzz_with(name: &str, one_in: u64) {
    let target = targets::by_name(name).expect("there is such a target");
    if let Some(why) = (target.unavailable)() {
        eprintln!("skipped: {why}");
        return;
    }
    let corpus = corpus(&target);
    let summary = driver::run(&target, &corpus, PLAN, |_| {});
    if let Some(failure) = summary.failure {
        let text = String::from_utf8_lossy(&failure.input);
        panic!("{}\ninput {:02x?}\n{text}", failure.message, failure.input);
    }
    // Inputs that all fail at the first byte would find nothing.
    assert!(summary.accepted > summary.inputs / one_in, "{summary:?}");
    let never: Vec<_> = target.features.iter().zip(&summary.features).collect();
    assert!(never.iter().filter(|(_, count)| **count > 0).count() > never.len() / 2, "{never:?}");
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let files = driver::corpus(&directory).expect("it can be read");
    assert!(!files.is_empty(), "no corpus in {}", directory.display());
    files.into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn packets() {
    fuzz("packet");
}

#[test]
fn packets_of_members_and_of_the_parent() {
    fuzz("forwarder");
}

#[test]
fn networks() {
    // A file is wrong as a whole if any line is.
    fuzz_with("topology", 60);
}

#[test]
fn tables_of_ways() {
    fuzz_with("tuning", 40);
}

#[test]
fn what_ranks_of_a_mesh_read() {
    fuzz("mesh");
}

#[test]
fn control_messages() {
    fuzz("control");
}

#[test]
fn sequences_of_requests() {
    fuzz("jobs");
}

#[test]
fn jobs_with_trees() {
    fuzz("trees");
}

#[test]
fn settings() {
    fuzz("config");
}

#[test]
fn plans_for_a_new_epoch() {
    fuzz("reform");
}
