//! Processes before they are a job.

use xdp_agg_common::control::{Meet, Origin};

use super::*;

fn meet(job: &str, run: &str, rank: u16, world_size: u16) -> Request {
    let (job, words) = (job.to_owned(), format!("I am {rank}"));
    Request::Meet(Meet { job, run: Some(run.into()), rank, world_size, words })
}

fn waits(missing: &[u16]) -> Reply {
    Reply::Meeting { missing: missing.to_vec(), elsewhere: vec![] }
}

fn origin(run: &str, world_size: u16) -> Origin {
    Origin { name: "train".into(), run: Some(run.into()), world_size, local_size: 1, number: 77 }
}

#[test]
fn all_hear_what_all_say() {
    let mut world = World::new();
    let conns = [(); 3].map(|()| world.connect());
    assert_eq!(world.say(conns[2], meet("train", "a", 2, 3)), [waits(&[0, 1])]);
    assert_eq!(world.say(conns[0], meet("train", "a", 0, 3)), [waits(&[1])]);
    // Asked again, and gone and come again.
    assert_eq!(world.say(conns[0], meet("train", "a", 0, 3)), [waits(&[1])]);
    world.close(conns[2]);
    assert_eq!(world.say(conns[1], meet("train", "a", 1, 3)), [waits(&[2])]);
    let last = world.connect();
    let heard = world.say(last, meet("train", "a", 2, 3));
    let [Reply::Met { words, .. }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(words[..], ["I am 0", "I am 1", "I am 2"]);
    assert_eq!(world.hear(conns[0]), heard);
    assert_eq!(world.hear(conns[1]), heard);
    // It is over, and another one may begin.
    assert_eq!(world.say(last, meet("train", "a", 2, 3)), [waits(&[0, 1])]);
}

#[test]
fn those_that_do_not_fit_are_told_why() {
    let mut world = World::new();
    let first = world.connect();
    assert_eq!(world.say(first, meet("train", "a", 0, 2)), [waits(&[1])]);
    let other = world.connect();
    let heard = world.say(other, meet("train", "b", 1, 2));
    let words = ["\"train\"", "run \"a\"", "run \"b\"", "XDP_AGG_JOB", "XDP_AGG_RUN"];
    assert_eq!(refused(&heard, &words), ErrorCode::Busy);
    let heard = world.say(other, meet("train", "a", 1, 3));
    assert_eq!(refused(&heard, &["size of 2", "says 3"]), ErrorCode::WorldSize);
    let heard = world.say(other, meet("train", "a", 0, 2));
    assert_eq!(refused(&heard, &["rank 0", "taken"]), ErrorCode::RankTaken);
    let heard = world.say(other, meet("train", "a", 2, 2));
    assert_eq!(refused(&heard, &["RANK"]), ErrorCode::Invalid);
    let heard = world.say(other, meet("", "a", 0, 2));
    assert_eq!(refused(&heard, &["XDP_AGG_JOB"]), ErrorCode::Invalid);
    let heard = world.say(other, meet("train", &"a".repeat(300), 0, 2));
    assert_eq!(refused(&heard, &["XDP_AGG_RUN"]), ErrorCode::Invalid);
    // The name reached one of them only.
    let heard = world.say(other, meet("mine", "a", 1, 2));
    let [Reply::Meeting { missing, elsewhere }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((&missing[..], elsewhere.len()), (&[0][..], 1));
    assert!(elsewhere[0].contains("[0]") && elsewhere[0].contains("\"train\""), "{elsewhere:?}");
}

#[test]
fn a_job_that_is_there_takes_its_own_run_in() {
    for (policy, takes) in [(SHRINK, true), (Policy::default(), false)] {
        let mut world = World::new();
        let members: Vec<_> = (0..3)
            .map(|rank| {
                let conn = world.connect();
                let join = Join {
                    policy,
                    origin: Some(Box::new(origin("a", 3))),
                    ..wish("train", rank, 3)
                };
                world.say(conn, Request::Join(join));
                conn
            })
            .collect();
        world.ready(&members);
        let newcomer = world.connect();
        let heard = world.say(newcomer, meet("train", "a", 1, 3));
        if takes {
            assert_eq!(heard, [Reply::Underway(origin("a", 3))]);
        } else {
            assert_eq!(refused(&heard, &["rank 1", "XDP_AGG_JOB"]), ErrorCode::RankTaken);
        }
        let heard = world.say(newcomer, meet("train", "b", 1, 3));
        assert_eq!(refused(&heard, &["run \"a\"", "run \"b\""]), ErrorCode::Busy);
        let join = Join { policy, origin: Some(Box::new(origin("b", 3))), ..wish("train", 1, 3) };
        let heard = world.say(newcomer, Request::Join(join));
        assert_eq!(refused(&heard, &["run \"a\"", "run \"b\""]), ErrorCode::Busy);
        // The name is free when the job is over.
        members.iter().for_each(|conn| drop(world.say(*conn, Request::Leave)));
        assert_eq!(world.say(newcomer, meet("train", "b", 1, 3)), [waits(&[0, 2])]);
    }
}

#[test]
fn a_connection_is_in_one_meeting() {
    let mut world = World::new();
    let [conn, other] = [(); 2].map(|()| world.connect());
    assert_eq!(world.say(conn, meet("train", "a", 0, 2)), [waits(&[1])]);
    assert_eq!(world.say(conn, meet("other", "a", 0, 2)), [waits(&[1])]);
    // Its seat in the first one is free again.
    assert_eq!(world.say(other, meet("train", "b", 0, 2)), [waits(&[1])]);
}

/// A process came to a daemon that was started again before the members of its job did.
#[test]
fn who_waits_for_a_job_that_comes_back_is_called_in() {
    let mut world = World::new();
    let early = world.connect();
    assert_eq!(world.say(early, meet("train", "a", 1, 3)), [waits(&[0, 2])]);
    let stray = world.connect();
    assert_eq!(world.say(stray, meet("other", "a", 0, 3)).len(), 1);
    let member = world.connect();
    let join =
        Join { policy: SHRINK, origin: Some(Box::new(origin("a", 3))), ..wish("train", 0, 3) };
    assert_eq!(world.say(member, Request::Join(join)), []);
    assert_eq!(world.hear(early), [Reply::Underway(origin("a", 3))]);
    assert_eq!(world.hear(stray), []);
}
