//! Jobs of several aggregators.

use xdp_agg_common::control::{
    Branch, BranchReply, BranchRequest, BranchSetup, LocalMembers, TreeError, Uplink,
};

use super::woods::{Daemon, GO_ON, Woods, address, branch, control, data, path};
use super::*;

/// A worker on its aggregator's host learns its address from the root, whichever daemon found it.
/// The others' address stays, and so does that of ranks that are not below the branch.
#[test]
fn workers_beside_their_aggregator_are_told_another_address() {
    let mut woods = Woods::new(2);
    let local = |nth: u8| SocketAddrV4::new([169, 254, 109, nth].into(), 48864);
    woods.daemons[0].local = Some(LocalMembers { ranks: 0b1, data: local(1) });
    woods.daemons[1].local = Some(LocalMembers { ranks: 0b1010, data: local(2) });
    let conns = woods.join_all(&path(), 5, GO_ON);
    let told: Vec<_> = woods.ready(&conns).iter().map(|admitted| admitted.data).collect();
    assert_eq!(told, [local(1), local(2), data(1), data(2), data(2)]);
    // In the next epoch it may be another one, or none.
    woods.daemons[0].local = None;
    woods.daemons[1].local = Some(LocalMembers { ranks: 0b10, data: local(3) });
    woods.daemons[0].jobs.handle_closed(conns[4]);
    woods.settle();
    woods.progress(&conns[..4], 8);
    let told: Vec<_> = woods.ready(&conns[..4]).iter().map(|admitted| admitted.data).collect();
    assert_eq!(told, [data(0), local(3), data(1), data(2)]);
}

#[test]
fn all_aggregators_of_a_tree_learn_their_part() {
    let mut woods = Woods::new(2);
    // Jobs before it move the indexes.
    let stranger = woods.daemons[1].connect(address(8));
    woods.daemons[1].jobs.handle_request(stranger, hello(None), woods.now);
    woods.daemons[1].jobs.handle_request(stranger, join("another", 0, 2), woods.now);
    woods.settle();
    let conns: Vec<_> =
        (0..5).map(|rank| woods.join(Join { tree: path(), ..wish("trees", rank, 5) })).collect();
    let admitted = woods.ready(&conns);
    let told: Vec<_> = admitted.iter().map(|a| (a.data, a.job_id, a.members)).collect();
    assert_eq!(told[0], (data(0), 0, 0b11111));
    assert_eq!(told[1..3], [(data(1), 1, 0b11111); 2]);
    assert_eq!(told[3..], [(data(2), 0, 0b11111); 2]);
    // Of all daemons' numbers, a later one.
    assert!(admitted.iter().all(|a| a.epoch == 21 && a.cookie == admitted[0].cookie));
    let [root, middle, leaf] = [0, 1, 2].map(|index| woods.daemons[index].setup().clone());
    assert_eq!(root.members[&1], data(1));
    assert_eq!((root.members.len(), root.forwarders, root.uplink), (2, 0b10, None));
    assert_eq!(middle.members.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((middle.members[&3], middle.forwarders), (data(2), 0b1000));
    let up = middle.uplink.expect("a branch has a parent");
    assert_eq!((up.addr, up.job, up.rank), (data(0), 0, 1));
    let up = leaf.uplink.expect("a branch has a parent");
    assert_eq!((up.addr, up.job, up.rank), (data(1), 1, 3));
    for setup in [&root, &middle, &leaf] {
        assert_eq!((setup.conf.cookie, setup.conf.epoch), (admitted[0].cookie, 21));
        assert_eq!((setup.conf.slots, setup.conf.workers), (16, 5));
    }
    assert!(woods.daemons.iter().all(|daemon| daemon.running.len() == 1));
    let branches = woods.info().branches;
    assert_eq!(branches.len(), 2);
    assert!(branches.iter().all(|branch| branch.linked));
    assert_eq!(branches[1].parent, Some(control(1)));
}

#[test]
fn the_end_of_a_job_is_the_end_of_its_branches() {
    let mut woods = Woods::new(2);
    let free = woods.daemons[2].jobs.pool.free();
    let conns = woods.run(&path(), 5, Policy::default());
    assert_eq!(woods.daemons[2].jobs.pool.free(), free - 16);
    for conn in conns {
        woods.say(conn, Request::Leave);
    }
    assert!(woods.links.is_empty());
    for daemon in &woods.daemons {
        assert!(daemon.engine.is_empty() && daemon.jobs.served.is_empty());
        assert_eq!(daemon.jobs.pool.free(), free);
    }
}

/// No `Go` before every aggregator has found its parent: the first block would be lost for long.
#[test]
fn nobody_goes_before_all_ways_up_are_open() {
    let mut woods = Woods::new(2);
    woods.daemons[2].uplink = false;
    let conns = woods.join_all(&path(), 5, Policy::default());
    for conn in &conns {
        woods.say(*conn, Request::Ready);
    }
    woods.wait_for(Duration::from_secs(1));
    assert_eq!(woods.info().phase, "probing");
    woods.daemons[2].uplink = true;
    woods.wait_for(Duration::from_millis(20));
    assert_eq!(woods.info().phase, "running");
}

#[test]
fn a_branch_without_a_way_up_is_named() {
    let mut woods = Woods::new(2);
    woods.daemons[2].uplink = false;
    let conns = woods.join_all(&path(), 5, Policy::default());
    for conn in &conns {
        woods.say(*conn, Request::Ready);
    }
    woods.wait_for(Duration::from_millis(20));
    woods.wait_for(limits().probe_timeout);
    let reasons = woods.aborted(&conns);
    assert_eq!(reasons.len(), 5);
    let named = |reason: &AbortReason| match reason {
        AbortReason::Branch { daemon, .. } => *daemon == control(2),
        _ => false,
    };
    assert!(reasons.iter().all(named), "{reasons:?}");
}

#[test]
fn a_branch_that_is_lost_ends_the_job_or_leaves_its_ranks_to_its_parent() {
    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, Policy::default());
    woods.kill(1);
    let reasons = woods.aborted(&conns);
    assert_eq!(reasons.len(), 5);
    assert!(reasons[0].to_string().contains("10.0.0.2:9870"), "{}", reasons[0]);
    assert!(woods.daemons[2].engine.is_empty());

    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, GO_ON);
    woods.kill(1);
    woods.progress(&conns, 7);
    let admitted = woods.ready(&conns);
    assert_eq!(admitted[1].data, data(0));
    assert_eq!(admitted[3].data, data(2));
    assert_eq!(woods.daemons[0].members(), [0, 1, 2, 3]);
    assert_eq!(woods.daemons[2].setup().uplink.expect("a parent").addr, data(0));
    assert!(admitted.iter().all(|a| a.plan.is_some() && a.members == 0b11111));
}

#[test]
fn a_worker_that_is_lost_leaves_its_branch() {
    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, GO_ON);
    // The lowest rank of the middle branch: it contributes under another one from now on.
    woods.daemons[0].jobs.handle_closed(conns[1]);
    woods.settle();
    let left = [conns[0], conns[2], conns[3], conns[4]];
    woods.progress(&left, 7);
    woods.ready(&left);
    assert_eq!(woods.daemons[0].members(), [0, 2]);
    assert_eq!(woods.daemons[1].members(), [2, 3]);
    assert_eq!(woods.daemons[1].setup().uplink.expect("a parent").rank, 2);
    // A branch whose last worker goes is needed no more.
    for conn in [conns[3], conns[4]] {
        woods.daemons[0].jobs.handle_closed(conn);
    }
    woods.settle();
    woods.progress(&left[..2], 9);
    woods.ready(&left[..2]);
    assert_eq!(woods.daemons[1].members(), [2]);
    assert!(woods.daemons[2].engine.is_empty() && woods.daemons[2].jobs.served.is_empty());
}

#[test]
fn who_is_missing_is_asked_everywhere() {
    let mut woods = Woods::new(2);
    let conns = woods.run(&path(), 5, Policy::default());
    // The root lacks branch 1, which lacks rank 2 and branch 2, which lacks rank 4.
    for (index, bits) in [0b00010, 0b01100, 0b10000].into_iter().enumerate() {
        woods.daemons[index].missing = bits;
    }
    let heard = woods.say(conns[0], Request::Missing { block: 3, of: None });
    assert_eq!(heard, [missing(3, &[2, 4])]);
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    let mut woods = Woods::new(2);
    woods.daemons[2].is_dead = true;
    let conns = woods.join_all(&path(), 5, Policy::default());
    let reasons = woods.aborted(&conns);
    assert!(reasons[0].to_string().contains("10.0.0.3:9870"), "{reasons:?}");
    assert!(woods.links.is_empty(), "the others are let go");
}

#[test]
fn impossible_trees_and_different_ones_are_refused() {
    let mut world = World::new();
    let conn = world.connect();
    let wrong = Tree { branches: vec![branch(1, Some(0), &[1])] };
    let told = wrong.check(2).map_err(|error| matches!(error, TreeError::Order { .. }));
    assert_eq!(told, Err(true));
    let heard = world.say(conn, Request::Join(Join { tree: wrong, ..wish("odd", 0, 2) }));
    assert_eq!(refused(&heard, &["tree", "cycle", "topology"]), ErrorCode::Invalid);
    let tree = Tree { branches: vec![branch(1, None, &[1])] };
    assert!(world.say(conn, Request::Join(Join { tree, ..wish("odd", 0, 2) })).is_empty());
    let (_, heard) = world.come(wish("odd", 1, 2));
    assert_eq!(refused(&heard, &["another tree", "XDP_AGG_TOPOLOGY"]), ErrorCode::Invalid);
}

/// What a branch of one member is told of an epoch.
fn far(epoch: u16, chunks: u16) -> BranchSetup {
    let (members, uplink) = (vec![(0, data(3))], Uplink { data: data(0), job_id: 0, rank: 0 });
    BranchSetup { epoch, cookie: 1, chunks, members, forwarders: 0, uplink }
}

/// A branch does not send for ever to an address that it was told.
#[test]
fn a_way_up_is_not_tried_for_ever() {
    let now = Instant::now();
    let mut branch = Daemon::new(1, now);
    branch.uplink = false;
    let root = branch.connect(address(0));
    let serve = BranchRequest::Serve { job: "far".into(), world_size: 2, slots: 16 };
    let setup = far(50, 22);
    for request in
        [hello(None), Request::Branch(serve), Request::Branch(BranchRequest::Prepare(setup))]
    {
        branch.jobs.handle_request(root, request, now);
        branch.settle(now);
    }
    let mut probes = 0;
    for step in 1..3000 {
        let now = now + Duration::from_millis(20 * step);
        branch.jobs.handle_timeout(now);
        probes += branch.settle(now);
    }
    let most = limits().probe_timeout.as_millis() as u64 / 20 + 1;
    assert!((most / 2..=most).contains(&probes), "{probes}");
    assert!(branch.engine.is_empty(), "it has given up");
    let last = branch.heard.remove(&root).and_then(|mut heard| heard.pop());
    assert!(matches!(last, Some(Reply::Branch(BranchReply::Failed { epoch: 50, .. }))), "{last:?}");
}

/// A branch refuses a job that it cannot serve.
#[test]
fn a_branch_refuses_what_does_not_fit() {
    let serve = |slots| BranchRequest::Serve { job: "far".into(), world_size: 2, slots };
    let mut world = World::new();
    let conn = world.connect();
    let heard = world.say(conn, Request::Branch(serve(1024)));
    assert_eq!(refused(&heard, &["1024 slots", "64"]), ErrorCode::NoRoom);
    assert!(matches!(world.say(conn, Request::Branch(serve(16)))[..], [Reply::Branch(_)]));
    let heard = world.say(conn, Request::Branch(BranchRequest::Prepare(far(5, 99))));
    assert_eq!(refused(&heard, &["99 chunks", "22"]), ErrorCode::Invalid);
    assert!(world.engine.is_empty());
    let heard = world.say(conn, Request::Branch(serve(16)));
    assert_eq!(refused(&heard, &["serves a job already"]), ErrorCode::Protocol);
}

/// Numbers of epochs go round; a daemon that has used none yet has no opinion.
#[test]
fn a_new_branch_takes_any_number() {
    for (root, branches, epoch) in [(40_000, [0, 0], 40_001), (0, [40_000, 0], 40_001)] {
        let mut woods = Woods::new(2);
        woods.daemons[0].jobs.last_epoch = root;
        for (index, last) in (1..).zip(branches) {
            woods.daemons[index].jobs.last_epoch = last;
        }
        woods.run(&path(), 5, Policy::default());
        assert!(woods.daemons.iter().all(|daemon| daemon.setup().conf.epoch == epoch));
    }
}

/// A root that takes the farthest number there is, again and again, keeps no other root's number
/// from being taken.
#[test]
fn a_root_uses_up_no_numbers_of_others() {
    let mut world = World::new();
    let mut serve = |job: &str| {
        let conn = world.connect();
        let serve = BranchRequest::Serve { job: job.into(), world_size: 2, slots: 16 };
        let heard = world.say(conn, Request::Branch(serve));
        let [Reply::Branch(BranchReply::Serving { last_epoch, .. })] = heard[..] else {
            panic!("{heard:?}")
        };
        assert_eq!(last_epoch, 0, "{job}");
        conn
    };
    let (honest, greedy) = (serve("honest"), serve("greedy"));
    let mut wants = |conn, epoch| {
        let setup = BranchSetup { epoch, ..far(5, 22) };
        let heard = world.say(conn, Request::Branch(BranchRequest::Prepare(setup)));
        let [Reply::Branch(reply)] = &heard[..] else { panic!("{heard:?}") };
        reply.clone()
    };
    let prepared = |epoch| BranchReply::Prepared { epoch, local: None };
    for (number, epoch) in (1..).zip([32_767, 65_534, 32_765, 65_532]) {
        assert_eq!(wants(greedy, epoch), prepared(epoch));
        assert_eq!(wants(honest, number), prepared(number), "after {epoch}");
    }
    // Of its own job a number is taken once.
    assert_eq!(wants(honest, 4), BranchReply::Used { epoch: 4, last_epoch: 4 });
    assert_eq!(wants(greedy, 1000), prepared(1000));
    assert_eq!(wants(greedy, 65_532), BranchReply::Used { epoch: 65_532, last_epoch: 1000 });
}

/// A daemon has several addresses; the tree is over daemons.
#[test]
fn a_daemon_in_two_places_of_a_tree_is_refused() {
    let at = |host, port| SocketAddrV4::new(address(host), port);
    for (first, second, words) in [
        (at(1, 9870), at(1, 9871), "it is 10.0.0.2:9870, under another address"),
        (at(1, 9870), at(0, 9871), "it is the root of the tree, under another address"),
    ] {
        let place = |daemon, rank| Branch::new(daemon, None, vec![rank]);
        let tree = Tree { branches: vec![place(first, 1), place(second, 2)] };
        let mut woods = Woods::new(1);
        let conns = woods.join_all(&tree, 3, GO_ON);
        let reasons = woods.aborted(&conns);
        let told = AbortReason::to_string(&reasons[0]);
        for words in [words, &second.to_string(), "name it once"] {
            assert!(told.contains(words), "{told}");
        }
        assert!(woods.links.is_empty() && woods.daemons.iter().all(|d| d.jobs.served.is_empty()));
    }
}
