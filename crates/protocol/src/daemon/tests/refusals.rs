//! What is refused, and in what words.

use super::*;

#[test]
fn wrong_joins_say_what_is_expected() {
    let mut world = World::new();
    let first = world.connect();
    assert_eq!(world.say(first, join("train", 0, 2)), []);
    let with = |change: fn(&mut Join)| {
        let mut join = wish("train", 1, 2);
        change(&mut join);
        join
    };
    let cases: [(Join, ErrorCode, &[&str]); 13] = [
        (with(|j| j.rank = 0), ErrorCode::RankTaken, &["rank 0", "10.0.0.1:4000", "0 to 1"]),
        (with(|j| j.world_size = 4), ErrorCode::WorldSize, &["of 2", "says 4", "WORLD_SIZE"]),
        (with(|j| j.rank = 2), ErrorCode::Invalid, &["rank 2", "world of 2", "0 to 1"]),
        (with(|j| j.world_size = 0), ErrorCode::Invalid, &["size of 0", "1 to 64"]),
        (with(|j| j.world_size = 65), ErrorCode::Invalid, &["size of 65", "1 to 64"]),
        (with(|j| j.job = String::new()), ErrorCode::Invalid, &["1 to 64"]),
        (with(|j| j.job = "x".repeat(65)), ErrorCode::Invalid, &["65", "1 to 64"]),
        (with(|j| j.job = "a\nb".into()), ErrorCode::Invalid, &["control characters"]),
        (with(|j| j.slots = Some(12)), ErrorCode::Invalid, &["12 slots", "power of two"]),
        (with(|j| j.slots = Some(32)), ErrorCode::Invalid, &["32 slots", "has 16"]),
        (with(|j| j.max_chunks = 0), ErrorCode::NoRoom, &["MTU", "114"]),
        (with(|j| j.data_port = 0), ErrorCode::Invalid, &["UDP port"]),
        (with(|j| j.data_port = 4000), ErrorCode::Invalid, &["rank 0's", "port of its own"]),
    ];
    for (wrong, code, words) in cases {
        let (conn, heard) = world.come(wrong);
        assert_eq!(refused(&heard, words), code);
        assert!(!world.closed.contains(&conn));
    }
    // None of that harmed the job.
    let second = world.connect();
    assert!(matches!(world.say(second, join("train", 1, 2))[..], [Reply::Admitted(_)]));
    let (_, heard) = world.come(wish("train", 1, 2));
    assert_eq!(refused(&heard, &["taken"]), ErrorCode::RankTaken);
}

#[test]
fn two_addresses_of_the_aggregator_are_refused() {
    let mut world = World::new();
    world.come(wish("train", 0, 2));
    let conn = ConnId(99);
    world.jobs.handle_connected(conn, Peer { local: Some(Ipv4Addr::LOCALHOST), ..PEER });
    world.say(conn, Request::Hello { version: CONTROL_VERSION, agent: String::new(), token: None });
    let heard = world.say(conn, join("train", 1, 2));
    assert_eq!(refused(&heard, &["127.0.0.1", "10.0.0.254", "--data-addr"]), ErrorCode::Invalid);
}

#[test]
fn a_first_join_that_is_refused_leaves_no_job() {
    let mut world = World::new();
    let conn = ConnId(99);
    world.jobs.handle_connected(conn, Peer { local: None, ..PEER });
    world.say(conn, Request::Hello { version: CONTROL_VERSION, agent: String::new(), token: None });
    let heard = world.say(conn, join("train", 0, 2));
    assert_eq!(refused(&heard, &["IPv6", "--data-addr"]), ErrorCode::Invalid);
    assert!(world.infos().is_empty());
    assert_eq!(world.stats().slots_free, 64);
}

#[test]
fn slots_run_out_with_numbers() {
    let mut world = World::new();
    let tool = world.connect();
    for (i, slots) in [(0, 32), (1, 16)] {
        let wish = CreateJob { slots: Some(slots), ..create(&format!("job{i}"), 2) };
        assert_eq!(world.say(tool, Request::Create(wish)), [Reply::Done]);
    }
    let wish = CreateJob { slots: Some(32), ..create("big", 2) };
    let heard = world.say(tool, Request::Create(wish));
    assert_eq!(refused(&heard, &["32 slots", "16 of 64", "--slots"]), ErrorCode::NoRoom);
    let wish = |i| CreateJob { slots: Some(2), ..create(&format!("small{i}"), 2) };
    for i in 0..8 {
        assert_eq!(world.say(tool, Request::Create(wish(i))), [Reply::Done]);
    }
    assert_eq!(world.stats().slots_free, 0);

    let mut world = World::with(Limits { slots: 2 * MAX_JOBS as u32 + 2, ..limits() });
    let tool = world.connect();
    for i in 0..MAX_JOBS {
        assert_eq!(world.say(tool, Request::Create(wish(i))), [Reply::Done]);
    }
    let heard = world.say(tool, Request::Create(wish(MAX_JOBS)));
    let known = format!("{MAX_JOBS} jobs");
    assert_eq!(refused(&heard, &[&known]), ErrorCode::NoRoom);
}

#[test]
fn what_breaks_the_protocol_is_told_and_closed() {
    let mut world = World::new();
    let early = ConnId(90);
    world.jobs.handle_connected(early, PEER);
    let heard = world.say(early, Request::Jobs);
    assert_eq!(refused(&heard, &["Hello"]), ErrorCode::Protocol);
    let other = ConnId(91);
    world.jobs.handle_connected(other, PEER);
    let heard =
        world.say(other, Request::Hello { version: 99, agent: "old 0.0".into(), token: None });
    let ours = format!("version {CONTROL_VERSION}");
    assert_eq!(refused(&heard, &["99", &ours, "same release"]), ErrorCode::Version);
    let foreign = world.connect();
    world.jobs.handle_garbled(foreign, "not JSON");
    world.settle();
    assert_eq!(refused(&world.hear(foreign), &["not JSON"]), ErrorCode::Protocol);
    let (hasty, _) = world.come(wish("train", 0, 2));
    let heard = world.say(hasty, Request::Ready);
    assert_eq!(refused(&heard, &["Admitted"]), ErrorCode::Protocol);
    for conn in [early, other, foreign, hasty] {
        assert!(world.closed.contains(&conn));
        assert_eq!(world.say(conn, Request::Jobs), []);
    }
    assert!(world.infos().is_empty());
}
