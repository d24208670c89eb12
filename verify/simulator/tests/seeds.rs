//! A fixed number of seeds as an ordinary test, and that a seed is one run and no other.

use xdp_agg_simulator::Choice;
use xdp_agg_simulator::bulk::{self, Plan};

#[test]
fn seeds_keep_every_promise() {
    // Trees have a test of their own.
    let choice = Choice { trees: Some(false), ..Choice::default() };
    let plan = Plan { first: 0, count: 2500, choice, threads: 0, stop: false };
    let report = bulk::run(&plan, |_| {});
    assert_eq!(report.violations, [], "replay with `cargo xtask sim --seed N`");
    // What does not happen is not tested.
    let stats = report.stats;
    for (what, count) in [
        ("runs", stats.runs / 2500),
        ("calls with a result", stats.calls),
        ("packets lost", stats.lost),
        ("packets delivered twice", stats.duplicated),
        ("packets that are late", stats.late),
        ("packets of strangers", stats.hostile),
        ("members told of a loss", stats.reforms),
        ("members that resumed", stats.resumes),
        ("jobs taken over by a restarted daemon", stats.taken_over),
        ("members told that a rank joins", stats.pauses),
        ("members put out that kept others waiting", stats.put_out),
        ("blocks handed on", stats.copies),
        ("blocks of keys", stats.keys),
        ("blocks of keys behind data", stats.keys_behind),
        ("blocks of keys agreed upon in a later epoch", stats.keys_again),
        ("blocks of keys handed on", stats.keys_copied),
        ("blocks of their roots alone", stats.roots),
        ("questions for such blocks", stats.questions),
        ("such blocks before their call", stats.early),
    ] {
        assert!(count > 0, "{what}: none");
    }
    // The others need several daemons.
    assert!(stats.faults[..6].iter().all(|count| *count > 0), "{:?}", stats.faults);
}

/// With several aggregators in every run.
#[test]
fn trees_keep_every_promise() {
    let choice = Choice { trees: Some(true), ..Choice::default() };
    let plan = Plan { first: 0, count: 600, choice, threads: 0, stop: false };
    let report = bulk::run(&plan, |_| {});
    assert_eq!(report.violations, [], "replay with `cargo xtask sim --trees --seed N`");
    let stats = report.stats;
    for (what, count) in [
        ("runs with trees", stats.trees / 600),
        ("calls with a result", stats.calls),
        ("sums sent up", stats.sums_up),
        ("results taken down", stats.deliveries),
        ("answers handed on", stats.relays),
        ("members told of a branch's loss", stats.branches_lost),
        ("members told that a branch is back", stats.branches_back),
        ("epochs with a stand-in", stats.stood_in),
        ("blocks handed on", stats.copies),
        ("blocks summed again", stats.redone),
        ("rings", stats.rings),
        ("members put out that kept others waiting", stats.put_out),
        ("blocks summed over rings", stats.ring_blocks),
    ] {
        assert!(count > 0, "{what}: none");
    }
    assert!(stats.faults.iter().all(|count| *count > 0), "{:?}", stats.faults);
}

#[test]
fn one_seed_is_one_run() {
    for seed in [1, 17, 225, 4242] {
        let first = xdp_agg_simulator::run(seed, Choice::default(), false);
        let again = xdp_agg_simulator::run(seed, Choice::default(), true);
        assert_eq!(first.trace.hash(), again.trace.hash(), "seed {seed}");
        assert_eq!(first.stats, again.stats, "seed {seed}");
        assert!(!again.trace.lines().is_empty());
    }
}

#[test]
fn seeds_differ() {
    let hash = |seed| xdp_agg_simulator::run(seed, Choice::default(), false).trace.hash();
    assert_ne!(hash(1), hash(2));
}
