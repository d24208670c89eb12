//! Heartbeats, stragglers, tokens and quotas.

use xdp_agg_common::control::{Doing, Presence};

use super::woods::data;
use super::*;

#[test]
fn heartbeats_go_to_members_until_they_stay_unanswered() {
    let mut world = World::new();
    assert_eq!(world.jobs.poll_timeout(), None);
    let members = world.run("train", 2);
    let due = world.jobs.poll_timeout().expect("heartbeats are due");
    assert_eq!(due - world.now, Duration::from_millis(250));
    for _ in 0..100 {
        world.wait_for(Duration::from_millis(250));
        assert_eq!(world.say(members[0], Request::Heartbeat), []);
    }
    assert_eq!(world.heartbeats[&members[0]], 100);
    assert_eq!(world.heartbeats[&members[1]], 64);
    // It was only stopped.
    world.say(members[1], Request::Heartbeat);
    world.wait_for(Duration::from_millis(250));
    assert_eq!(world.heartbeats[&members[1]], 65);
    world.wait_for(Duration::from_millis(200));
    let info = &world.infos()[0].members;
    assert_eq!((info[0].heartbeat_ms, info[1].heartbeat_ms), (Some(450), Some(450)));
    // A connection that is not a member (any more) is not refused for it, and gets no heartbeats.
    world.say(members[0], Request::Leave);
    assert_eq!(world.say(members[0], Request::Heartbeat), []);
    world.say(members[1], Request::Leave);
    assert_eq!(world.jobs.poll_timeout(), None);
}

/// A member learns how others are and what they do, also when they are there no more.
#[test]
fn members_are_told_how_others_do() {
    let mut world = World::new();
    let members = world.run("train", 4);
    let long = "a call\n".repeat(100);
    let doing = Doing { next_sequence: 3, call: Some(long), ..Doing::default() };
    for _ in 0..12 {
        world.wait_for(Duration::from_millis(250));
        for conn in [members[0], members[1]] {
            world.say(conn, Request::Heartbeat);
        }
    }
    world.say(members[1], Request::Doing(doing));
    world.say(members[3], Request::Leave);
    let heard = world.say(members[0], Request::Standing { of: 0b1_1110 });
    let [Reply::Standing(all)] = &heard[..] else { panic!("{heard:?}") };
    let [alive, silent, left] = &all[..] else { panic!("{all:?}") };
    assert_eq!((alive.rank, alive.presence, alive.heartbeat_ms), (1, Presence::Alive, Some(0)));
    let doing = alive.doing.as_ref().expect("it has said it");
    let call = doing.call.as_ref().expect("it is in one");
    assert!(call.chars().count() == Doing::MAX_CALL && !call.contains('\n'), "{call:?}");
    assert_eq!((silent.rank, silent.presence), (2, Presence::Silent));
    assert_eq!((left.rank, left.presence), (3, Presence::Left));
    // It was only stopped.
    world.say(members[2], Request::Heartbeat);
    let heard = world.say(members[0], Request::Standing { of: 0b100 });
    let [Reply::Standing(all)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((all[0].presence, all[0].heartbeat_ms), (Presence::Alive, Some(0)));
}

#[test]
fn who_contributes_is_shown() {
    let mut world = World::new();
    world.run("train", 2);
    world.wait(5);
    world.contributed.insert(0, vec![(0, Some(Duration::from_millis(300))), (1, None)]);
    let info = &world.stats().jobs[0].info;
    let shown: Vec<_> = info.members.iter().map(|member| member.contributed_ms).collect();
    assert_eq!(shown, [Some(300), None]);
    assert_eq!(info.policy, Some(Policy::default()));
}

/// A running job whose rank 1 everybody waits for, with a limit of 4 s.
fn late(policy: Policy) -> (World, Vec<ConnId>) {
    let limit = Duration::from_secs(4);
    let mut world = World::with(Limits { straggler_timeout: Some(limit), ..limits() });
    let members = world.run_with("train", 3, policy);
    world.wait(1000);
    world.missing = 0b010;
    assert_eq!(world.say(members[0], Request::Missing { block: 5, of: None }), [missing(5, &[1])]);
    (world, members)
}

fn contributed(world: &mut World, seconds: Option<u64>) {
    let others = Some(Duration::ZERO);
    let heard = vec![(0, others), (1, seconds.map(Duration::from_secs)), (2, others)];
    world.contributed.insert(0, heard);
}

#[test]
fn a_straggler_is_lost_where_a_limit_is_set() {
    for (policy, last) in [(SHRINK, Some(1004)), (SHRINK, None), (RESUME, Some(1004))] {
        let (mut world, members) = late(policy);
        contributed(&mut world, last);
        world.wait(3);
        assert_eq!(world.hear(members[0]), []);
        world.wait(1);
        let reason = AbortReason::Timeout { ranks: vec![1], step: "contribute".into() };
        assert_eq!(aborted(&world.hear(members[1])), reason);
        match policy.worker_loss {
            WorkerLoss::Shrink => assert_eq!(reform(&world.hear(members[0])), [1]),
            WorkerLoss::Fail => assert_eq!(aborted(&world.hear(members[0])), reason),
        }
    }
}

#[test]
fn who_contributed_meanwhile_or_is_not_known_is_no_straggler() {
    for known in [true, false] {
        let (mut world, members) = late(SHRINK);
        if known {
            contributed(&mut world, Some(3));
        }
        world.wait(4);
        world.wait(1000);
        assert_eq!(world.phase("train"), "running");
        assert_eq!(world.hear(members[1]), []);
    }
}

#[test]
fn who_does_not_report_is_lost_where_a_limit_is_set() {
    let (mut world, members) = late(SHRINK);
    world.close(members[2]);
    world.hear(members[0]);
    world.hear(members[1]);
    world.say(members[0], Request::Progress(progress(10, 3)));
    world.wait(4);
    let reason = AbortReason::Timeout { ranks: vec![1], step: "report its progress".into() };
    assert_eq!(aborted(&world.hear(members[1])), reason);
    assert_eq!(admitted(&world.hear(members[0])).members, 0b1);
}

/// A member that the others wait for: one that answers heartbeats may take any time, one that does
/// not is lost when it has been silent for the limit.
#[test]
fn who_is_silent_besides_is_lost_where_a_limit_is_set() {
    let limit = Duration::from_secs(20);
    for (policy, answers) in [(SHRINK, true), (SHRINK, false), (RESUME, false)] {
        let mut world = World::with(Limits { silent_timeout: Some(limit), ..limits() });
        let members = world.run_with("train", 3, policy);
        for conn in &members {
            world.say(*conn, Request::Heartbeat);
        }
        world.missing = 0b010;
        contributed(&mut world, None);
        // Silent for long, and waited for since a second ago.
        let alive = |world: &mut World| {
            for conn in [0, 2].into_iter().chain(answers.then_some(1)) {
                world.say(members[conn], Request::Heartbeat);
            }
        };
        for _ in 0..18 {
            world.wait(1);
            alive(&mut world);
        }
        let asked = world.say(members[0], Request::Missing { block: 5, of: None });
        assert_eq!(asked, [missing(5, &[1])]);
        world.wait(1);
        alive(&mut world);
        assert_eq!((world.phase("train"), world.hear(members[1])), ("running".into(), vec![]));
        world.wait(2);
        if answers {
            alive(&mut world);
            assert_eq!((world.phase("train"), world.hear(members[1])), ("running".into(), vec![]));
            continue;
        }
        let reason = AbortReason::Timeout { ranks: vec![1], step: "contribute".into() };
        assert_eq!(aborted(&world.hear(members[1])), reason);
        match policy.worker_loss {
            WorkerLoss::Shrink => assert_eq!(reform(&world.hear(members[0])), [1]),
            WorkerLoss::Fail => assert_eq!(aborted(&world.hear(members[0])), reason),
        }
    }
}

/// The same between two epochs: those that answer are waited for.
#[test]
fn who_is_silent_and_does_not_report_is_lost_where_a_limit_is_set() {
    let limit = Duration::from_secs(20);
    let mut world = World::with(Limits { silent_timeout: Some(limit), ..limits() });
    let members = world.run_with("train", 4, SHRINK);
    members.iter().for_each(|conn| drop(world.say(*conn, Request::Heartbeat)));
    world.close(members[3]);
    members[..3].iter().for_each(|conn| drop(world.hear(*conn)));
    world.say(members[0], Request::Progress(progress(10, 3)));
    for _ in 0..21 {
        world.wait(1);
        world.say(members[0], Request::Heartbeat);
        world.say(members[2], Request::Heartbeat);
    }
    let reason = AbortReason::Timeout { ranks: vec![1], step: "report its progress".into() };
    assert_eq!(aborted(&world.hear(members[1])), reason);
    assert_eq!(world.hear(members[2]), []);
    world.say(members[2], Request::Progress(progress(10, 3)));
    assert_eq!(admitted(&world.hear(members[0])).members, 0b101);
}

/// A member is lost between the question which members contribute and its answer.
#[test]
fn stragglers_are_looked_for_after_a_look_that_came_to_nothing() {
    let (mut world, members) = late(SHRINK);
    contributed(&mut world, None);
    world.now += Duration::from_secs(4);
    world.jobs.handle_timeout(world.now);
    world.jobs.dismiss(members[2], "it does not read its replies");
    world.settle();
    let left = [members[0], members[1]];
    for conn in &left {
        assert_eq!(reform(&world.hear(*conn)), [2]);
    }
    for conn in left {
        world.say(conn, Request::Progress(progress(10, 3)));
    }
    world.ready(&left);
    world.heard.clear();
    assert_eq!(world.phase("train"), "running");
    world.say(members[0], Request::Missing { block: 2, of: None });
    world.wait(4);
    let reason = AbortReason::Timeout { ranks: vec![1], step: "contribute".into() };
    assert_eq!(aborted(&world.hear(members[1])), reason);
}

#[test]
fn a_token_is_asked_for_where_one_is_set() {
    let tokens = ["sesame", "poppy"].map(|token| Token(token.into())).to_vec();
    let mut world = World::with(Limits { tokens, ..limits() });
    let strange = [Some("sesam"), Some(""), Some("sesamepoppy"), Some("sesame\npoppy")];
    let cases = [(None, "wants a token")].into_iter();
    let cases = cases.chain(strange.map(|token| (token, "not this daemon's")));
    for (id, (token, words)) in (0..).zip(cases) {
        let conn = ConnId(id);
        world.jobs.handle_connected(conn, PEER);
        let heard = world.say(conn, hello(token));
        let code = refused(&heard, &[words, "XDP_AGG_TOKEN_FILE"]);
        assert_eq!(code, ErrorCode::Unauthorised);
        assert!(world.closed.contains(&conn));
        assert!(!format!("{heard:?}").contains("sesame"));
    }
    // While a token is replaced, both are good.
    for (id, token) in [(9, "sesame"), (10, "poppy")] {
        let conn = ConnId(id);
        world.jobs.handle_connected(conn, PEER);
        assert!(matches!(world.say(conn, hello(Some(token)))[..], [Reply::Welcome { .. }]));
    }
}

#[test]
fn other_terms_hold_for_newcomers() {
    let tokens = |text: &str| vec![Token(text.into())];
    let mut world = World::with(Limits { tokens: tokens("old"), ..limits() });
    let greet = |world: &mut World, id, token| {
        world.jobs.handle_connected(ConnId(id), PEER);
        matches!(world.say(ConnId(id), hello(Some(token)))[..], [Reply::Welcome { .. }])
    };
    assert!(greet(&mut world, 100, "old"));
    let (job_slots, job_slots_max, job_packet_rate) = (8, Some(16), Some(100_000));
    world.jobs.handle_terms(Terms {
        tokens: tokens("new"),
        job_slots,
        job_slots_max,
        job_packet_rate,
    });
    assert!(greet(&mut world, 101, "new") && !greet(&mut world, 102, "old"));
    // A connection that said the token of before is as good as before.
    let greedy = Join { slots: Some(32), ..wish("greedy", 0, 1) };
    let heard = world.say(ConnId(100), Request::Join(greedy));
    assert_eq!(refused(&heard, &["at most 16"]), ErrorCode::NoRoom);
    world.say(ConnId(100), Request::Join(wish("train", 0, 1)));
    let conf = world.engine[&0].conf;
    assert_eq!((conf.slots, conf.packet_interval), (8, 10_000));
}

#[test]
fn quotas_are_given_to_the_data_path_and_refused_in_words() {
    let quotas = Limits { job_slots_max: Some(16), job_packet_rate: Some(100_000), ..limits() };
    let mut world = World::with(quotas);
    let conn = world.connect();
    let greedy = Join { slots: Some(32), ..wish("train", 0, 2) };
    let heard = world.say(conn, Request::Join(greedy));
    assert_eq!(refused(&heard, &["32 slots", "at most 16", "--job-slots-max"]), ErrorCode::NoRoom);
    world.form("train", 2);
    let conf = world.engine[&0].conf;
    assert_eq!((conf.packet_interval, conf.packet_burst), (10_000, 50_000_000));
    // Slow enough that a window of all is more than 50 ms worth.
    let mut world = World::with(Limits { job_packet_rate: Some(100), ..limits() });
    world.form("train", 2);
    let conf = world.engine[&0].conf;
    assert_eq!((conf.packet_interval, conf.packet_burst), (10_000_000, 160_000_000));
    let mut world = World::with(Limits { job_packet_rate: Some(0), ..limits() });
    world.form("train", 2);
    assert_eq!(world.engine[&0].conf.packet_interval, 0);
}

/// The packets are this host's, whichever daemon leads the job.
#[test]
fn a_job_that_another_daemon_leads_has_a_quota_too() {
    use xdp_agg_common::control::{BranchRequest, BranchSetup, Uplink};
    for (rate, expected) in [(100_000, (10_000, 50_000_000)), (100, (10_000_000, 160_000_000))] {
        let mut world = World::with(Limits { job_packet_rate: Some(rate), ..limits() });
        let root = world.connect();
        let serve = BranchRequest::Serve { job: "far".into(), world_size: 2, slots: 16 };
        world.say(root, Request::Branch(serve));
        let setup = BranchSetup {
            epoch: 5,
            cookie: 1,
            chunks: 22,
            members: vec![(0, data(3))],
            forwarders: 0,
            uplink: Uplink { data: data(0), job_id: 0, rank: 0 },
        };
        world.say(root, Request::Branch(BranchRequest::Prepare(setup)));
        let conf = world.engine[&0].conf;
        assert_eq!((conf.packet_interval, conf.packet_burst), expected);
    }
}

#[test]
fn members_must_agree_on_the_policy() {
    let mut world = World::new();
    world.come(wish("train", 0, 2));
    let (_, heard) = world.come(Join { policy: SHRINK, ..wish("train", 1, 2) });
    let words =
        ["rank 1 asks for shrink on worker loss", "fail on worker loss", "XDP_AGG_ON_WORKER_LOSS"];
    assert_eq!(refused(&heard, &words), ErrorCode::Invalid);
    // A reserved job has its creator's, or its first member's.
    for (policy, fits) in [(None, true), (Some(SHRINK), true), (Some(RESUME), false)] {
        let mut world = World::new();
        let tool = world.connect();
        world.say(tool, Request::Create(CreateJob { policy, ..create("night", 1) }));
        let member = world.connect();
        let join = Join { policy: SHRINK, ..wish("night", 0, 1) };
        let heard = world.say(member, Request::Join(join));
        assert_eq!(matches!(heard[..], [Reply::Admitted(_)]), fits);
    }
}

#[test]
fn a_ring_needs_its_ports_and_lists_them() {
    let policy = Policy { aggregator_loss: AggregatorLoss::Ring, ..SHRINK };
    let mut world = World::new();
    let conn = world.connect();
    let without = Join { policy, ..wish("train", 0, 2) };
    let heard = world.say(conn, Request::Join(without.clone()));
    assert_eq!(refused(&heard, &["ring"]), ErrorCode::Invalid);
    let with = |rank| Join { ring_port: Some(7000 + rank), policy, ..wish("train", rank, 2) };
    world.say(conn, Request::Join(with(0)));
    let other = world.connect();
    let ring = admitted(&world.say(other, Request::Join(with(1)))).ring;
    assert_eq!(ring.iter().map(|addr| addr.port()).collect::<Vec<_>>(), [7000, 7001]);
    assert_eq!(ring[0].ip(), &Ipv4Addr::new(10, 0, 0, 1));
}
