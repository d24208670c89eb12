//! Workers come back.

use xdp_agg_common::control::Origin;

use super::*;

fn resume(rank: u16, epoch: u16, members: u64) -> Join {
    was_in("train", rank, epoch, members)
}

/// A join that says it was rank `rank` in `epoch` of four, of which `members` were left.
fn was_in(job: &str, rank: u16, epoch: u16, members: u64) -> Join {
    let (cookie, progress) = (1000 + u64::from(epoch), progress(10, 3));
    let resume = Resume { epoch, cookie, members, chunks: 20, progress, rings: 0 };
    Join { policy: SHRINK, resume: Some(resume), ..wish(job, rank, 4) }
}

/// What a member of a running job would say over a new connection.
fn reconnect(world: &World, job: &str, rank: u16, world_size: u16, policy: Policy) -> Join {
    Join { policy, resume: Some(world.remembered()), ..wish(job, rank, world_size) }
}

#[test]
fn a_job_of_another_daemon_forms_of_its_last_members() {
    let mut world = World::new();
    // Three of four: rank 1 was lost before.
    let (first, heard) = world.come(resume(0, 7, 0b1101));
    assert_eq!(heard, []);
    assert_eq!(world.phase("train"), "resuming");
    let (second, _) = world.come(resume(2, 7, 0b1101));
    let heard = world.say(second, Request::Missing { block: 1, of: None });
    assert_eq!(heard, [missing(1, &[3])]);
    let (third, heard) = world.come(resume(3, 7, 0b1101));
    let now = admitted(&heard);
    assert_eq!((now.epoch, now.members, now.chunks), (8, 0b1101, 20));
    let plan = now.plan.clone().expect("it is not the first epoch");
    assert_eq!((plan.from, plan.next_sequence), (10, 3));
    world.hear(first);
    world.hear(second);
    world.ready(&[first, second, third]);
    assert!(matches!(world.hear(first)[..], [Reply::Go { .. }]));
}

#[test]
fn who_does_not_come_back_is_lost() {
    for (policy, goes) in [(SHRINK, true), (RESUME, false)] {
        let mut world = World::new();
        let join = |rank| Join { policy, ..resume(rank, 7, 0b1101) };
        let (first, _) = world.come(join(0));
        let (second, _) = world.come(join(2));
        world.wait(9);
        assert_eq!(world.hear(first), []);
        // A connection that ends may come again.
        world.close(second);
        let (second, _) = world.come(join(2));
        world.wait(1);
        let heard = world.hear(first);
        if goes {
            assert_eq!(admitted(&heard).members, 0b101);
            assert_eq!(world.infos()[0].lost, [3]);
            // Now it is too late.
            let (late, heard) = world.come(join(3));
            assert_eq!(aborted(&heard), AbortReason::Expelled);
            assert!(world.closed.contains(&late));
        } else {
            let reason = AbortReason::Timeout { ranks: vec![3], step: "resume".into() };
            assert_eq!(aborted(&heard), reason);
            assert_eq!(aborted(&world.hear(second)), reason);
        }
    }
}

#[test]
fn what_members_remember_must_be_one_job() {
    let mut world = World::new();
    world.come(resume(0, 7, 0b1101));
    let with = |change: fn(&mut Join, &mut Resume)| {
        let mut join = resume(2, 7, 0b1101);
        let mut resume = join.resume.take().expect("it has one");
        change(&mut join, &mut resume);
        Join { resume: Some(resume), ..join }
    };
    let cases: [(Join, ErrorCode, &[&str]); 10] = [
        (with(|_, r| r.chunks = 21), ErrorCode::Invalid, &["21 chunks", "has 20"]),
        (with(|_, r| r.members = 0b1111), ErrorCode::Invalid, &["another epoch 7"]),
        (with(|_, r| r.cookie = 1), ErrorCode::Invalid, &["another epoch 7"]),
        (with(|j, _| j.policy = RESUME), ErrorCode::Invalid, &["fail", "shrink"]),
        (with(|j, _| j.policy = Policy::default()), ErrorCode::Invalid, &["policy is to fail"]),
        (with(|j, _| j.world_size = 5), ErrorCode::WorldSize, &["of 4", "says 5"]),
        (with(|j, _| j.data_port = 4000), ErrorCode::Invalid, &["rank 0's"]),
        (with(|_, r| r.members = 0b1001), ErrorCode::Invalid, &["a member of"]),
        (with(|_, r| r.epoch = 0), ErrorCode::Invalid, &["epoch 0"]),
        (with(|_, r| r.chunks = 23), ErrorCode::NoRoom, &["1472 bytes", "1408", "MTU"]),
    ];
    for (join, code, words) in cases {
        let (conn, heard) = world.come(join);
        assert_eq!(refused(&heard, words), code);
        assert!(!world.closed.contains(&conn));
    }
    assert_eq!(world.infos()[0].joined, [0]);
    // A first one that is refused leaves no job.
    let mut world = World::new();
    world.come(with(|_, r| r.chunks = 23));
    assert!(world.infos().is_empty());
}

#[test]
fn the_latest_epoch_that_anybody_was_told_of_holds() {
    let mut world = World::new();
    // The daemon was killed when it had told rank 0 alone of an epoch without rank 2.
    let (lost, _) = world.come(resume(2, 7, 0b111));
    let (other, _) = world.come(resume(1, 7, 0b111));
    let (first, heard) = world.come(resume(0, 8, 0b11));
    assert_eq!(aborted(&world.hear(lost)), AbortReason::Expelled);
    let now = admitted(&heard);
    assert_eq!((now.members, now.epoch), (0b11, 9));
    assert_eq!(admitted(&world.hear(other)), now);
    let (_, heard) = world.come(resume(2, 7, 0b111));
    assert_eq!(aborted(&heard), AbortReason::Expelled);
    world.ready(&[first, other]);
    assert_eq!(world.phase("train"), "running");
}

#[test]
fn who_joins_anew_meanwhile_waits() {
    // Before the first one that comes back, and after it; where its own rank is awaited, nobody
    // waits for it any longer.
    for early in [true, false] {
        let mut world = World::new();
        let fresh = Join { policy: SHRINK, data_port: 5003, ..wish("train", 3, 4) };
        let mut joiner = None;
        if early {
            joiner = Some(world.come(fresh.clone()).0);
        }
        let (first, _) = world.come(resume(0, 7, 0b1101));
        let (second, _) = world.come(resume(2, 7, 0b1101));
        let joiner = joiner.unwrap_or_else(|| world.come(fresh).0);
        assert_eq!(admitted(&world.hear(first)).members, 0b101);
        world.hear(second);
        world.ready(&[first, second]);
        assert!(matches!(world.hear(first)[..], [Reply::Go { .. }, Reply::Pause { .. }]));
        assert_eq!(world.hear(joiner), []);
    }
    // Where a loss is a failure, there is no place for it.
    let mut world = World::new();
    let join = |rank| Join { policy: RESUME, ..resume(rank, 7, 0b101) };
    let (first, _) = world.come(join(0));
    let (joiner, _) = world.come(Join { policy: RESUME, ..wish("train", 1, 4) });
    let (second, _) = world.come(join(2));
    world.ready(&[first, second]);
    assert_eq!(refused(&world.hear(joiner), &["rank 1", "fail"]), ErrorCode::Busy);
}

#[test]
fn a_new_connection_takes_the_old_ones_place() {
    for policy in [SHRINK, RESUME] {
        let mut world = World::new();
        let members = world.run_with("train", 3, policy);
        let join = reconnect(&world, "train", 1, 3, policy);
        let (conn, heard) = world.come(join.clone());
        assert_eq!(heard, [Reply::Resumed]);
        assert!(world.closed.contains(&members[1]));
        for other in [members[0], members[2]] {
            assert_eq!(world.hear(other), [], "nobody else notices");
        }
        // The daemon hears of the old one's end later, or never.
        world.jobs.handle_closed(members[1]);
        world.settle();
        assert_eq!(world.phase("train"), "running");
        // Another's cookie, or another epoch: it is not that worker.
        let mut wrong = join;
        wrong.rank = 2;
        wrong.data_port = 4002;
        wrong.resume.as_mut().expect("it has one").cookie += 1;
        let (stranger, heard) = world.come(wrong);
        assert_eq!(aborted(&heard), AbortReason::Expelled);
        assert!(world.closed.contains(&stranger) && !world.closed.contains(&members[2]));
        world.say(conn, Request::Leave);
    }
}

#[test]
fn who_was_given_up_is_expelled() {
    let mut world = World::new();
    let members = world.run_with("train", 3, SHRINK);
    let join = reconnect(&world, "train", 1, 3, SHRINK);
    world.close(members[1]);
    for conn in [members[0], members[2]] {
        world.say(conn, Request::Progress(progress(10, 3)));
    }
    let (_, heard) = world.come(join);
    assert_eq!(aborted(&heard), AbortReason::Expelled);
}

#[test]
fn until_there_is_a_plan_it_may_come_back() {
    let mut world = World::new();
    let members = world.run_with("train", 3, SHRINK);
    let join = |rank| reconnect(&world, "train", rank, 3, SHRINK);
    let (lost, silent) = (join(1), join(2));
    world.close(members[1]);
    world.heard.clear();
    world.say(members[0], Request::Progress(progress(10, 3)));
    let (lost, heard) = world.come(lost);
    assert_eq!(heard, [], "it has said what it has");
    // One that was thought to be there comes over a new connection: its progress counts as well.
    let (silent, heard) = world.come(silent);
    assert!(world.closed.contains(&members[2]));
    assert_eq!(admitted(&heard).members, 0b111);
    world.heard.clear();
    world.ready(&[members[0], lost, silent]);
    assert!(world.infos()[0].lost.is_empty());
    assert_eq!(world.phase("train"), "running");
}

#[test]
fn a_new_connection_while_paths_are_tried_begins_all_again() {
    let mut world = World::new();
    let members = world.run_with("train", 3, SHRINK);
    let join = reconnect(&world, "train", 2, 3, SHRINK);
    world.close(members[1]);
    world.heard.clear();
    for conn in [members[0], members[2]] {
        world.say(conn, Request::Progress(progress(10, 3)));
    }
    world.heard.clear();
    world.ready(&members[..1]);
    // It may name the epoch before, if it did not hear of the new one.
    let (back, heard) = world.come(join);
    assert_eq!(heard, []);
    assert!(reform(&world.hear(members[0])).is_empty());
    world.say(members[0], Request::Progress(progress(10, 3)));
    assert_eq!(admitted(&world.hear(back)).members, 0b101);
}

#[test]
fn a_pause_is_said_again() {
    let mut world = World::new();
    let mut members = world.run_with("train", 3, SHRINK);
    world.close(members.remove(1));
    for conn in &members {
        world.say(*conn, Request::Progress(progress(10, 3)));
    }
    world.ready(&members);
    world.come(Join { policy: SHRINK, ..wish("train", 1, 3) });
    world.say(members[0], Request::Paused { next_sequence: 3 });
    let join = reconnect(&world, "train", 0, 3, SHRINK);
    let (back, heard) = world.come(join.clone());
    assert_eq!(heard, [Reply::Resumed, Reply::Pause { joining: vec![1] }]);
    world.say(back, Request::Paused { next_sequence: 3 });
    world.say(members[1], Request::Paused { next_sequence: 3 });
    let (_, heard) = world.come(join);
    assert_eq!(heard, [Reply::Resumed, Reply::RunTo { sequence: 3 }]);
}

/// A job of three that shrinks, of which rank 1 was lost and the others have said what they have.
/// Also what rank 2 would have said of the epoch that is over.
fn planned(slow: bool) -> (World, Vec<ConnId>, Join) {
    let mut world = World::new();
    let mut members = world.run_with("train", 3, SHRINK);
    let old = reconnect(&world, "train", 2, 3, SHRINK);
    world.close(members.remove(1));
    world.slow = slow;
    for conn in &members {
        world.say(*conn, Request::Progress(progress(10, 3)));
    }
    world.heard.clear();
    (world, members, old)
}

#[test]
fn what_it_has_over_a_new_connection_makes_another_plan() {
    let (mut world, members, mut join) = planned(true);
    // Its wish over the connection before came to nothing, so that it took in more.
    let resume = join.resume.as_mut().expect("it has one");
    resume.progress = Progress {
        base: 12,
        next_sequence: 4,
        held: vec![Held { from: 8, len: 4, members: 0b111 }],
    };
    let (back, heard) = world.come(join);
    assert_eq!(heard, []);
    world.engine_answers();
    let now = admitted(&world.hear(back));
    let plan = now.plan.clone().expect("it is not the first epoch");
    assert_eq!((plan.from, plan.next_sequence, plan.runs.len()), (10, 4, 1));
    assert_eq!(plan.runs[0].len, 2);
    assert_eq!(admitted(&world.hear(members[0])), now);
}

#[test]
fn an_epoch_before_the_one_that_runs_is_no_proof() {
    let (mut world, members, old) = planned(false);
    world.ready(&members);
    let (_, heard) = world.come(old);
    assert_eq!(aborted(&heard), AbortReason::Expelled);
    assert!(!world.closed.contains(&members[1]));
    assert_eq!(world.phase("train"), "running");
}

/// As a member of epoch 7, or of the one in `join`, would say after `rings` rings.
fn behind(rings: u32, join: Join) -> Join {
    let resume = join.resume.expect("it has one");
    Join { resume: Some(Resume { rings, ..resume }), ..join }
}

fn offered(world: &mut World, join: Join) -> Vec<Reply> {
    let conn = world.connect();
    let heard = world.say(conn, Request::Offer(join));
    world.close(conn);
    heard
}

#[test]
fn an_offer_changes_nothing_and_is_honest() {
    let mut world = World::new();
    let join = behind(1, resume(0, 7, 0b1101));
    assert_eq!(offered(&mut world, join.clone()), [Reply::Done]);
    assert!(world.infos().is_empty());
    let anew = Join { resume: None, ..join.clone() };
    assert_eq!(refused(&offered(&mut world, anew.clone()), &["no epoch"]), ErrorCode::Invalid);
    let too_large = Join { slots: Some(1 << 20), ..join.clone() };
    assert_eq!(refused(&offered(&mut world, too_large), &["slots"]), ErrorCode::NoRoom);
    // Others that have only begun to join make room.
    let (fresh, _) = world.come(Join { rank: 1, data_port: 4001, ..anew });
    assert_eq!(offered(&mut world, join.clone()), [Reply::Done]);
    world.close(fresh);
    // Those that came back before it remember something else.
    world.come(behind(1, resume(2, 7, 0b1101)));
    assert_eq!(offered(&mut world, join.clone()), [Reply::Done]);
    let earlier = behind(0, resume(0, 7, 0b1101));
    assert_eq!(refused(&offered(&mut world, earlier), &["without"]), ErrorCode::Busy);
    // A job of that name runs, and it is another one.
    let mut world = World::new();
    world.run_with("train", 4, SHRINK);
    let other = Resume { chunks: 22, ..join.resume.clone().expect("it has one") };
    let other = Join { resume: Some(other), ..join };
    assert_eq!(refused(&offered(&mut world, other), &["without"]), ErrorCode::Busy);
    let own = behind(1, reconnect(&world, "train", 0, 4, SHRINK));
    assert_eq!(offered(&mut world, own), [Reply::Done]);
    assert_eq!(world.phase("train"), "running");
}

#[test]
fn an_epoch_before_a_ring_is_over() {
    for policy in [SHRINK, RESUME] {
        let mut world = World::new();
        let members = world.run_with("train", 3, policy);
        let old = |rank| reconnect(&world, "train", rank, 3, policy);
        let (old, mut new) = ([0, 1, 2].map(old), [0, 1, 2].map(|rank| behind(1, old(rank))));
        for join in &mut new {
            // The ring did without rank 1.
            let resume = join.resume.as_mut().expect("it has one");
            (resume.members, resume.progress) = (0b101, progress(40, 9));
        }
        let (first, heard) = world.come(new[0].clone());
        assert_eq!((heard, world.phase("train").as_str()), (vec![], "resuming"));
        assert!(members.iter().all(|conn| world.closed.contains(conn)), "{policy:?}");
        // What was said before the ring, or without it, comes too late.
        for join in &old {
            let (late, heard) = world.come(join.clone());
            assert_eq!(aborted(&heard), AbortReason::Expelled);
            assert!(world.closed.contains(&late) && !world.closed.contains(&first));
        }
        let (second, heard) = world.come(new[2].clone());
        let now = admitted(&heard);
        assert_eq!(now.members, 0b101);
        let plan = now.plan.clone().expect("it is not the first epoch");
        assert_eq!((plan.from, plan.runs.len()), (40, 0));
        world.hear(first);
        world.ready(&[first, second]);
        assert_eq!(world.phase("train"), "running");
    }
}

#[test]
fn another_ring_leaves_the_one_before_behind() {
    let mut world = World::new();
    let (first, _) = world.come(behind(1, resume(0, 7, 0b101)));
    let (second, heard) = world.come(behind(2, resume(2, 7, 0b101)));
    assert_eq!((aborted(&world.hear(first)), heard), (AbortReason::Expelled, vec![]));
    let (first, heard) = world.come(behind(2, resume(0, 7, 0b101)));
    assert_eq!(admitted(&heard).epoch, 8);
    world.hear(second);
    world.ready(&[first, second]);
    assert_eq!(world.phase("train"), "running");
    // A later epoch that not all heard of does not go together with a ring of the one before.
    let mut world = World::new();
    let (later, _) = world.come(resume(0, 8, 0b111));
    let (_, heard) = world.come(behind(1, resume(2, 7, 0b100)));
    assert_eq!((aborted(&heard), world.hear(later)), (AbortReason::Expelled, vec![]));
}

/// Numbers go round. Ranks 0 to 2 went on without rank 3, which comes back among them.
#[test]
fn the_epoch_after_the_last_number_is_the_later_one() {
    for (old, new) in [(7, 8), (65_535, 1), (65_530, 3)] {
        // Whether the later one is known before the earlier one or not.
        for first in [0, 1] {
            let mut world = World::new();
            let mut says = [(0, new, 0b0111), (3, old, 0b1111)];
            says.rotate_left(first);
            let mut heard = BTreeMap::new();
            for (rank, epoch, members) in [says[0], says[1], (1, new, 0b0111), (2, new, 0b0111)] {
                let (conn, said) = world.come(was_in("train", rank, epoch, members));
                world.heard.entry(conn).or_default().extend(said);
                heard.insert(rank, conn);
            }
            assert_eq!(aborted(&world.hear(heard[&3])), AbortReason::Expelled, "{old} {new}");
            let goes_on = admitted(&world.hear(heard[&0]));
            assert_eq!((goes_on.members, goes_on.epoch), (0b0111, new + 1));
        }
    }
}

/// Daemon and job are restarted together, and one process of the job before lives on.
#[test]
fn a_process_that_is_left_over_takes_no_newcomers_with_it() {
    let origin = |number| {
        let (name, run) = ("train".into(), None);
        Some(Box::new(Origin { name, run, world_size: 4, local_size: 1, number }))
    };
    // All processes of the new start have met, and those of the one before had.
    let mut world = World::new();
    let anew = |rank| Join { policy: RESUME, origin: origin(2), ..wish("train", rank, 4) };
    let (first, _) = world.come(anew(0));
    let over = Join { policy: RESUME, origin: origin(1), ..resume(3, 7, 0b1111) };
    let (_, heard) = world.come(over.clone());
    assert_eq!(refused(&heard, &["left over", "started again"]), ErrorCode::Busy);
    let conn = world.connect();
    let heard = world.say(conn, Request::Offer(over));
    assert_eq!(refused(&heard, &["left over"]), ErrorCode::Busy);
    let rest: Vec<_> = (1..4).map(|rank| world.come(anew(rank)).0).collect();
    assert_eq!(admitted(&world.hear(first)).members, 0b1111);
    drop(rest);
    // Nothing tells them apart, or it comes first: they form when nobody else comes back.
    for over_first in [false, true] {
        let mut world = World::new();
        let anew = |rank| Join { policy: RESUME, ..wish("train", rank, 4) };
        let over = Join { policy: RESUME, ..resume(3, 7, 0b1111) };
        let mut conns = Vec::new();
        let early = if over_first { 0..0 } else { 0..2 };
        conns.extend(early.clone().map(|rank| world.come(anew(rank)).0));
        let (stray, heard) = world.come(over);
        assert_eq!(heard, []);
        assert_eq!(world.phase("train"), "resuming");
        conns.extend((early.end..3).map(|rank| world.come(anew(rank)).0));
        world.wait(10);
        let reason = AbortReason::Timeout { ranks: vec![0, 1, 2], step: "resume".into() };
        assert_eq!(aborted(&world.hear(stray)), reason);
        assert!(conns.iter().all(|conn| world.hear(*conn).is_empty()), "not with it");
        let (last, heard) = world.come(anew(3));
        assert_eq!(admitted(&heard).members, 0b1111);
        conns.push(last);
        world.ready(&conns);
        assert_eq!(world.phase("train"), "running");
        // An operator ends them all.
        let conn = world.connect();
        world.say(conn, Request::Delete { job: "train".into() });
        assert!(matches!(world.hear(conns[0])[..], [.., Reply::Aborted(_)]));
    }
}

/// A worker that names an epoch of a job that does not form moves no number of another job.
#[test]
fn numbers_that_are_only_named_count_for_nothing() {
    let mut world = World::new();
    let first = world.run("train", 2);
    assert_eq!(world.engine[&0].conf.epoch, 1);
    let (conn, heard) = world.come(was_in("other", 0, 30_000, 0b1111));
    assert_eq!(heard, []);
    world.close(conn);
    for conn in first {
        world.say(conn, Request::Leave);
    }
    world.run("next", 2);
    assert_eq!(world.engine[&0].conf.epoch, 2);
}

/// Numbers are used up before they go round.
#[test]
fn the_second_half_of_the_numbers_is_used() {
    let mut world = World::new();
    for (last, next) in [(32_767, 32_768), (32_768, 32_769), (50_000, 50_001), (65_535, 1)] {
        world.jobs.last_epoch = last;
        for conn in world.run("train", 2) {
            assert_eq!(world.engine[&0].conf.epoch, next);
            world.say(conn, Request::Leave);
        }
    }
    // A daemon that is new takes what its workers come from.
    let mut world = World::new();
    for rank in 0..4 {
        world.come(was_in("train", rank, 50_000, 0b1111));
    }
    assert_eq!(world.engine[&0].conf.epoch, 50_001);
}
