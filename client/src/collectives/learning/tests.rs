//! Workers that see different times of the same calls, and what they decide.

use proptest::prelude::*;

use super::learner::{
    CHECK, Class, FINAL_ROUNDS, FIRST, FIRST_CHECK, Next, ROUNDS, Size, Step, UNWATCHED, WATCHED,
};
use super::route::Route;

const ALL: [Route; 5] =
    [Route::Aggregator, Route::Exchange, Route::Doubling, Route::Halving, Route::Ring];

/// Some workers' classes of one size.
struct Workers {
    classes: Vec<Class>,
    /// A source of numbers.
    state: u64,
    agreements: u64,
    /// Workers come to a call at times that differ by up to three times as much.
    late: u64,
}

impl Workers {
    fn new(count: usize, ways: usize, seed: u64) -> Self {
        let class = Class::new(ALL[..ways].to_vec());
        Self { classes: vec![class; count], state: seed | 1, agreements: 0, late: 1_000_000 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % below
    }

    /// One call, of which each way costs this time. Workers come at different times and wait for
    /// the last one, unless they begin together. Where they exchange parts, the last one to come
    /// has nothing to wait for, and some are done before others. All go the same way, or this
    /// fails.
    fn call(&mut self, cost: impl Fn(Route) -> u64, network: &[i64]) -> Route {
        self.call_of(|step| cost(step.route), network)
    }

    /// The same; a way may cost another time in a trial.
    fn call_of(&mut self, cost: impl Fn(Step) -> u64, network: &[i64]) -> Route {
        let mut steps: Vec<Step> = Vec::new();
        while steps.is_empty() {
            let all: Vec<Next> = self.classes.iter_mut().map(Class::next).collect();
            if all.iter().all(|next| *next == Next::Agree) {
                self.agree(network);
                continue;
            }
            let go = |next: Next| match next {
                Next::Go(step) => step,
                Next::Agree => panic!("one worker wants to agree, and another one does not"),
            };
            steps = all.into_iter().map(go).collect();
        }
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
        let late = if steps[0].together { 1 } else { self.late };
        let ranks = 0..self.classes.len();
        let arrivals: Vec<u64> = ranks.map(|_| self.random(4) * late).collect();
        let last = arrivals.iter().max().copied().unwrap_or_default();
        let cost = cost(steps[0]);
        let done_last = (0..arrivals.len()).min_by_key(|rank| arrivals[*rank]);
        for (rank, arrival) in arrivals.iter().enumerate() {
            let early = steps[0].route != Route::Aggregator && Some(rank) != done_last;
            let own = if early { cost / 2 } else { cost };
            if let Some(slot) = steps[0].slot {
                self.classes[rank].took(slot, last - arrival + own);
            }
        }
        steps[0].route
    }

    fn agree(&mut self, network: &[i64]) {
        self.agreements += 1;
        let digest = self.classes[0].digest();
        assert!(self.classes.iter().all(|class| class.digest() == digest), "states differ");
        let questions = self.classes.iter().zip(network).map(|(class, at)| class.question(*at));
        let most = |a: Vec<i64>, b: Vec<i64>| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect();
        let words: Vec<i64> = questions.reduce(most).expect("there are workers");
        let decisions: Vec<_> = self.classes.iter_mut().map(|class| class.agreed(&words)).collect();
        assert!(decisions.iter().all(|decision| *decision == decisions[0]));
    }

    fn calls(&mut self, count: u32, cost: impl Fn(Route) -> u64 + Copy, network: &[i64]) {
        for _ in 0..count {
            self.call(cost, network);
        }
    }
}

/// The most calls of a trial that go another way than the chosen one.
fn most_tried(ways: usize) -> u64 {
    ((ways - 1) * (ROUNDS + 1) + (ways - 1).min(2) * FINAL_ROUNDS + UNWATCHED + WATCHED) as u64
}

/// Costs by way: this one is the fastest, by so much in percent.
fn fastest(best: Route, percent: u64) -> impl Fn(Route) -> u64 + Copy {
    move |route| if route == best { 100_000 } else { 1000 * (100 + percent) }
}

proptest! {
    /// The fastest way is taken after 50 calls, whoever is late, and all workers take it alike.
    #[test]
    fn what_is_faster_is_taken(
        workers in 1..8_usize,
        ways in 2..=5_usize,
        best in 0..5_usize,
        percent in 10..300_u64,
        seed in any::<u64>(),
    ) {
        let best = ALL[best % ways];
        let mut job = Workers::new(workers, ways, seed);
        let still = vec![1; workers];
        job.calls(FIRST, fastest(best, percent), &still);
        prop_assert_eq!(job.agreements, 0);
        job.calls(50 - FIRST, fastest(best, percent), &still);
        let others = (0..CHECK).filter(|_| job.call(fastest(best, percent), &still) != best);
        // The way before it is used for a moment, and is not better.
        let proof = if best == Route::Aggregator { 0 } else { UNWATCHED + WATCHED };
        prop_assert!(others.count() <= proof);
        prop_assert_eq!(job.classes[0].chosen(), best);
    }

    /// A way that is hardly faster does not take another one's place.
    #[test]
    fn little_differences_change_nothing(best in 0..5_usize, percent in 0..4_u64, seed: u64) {
        let mut job = Workers::new(3, 5, seed);
        job.calls(3000, fastest(ALL[best], percent), &[1; 3]);
        prop_assert_eq!(job.classes[0].chosen(), Route::Aggregator);
    }

    /// After the first trial at most one more, and 2 % of the calls, try something; whatever times
    /// are, and however often the network changes.
    #[test]
    fn trying_is_bounded(
        ways in 2..=5_usize,
        seed in any::<u64>(),
        changes in any::<bool>(),
    ) {
        let mut job = Workers::new(2, ways, seed);
        for call in 0..20_000_u64 {
            let epoch = if changes { call as i64 / 30 } else { 1 };
            let cost = job.random(1_000_000);
            let cost = move |route: Route| cost * (1 + route as u64 + call / 50 % 7);
            job.call(cost, &[epoch, 1]);
            let (calls, tried) = job.classes[0].counts();
            prop_assert!(tried <= 2 * most_tried(ways) + calls / 50, "{tried} of {calls}");
        }
    }

    /// When the network changes, the ways are tried again at the next look, and what is faster then
    /// is taken. That one worker alone has seen the change is enough.
    #[test]
    fn a_change_is_learned(seed in any::<u64>(), told in any::<bool>(), who in 0..3_usize) {
        let mut job = Workers::new(3, 4, seed);
        let mut network = [1; 3];
        job.calls(50, fastest(Route::Doubling, 50), &network);
        prop_assert_eq!(job.classes[0].chosen(), Route::Doubling);
        // It is seen by its number, or by the time of the way that was chosen.
        network[who] += i64::from(told);
        let slower = |route| match route {
            Route::Doubling => 400_000,
            Route::Aggregator => 100_000,
            _ => 300_000,
        };
        job.calls(CHECK + 50, slower, &network);
        prop_assert_eq!(job.classes[0].chosen(), Route::Aggregator);
    }

    /// A way that is fast in a trial alone is left soon after it.
    #[test]
    fn a_wrong_choice_is_soon_taken_back(seed in any::<u64>(), ways in 2..=5_usize) {
        let mut job = Workers::new(3, ways, seed);
        let still = [1; 3];
        while job.classes[0].times().is_empty() {
            job.calls(1, fastest(ALL[ways - 1], 50), &still);
        }
        prop_assert_eq!(job.classes[0].chosen(), ALL[ways - 1]);
        let slower = |route: Route| if route == ALL[ways - 1] { 600_000 } else { 150_000 };
        let tried = UNWATCHED + WATCHED + 4 * ways + 2 * FINAL_ROUNDS;
        job.calls(FIRST_CHECK + tried as u32 + 2, slower, &still);
        prop_assert_ne!(job.classes[0].chosen(), ALL[ways - 1]);
    }

    /// A way that is faster in trials alone, where links are idle, is soon given up for the one
    /// before it. One that is faster in use, too, is kept.
    #[test]
    fn a_way_has_to_prove_itself_in_use(
        seed in any::<u64>(),
        ways in 2..=5_usize,
        in_use in prop_oneof![60_000..90_000_u64, 300_000..900_000_u64],
    ) {
        let (mut job, best) = (Workers::new(3, ways, seed), ALL[ways - 1]);
        job.late = 1;
        let cost = |step: Step| match (step.route == best, step.together) {
            (true, true) => 50_000,
            (true, false) => in_use,
            (false, _) => 100_000,
        };
        while job.classes[0].times().is_empty() {
            job.call_of(cost, &[1; 3]);
        }
        prop_assert_eq!(job.classes[0].chosen(), best);
        for _ in 0..FIRST_CHECK as usize + UNWATCHED + WATCHED + 1 {
            job.call_of(cost, &[1; 3]);
        }
        let kept = in_use < 100_000;
        prop_assert_eq!(job.classes[0].chosen(), if kept { best } else { Route::Aggregator });
    }

    /// A worker that was told another time than the others is found out when they agree next.
    #[test]
    fn a_broken_agreement_is_noticed(seed in any::<u64>(), at in 0..6_usize) {
        let mut job = Workers::new(2, 2, seed);
        job.calls(FIRST, fastest(Route::Exchange, 50), &[1; 2]);
        while job.agreements == 0 {
            job.call(fastest(Route::Exchange, 50), &[1; 2]);
        }
        // What is left of the trial.
        for class in &mut job.classes {
            prop_assert!((1..2 * (ROUNDS + 1)).all(|_| class.next() != Next::Agree));
            prop_assert_eq!(class.next(), Next::Agree);
        }
        let mut words = job.classes[0].question(1);
        let trial = (words.len() - 1) / 2;
        for (index, word) in words.iter_mut().enumerate().take(trial) {
            *word = 1000 + index as i64;
        }
        job.classes[0].agreed(&words);
        words[2 + at] = 1_000_000;
        job.classes[1].agreed(&words);
        prop_assert_ne!(job.classes[0].digest(), job.classes[1].digest());
    }
}

/// Of two ways that are close, further calls tell which is faster. The first three of each take as
/// long, but for one that was disturbed. None are spent where one way is the fastest by far.
#[test]
fn further_calls_tell_close_ways_apart() {
    let cost = |call: u64, route: Route| match route {
        Route::Aggregator => 500_000,
        Route::Halving if call < u64::from(FIRST) + 20 => 100_000,
        Route::Halving => 140_000,
        Route::Ring => 110_000,
        _ => 300_000,
    };
    let mut job = Workers::new(3, 5, 7);
    for call in 0..50 {
        job.call(|route| cost(call, route), &[1; 3]);
    }
    assert_eq!(job.classes[0].chosen(), Route::Ring);
    // A way that is far ahead needs no further calls.
    let tried = |second: u64| {
        let cost = move |route: Route| match route {
            Route::Ring => 100_000,
            Route::Halving => second,
            _ => 500_000,
        };
        let mut job = Workers::new(3, 5, 7);
        job.calls(45, cost, &[1; 3]);
        assert_eq!(job.classes[0].chosen(), Route::Ring);
        job.classes[0].counts().1
    };
    assert_eq!(tried(200_000), 4 * 4);
    assert_eq!(tried(120_000), 4 * 4 + 2 * FINAL_ROUNDS as u64);
}

/// A single call that was disturbed decides nothing.
#[test]
fn what_disturbs_a_call_decides_nothing() {
    for disturbed in 0..45 {
        let mut job = Workers::new(2, 4, 3);
        for call in 0..50 {
            let slow = if call == disturbed { 20 } else { 1 };
            let cost = fastest(Route::Doubling, 30);
            job.call(|route| cost(route) * slow, &[1; 2]);
        }
        assert_eq!(job.classes[0].chosen(), Route::Doubling, "call {disturbed}");
    }
}

/// Calls that overlap have no times: nothing is tried, which would only cost, and all goes on.
#[test]
fn without_times_nothing_changes() {
    let mut job = Workers::new(1, 3, 1);
    for _ in 0..2000 {
        while job.classes[0].next() == Next::Agree {
            job.agree(&[1]);
        }
    }
    assert_eq!(job.classes[0].chosen(), Route::Aggregator);
    assert!(job.classes[0].times().is_empty());
    assert_eq!(job.classes[0].counts(), (2000, 0));
    // Once they have times, it learns.
    job.calls(CHECK + 50, fastest(Route::Doubling, 100), &[1]);
    assert_eq!(job.classes[0].chosen(), Route::Doubling);
}

/// A job of a few calls tries nothing, and a class with one way never does.
#[test]
fn few_calls_agree_on_nothing() {
    let mut job = Workers::new(2, 5, 1);
    job.calls(FIRST, fastest(Route::Ring, 100), &[1; 2]);
    assert_eq!(job.agreements, 0);
    let mut job = Workers::new(2, 1, 1);
    job.calls(5000, fastest(Route::Ring, 100), &[1; 2]);
    assert_eq!((job.agreements, job.classes[0].counts()), (0, (5000, 0)));
}

/// Where workers cannot reach each other, the usual way is left alone for good.
#[test]
fn a_class_can_be_kept_to_the_usual_way() {
    let mut job = Workers::new(2, 5, 1);
    job.calls(50, fastest(Route::Ring, 100), &[1; 2]);
    assert_eq!(job.classes[0].chosen(), Route::Ring);
    job.classes.iter_mut().for_each(Class::keep_to_first);
    job.calls(5000, fastest(Route::Ring, 100), &[1; 2]);
    assert_eq!(job.classes[0].chosen(), Route::Aggregator);
}

#[test]
fn sizes_are_classes_up_to_powers_of_two() {
    let up_to = |bytes| Size::of(bytes, false).up_to();
    assert_eq!([1, 2, 3, 4, 5, 4096, 4097].map(up_to), [1, 2, 4, 4, 8, 4096, 8192]);
    assert_eq!(up_to(0), 1);
    assert_eq!(up_to(usize::MAX), u64::MAX);
    assert_ne!(Size::of(4, true), Size::of(4, false));
}
