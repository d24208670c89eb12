//! Shows that the simulation bites: each mutant of `verify/simulator/mutants.toml` is noticed.

use xdp_agg_simulator::mutants;

#[test]
fn every_mutant_is_noticed() {
    let verdicts = mutants::run(mutants::SEEDS).expect("all edits apply, and the copy builds");
    assert!(verdicts.len() >= 14, "only {}", verdicts.len());
    let missed = verdicts.iter().filter(|verdict| verdict.caught.is_none());
    let missed: Vec<_> = missed.map(|verdict| &verdict.mutant.name).collect();
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}
