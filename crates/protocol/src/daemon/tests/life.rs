//! From the first join to the last leave.

use xdp_agg_common::control::{decode, encode};

use super::*;

#[test]
fn a_job_lives_from_join_to_leave() {
    let mut world = World::new();
    let small = world.connect();
    let few = Join { max_chunks: 7, ..wish("train", 0, 2) };
    assert_eq!(world.say(small, Request::Join(few)), []);
    let (other, heard) = world.come(wish("train", 1, 2));
    let [
        Reply::Admitted(Admitted {
            job_id: 0, epoch: 1, chunks: 7, slots: 16, data, cookie, ..
        }),
    ] = heard[..]
    else {
        panic!("{heard:?}");
    };
    assert_eq!(data.to_string(), "10.0.0.254:48864");
    assert_eq!(world.hear(small), heard);
    let setup = &world.engine[&0];
    assert_eq!((setup.conf.cookie, setup.conf.members), (cookie, 0b11));
    assert_eq!(setup.members[&1].to_string(), "10.0.0.1:4001");

    assert_eq!(world.say(small, Request::Ready), []);
    assert_eq!(world.say(other, Request::Missing { block: 0, of: None }), [missing(0, &[1])]);
    let go = Reply::Go { mode: ResultMode::Ports, group: None };
    assert_eq!(world.say(other, Request::Ready), std::slice::from_ref(&go));
    assert_eq!(world.hear(small), [go]);

    world.missing = 0b10;
    assert_eq!(world.say(small, Request::Missing { block: 9, of: None }), [missing(9, &[1])]);
    assert_eq!(world.say(small, Request::Leave), [Reply::Done]);
    world.close(small);
    assert_eq!(world.hear(other), []);
    assert_eq!(world.infos()[0].joined, [1]);
    assert_eq!(world.say(other, Request::Leave), [Reply::Done]);
    assert!(world.infos().is_empty() && world.engine.is_empty());
    // The same connection may join again.
    assert_eq!(world.say(other, join("next", 0, 1)).len(), 1);
}

#[test]
fn a_death_is_told_to_the_others_by_rank() {
    let mut world = World::new();
    let members = world.run("train", 3);
    world.close(members[1]);
    for conn in [members[0], members[2]] {
        assert_eq!(aborted(&world.hear(conn)), AbortReason::MemberLost { rank: 1 });
        let heard = world.say(conn, Request::Missing { block: 0, of: None });
        assert_eq!(refused(&heard, &["Join"]), ErrorCode::NoJob);
    }
    assert!(world.infos().is_empty() && world.engine.is_empty());
}

#[test]
fn a_death_while_the_job_forms_frees_the_rank() {
    let mut world = World::new();
    let conns = [world.connect(), world.connect(), world.connect(), world.connect()];
    for (conn, rank) in conns.into_iter().zip([0, 1]) {
        world.say(conn, join("train", rank, 3));
    }
    world.close(conns[1]);
    assert_eq!(world.hear(conns[0]), []);
    for (conn, rank) in [(conns[2], 1), (conns[3], 2)] {
        world.say(conn, join("train", rank, 3));
    }
    assert!(matches!(world.hear(conns[0])[..], [Reply::Admitted(_)]));
    // The last one of a forming job takes the job with it.
    let (alone, _) = world.come(wish("other", 1, 2));
    world.close(alone);
    assert_eq!(world.infos().len(), 1);
}

#[test]
fn a_mismatch_and_a_surrender_end_the_job() {
    let call = Call {
        sequence: 3,
        count: 10,
        element: "f32".into(),
        operation: "sum".into(),
        numbers: "block".into(),
    };
    let mut world = World::new();
    let members = world.run("train", 2);
    let reason = AbortReason::CallMismatch { rank: 1, call: call.clone() };
    let heard = world.say(members[1], Request::CallMismatch { call: call.clone() });
    assert_eq!(aborted(&heard), reason);
    assert_eq!(aborted(&world.hear(members[0])), reason);
    // The other found out too, and said so before it heard: no second abort.
    let heard = world.say(members[0], Request::CallMismatch { call });
    assert_eq!(refused(&heard, &[]), ErrorCode::NoJob);

    let members = world.run("train", 2);
    let heard = world.say(members[0], Request::Abort { reason: "no memory".into(), cause: None });
    assert_eq!(heard, [Reply::Done]);
    let reason = AbortReason::Member { rank: 0, reason: "no memory".into(), cause: None };
    assert_eq!(aborted(&world.hear(members[1])), reason);
}

#[test]
fn waits_end_and_name_the_ranks() {
    let mut world = World::new();
    let (first, _) = world.come(wish("train", 1, 3));
    world.wait(59);
    assert_eq!(world.hear(first), []);
    world.wait(1);
    let reason = AbortReason::Timeout { ranks: vec![0, 2], step: "join".into() };
    assert_eq!(aborted(&world.hear(first)), reason);
    assert_eq!(world.jobs.poll_timeout(), None);

    // Workers may ask for more, and for less, up to what the operator allows.
    for (asked, given) in [(90, 90), (2, 2), (10_000, 600)] {
        let patient = world.connect();
        let join = Join { patience_s: Some(asked), ..wish("patient", 1, 3) };
        world.say(patient, Request::Join(join));
        world.wait(given - 1);
        assert_eq!(world.hear(patient), []);
        // Another one's lesser patience changes nothing.
        let hasty = world.connect();
        let join = Join { patience_s: Some(1), ..wish("patient", 2, 3) };
        world.say(hasty, Request::Join(join));
        world.wait(1);
        let reason = AbortReason::Timeout { ranks: vec![0], step: "join".into() };
        assert!(reason.to_string().contains("XDP_AGG_JOIN_TIMEOUT_MAX"), "{reason}");
        assert_eq!(aborted(&world.hear(patient)), reason);
    }

    let members = world.form("train", 2);
    world.heard.clear();
    world.say(members[0], Request::Ready);
    world.wait(20);
    let reason = AbortReason::Timeout { ranks: vec![1], step: "probe".into() };
    for conn in members {
        assert_eq!(aborted(&world.hear(conn)), reason);
    }
    assert!(world.engine.is_empty());
}

#[test]
fn one_jobs_end_is_not_the_others() {
    let mut world = World::new();
    let (one, two) = (world.run("one", 2), world.run("two", 2));
    let ranges: Vec<_> = world.engine.values().map(|s| (s.conf.slot_base, s.conf.epoch)).collect();
    assert_eq!(ranges, [(0, 1), (16, 2)]);
    world.close(one[0]);
    assert_eq!(aborted(&world.hear(one[1])), AbortReason::MemberLost { rank: 0 });
    assert_eq!(world.hear(two[0]), []);
    assert_eq!(world.infos().len(), 1);
    // The next job takes the slots over, in an epoch of its own.
    world.run("three", 2);
    assert_eq!((world.engine[&0].conf.slot_base, world.engine[&0].conf.epoch), (0, 3));
}

#[test]
fn a_reserved_job_stays_and_forms_again() {
    let mut world = World::new();
    let tool = world.connect();
    assert_eq!(world.say(tool, Request::Create(create("night", 1))), [Reply::Done]);
    let heard = world.say(tool, Request::Create(create("night", 1)));
    assert_eq!(refused(&heard, &["exists", "delete"]), ErrorCode::Busy);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let members = world.form("night", 1);
        let setup = &world.engine[&0];
        seen.push((setup.conf.epoch, setup.conf.cookie));
        world.say(members[0], Request::Leave);
    }
    assert_eq!((seen[0].0, seen[1].0), (1, 2));
    assert_ne!(seen[0].1, seen[1].1);
    assert_eq!(world.infos()[0].phase, "forming");

    let member = world.run("night", 1)[0];
    assert_eq!(world.say(tool, Request::Delete { job: "night".into() }), [Reply::Done]);
    assert!(matches!(aborted(&world.hear(member)), AbortReason::Operator { .. }));
    let heard = world.say(tool, Request::Delete { job: "night".into() });
    assert_eq!(refused(&heard, &["night", "xdp-agg jobs"]), ErrorCode::NoJob);
    assert_eq!(world.stats().slots_free, 64);
}

#[test]
fn counters_start_with_the_job() {
    let mut world = World::new();
    world.counters[0].blocks = 100;
    world.counters[0].rejects[3] = 5;
    world.counters[MAX_JOBS].rejects[1] = 7;
    world.form("train", 2);
    world.counters[0].blocks = 130;
    world.counters[0].rejects[3] = 6;
    let stats = world.stats();
    assert_eq!(stats.jobs[0].counters.blocks, 30);
    assert_eq!(stats.jobs[0].counters.rejects[3], 1);
    assert_eq!(stats.unattributed.rejects[1], 7);
    assert_eq!((stats.slots, stats.slots_free), (64, 48));
}

#[test]
fn an_engine_that_fails_ends_the_job_with_its_words() {
    let mut world = World::new();
    world.fails = true;
    let members = world.form("train", 2);
    for conn in members {
        let AbortReason::Operator { reason } = aborted(&world.hear_or(conn)) else {
            panic!("the engine's failure is told");
        };
        assert!(reason.contains("it broke"), "{reason}");
    }
    assert!(world.infos().is_empty() && world.engine.is_empty());
}

impl World {
    /// What was heard in `form` is gone for the last rank; then ask for its state instead.
    fn hear_or(&mut self, conn: ConnId) -> Vec<Reply> {
        let heard = self.hear(conn);
        if heard.is_empty() {
            let again = self.say(conn, Request::Ready);
            assert_eq!(refused(&again, &[]), ErrorCode::NoJob);
            return vec![Reply::Aborted(AbortReason::Operator { reason: "it broke".into() })];
        }
        heard
    }
}

#[test]
fn a_member_that_joins_twice_is_lost_to_the_others() {
    let mut world = World::new();
    let members = world.run("train", 2);
    let heard = world.say(members[0], join("more", 0, 1));
    assert_eq!(refused(&heard, &["second Join"]), ErrorCode::Protocol);
    assert_eq!(aborted(&world.hear(members[1])), AbortReason::MemberLost { rank: 0 });
}

#[test]
fn going_down_tells_every_member() {
    let mut world = World::new();
    let members = [world.run("one", 2), world.run("two", 1)].concat();
    let tool = world.connect();
    world.say(tool, Request::Create(create("three", 4)));
    world.jobs.shut_down("the aggregator is shutting down");
    world.settle();
    for conn in members {
        let reason = AbortReason::Operator { reason: "the aggregator is shutting down".into() };
        assert_eq!(aborted(&world.hear(conn)), reason);
    }
    assert!(world.infos().is_empty() && world.engine.is_empty());
}

#[test]
fn what_the_first_worker_says_of_its_strategy_is_shown() {
    let mut world = World::new();
    let (first, second) = (world.connect(), world.connect());
    let said = |strategy: &str, reason: String| Some(Chosen { strategy: strategy.into(), reason });
    let long = format!("be\u{1b}cause {}", "ä".repeat(Chosen::MAX_REASON));
    let wish = |rank, chosen: Option<Chosen>| {
        Request::Join(Join { chosen: chosen.map(Box::new), ..wish("train", rank, 3) })
    };
    world.say(first, wish(0, None));
    assert_eq!(world.infos()[0].chosen, None);
    world.say(second, wish(1, said("rat", long)));
    let third = world.connect();
    world.say(third, wish(2, said("rina", "later".into())));
    let Some(shown) = world.infos()[0].chosen.clone() else { panic!("nothing is shown") };
    assert_eq!(shown.strategy, "rat");
    assert!(shown.reason.starts_with("be cause ä"), "{shown:?}");
    assert_eq!(shown.reason.chars().count(), Chosen::MAX_REASON);
}

/// As they come from a connection: cleaned where they are decoded.
#[test]
fn the_words_of_a_member_reach_the_others_clean_and_clipped() {
    let mut world = World::new();
    let members = world.run("train", 2);
    let reason = "x\n\u{1b}[2J2026-01-01 INFO shutting down".repeat(20_000);
    let mut frame = encode(&Request::Abort { reason, cause: None }).expect("it fits");
    let abort = decode(&mut frame).expect("it is one").expect("it is whole");
    assert_eq!(world.say(members[0], abort), [Reply::Done]);
    let AbortReason::Member { rank: 0, reason, .. } = aborted(&world.hear(members[1])) else {
        panic!("another reason")
    };
    assert!(reason.starts_with("x  [2J2026") && !reason.contains(char::is_control), "{reason}");
    assert_eq!(reason.chars().count(), 1000);
}

#[test]
fn lines_about_members_are_bounded() {
    let mut world = World::new();
    let conn = world.connect();
    for _ in 0..1000 {
        world.say(conn, Request::Join(wish("train", 0, 2)));
        world.say(conn, Request::Leave);
    }
    // Created, joined, left and gone.
    let later = world.now + Duration::from_secs(1);
    let left_out = world.jobs.left_out(later).expect("a flood");
    assert!((3400..=3500).contains(&left_out), "{left_out}");
    assert_eq!(world.jobs.left_out(later + Duration::from_secs(1)), None);
}
