//! The engine against closed forms, and what must hold of every schedule.

use proptest::prelude::*;
use xdp_agg_flowsim::engine::{
    After, Options, Outcome, Pauses, ResourceId, Schedule, SimulationError, Stream, Uses, simulate,
};

fn run(schedule: &Schedule, capacities: &[f64], options: &Options) -> Outcome {
    simulate(schedule, capacities, options, &mut |_| {}).expect("it ends")
}

/// A schedule of independent streams over resources, all weights 1.
fn streams(resources: usize, streams: &[(Stream, &[u32])]) -> Schedule {
    let mut schedule = Schedule::new();
    let mut uses = Uses::new(resources);
    for (stream, over) in streams {
        for &resource in *over {
            uses.add(ResourceId(resource), 1.0);
        }
        schedule.add(*stream, &mut uses);
    }
    schedule
}

fn close(value: f64, expected: f64, share: f64) -> bool {
    (value - expected).abs() <= share * expected.abs()
}

#[test]
fn one_stream_takes_bytes_over_rate_and_latency_and_overhead() {
    let stream = Stream { latency: 0.5, overhead: 0.25, ..Stream::whole(100.0) };
    let schedule = streams(1, &[(stream, &[0])]);
    let outcome = run(&schedule, &[10.0], &Options::default());
    assert!(close(outcome.seconds, 10.75, 1e-12), "{outcome:?}");
}

#[test]
fn a_limit_holds_whatever_the_link_carries() {
    let stream = Stream { limit: 4.0, ..Stream::whole(100.0) };
    let schedule = streams(1, &[(stream, &[0]), (Stream::whole(60.0), &[0])]);
    // The other takes the 6 that the limit leaves, and both are done together with it.
    let outcome = run(&schedule, &[10.0], &Options::default());
    assert!(close(outcome.seconds, 25.0, 1e-12), "{outcome:?}");
}

#[test]
fn what_one_leaves_the_others_take() {
    // 0 shares link 0 with 1, and 1 shares link 1 with 2: the textbook's example.
    let all = [
        (Stream::whole(50.0), &[0_u32][..]),
        (Stream::whole(50.0), &[0, 1][..]),
        (Stream::whole(150.0), &[1][..]),
    ];
    let schedule = streams(2, &all);
    // 5, 5 and 15 a second: all end at 10.
    let outcome = run(&schedule, &[10.0, 20.0], &Options::default());
    assert!(close(outcome.seconds, 10.0, 1e-12), "{outcome:?}");
}

#[test]
fn chunks_of_a_chain_overlap() {
    // Paper 4, equation (5): (M / C + n - 2) (t_s + C / B).
    let hops = 7;
    let mut schedule = Schedule::new();
    let mut uses = Uses::new(hops);
    let mut before = None;
    for hop in 0..hops {
        uses.add(ResourceId(hop as u32), 1.0);
        let stream = Stream { overhead: 0.1, ..Stream::chunked(20, 5.0) };
        let id = schedule.add(stream, &mut uses);
        if let Some(before) = before {
            schedule.wait(id, before, After::Lag(0));
        }
        before = Some(id);
    }
    let outcome = run(&schedule, &vec![10.0; hops], &Options::default());
    let expected = (20.0 + hops as f64 + 1.0 - 2.0) * (0.1 + 0.5);
    assert!(close(outcome.seconds, expected, 1e-9), "{outcome:?}, not {expected}");
}

#[test]
fn what_waits_for_itself_is_named() {
    let mut schedule = streams(1, &[(Stream::whole(1.0), &[0]), (Stream::whole(1.0), &[0])]);
    let ids = [0, 1].map(xdp_agg_flowsim::engine::StreamId);
    schedule.wait(ids[0], ids[1], After::All);
    schedule.wait(ids[1], ids[0], After::All);
    let error = simulate(&schedule, &[1.0], &Options::default(), &mut |_| {}).expect_err("stuck");
    assert_eq!(error, SimulationError::Stalled { streams: 2, first: 0, chunk: 0 });
    let schedule = streams(1, &[(Stream::whole(1.0), &[0])]);
    let error = simulate(&schedule, &[0.0], &Options::default(), &mut |_| {}).expect_err("stuck");
    assert!(matches!(error, SimulationError::Stalled { .. }), "{error}");
    let error =
        simulate(&schedule, &[-1.0], &Options::default(), &mut |_| {}).expect_err("no rate");
    assert!(error.to_string().contains("a capacity is -1"), "{error}");
}

#[test]
fn a_paused_sender_sends_nothing_until_others_are_drawn() {
    let schedule = streams(2, &[(Stream::whole(10.0), &[0]), (Stream::whole(10.0), &[1])]);
    let senders = vec![ResourceId(0), ResourceId(1)];
    let ask = |count, period, seed| {
        let pauses = Some(Pauses { senders: senders.clone(), count, period, seed });
        run(&schedule, &[10.0, 10.0], &Options { pauses, ..Options::default() }).seconds
    };
    assert!(close(ask(0, 0.1, 1), 1.0, 1e-9));
    for seed in 0..20 {
        // One of two always pauses, for whole periods: 1 s of sending each, and the last may end
        // within a period.
        let seconds = ask(1, 0.25, seed);
        assert!((1.75..6.0).contains(&seconds), "{seconds}");
        let periods = (seconds - 1e-9) / 0.25;
        assert!(close(periods, periods.round(), 1e-6), "{periods} periods");
    }
    let different: std::collections::BTreeSet<u64> =
        (0..20).map(|seed| ask(1, 0.25, seed).to_bits()).collect();
    assert!(different.len() > 1, "every seed draws alike");
}

#[test]
fn what_is_always_paused_is_refused() {
    let senders: Vec<_> = (0..3).map(ResourceId).collect();
    let ask = |over: &[u32], count| {
        let schedule = streams(3, &[(Stream::whole(1.0), over)]);
        let pauses = Some(Pauses { senders: senders.clone(), count, period: 0.5, seed: 1 });
        let options = Options { pauses, ..Options::default() };
        simulate(&schedule, &[10.0; 3], &options, &mut |_| {})
    };
    for (over, paused) in [(&[0, 1, 2][..], 1), (&[0, 1][..], 2), (&[0][..], 3)] {
        let (through, senders) = (over.len(), 3);
        let expected = SimulationError::AlwaysPaused { stream: 0, through, senders, paused };
        assert_eq!(ask(over, paused), Err(expected));
        assert!(ask(over, paused - 1).is_ok(), "{over:?}, {} paused", paused - 1);
    }
}

#[test]
fn a_run_in_which_nobody_can_send_is_given_up() {
    // The stream goes on if 30 of 60 are drawn and none of its own 30: once in 10^17 drawings.
    let senders: Vec<_> = (0..60).map(ResourceId).collect();
    let over: Vec<u32> = (0..30).collect();
    let schedule = streams(60, &[(Stream::whole(1.0), &over)]);
    let pauses = Some(Pauses { senders, count: 30, period: 0.5, seed: 1 });
    let options = Options { pauses, ..Options::default() };
    let error = simulate(&schedule, &[10.0; 60], &options, &mut |_| {}).expect_err("no luck");
    assert_eq!(error, SimulationError::Idle(6001));
    // A long latency is not idle.
    let slow = Stream { latency: 1e4, ..Stream::whole(1.0) };
    let schedule = streams(1, &[(slow, &[0])]);
    let senders = vec![ResourceId(0)];
    let pauses = Some(Pauses { senders, count: 0, period: 0.5, seed: 1 });
    let options = Options { pauses, ..Options::default() };
    assert!(close(run(&schedule, &[10.0], &options).seconds, 1e4 + 0.1, 1e-9));
}

/// Streams over random resources, some of which wait for earlier ones.
fn any_schedule() -> impl Strategy<Value = (Vec<f64>, Vec<AnyStream>)> {
    let stream = (
        1_u32..6,
        1.0..100.0_f64,
        prop_oneof![Just(0.0), 0.001..1.0_f64],
        proptest::collection::vec(0_u32..8, 1..4),
        proptest::option::of(any::<proptest::sample::Index>()),
    );
    let capacities = proptest::collection::vec(1.0..50.0_f64, 8);
    (capacities, proptest::collection::vec(stream, 1..25))
}

type AnyStream = (u32, f64, f64, Vec<u32>, Option<proptest::sample::Index>);

fn build(all: &[AnyStream]) -> Schedule {
    let mut schedule = Schedule::new();
    let mut uses = Uses::new(8);
    let mut ids = Vec::new();
    for (chunks, bytes, latency, over, wait) in all {
        for &resource in over {
            uses.add(ResourceId(resource), 1.0);
        }
        let stream = Stream { latency: *latency, ..Stream::chunked(*chunks, *bytes) };
        let id = schedule.add(stream, &mut uses);
        if let Some(index) = wait
            && !ids.is_empty()
        {
            schedule.wait(id, ids[index.index(ids.len())], After::Lag(0));
        }
        ids.push(id);
    }
    schedule
}

proptest! {
    #[test]
    fn bytes_are_conserved((capacities, all) in any_schedule(), quantum in 0.0..0.5_f64) {
        let schedule = build(&all);
        let options = Options { quantum, ..Options::default() };
        let outcome = run(&schedule, &capacities, &options);
        for (bytes, planned) in outcome.bytes.iter().zip(schedule.planned_bytes(8)) {
            prop_assert!((bytes - planned).abs() <= 1e-6 * planned.max(1.0));
        }
    }

    #[test]
    fn no_resource_carries_more_than_its_rate((capacities, all) in any_schedule()) {
        let schedule = build(&all);
        let outcome = run(&schedule, &capacities, &Options::default());
        for (bytes, capacity) in outcome.bytes.iter().zip(&capacities) {
            prop_assert!(*bytes <= outcome.seconds * capacity * (1.0 + 1e-9));
        }
    }

    #[test]
    fn the_same_run_is_the_same((capacities, all) in any_schedule(), seed in any::<u64>()) {
        let schedule = build(&all);
        let senders = (0..8).map(ResourceId).collect();
        let pauses = Some(Pauses { senders, count: 3, period: 0.5, seed });
        let options = Options { pauses, ..Options::default() };
        let first = run(&schedule, &capacities, &options);
        prop_assert_eq!(first, run(&schedule, &capacities, &options));
    }

    #[test]
    fn a_quantum_makes_nothing_faster_than_the_links_allow(
        (capacities, all) in any_schedule(), quantum in 0.0..0.1_f64,
    ) {
        let schedule = build(&all);
        let exact = run(&schedule, &capacities, &Options::default()).seconds;
        let coarse = run(&schedule, &capacities, &Options { quantum, ..Options::default() });
        let most = exact + quantum * (2.0 * schedule.chunks() as f64 + 1.0) + exact;
        prop_assert!(coarse.seconds <= most, "{} against {exact}", coarse.seconds);
    }
}
