//! Ranks join a running job.

use super::*;

/// A running job of three that shrinks, of which rank 1 was lost.
fn vacant() -> (World, Vec<ConnId>) {
    vacant_with(limits())
}

fn vacant_with(limits: Limits) -> (World, Vec<ConnId>) {
    let mut world = World::with(limits);
    let mut members = world.run_with("train", 3, SHRINK);
    world.close(members.remove(1));
    world.heard.clear();
    report(&mut world, &members, 10, 3);
    world.ready(&members);
    world.heard.clear();
    (world, members)
}

fn report(world: &mut World, members: &[ConnId], base: u64, next: u64) {
    for conn in members {
        let heard = world.say(*conn, Request::Progress(progress(base, next)));
        world.heard.entry(*conn).or_default().extend(heard);
    }
}

fn again() -> Join {
    Join { policy: SHRINK, data_port: 5001, ..wish("train", 1, 3) }
}

/// Rank 1 joins, and the members have been told to run to call 7.
fn running_to() -> (World, Vec<ConnId>, ConnId) {
    running_to_with(limits())
}

fn running_to_with(limits: Limits) -> (World, Vec<ConnId>, ConnId) {
    let (mut world, members) = vacant_with(limits);
    let joiner = world.connect();
    assert_eq!(world.say(joiner, Request::Join(again())), []);
    for conn in &members {
        assert_eq!(world.hear(*conn), [Reply::Pause { joining: vec![1] }]);
    }
    assert_eq!(world.say(members[0], Request::Paused { next_sequence: 5 }), []);
    let run_to = Reply::RunTo { sequence: 7 };
    let heard = world.say(members[1], Request::Paused { next_sequence: 7 });
    assert_eq!(heard, std::slice::from_ref(&run_to));
    assert_eq!(world.hear(members[0]), [run_to]);
    (world, members, joiner)
}

#[test]
fn a_rank_joins_with_the_next_epoch() {
    let (mut world, members, joiner) = running_to();
    let info = &world.infos()[0];
    assert_eq!((info.phase.as_str(), &info.waiting[..]), ("pausing", &[1][..]));
    report(&mut world, &members, 40, 7);
    let all = [members[0], joiner, members[1]];
    let first = admitted(&world.hear(joiner));
    assert_eq!((first.members, first.epoch), (0b111, 3));
    let plan = first.plan.clone().expect("it is a later epoch");
    assert_eq!((plan.from, plan.next_sequence, plan.runs.len()), (40, 7, 0));
    for conn in &members {
        assert_eq!(admitted(&world.hear(*conn)), first);
    }
    assert_eq!(world.engine[&0].members[&1].port(), 5001);
    world.ready(&all);
    assert!(matches!(world.hear(joiner)[..], [Reply::Go { .. }]));
    let info = &world.infos()[0];
    assert!(info.waiting.is_empty() && info.lost.is_empty() && info.phase == "running");
    // It is a member like the others.
    world.heard.clear();
    world.close(members[0]);
    assert_eq!(reform(&world.hear(joiner)), [0]);
}

#[test]
fn a_joiner_that_goes_away_holds_up_nobody() {
    let (mut world, members, joiner) = running_to();
    world.close(joiner);
    report(&mut world, &members, 40, 7);
    assert_eq!(admitted(&world.hear(members[0])).members, 0b101);
    world.ready(&members);
    assert_eq!(world.phase("train"), "running");
    // So does one that changes its mind.
    let (joiner, _) = world.come(again());
    assert_eq!(world.say(joiner, Request::Leave), [Reply::Done]);
    assert!(world.infos()[0].waiting.is_empty());
}

#[test]
fn a_loss_on_the_way_comes_first() {
    // Before all have paused, and with one that is at the call already.
    for at_the_call in [false, true] {
        let (mut world, members, joiner) = running_to();
        if at_the_call {
            report(&mut world, &members[..1], 40, 7);
        }
        world.close(members[1]);
        let alone = &members[..1];
        if at_the_call {
            // What it has was said already.
            assert!(matches!(
                world.hear(members[0])[..],
                [Reply::Reform { .. }, Reply::Admitted(Admitted { members: 0b1, .. })]
            ));
        } else {
            assert_eq!(reform(&world.hear(members[0])), [2]);
            report(&mut world, alone, 40, 6);
            assert_eq!(admitted(&world.hear(members[0])).members, 0b1);
        }
        assert_eq!(world.hear(joiner), []);
        world.ready(alone);
        assert!(matches!(world.hear(members[0])[..], [Reply::Go { .. }, Reply::Pause { .. }]));
        world.say(members[0], Request::Paused { next_sequence: 8 });
        report(&mut world, alone, 41, 8);
        assert_eq!(admitted(&world.hear(joiner)).members, 0b11);
    }
}

#[test]
fn a_loss_before_the_engine_is_prepared_lets_the_joiner_wait() {
    let (mut world, members, joiner) = running_to();
    world.slow = true;
    report(&mut world, &members, 40, 7);
    world.close(members[1]);
    world.engine_answers();
    world.slow = false;
    assert_eq!(world.hear(joiner), []);
    world.heard.remove(&members[0]);
    world.ready(&members[..1]);
    assert!(matches!(world.hear(members[0])[..], [Reply::Go { .. }, Reply::Pause { .. }]));
}

#[test]
fn members_that_leave_on_the_way_leave_the_job_to_the_joiner() {
    let (mut world, members, joiner) = running_to();
    for conn in members {
        world.say(conn, Request::Leave);
    }
    assert_eq!(world.phase("train"), "forming");
    assert_eq!(world.hear(joiner), []);
    for rank in [0, 2] {
        world.come(Join { policy: SHRINK, ..wish("train", rank, 3) });
    }
    let first = admitted(&world.hear(joiner));
    assert_eq!((first.members, first.plan), (0b111, None));
}

#[test]
fn who_cannot_join_is_told_why() {
    let (mut world, _) = vacant();
    let cases: [(Join, ErrorCode, &[&str]); 4] = [
        (Join { max_chunks: 21, ..again() }, ErrorCode::NoRoom, &["1408 bytes", "1344", "MTU"]),
        (Join { policy: RESUME, ..again() }, ErrorCode::Invalid, &["fail", "shrink", "rank 1"]),
        (Join { rank: 0, ..again() }, ErrorCode::RankTaken, &["rank 0", "taken"]),
        (Join { data_port: 4002, ..again() }, ErrorCode::Invalid, &["rank 2's"]),
    ];
    for (join, code, words) in cases {
        let conn = world.connect();
        assert_eq!(refused(&world.say(conn, Request::Join(join)), words), code);
    }
    let (first, _) = world.come(again());
    let (_, heard) = world.come(Join { data_port: 5002, ..again() });
    assert_eq!(refused(&heard, &["taken", "5001"]), ErrorCode::RankTaken);
    let heard = world.say(first, Request::Ready);
    assert_eq!(refused(&heard, &["before Admitted"]), ErrorCode::Protocol);
    assert!(world.infos()[0].waiting.is_empty());
}

#[test]
fn members_that_did_not_do_the_same_take_nobody_in() {
    let (mut world, members, joiner) = running_to();
    report(&mut world, &members[..1], 41, 7);
    report(&mut world, &members[1..], 40, 7);
    assert_eq!(refused(&world.hear(joiner), &["same calls"]), ErrorCode::Busy);
    assert_eq!(admitted(&world.hear(members[0])).members, 0b101);
}

const LIMIT: Duration = Duration::from_secs(4);

fn with_a_limit() -> Limits {
    Limits { straggler_timeout: Some(LIMIT), ..limits() }
}

/// Rank 2, the last of `members`, is given up; rank 0 goes on alone, and then with the joiner.
fn rank_2_is_lost(world: &mut World, members: &[ConnId], joiner: ConnId, step: &str) {
    let reason = AbortReason::Timeout { ranks: vec![2], step: step.into() };
    assert_eq!(aborted(&world.hear(members[1])), reason);
    let alone = &members[..1];
    let heard = world.hear(members[0]);
    assert!(matches!(&heard[0], Reply::Reform { lost, .. } if lost[..] == [2]), "{heard:?}");
    if heard.len() == 1 {
        report(world, alone, 40, 7);
    }
    world.heard.clear();
    world.ready(alone);
    assert!(matches!(world.hear(members[0])[..], [Reply::Go { .. }, Reply::Pause { .. }]));
    world.say(members[0], Request::Paused { next_sequence: 7 });
    report(world, alone, 40, 7);
    assert_eq!(admitted(&world.hear(joiner)).members, 0b11);
}

/// Nobody misses a contribution: the others wait at the call before which the rank is to join.
#[test]
fn who_does_not_pause_is_lost_where_a_limit_is_set() {
    let (mut world, members) = vacant_with(with_a_limit());
    world.wait(100);
    let (joiner, _) = world.come(again());
    world.wait(3);
    world.heard.clear();
    world.say(members[0], Request::Paused { next_sequence: 7 });
    let heard = world.say(members[0], Request::Missing { block: 5, of: Some(0) });
    assert_eq!(heard, [missing(5, &[2])]);
    world.wait(1);
    rank_2_is_lost(&mut world, &members, joiner, "pause");
}

#[test]
fn who_does_not_come_to_the_call_is_lost_where_a_limit_is_set() {
    let (mut world, members, joiner) = running_to_with(with_a_limit());
    // Until one has come there, the others may have calls to make.
    world.wait(100);
    let heard = world.say(members[0], Request::Missing { block: 5, of: Some(0) });
    assert_eq!(heard, [missing(5, &[])]);
    report(&mut world, &members[..1], 40, 7);
    let heard = world.say(members[0], Request::Missing { block: 5, of: Some(0) });
    assert_eq!(heard, [missing(5, &[2])]);
    world.wait(3);
    assert_eq!(world.phase("train"), "pausing");
    world.wait(1);
    rank_2_is_lost(&mut world, &members, joiner, "report its progress");
}

/// A call that goes on meanwhile has its own stragglers.
#[test]
fn who_does_not_contribute_on_the_way_is_lost_where_a_limit_is_set() {
    let (mut world, members, joiner) = running_to_with(with_a_limit());
    world.missing = 0b100;
    let heard = world.say(members[0], Request::Missing { block: 5, of: None });
    assert_eq!(heard, [missing(5, &[2])]);
    world.contributed.insert(0, vec![(0, Some(Duration::ZERO)), (2, None)]);
    world.wait(4);
    rank_2_is_lost(&mut world, &members, joiner, "contribute");
}
