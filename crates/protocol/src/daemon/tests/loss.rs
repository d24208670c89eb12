//! Members are lost, and the others go on.

use super::*;

/// A running job of four that shrinks, of which rank 1 is lost.
fn reforming() -> (World, Vec<ConnId>) {
    let mut world = World::new();
    let mut members = world.run_with("train", 4, SHRINK);
    world.close(members.remove(1));
    assert!(world.engine.is_empty(), "no result comes after the progress");
    for conn in &members {
        assert_eq!(reform(&world.hear(*conn)), [1]);
    }
    (world, members)
}

/// All say the same progress; what the last one hears is put back.
fn report(world: &mut World, members: &[ConnId]) {
    for conn in members {
        let heard = world.say(*conn, Request::Progress(progress(10, 3)));
        world.heard.entry(*conn).or_default().extend(heard);
    }
}

/// The same, when all have said what they have.
fn reported() -> (World, Vec<ConnId>) {
    let (mut world, members) = reforming();
    report(&mut world, &members);
    world.heard.clear();
    (world, members)
}

/// Hears that an epoch of these members begins with block 10, and brings it to run.
fn goes_on(world: &mut World, members: &[ConnId], bits: u64) -> Admitted {
    let first = admitted(&world.hear(members[0]));
    assert_eq!(first.members, bits);
    let plan = first.plan.clone().expect("a later epoch has a plan");
    assert_eq!((plan.from, plan.next_sequence), (10, 3));
    for conn in &members[1..] {
        assert_eq!(admitted(&world.hear(*conn)), first);
    }
    world.ready(members);
    for conn in members {
        assert!(matches!(world.hear(*conn)[..], [Reply::Go { .. }]));
    }
    first
}

#[test]
fn the_survivors_get_an_epoch_of_their_own() {
    let (mut world, members) = reforming();
    assert_eq!(world.phase("train"), "reforming");
    report(&mut world, &members[..2]);
    let heard = world.say(members[0], Request::Missing { block: 0, of: None });
    assert_eq!(heard, [missing(0, &[3])]);
    // A stopped process may take its time.
    world.wait(1000);
    assert_eq!(world.hear(members[0]), []);
    report(&mut world, &members[2..]);
    let now = goes_on(&mut world, &members, 0b1101);
    assert_eq!((now.epoch, now.chunks, now.slots), (2, 22, 16));
    let info = &world.infos()[0];
    assert_eq!((info.reforms, &info.lost[..], &info.joined[..]), (1, &[1][..], &[0, 2, 3][..]));
    // Down to the last one.
    world.close(members[0]);
    report(&mut world, &members[1..]);
    world.hear(members[1]);
    world.hear(members[2]);
    world.close(members[1]);
    assert_eq!(reform(&world.hear(members[2])), [2]);
    report(&mut world, &members[2..]);
    goes_on(&mut world, &members[2..], 0b1000);
    world.close(members[2]);
    assert!(world.infos().is_empty() && world.engine.is_empty());
    assert_eq!(world.stats().slots_free, 64);
}

#[test]
fn another_loss_while_the_others_report_asks_nobody_again() {
    let (mut world, members) = reforming();
    report(&mut world, &members[..1]);
    world.close(members[1]);
    assert_eq!(world.hear(members[0]), []);
    report(&mut world, &members[2..]);
    goes_on(&mut world, &[members[0], members[2]], 0b1001);
}

#[test]
fn the_loss_of_the_one_that_all_wait_for_ends_the_wait() {
    let (mut world, members) = reforming();
    report(&mut world, &members[..2]);
    world.close(members[2]);
    goes_on(&mut world, &members[..2], 0b101);
}

#[test]
fn a_loss_before_the_engine_is_prepared_makes_another_plan() {
    let (mut world, members) = reforming();
    world.slow = true;
    report(&mut world, &members);
    world.close(members[0]);
    for conn in &members[1..] {
        assert_eq!(world.hear(*conn), [], "nobody was told of an epoch");
    }
    world.engine_answers();
    world.slow = false;
    goes_on(&mut world, &members[1..], 0b1100);
}

#[test]
fn a_loss_while_paths_are_tried_asks_all_again() {
    for slow in [false, true] {
        let (mut world, members) = reported();
        world.ready(&members[..2]);
        if slow {
            // The engine is starting when it happens.
            world.slow = true;
            world.ready(&members[2..]);
        }
        world.close(members[0]);
        world.engine_answers();
        world.slow = false;
        for conn in &members[1..] {
            assert_eq!(reform(&world.hear(*conn)), [0]);
        }
        // What it said of the epoch that is over counts for nothing.
        assert_eq!(world.say(members[2], Request::Ready), []);
        report(&mut world, &members[1..]);
        goes_on(&mut world, &members[1..], 0b1100);
    }
}

#[test]
fn a_path_that_does_not_open_is_a_loss() {
    let (mut world, members) = reported();
    world.ready(&members[1..]);
    world.wait(20);
    let reason = AbortReason::Timeout { ranks: vec![0], step: "probe".into() };
    assert_eq!(aborted(&world.hear(members[0])), reason);
    for conn in &members[1..] {
        assert_eq!(reform(&world.hear(*conn)), [0]);
    }
    report(&mut world, &members[1..]);
    world.heard.clear();
    // Nobody's path opens: there is nobody left to go on.
    world.wait(20);
    let reason = AbortReason::Timeout { ranks: vec![2, 3], step: "probe".into() };
    assert_eq!(aborted(&world.hear(members[1])), reason);
    assert!(world.infos().is_empty());
}

#[test]
fn who_leaves_is_not_waited_for() {
    // While the others report.
    let (mut world, members) = reforming();
    report(&mut world, &members[..2]);
    assert_eq!(world.say(members[2], Request::Leave), [Reply::Done]);
    goes_on(&mut world, &members[..2], 0b101);
    // While paths are tried: its part of the plan is missing.
    let (mut world, members) = reported();
    assert_eq!(world.say(members[2], Request::Leave), [Reply::Done]);
    assert_eq!(reform(&world.hear(members[0])), [3]);
    world.hear(members[1]);
    report(&mut world, &members[..2]);
    goes_on(&mut world, &members[..2], 0b101);
    // Before the loss.
    let mut world = World::new();
    let members = world.run_with("train", 3, SHRINK);
    assert_eq!(world.say(members[1], Request::Leave), [Reply::Done]);
    assert_eq!(world.hear(members[0]), [], "others may still ask for its last results");
    world.close(members[2]);
    assert_eq!(reform(&world.hear(members[0])), [2]);
    report(&mut world, &members[..1]);
    goes_on(&mut world, &members[..1], 0b1);
}

#[test]
fn a_call_after_one_has_left_goes_on_without_it_or_ends() {
    for (policy, goes) in [(SHRINK, true), (Policy::default(), false)] {
        let mut world = World::new();
        let members = world.run_with("train", 3, policy);
        world.say(members[1], Request::Leave);
        world.missing = 0b110;
        let heard = world.say(members[0], Request::Missing { block: 4, of: None });
        assert_eq!(heard[0], missing(4, &[1, 2]));
        if goes {
            assert_eq!(reform(&heard[1..]), [1]);
            continue;
        }
        let (reason, cause) = ("it left".to_owned(), Some(Cause::Left));
        let ended = [Reply::Aborted(AbortReason::Member { rank: 1, reason, cause })];
        assert_eq!(heard[1..], ended);
        assert_eq!(world.hear(members[2]), ended);
    }
}

#[test]
fn impossible_progress_is_the_loss_of_who_says_it() {
    let lies = [
        Progress { base: 1 << 50, ..progress(10, 3) },
        Progress { held: vec![Held { from: 900, len: 9, members: 1 }], ..progress(10, 3) },
        Progress { held: vec![Held { from: 3, len: 1, members: 1 << 4 }], ..progress(10, 3) },
        Progress { held: vec![Held { from: 3, len: 0, members: 1 }], ..progress(10, 3) },
    ];
    for lie in lies {
        let (mut world, members) = reforming();
        report(&mut world, &members[..2]);
        let heard = world.say(members[2], Request::Progress(lie));
        assert_eq!(refused(&heard, &["progress is impossible"]), ErrorCode::Protocol);
        assert!(world.closed.contains(&members[2]));
        let now = goes_on(&mut world, &members[..2], 0b101);
        assert!(now.plan.is_some_and(|plan| plan.runs.is_empty()));
    }
    // Before the epoch began, all had that.
    let (mut world, members) = reported();
    world.close(members[0]);
    world.heard.clear();
    report(&mut world, &members[1..2]);
    let heard = world.say(members[2], Request::Progress(progress(9, 3)));
    assert_eq!(refused(&heard, &["impossible"]), ErrorCode::Protocol);
}

/// Kept for as long as another member says nothing, by as many members as there can be.
#[test]
fn progress_is_bounded_by_the_slots_of_its_job() {
    let stretches = |count: u64| {
        let held = (0..count).map(|i| Held { from: 10 + 2 * i, len: 1, members: 0b111 });
        Progress { base: 10, next_sequence: 3, held: held.collect() }
    };
    let (mut world, members) = reforming();
    let slots = u64::from(world.infos()[0].slots);
    assert_eq!(world.say(members[0], Request::Progress(stretches(4 * slots + 64))), []);
    let heard = world.say(members[1], Request::Progress(stretches(4 * slots + 65)));
    assert_eq!(refused(&heard, &["progress is impossible", "slots"]), ErrorCode::Protocol);
    assert!(world.closed.contains(&members[1]), "at once, while the third has said nothing");
}

#[test]
fn progress_that_nobody_asked_for_is_refused() {
    let mut world = World::new();
    let members = world.run_with("train", 2, SHRINK);
    let heard = world.say(members[0], Request::Progress(progress(10, 3)));
    assert_eq!(refused(&heard, &["Reform"]), ErrorCode::Protocol);
    assert_eq!(reform(&world.hear(members[1])), [0]);
}

#[test]
fn a_result_that_is_lost_with_its_holder_ends_the_job() {
    let (mut world, members) = reforming();
    // Rank 2 has block 10 but holds it no more.
    let ahead = Progress { held: vec![], ..progress(11, 3) };
    world.say(members[1], Request::Progress(ahead));
    report(&mut world, &members[..1]);
    report(&mut world, &members[2..]);
    for conn in members {
        assert_eq!(aborted(&world.hear(conn)), AbortReason::Unrecoverable { block: 10 });
    }
    assert!(world.infos().is_empty());
}

#[test]
fn the_first_formation_and_other_policies_fail() {
    let mut world = World::new();
    let members = world.form_with("train", 3, SHRINK);
    world.heard.clear();
    world.ready(&members[..1]);
    world.close(members[1]);
    for conn in [members[0], members[2]] {
        assert_eq!(aborted(&world.hear(conn)), AbortReason::MemberLost { rank: 1 });
    }
    let members = world.run_with("train", 2, RESUME);
    world.close(members[1]);
    assert_eq!(aborted(&world.hear(members[0])), AbortReason::MemberLost { rank: 1 });
}

#[test]
fn an_engine_that_fails_ends_a_reform_with_its_words() {
    let (mut world, members) = reforming();
    world.fails = true;
    report(&mut world, &members);
    let AbortReason::Operator { reason } = aborted(&world.hear(members[0])) else {
        panic!("the engine's failure is told");
    };
    assert!(reason.contains("it broke"), "{reason}");
}
