//! Branches that come to a step and no further: each step has a limit of its own.

use xdp_agg_common::control::BranchReply;

use super::woods::{GO_ON, Stuck, Woods, control, path};
use super::*;

/// All that a job of five over two branches hears of one that is stuck, and when.
fn stuck(index: usize, step: Stuck) -> (Vec<AbortReason>, Duration) {
    let mut woods = Woods::new(2);
    woods.daemons[index].stuck_at = Some(step);
    let conns = woods.join_all(&path(), 5, Policy::default());
    if matches!(step, Stuck::Link | Stuck::Start) {
        woods.all_ready(&conns);
    }
    let begin = woods.now;
    // Half a minute more than the limit, which the workers' deadline would allow, too.
    for _ in 0..50 {
        let reasons = woods.aborted(&conns);
        if !reasons.is_empty() {
            assert!(woods.links.is_empty() && woods.daemons.iter().all(|d| d.engine.is_empty()));
            return (reasons, woods.now - begin);
        }
        woods.wait_for(Duration::from_secs(1));
    }
    panic!("{index} is stuck at {step:?} for {:?}: {:?}", woods.now - begin, woods.info());
}

/// The branch, the step, the limit, and what to do are in the reason.
fn is_named(index: usize, step: Stuck, words: &str) {
    let (reasons, after) = stuck(index, step);
    assert_eq!(reasons.len(), 5);
    for reason in &reasons {
        let named =
            matches!(reason, AbortReason::Branch { daemon, .. } if *daemon == control(index));
        let text = reason.to_string();
        assert!(named, "{index} {step:?}: {text}");
        for words in [words, "within 20 s", "?", "--probe-timeout"] {
            assert!(text.contains(words), "{words:?} is missing in {text:?}");
        }
    }
    let limit = limits().probe_timeout;
    assert!((limit..=limit + Duration::from_secs(1)).contains(&after), "{step:?}: {after:?}");
}

macro_rules! is_given_up {
    ($($test:ident: $step:ident, $words:literal;)*) => {$(
        #[test]
        fn $test() {
            is_named(1, Stuck::$step, $words);
            is_named(2, Stuck::$step, $words);
        }
    )*};
}

is_given_up! {
    a_branch_that_takes_no_connection_is_given_up: Connect, "no connection to it was made";
    a_branch_that_answers_nothing_is_given_up: Serve, "did not agree to serve";
    a_branch_that_does_not_prepare_is_given_up: Prepare, "did not prepare";
    a_branch_that_does_not_find_up_is_given_up: Link, "no way to its parent";
    a_branch_that_does_not_start_is_given_up: Start, "did not start";
}

/// Those below it wait for it.
#[test]
fn of_several_late_branches_the_highest_is_named() {
    let mut woods = Woods::new(2);
    for index in [1, 2] {
        woods.daemons[index].stuck_at = Some(Stuck::Link);
    }
    // The addresses give no order: branch 2 is the parent here.
    let mut tree = path();
    tree.branches[0].daemon = control(2);
    tree.branches[1].daemon = control(1);
    let conns = woods.join_all(&tree, 5, Policy::default());
    woods.all_ready(&conns);
    woods.wait_for(limits().probe_timeout);
    let text = woods.aborted(&conns)[0].to_string();
    assert!(text.contains(&control(2).to_string()), "{text}");
}

/// A job that is to go on does so without a branch that gets stuck in a later epoch.
#[test]
fn a_running_job_goes_on_without_a_stuck_branch() {
    for step in [Stuck::Prepare, Stuck::Start] {
        let mut woods = Woods::new(2);
        let conns = woods.run(&path(), 5, GO_ON);
        woods.daemons[2].stuck_at = Some(step);
        woods.daemons[0].jobs.handle_closed(conns[4]);
        woods.settle();
        let left = &conns[..4];
        woods.progress(left, 8);
        if step == Stuck::Start {
            woods.all_ready(left);
            for conn in left {
                woods.daemons[0].heard.remove(conn);
            }
        }
        woods.wait_for(limits().probe_timeout);
        if step == Stuck::Start {
            woods.progress(left, 8);
        }
        woods.ready(left);
        let info = woods.info();
        assert_eq!((info.phase.as_str(), info.branches.len()), ("running", 1), "{step:?}");
    }
}

/// A branch that calls every number used has no more time than one that says nothing.
#[test]
fn a_contest_without_end_is_one_step() {
    let mut woods = Woods::new(2);
    woods.daemons[2].stuck_at = Some(Stuck::Prepare);
    let conns = woods.join_all(&path(), 5, Policy::default());
    let link = woods.links.iter().find(|(_, (to, _))| *to == 2).map(|(link, _)| *link);
    let link = link.expect("it is connected");
    for _ in 0..4 {
        let epoch = woods.daemons[0].setup().conf.epoch;
        let used = BranchReply::Used { epoch, last_epoch: epoch };
        woods.daemons[0].jobs.handle_link_reply(link, Reply::Branch(used));
        woods.settle();
        assert_ne!(woods.daemons[0].setup().conf.epoch, epoch, "it tries another number");
        woods.wait_for(limits().probe_timeout / 4);
    }
    let reasons = woods.aborted(&conns);
    assert!(
        !reasons.is_empty() && reasons[0].to_string().contains("did not prepare"),
        "{reasons:?}"
    );
}
