//! A small part of `cargo xtask fuzz`, always the same, as a test of a target.

use std::time::Duration;

use crate::driver::{self, Plan};
use crate::{Target, directory};

/// Inputs for each target, and the time that they may take on a busy machine.
const PLAN: Plan = Plan { inputs: 25_000, seed: 3, time: Some(Duration::from_secs(30)) };

/// Tests by name: the target that each runs, and how many of its inputs get somewhere ([`fuzz`]).
#[macro_export]
macro_rules! bounded_tests {
    ($targets:expr; $($test:ident: $target:literal, $one_in:literal;)*) => {$(
        #[test]
        fn $test() {
            $crate::bounded::fuzz(&$targets, $target, $one_in);
        }
    )*};
}

/// Runs the target of this name; of its inputs, at least one in `one_in` gets somewhere.
///
/// # Panics
/// There is no such target, it fails, or too few inputs get somewhere.
pub fn fuzz(targets: &[Target], name: &str, one_in: u64) {
    let target = targets.iter().find(|target| target.name == name);
    let target = target.expect("there is such a target");
    let directory = directory("corpus").join(target.name);
    let corpus = driver::corpus(&directory).expect("it can be read");
    assert!(!corpus.is_empty(), "no corpus in {}", directory.display());
    let corpus: Vec<_> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let summary = driver::run(target, &corpus, PLAN, |_| {});
    if let Some(failure) = summary.failure {
        let text = String::from_utf8_lossy(&failure.input);
        panic!("{}\ninput {:02x?}\n{text}", failure.message, failure.input);
    }
    // Inputs that all fail at the first byte would find nothing.
    assert!(summary.accepted > summary.inputs / one_in, "{summary:?}");
    let never: Vec<_> = target.features.iter().zip(&summary.features).collect();
    assert!(never.iter().filter(|(_, count)| **count > 0).count() > never.len() / 2, "{never:?}");
}
