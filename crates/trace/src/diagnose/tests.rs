use super::*;
use crate::clock::clocks;
use crate::read::of_one_run;
use crate::testing::{MS, World, four, plain, well};

fn of(world: &World) -> Diagnosis {
    let files = world.files();
    let all = of_one_run(&files).expect("one run");
    let found = diagnose(&all, &clocks(&all), 100 * MS);
    found.into_iter().next().expect("a job")
}

#[test]
fn nothing_is_said_of_a_job_that_is_well() {
    let mut world = four();
    well(&mut world, 50);
    let found = of(&world);
    assert!(found.is_well() && found.late_calls == 0, "{found:?}");
    assert!(found.to_string().contains("nothing is wrong"), "{found}");
    assert!(found.ranks.iter().all(|rank| rank.calls == 50));
}

#[test]
fn a_rank_that_comes_late_is_named_with_the_time() {
    let mut world = four();
    well(&mut world, 10);
    world.call(&[0, 1000, 1000 * MS, 2000], 30_000);
    well(&mut world, 10);
    let found = of(&world);
    let [late] = &found.late[..] else { panic!("{found:?}") };
    assert_eq!((late.rank, late.call, late.how), (2, 10, How::MadeTheCallLate));
    assert!((late.by_ms - 1000.0).abs() < 1.0, "{late:?}");
    let said = "LATE     rank 2 in call 10, all-reduce (sum) of 1000 f32: made it 1000.0 ms late";
    assert!(found.to_string().contains(said), "{found}");
}

#[test]
fn a_process_that_did_not_run_is_named_and_not_those_that_waited() {
    let mut world = four();
    well(&mut world, 3);
    world.call(&[0, 0, 0, 0], 1200 * MS);
    world.last(1).gap = 1150 * MS;
    let found = of(&world);
    let [late] = &found.late[..] else { panic!("{found:?}") };
    assert_eq!((late.rank, late.call, late.how), (1, 3, How::DidNotRun));
    // If nobody waited for it, it is not late.
    world.call(&[0, 0, 0, 0], 30_000);
    world.last(3).gap = 1150 * MS;
    assert_eq!(of(&world).late, std::slice::from_ref(late));
}

#[test]
fn a_rank_that_calls_another_size_is_named() {
    let mut world = four();
    well(&mut world, 2);
    world.call(&[0, 0, 0, 0], 1000);
    world.last(3).len = 999;
    let found = of(&world);
    let [differs] = &found.differs[..] else { panic!("{found:?}") };
    assert_eq!((differs.call, &differs.odd[..]), (2, &[3][..]));
    let said = found.to_string();
    assert!(said.contains("DIFFERS  call 2: rank 3 called something else"), "{said}");
    assert!(said.contains("rank 3: all-reduce (sum) of 999 f32"), "{said}");
    // With another scale only the digest tells.
    world.last(3).len = 1000;
    world.last(3).digest = 77;
    let found = of(&world);
    assert_eq!(found.differs[0].odd, [3]);
}

#[test]
fn a_rank_that_was_killed_is_named_with_its_last_call() {
    let mut world = four();
    well(&mut world, 5);
    world.hang(&[0, 1, 2]);
    world.killed(1);
    let found = of(&world);
    let [stopped] = &found.stopped[..] else { panic!("{found:?}") };
    assert_eq!(stopped.rank, 1);
    assert_eq!(
        stopped.last_call.as_ref().map(|(call, _, ended)| (*call, *ended)),
        Some((5, false))
    );
    assert!(stopped.before_ms >= 2999.0, "{stopped:?}");
    let [hangs] = &found.hangs[..] else { panic!("{found:?}") };
    assert_eq!((hangs.call, &hangs.waiting[..], &hangs.absent[..]), (5, &[0, 1, 2][..], &[3][..]));
}

#[test]
fn a_call_in_two_files_of_a_rank_counts_once() {
    let mut world = four();
    well(&mut world, 6);
    let mut files = world.files();
    files.extend(world.files());
    let all = of_one_run(&files).expect("one run");
    let found = diagnose(&all, &clocks(&all), 100 * MS);
    assert!(found[0].ranks.iter().all(|rank| rank.calls == 6), "{found:?}");
    assert_eq!(plain(3, 5).describe(), "all-reduce (sum) of 1000 f32");
}

#[test]
fn nobody_is_late_by_a_clock_that_nobody_knows() {
    let mut world = four();
    well(&mut world, 5);
    for rank in 0..4 {
        world.every(rank, |call| call.what = "broadcast from 0".into());
    }
    // Its host's time of day is wrong.
    world.source(2).realtime_ns += 900 * MS;
    let found = of(&world);
    assert!(found.late.is_empty(), "{found:?}");
    assert!(found.ranks[1..].iter().all(|rank| rank.clock == Basis::TimeOfDay), "{found:?}");
    assert!(found.notes.iter().any(|note| note.contains("the time of day")), "{found:?}");
}

#[test]
fn a_rank_is_late_only_by_more_than_its_clock_may_be_wrong() {
    let late_by = |ms: u64| {
        let mut world = four();
        // Calls of 100 ms bound clocks to 100 ms.
        for _ in 0..10 {
            world.call(&[0; 4], 100 * MS);
        }
        world.call(&[0, 0, ms * MS, 0], 100 * MS);
        let found = of(&world);
        found.late.iter().map(|late| late.rank).collect::<Vec<_>>()
    };
    assert_eq!((late_by(150), late_by(400)), (vec![], vec![2]));
}

#[test]
fn ranks_of_one_place_on_their_hosts_share_a_digest() {
    let of_digests = |digests: [u64; 4]| {
        let mut world = four();
        world.call(&[0; 4], 30_000);
        for (rank, digest) in digests.into_iter().enumerate() {
            let source = world.source(rank);
            (source.local_rank, source.local_size) = (rank as u16 % 2, 2);
            world.last(rank).digest = digest;
        }
        of(&world).differs.len()
    };
    assert_eq!((of_digests([5, 6, 5, 6]), of_digests([5, 6, 5, 7])), (0, 1));
}

#[test]
fn of_several_late_ranks_those_are_named_that_most_others_waited_for() {
    let mut world = four();
    well(&mut world, 3);
    world.call(&[0, 500 * MS, 1000 * MS, 1500 * MS], 30_000);
    let late: Vec<u16> = of(&world).late.iter().map(|late| late.rank).collect();
    assert_eq!(late, [3, 2]);
}

#[test]
fn two_against_two_are_told_without_a_culprit() {
    let mut world = four();
    world.call(&[0; 4], 30_000);
    (2..4).for_each(|rank| world.last(rank).len = 999);
    let found = of(&world);
    assert!(found.differs[0].odd.is_empty(), "{found:?}");
    assert!(found.to_string().contains("the ranks called different things"), "{found}");
}

#[test]
fn of_two_files_of_a_rank_the_one_that_saw_it_stopped_counts() {
    let mut world = four();
    world.call(&[0; 4], 1200 * MS);
    let mut files = world.files();
    world.last(1).gap = 1150 * MS;
    files.extend(world.files());
    let all = of_one_run(&files).expect("one run");
    let found = diagnose(&all, &clocks(&all), 100 * MS).swap_remove(0);
    let [late] = &found.late[..] else { panic!("{found:?}") };
    assert_eq!((late.rank, late.how), (1, How::DidNotRun));
}

#[test]
fn the_worst_ten_calls_of_a_rank_are_listed_and_all_are_counted() {
    let mut world = four();
    well(&mut world, 3);
    for call in 0..12 {
        world.call(&[0, 0, 0, (200 + call) * MS], 30_000);
    }
    let found = of(&world);
    assert_eq!((found.late.len(), found.late_calls), (10, 12));
    assert!(found.late.iter().all(|late| late.by_ms > 201.5), "{found}");
    assert!(found.to_string().contains("and 2 more"), "{found}");
}

#[test]
fn a_rank_without_a_file_is_named() {
    let mut world = four();
    well(&mut world, 2);
    let mut files = world.files();
    files.pop();
    let all = of_one_run(&files).expect("one run");
    let found = diagnose(&all, &clocks(&all), 100 * MS).swap_remove(0);
    assert_eq!(found.without_file, [3]);
    assert!(found.to_string().contains("NO FILE  rank 3: died before"), "{found}");
    assert!(found.notes.contains(&"3 of 4 ranks have a file".to_owned()), "{found:?}");
}
