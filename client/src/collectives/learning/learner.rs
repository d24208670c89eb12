//! Which way each size of a job's all-reduces goes: what is tried when, and what is decided.
//!
//! No sockets, clocks or threads are here. A [`Class`] counts the calls of one size. It says of
//! each which way it goes, and when the workers are to agree on something. All that it decides
//! follows from the number of the call and from what was agreed, so all workers decide alike.
//!
//! A worker's time of a call includes its wait for the others. So the workers begin each call of a
//! trial together, and agree on the longest time: that of the worker that was done last. (The
//! shortest time would flatter some ways. Where workers exchange parts, the last one to come finds
//! all parts there.) Between trials nothing is to be slowed down. There the workers agree on the
//! shortest time, that of a worker that waited for nobody. It tells when a way has become slower.
//!
//! A call of a trial finds links and queues idle, which those of a busy job do not. So a way that
//! was chosen has to prove itself in use. Some calls later the way before it is used for a moment,
//! too, and taken again if it is faster so.

use super::route::Route;
use crate::digest::digest;

/// Calls of a class before anything is tried: a job of a few calls opens no connections for it.
pub(super) const FIRST: u32 = 8;
/// Rounds of a trial that count; in each every way is taken once. One more comes before them, in
/// which connections and memory get warm.
pub(super) const ROUNDS: usize = 3;
/// Further rounds, of the two fastest ways alone.
pub(super) const FINAL_ROUNDS: usize = 6;
/// The fastest way needs no further rounds where the second one takes this share of its time, in
/// percent, or more.
const CLEAR_PERCENT: u64 = 150;
/// A way has to be faster by this share of the time, in percent, to take the place of another one.
const BETTER_PERCENT: u64 = 5;
/// Of that many calls one may try something: 2 %.
const EVERY: i64 = 50;
/// Calls after which the workers look whether something has changed.
pub(super) const CHECK: u32 = 100;
/// The same right after a trial. By then links' allowances for bursts are spent, and connections'
/// windows have grown.
pub(super) const FIRST_CHECK: u32 = 20;
/// A way that takes this share of another one's time, in percent, or more, is slower in use.
const WORSE_PERCENT: u64 = 110;
/// Calls before a look whose times count.
pub(super) const WATCHED: usize = 8;
/// Calls of the way before, at its turn in use, whose times do not count.
pub(super) const UNWATCHED: usize = 8;
/// Times as long as at the last decision mean that something has changed, in percent.
const SLOWER_PERCENT: u64 = 150;
/// A time that a worker does not have.
pub(super) const NO_TIME: i64 = i64::MAX;

/// The number of a class: sizes up to the next power of two, and whether calls agree on exponents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Size {
    log2: u8,
    scaled: bool,
}

impl Size {
    /// The class of calls of `bytes` bytes; `scaled`: exponents are agreed on first.
    pub(super) fn of(bytes: usize, scaled: bool) -> Self {
        let log2 = bytes.max(1).checked_next_power_of_two().map_or(64, usize::trailing_zeros);
        Self { log2: log2 as u8, scaled }
    }

    /// The most bytes of a call.
    pub(super) const fn up_to(self) -> u64 {
        if self.log2 < 64 { 1 << self.log2 } else { u64::MAX }
    }

    /// True where exponents are agreed on first.
    pub(super) const fn scaled(self) -> bool {
        self.scaled
    }
}

/// Where the time of a call belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// The trials and looks so far: a late time of an earlier one counts no more.
    generation: u32,
    index: usize,
}

/// How a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) route: Route,
    /// Where its time belongs, if it counts.
    pub(super) slot: Option<Slot>,
    /// The workers wait for each other first, so that none waits for another in the call.
    pub(super) together: bool,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The call goes this way.
    Go(Step),
    /// All workers agree on the largest of the words of [`Class::question`] each, and ask again.
    Agree,
}

/// What a trial has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) from: Route,
    pub(super) to: Route,
    /// The time of each way that has one, in nanoseconds: see [`typical`].
    pub(super) times: Vec<(Route, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is tried yet.
    First { left: u32 },
    /// The workers tell each other what they know before the first trial.
    Begin,
    /// Ways are tried: `tried` calls were so far.
    Trial { tried: usize },
    /// The two fastest of them are tried further.
    Final { tried: usize, two: [usize; 2] },
    /// The way that was chosen is taken until the next look.
    Settled { left: u32 },
    /// The way that was chosen before is used again: `tried` calls were so far.
    Proof { tried: usize, former: usize, chosen: InUse },
}

/// The calls of one size.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// The first one is taken where nothing is known.
    routes: Vec<Route>,
    phase: Phase,
    chosen: usize,
    /// Its shortest time at the last decision.
    baseline: Option<u64>,
    /// The way before it, which it took the place of in the last trial.
    former: Option<usize>,
    /// By the index of [`Slot`].
    times: Vec<i64>,
    /// Of each way, what was agreed on of its calls of the trial, in their order.
    measured: Vec<Vec<Agreed>>,
    generation: u32,
    /// Calls that may be spent on trying, in parts of [`EVERY`].
    credit: i64,
    /// What was agreed on of the network: see [`Self::question`].
    network: Option<i64>,
    /// Of all that was agreed on.
    history: u64,
    calls: u64,
    tried: u64,
    last: Vec<(Route, u64)>,
}

impl Class {
    /// A class whose calls may go these ways, of which the first is usual.
    pub(super) fn new(routes: Vec<Route>) -> Self {
        let first = Phase::First { left: if routes.len() > 1 { FIRST } else { u32::MAX } };
        Self {
            routes,
            phase: first,
            chosen: 0,
            baseline: None,
            former: None,
            times: vec![NO_TIME; WATCHED],
            measured: Vec::new(),
            generation: 0,
            credit: 0,
            network: None,
            history: 0,
            calls: 0,
            tried: 0,
            last: Vec::new(),
        }
    }

    /// The way that calls go which try nothing.
    pub(super) fn chosen(&self) -> Route {
        self.routes[self.chosen]
    }

    /// Calls so far, and how many of them tried another way than the chosen one.
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.calls, self.tried)
    }

    /// The times of the last trial, in nanoseconds: see [`typical`].
    pub(super) fn times(&self) -> &[(Route, u64)] {
        &self.last
    }

    /// No way but the usual one can be taken any more: the workers cannot reach each other.
    pub(super) fn keep_to_first(&mut self) {
        self.routes.truncate(1);
        (self.chosen, self.former) = (0, None);
        self.phase = Phase::First { left: u32::MAX };
    }

    /// How the next call goes.
    pub(super) fn next(&mut self) -> Next {
        let step = match &mut self.phase {
            Phase::First { left: 0 } => {
                self.phase = Phase::Begin;
                return Next::Agree;
            }
            Phase::First { left } => {
                *left -= u32::from(*left != u32::MAX);
                let index = *left as usize;
                let slot = Slot { generation: self.generation, index };
                let slot = (index < self.times.len()).then_some(slot);
                Step { route: self.routes[self.chosen], slot, together: false }
            }
            Phase::Begin => return Next::Agree,
            Phase::Trial { tried } | Phase::Final { tried, .. } if *tried == self.times.len() => {
                return Next::Agree;
            }
            Phase::Trial { tried } => {
                let (index, ways) = (*tried, self.routes.len());
                *tried += 1;
                self.try_way(place_of(index, ways), index)
            }
            Phase::Final { tried, two } => {
                let (index, two) = (*tried, *two);
                *tried += 1;
                self.try_way(two[place_of(index, two.len())], index)
            }
            Phase::Proof { tried, .. } if *tried == self.times.len() => return Next::Agree,
            Phase::Proof { tried, former, .. } => {
                let (index, former) = (*tried, *former);
                *tried += 1;
                Step { together: false, ..self.try_way(former, index) }
            }
            Phase::Settled { left: 0 } => return Next::Agree,
            Phase::Settled { left } => {
                *left -= 1;
                self.credit += 1;
                let index = *left as usize;
                let slot = Slot { generation: self.generation, index };
                let slot = (index < self.times.len()).then_some(slot);
                Step { route: self.routes[self.chosen], slot, together: false }
            }
        };
        self.calls += 1;
        Next::Go(step)
    }

    /// A call of a trial.
    fn try_way(&mut self, way: usize, index: usize) -> Step {
        self.tried += u64::from(way != self.chosen);
        let slot = Slot { generation: self.generation, index };
        Step { route: self.routes[way], slot: Some(slot), together: true }
    }

    /// Takes in how long a call took, in nanoseconds.
    pub(super) fn took(&mut self, slot: Slot, nanoseconds: u64) {
        if slot.generation == self.generation
            && let Some(time) = self.times.get_mut(slot.index)
        {
            *time = i64::try_from(nanoseconds).unwrap_or(NO_TIME - 1);
        }
    }

    /// Words of which the workers agree on the largest each: the times of the calls that count, of
    /// which nobody has what a worker lacks; the same negated, and the network's number.
    pub(super) fn question(&self, network: i64) -> Vec<i64> {
        let negated = self.times.iter().map(|time| -time);
        let mut words: Vec<i64> = self.times.iter().copied().chain(negated).collect();
        words.push(network);
        words
    }

    /// The next call waits for the other workers before it begins.
    pub(super) fn is_about_to_wait(&self) -> bool {
        match self.phase {
            Phase::First { left } | Phase::Settled { left } => left == 0,
            Phase::Proof { tried, .. } => tried == self.times.len(),
            Phase::Begin | Phase::Trial { .. } | Phase::Final { .. } => true,
        }
    }

    /// What all workers have agreed on, in answer to [`Next::Agree`]. A decision, if a trial ends
    /// with it, or if a choice is taken back.
    pub(super) fn agreed(&mut self, words: &[i64]) -> Option<Decision> {
        let (network, times) = words.split_last()?;
        let changed = self.network.is_some_and(|known| *network > known);
        self.network = Some(*network);
        let all = words.iter().flat_map(|word| word.to_le_bytes());
        self.history = digest(self.history.to_le_bytes().into_iter().chain(all));
        match self.phase {
            Phase::First { .. } => None,
            Phase::Begin => {
                // Calls that overlap have no times, so a trial would cost and show nothing.
                let agreed = Agreed::of(times);
                let without = agreed.iter().filter(|agreed| agreed.longest.is_none()).count();
                if 2 * without > WATCHED {
                    self.wait_before_trying()
                } else {
                    self.try_all()
                }
                None
            }
            Phase::Trial { .. } => {
                self.measured = vec![Vec::new(); self.routes.len()];
                let all: Vec<usize> = (0..self.routes.len()).collect();
                self.measure(&all, 1, times);
                match self.finalists() {
                    Some(two) => {
                        self.enter(Phase::Final { tried: 0, two }, two.len() * FINAL_ROUNDS);
                        None
                    }
                    None => Some(self.decide(&all)),
                }
            }
            Phase::Final { two, .. } => {
                self.measure(&two, 0, times);
                Some(self.decide(&two))
            }
            Phase::Settled { .. } => {
                let now = InUse::of(&Agreed::of(times));
                // What was tried before a change says nothing of the ways after it.
                match self.former.take().zip(now).filter(|_| !changed) {
                    Some((former, chosen)) => {
                        let phase = Phase::Proof { tried: 0, former, chosen };
                        self.enter(phase, UNWATCHED + WATCHED);
                    }
                    None => self.look(now, changed),
                }
                None
            }
            Phase::Proof { former, chosen, .. } => {
                let times = Agreed::of(times);
                let before = InUse::of(times.get(UNWATCHED..).unwrap_or_default());
                match before.filter(|before| chosen.is_slower_than(before)) {
                    Some(before) => Some(self.take_back((former, before), chosen)),
                    None => {
                        self.look(Some(chosen), changed);
                        None
                    }
                }
            }
        }
    }

    /// Tries the ways again where something has changed, or where enough calls have tried nothing.
    fn look(&mut self, now: Option<InUse>, changed: bool) {
        let slower = |(now, then): (InUse, u64)| now.shortest > then / 100 * SLOWER_PERCENT;
        let drifted = now.zip(self.baseline).is_some_and(slower);
        let cost = self.cost();
        let may = self.credit >= cost || (changed || drifted) && self.credit >= 0;
        if may && now.is_some() {
            self.credit -= cost;
            self.try_all();
        } else {
            self.settle(CHECK);
        }
    }

    /// Goes the way again that was gone before the last trial.
    fn take_back(&mut self, (former, before): (usize, InUse), chosen: InUse) -> Decision {
        let (from, to) = (self.chosen(), self.routes[former]);
        self.chosen = former;
        self.baseline = Some(before.shortest);
        self.settle(CHECK);
        Decision { from, to, times: vec![(to, before.middle()), (from, chosen.middle())] }
    }

    /// What the state is that all workers must have alike, as a number to compare.
    pub(super) fn digest(&self) -> u64 {
        let Self { routes, phase, chosen, credit, history, calls, .. } = self;
        digest(format!("{:?}", (routes, phase, chosen, credit, history, calls)).bytes())
    }

    /// The most calls of a trial that go another way than the chosen one, in the credit's unit.
    fn cost(&self) -> i64 {
        let others = self.routes.len() - 1;
        let proof = UNWATCHED + WATCHED;
        EVERY * (others * (ROUNDS + 1) + others.min(2) * FINAL_ROUNDS + proof) as i64
    }

    /// Goes on with `times` calls whose times count, without those of before.
    fn enter(&mut self, phase: Phase, times: usize) {
        self.generation += 1;
        self.times = vec![NO_TIME; times];
        self.phase = phase;
    }

    fn wait_before_trying(&mut self) {
        self.enter(Phase::First { left: CHECK }, WATCHED);
    }

    fn try_all(&mut self) {
        self.enter(Phase::Trial { tried: 0 }, self.routes.len() * (ROUNDS + 1));
    }

    /// Goes the chosen way for that many calls.
    fn settle(&mut self, calls: u32) {
        self.enter(Phase::Settled { left: calls }, WATCHED);
    }

    /// Takes in what was agreed on of a trial of these ways, behind its first rounds.
    fn measure(&mut self, ways: &[usize], skipped: usize, words: &[i64]) {
        for (index, agreed) in Agreed::of(words).into_iter().enumerate().skip(skipped * ways.len())
        {
            self.measured[ways[place_of(index, ways.len())]].push(agreed);
        }
    }

    /// How long each way takes, of those that have times.
    fn typical(&self) -> Vec<Option<u64>> {
        let of = |way: &Vec<Agreed>| typical(way.iter().filter_map(|agreed| agreed.longest));
        self.measured.iter().map(of).collect()
    }

    /// The two fastest ways, unless one of them is so by far.
    fn finalists(&self) -> Option<[usize; 2]> {
        let times = self.typical();
        let timed = times.iter().enumerate().filter_map(|(way, time)| Some((way, (*time)?)));
        let mut timed: Vec<(usize, u64)> = timed.collect();
        timed.sort_by_key(|(_, time)| *time);
        let [(first, least), (second, next), ..] = timed[..] else { return None };
        let close = next < least.saturating_mul(CLEAR_PERCENT) / 100;
        close.then_some([first.min(second), first.max(second)])
    }

    /// The fastest of these ways, if it is faster than the chosen one by enough, and in half of the
    /// rounds.
    fn decide(&mut self, ways: &[usize]) -> Decision {
        let times = self.typical();
        let from = self.chosen;
        let wins = |way: usize| {
            let pairs = self.measured[way].iter().zip(&self.measured[from]);
            let pairs = pairs.filter_map(|(new, old)| new.longest.zip(old.longest));
            let (won, all) = pairs
                .fold((0, 0), |(won, all), (new, old)| (won + usize::from(new < old), all + 1));
            2 * won >= all
        };
        let better = |way: &usize| match (times[*way], times[from]) {
            (Some(new), Some(old)) => {
                u128::from(new) * u128::from(100 + BETTER_PERCENT) <= u128::from(old) * 100
                    && wins(*way)
            }
            // A way that nobody has a time of cannot be compared, and is left.
            _ => false,
        };
        let best = ways.iter().copied().filter(better).min_by_key(|way| times[*way]);
        self.chosen = best.unwrap_or(from);
        self.former = best.map(|_| from);
        let known = |(route, time): (&Route, &Option<u64>)| time.map(|time| (*route, time));
        self.last = self.routes.iter().zip(&times).filter_map(known).collect();
        let shortest = self.measured[self.chosen].iter().filter_map(|agreed| agreed.shortest);
        self.baseline = median(shortest);
        self.settle(FIRST_CHECK);
        let (from, to) = (self.routes[from], self.chosen());
        Decision { from, to, times: self.last.clone() }
    }
}

/// What the workers have agreed on of a call's time, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    /// None where a worker has no time of it.
    longest: Option<u64>,
    shortest: Option<u64>,
}

impl Agreed {
    /// By words of [`Class::question`], without the network's.
    fn of(words: &[i64]) -> Vec<Self> {
        let (longest, shortest) = words.split_at(words.len() / 2);
        let all = longest.iter().zip(shortest).map(|(longest, shortest)| Self {
            longest: (*longest != NO_TIME).then_some(*longest as u64),
            shortest: (*shortest != -NO_TIME).then_some(-*shortest as u64),
        });
        all.collect()
    }
}

/// How long a way takes while it is used, in nanoseconds: the middle ones of the last calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InUse {
    /// Of the worker that waited longest for others.
    longest: u64,
    /// Of the one that waited least.
    shortest: u64,
}

impl InUse {
    fn of(calls: &[Agreed]) -> Option<Self> {
        let longest = median(calls.iter().filter_map(|agreed| agreed.longest))?;
        let shortest = median(calls.iter().filter_map(|agreed| agreed.shortest))?;
        Some(Self { longest, shortest })
    }

    /// In the middle between both, which is near the mean of all workers: at some ways all end at
    /// once, at others one after the other.
    const fn middle(&self) -> u64 {
        self.shortest.midpoint(self.longest)
    }

    /// It takes longer by enough, also where waits for late workers count least.
    fn is_slower_than(&self, other: &Self) -> bool {
        let (own, others) = (u128::from(self.middle()), u128::from(other.middle()));
        own * 100 >= others * u128::from(WORSE_PERCENT) && self.shortest > other.shortest
    }
}

/// Which of that many ways, in their order, a trial's call takes. Each round begins with another
/// way: what drifts is no way's advantage.
fn place_of(index: usize, ways: usize) -> usize {
    (index % ways + index / ways) % ways
}

/// How long a way takes: the mean of the faster half of its calls. What disturbs a call makes it
/// longer, and nothing makes it shorter.
fn typical(times: impl Iterator<Item = u64>) -> Option<u64> {
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    times.truncate(times.len().div_ceil(2));
    let count = times.len() as u128;
    let sum: u128 = times.iter().map(|time| u128::from(*time)).sum();
    sum.checked_div(count).map(|mean| mean as u64)
}

/// The middle one of the times that there are.
fn median(times: impl Iterator<Item = u64>) -> Option<u64> {
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}
