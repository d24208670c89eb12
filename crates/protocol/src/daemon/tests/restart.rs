//! A daemon takes on the jobs of the one before.

use super::*;

/// A new daemon, over the same data path.
fn restart(world: &mut World) {
    world.jobs = Jobs::new(limits(), StdRng::seed_from_u64(2), world.now);
    // Nobody is connected any more.
    world.told.clear();
    world.heard.clear();
    let saved = world.saved.clone();
    // A daemon ends what the data path runs and nobody knows.
    world.engine.retain(|job_id, _| saved.jobs.iter().any(|job| job.job_id == *job_id));
    world.jobs.restore(saved, world.now);
    world.settle();
}

/// A job of three that a new daemon takes over.
fn restarted(policy: Policy) -> World {
    let mut world = World::new();
    world.run_with("train", 3, policy);
    restart(&mut world);
    world
}

fn back(world: &mut World, rank: u16, policy: Policy) -> (ConnId, Vec<Reply>) {
    let resume = Some(world.remembered());
    world.come(Join { policy, resume, ..wish("train", rank, 3) })
}

#[test]
fn a_running_job_goes_on_in_its_epoch() {
    let mut world = World::new();
    world.run_with("train", 3, RESUME);
    let before = world.stats();
    restart(&mut world);
    let stats = world.stats();
    assert_eq!(stats.slots_free, before.slots_free);
    let info = &stats.jobs[0].info;
    assert_eq!((info.phase.as_str(), info.epoch, info.joined.len()), ("running", 1, 0));
    assert!(info.members.iter().all(|member| !member.connected));
    let all: Vec<_> = (0..3).map(|rank| back(&mut world, rank, RESUME)).collect();
    for (_, heard) in &all {
        assert_eq!(heard[..], [Reply::Resumed]);
    }
    world.wait(11);
    assert_eq!(world.infos()[0].joined, [0, 1, 2]);
    // The next job's epoch is another, and so are its slots.
    world.run("other", 1);
    assert_eq!((world.engine[&1].conf.epoch, world.engine[&1].conf.slot_base), (2, 16));
    for (conn, _) in all {
        world.say(conn, Request::Leave);
    }
    assert!(!world.engine.contains_key(&0));
}

#[test]
fn who_does_not_come_back_in_time_is_lost() {
    let mut world = restarted(SHRINK);
    let (first, _) = back(&mut world, 0, SHRINK);
    let (second, _) = back(&mut world, 2, SHRINK);
    world.wait(10);
    for conn in [first, second] {
        assert_eq!(reform(&world.hear(conn)), [1]);
        world.say(conn, Request::Progress(progress(10, 3)));
    }
    assert_eq!(world.engine[&0].conf.members, 0b101);

    let mut world = restarted(RESUME);
    let (first, _) = back(&mut world, 0, RESUME);
    world.wait(10);
    let reason = AbortReason::Timeout { ranks: vec![1, 2], step: "resume".into() };
    assert_eq!(aborted(&world.hear(first)), reason);
    assert!(world.engine.is_empty() && world.infos().is_empty());

    // Nobody.
    let mut world = restarted(SHRINK);
    world.wait(10);
    assert!(world.engine.is_empty() && world.infos().is_empty());
}

#[test]
fn a_loss_before_all_are_back_waits_for_the_rest() {
    let mut world = restarted(SHRINK);
    let (first, _) = back(&mut world, 0, SHRINK);
    let (second, _) = back(&mut world, 1, SHRINK);
    let resume = Some(world.remembered());
    world.close(second);
    assert_eq!(reform(&world.hear(first)), [1]);
    assert_eq!(world.say(first, Request::Progress(progress(10, 3))), []);
    let (_, heard) = world.come(Join { policy: SHRINK, resume, ..wish("train", 2, 3) });
    assert_eq!(admitted(&heard).members, 0b101);
}

#[test]
fn a_new_process_in_the_place_of_one_that_is_awaited_joins_anew() {
    let mut world = restarted(SHRINK);
    let (first, _) = back(&mut world, 0, SHRINK);
    let (second, _) = back(&mut world, 2, SHRINK);
    let join = Join { policy: SHRINK, data_port: 5001, ..wish("train", 1, 3) };
    assert_eq!(world.come(join).1, []);
    for conn in [first, second] {
        assert_eq!(reform(&world.hear(conn)), [1]);
    }
    assert_eq!(world.infos()[0].waiting, [1]);
}

#[test]
fn what_is_not_running_is_not_saved() {
    let mut world = World::new();
    let members = world.run_with("train", 3, SHRINK);
    world.run_with("other", 1, RESUME);
    assert_eq!(world.saved.jobs.len(), 2);
    assert_eq!(world.saved.last_epoch, 2);
    world.close(members[0]);
    assert_eq!(world.saved.jobs.len(), 1);
    world.jobs.shut_down("the end");
    world.settle();
    assert!(world.saved.jobs.is_empty());
}

/// Under `fail` a job's calls end with its daemon: nobody would come back, and its name, number and
/// slots are free at once.
#[test]
fn a_job_that_ends_with_its_daemon_is_not_awaited() {
    let fails = Policy { aggregator_loss: AggregatorLoss::Fail, ..SHRINK };
    for policy in [Policy::default(), fails] {
        let mut world = World::new();
        world.run_with("train", 3, policy);
        assert!(world.saved.jobs.is_empty(), "{policy}");
        assert_eq!(world.saved.last_epoch, 1);
        restart(&mut world);
        assert_eq!(world.stats().slots_free, 64);
        world.run_with("train", 3, policy);
        assert_eq!(world.engine[&0].conf.epoch, 2);
    }
}

/// What a daemon of before has written of such jobs is not taken on either.
#[test]
fn a_saved_job_that_ended_with_its_daemon_is_ended_on_the_data_path() {
    let mut world = World::new();
    world.run_with("train", 3, RESUME);
    world.saved.jobs[0].policy = Policy::default();
    restart(&mut world);
    assert!(world.engine.is_empty() && world.infos().is_empty());
    assert_eq!(world.stats().slots_free, 64);
}

#[test]
fn a_reserved_job_that_ended_with_its_daemon_forms_again() {
    let mut world = World::new();
    let tool = world.connect();
    assert_eq!(world.say(tool, Request::Create(create("night", 2))), [Reply::Done]);
    world.run("night", 2);
    assert_eq!(world.saved.jobs.len(), 1);
    let free = world.stats().slots_free;
    restart(&mut world);
    assert_eq!((world.infos()[0].phase.as_str(), world.stats().slots_free), ("forming", free));
    world.run("night", 2);
    assert_eq!(world.engine[&0].conf.epoch, 2);
}

#[test]
fn nonsense_is_left_out_and_ended_on_the_data_path() {
    let mut world = World::new();
    world.run_with("train", 2, SHRINK);
    let good = world.saved.jobs[0].clone();
    let with = |change: fn(&mut JobSnapshot)| {
        let mut job = JobSnapshot { job: "x".into(), job_id: 1, slot_base: 16, ..good.clone() };
        change(&mut job);
        job
    };
    let jobs = vec![
        good.clone(),
        with(|job| job.job_id = 0),
        with(|job| job.slot_base = 8),
        with(|job| job.slots = 12),
        with(|job| job.slot_base = 60),
        with(|job| job.world_size = 1),
        with(|job| job.world_size = 65),
        with(|job| job.members.clear()),
        with(|job| job.epoch_members = 0b1),
        with(|job| job.chunks = 23),
        with(|job| job.job = "train".into()),
    ];
    let mut jobs_of_next = Jobs::new(limits(), StdRng::seed_from_u64(2), world.now);
    let count = jobs.len();
    jobs_of_next.restore(Snapshot { last_epoch: 9, jobs }, world.now);
    assert_eq!(jobs_of_next.snapshot(), Snapshot { last_epoch: 9, jobs: vec![good] });
    let effects: Vec<_> = std::iter::from_fn(|| jobs_of_next.poll_effect()).collect();
    let stops = effects.iter().filter(|e| matches!(e, Effect::Stop { .. })).count();
    assert_eq!((stops, effects.last()), (count - 1, Some(&Effect::Persist)));
}
