//! Members that the data path does not reach.

use super::*;
use crate::engine::Trouble;

impl World {
    /// The engine sees that these ranks of the first job are cut off.
    fn trouble(&mut self, ranks: u64) {
        let trouble = Trouble { what: "p1 is down".into(), members: vec![(0, ranks)] };
        let all = if ranks == 0 { Vec::new() } else { vec![trouble] };
        self.jobs.handle_troubles(all, self.now);
        self.settle();
    }
}

#[test]
fn what_passes_costs_nothing() {
    for policy in [Policy::default(), SHRINK] {
        let mut world = World::new();
        let members = world.run_with("train", 3, policy);
        for _ in 0..5 {
            world.trouble(0b010);
            world.wait_for(Duration::from_millis(990));
            world.trouble(0);
            world.wait_for(Duration::from_millis(5000));
        }
        for conn in members {
            assert_eq!(world.hear(conn), []);
        }
    }
}

#[test]
fn what_lasts_is_told_to_all_with_the_reason() {
    let mut world = World::new();
    let members = world.run("train", 3);
    world.trouble(0b010);
    world.wait_for(Duration::from_millis(500));
    // What is seen again is not new.
    world.trouble(0b010);
    world.wait_for(Duration::from_millis(510));
    for conn in members {
        let reason = "results do not reach ranks [1]: p1 is down".into();
        assert_eq!(aborted(&world.hear(conn)), AbortReason::Operator { reason });
    }
    assert!(world.infos().is_empty());
}

#[test]
fn others_go_on_without_those_that_are_cut_off() {
    let mut world = World::new();
    let members = world.run_with("train", 3, SHRINK);
    world.trouble(0b010);
    world.wait_for(Duration::from_millis(1010));
    assert!(matches!(aborted(&world.hear(members[1])), AbortReason::Operator { .. }));
    for conn in [members[0], members[2]] {
        assert_eq!(reform(&world.hear(conn)), [1]);
    }
}

/// To members that go on without a daemon, one that reaches none of them is lost.
#[test]
fn who_can_do_without_is_let_go() {
    let mut world = World::new();
    let members = world.run_with("train", 2, SHRINK);
    world.trouble(0b11);
    world.wait_for(Duration::from_millis(1010));
    for conn in &members {
        assert_eq!(world.hear(*conn), []);
        assert!(world.closed.contains(conn));
    }
    let mut world = World::new();
    let members = world.run_with("train", 2, RESUME);
    world.jobs.shut_down("the end");
    world.settle();
    for conn in &members {
        assert_eq!(world.hear(*conn), []);
        assert!(world.closed.contains(conn));
    }
    assert!(world.infos().is_empty());
}
