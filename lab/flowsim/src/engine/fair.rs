//! Max-min fair rates by progressive filling, in one connected component at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::schedule::Schedule;
use ordered_float::OrderedFloat as Time;

/// Rates this close are the same: arithmetic in another order must not make an event.
const SAME: f64 = 1e-12;

/// Which streams send over which resources, and the share of each.
#[derive(Debug)]
pub(super) struct Shares {
    capacities: Vec<f64>,
    /// By resource: the streams that send over it, and the use of theirs that says so.
    users: Vec<Vec<(u32, u32)>>,
    /// By use: its place in `users`.
    places: Vec<u32>,
    sending: Vec<bool>,
    rates: Vec<f64>,
    /// Streams whose rate is more than 0.
    moving: usize,
    /// Resources where something has changed since the last filling.
    changed: Vec<u32>,
    /// Streams that began since the last filling and use nothing.
    free: Vec<u32>,
    work: Work,
}

/// Of one filling; kept for its memory.
#[derive(Debug, Default)]
struct Work {
    /// Streams and resources seen in this round, by its number.
    round: u32,
    seen_streams: Vec<u32>,
    seen_resources: Vec<u32>,
    streams: Vec<u32>,
    resources: Vec<u32>,
    /// By resource: capacity that is not yet given away, the weight of the streams that still
    /// grow, and their number.
    left: Vec<f64>,
    load: Vec<f64>,
    growing: Vec<u32>,
    fixed: Vec<bool>,
    new_rates: Vec<f64>,
    heap: BinaryHeap<Reverse<(Time<f64>, u32, bool)>>,
}

impl Shares {
    pub(super) fn new(schedule: &Schedule, capacities: &[f64]) -> Self {
        let (streams, resources) = (schedule.streams.len(), capacities.len());
        Self {
            capacities: capacities.to_vec(),
            users: vec![Vec::new(); resources],
            places: vec![0; schedule.use_resources.len()],
            sending: vec![false; streams],
            rates: vec![0.0; streams],
            moving: 0,
            changed: Vec::new(),
            free: Vec::new(),
            work: Work {
                seen_streams: vec![0; streams],
                seen_resources: vec![0; resources],
                left: vec![0.0; resources],
                load: vec![0.0; resources],
                growing: vec![0; resources],
                fixed: vec![false; streams],
                new_rates: vec![0.0; streams],
                ..Work::default()
            },
        }
    }

    /// Bytes a second of a stream, as of the last filling.
    pub(super) fn rate(&self, stream: usize) -> f64 {
        self.rates[stream]
    }

    /// Whether anybody sends, as of the last filling.
    pub(super) fn any_moves(&self) -> bool {
        self.moving > 0
    }

    /// Whether the rates are not those of the streams that send now.
    pub(super) fn stale(&self) -> bool {
        !self.changed.is_empty() || !self.free.is_empty()
    }

    pub(super) fn sending(&self, stream: usize) -> bool {
        self.sending[stream]
    }

    pub(super) fn set_capacity(&mut self, resource: usize, capacity: f64) {
        if self.capacities[resource] != capacity {
            self.capacities[resource] = capacity;
            self.changed.push(resource as u32);
        }
    }

    /// A stream begins to send: at rate 0 until the next filling.
    pub(super) fn begin(&mut self, schedule: &Schedule, stream: usize) {
        debug_assert!(!self.sending[stream]);
        self.sending[stream] = true;
        self.rates[stream] = 0.0;
        for at in schedule.uses(stream) {
            let resource = schedule.use_resources[at];
            let users = &mut self.users[resource as usize];
            self.places[at] = users.len() as u32;
            users.push((stream as u32, at as u32));
            self.changed.push(resource);
        }
        if schedule.uses(stream).is_empty() {
            self.free.push(stream as u32);
        }
    }

    /// A stream stops sending.
    pub(super) fn end(&mut self, schedule: &Schedule, stream: usize) {
        debug_assert!(self.sending[stream]);
        self.sending[stream] = false;
        self.moving -= usize::from(self.rates[stream] > 0.0);
        self.rates[stream] = 0.0;
        for at in schedule.uses(stream) {
            let resource = schedule.use_resources[at];
            let users = &mut self.users[resource as usize];
            let place = self.places[at] as usize;
            users.swap_remove(place);
            if let Some(&(_, moved)) = users.get(place) {
                self.places[moved as usize] = place as u32;
            }
            if !users.is_empty() {
                self.changed.push(resource);
            }
        }
    }

    /// Gives every stream in a component with a change its max-min fair rate. Tells `changed` of
    /// each stream whose rate changes, with the old rate and the new one.
    pub(super) fn fill(&mut self, schedule: &Schedule, mut changed: impl FnMut(usize, f64, f64)) {
        self.component(schedule);
        self.levels(schedule);
        let streams = std::mem::take(&mut self.work.streams);
        for &stream in &streams {
            let stream = stream as usize;
            let new = self.work.new_rates[stream];
            let old = self.rates[stream];
            if (new - old).abs() > SAME * new.max(old) || (new.is_infinite() && old == 0.0) {
                changed(stream, old, new);
                self.rates[stream] = new;
                self.moving -= usize::from(old > 0.0);
                self.moving += usize::from(new > 0.0);
            }
        }
        self.work.streams = streams;
    }

    /// Everything that is connected with a change, by streams that share resources.
    fn component(&mut self, schedule: &Schedule) {
        let work = &mut self.work;
        work.round += 1;
        work.streams.clear();
        work.resources.clear();
        for resource in self.changed.drain(..) {
            visit(&mut work.seen_resources, work.round, resource, &mut work.resources);
        }
        let mut next = 0;
        while let Some(&resource) = work.resources.get(next) {
            next += 1;
            for &(stream, _) in &self.users[resource as usize] {
                if !visit(&mut work.seen_streams, work.round, stream, &mut work.streams) {
                    continue;
                }
                for at in schedule.uses(stream as usize) {
                    let resource = schedule.use_resources[at];
                    visit(&mut work.seen_resources, work.round, resource, &mut work.resources);
                }
            }
        }
        for stream in self.free.drain(..) {
            if self.sending[stream as usize] {
                visit(&mut work.seen_streams, work.round, stream, &mut work.streams);
            }
        }
    }

    /// Progressive filling: all grow alike until a resource is full or a limit is reached; its
    /// streams stay there, the others grow on. A resource's level never falls while others are
    /// fixed below it, so a heap with values of the past is enough.
    fn levels(&mut self, schedule: &Schedule) {
        let Self { work, users, capacities, .. } = self;
        work.heap.clear();
        for &resource in &work.resources {
            let r = resource as usize;
            let weight = |&(_, at): &(u32, u32)| f64::from(schedule.use_weights[at as usize]);
            work.left[r] = capacities[r];
            work.load[r] = users[r].iter().map(weight).sum();
            work.growing[r] = users[r].len() as u32;
            if work.growing[r] > 0 {
                work.heap.push(Reverse((Time(work.left[r] / work.load[r]), resource, true)));
            }
        }
        for &stream in &work.streams {
            work.fixed[stream as usize] = false;
            let limit = schedule.streams[stream as usize].limit;
            if limit.is_finite() || schedule.uses(stream as usize).is_empty() {
                work.heap.push(Reverse((Time(limit), stream, false)));
            }
        }
        while let Some(Reverse((Time(level), index, is_resource))) = work.heap.pop() {
            if !is_resource {
                work.fix(schedule, index as usize, level);
                continue;
            }
            let r = index as usize;
            if work.growing[r] == 0 {
                continue;
            }
            let now = (work.left[r] / work.load[r]).max(0.0);
            if now > level * (1.0 + SAME) {
                work.heap.push(Reverse((Time(now), index, true)));
                continue;
            }
            for &(stream, _) in &users[r] {
                work.fix(schedule, stream as usize, now);
            }
        }
    }
}

impl Work {
    fn fix(&mut self, schedule: &Schedule, stream: usize, rate: f64) {
        if self.fixed[stream] {
            return;
        }
        self.fixed[stream] = true;
        self.new_rates[stream] = rate;
        for at in schedule.uses(stream) {
            let r = schedule.use_resources[at] as usize;
            let weight = f64::from(schedule.use_weights[at]);
            self.left[r] -= weight * rate;
            self.load[r] -= weight;
            self.growing[r] -= 1;
        }
    }
}

/// True: not seen before in this round; it is noted and listed.
fn visit(seen: &mut [u32], round: u32, index: u32, list: &mut Vec<u32>) -> bool {
    let mark = &mut seen[index as usize];
    if *mark == round {
        return false;
    }
    *mark = round;
    list.push(index);
    true
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::schedule::{ResourceId, Stream, Uses};
    use super::*;

    const RESOURCES: usize = 6;

    type Spec = (Vec<(u32, u8)>, Option<f64>);

    fn schedule(specs: &[Spec]) -> Schedule {
        let mut schedule = Schedule::new();
        let mut uses = Uses::new(RESOURCES);
        for (over, limit) in specs {
            for &(resource, weight) in over {
                uses.add(ResourceId(resource), f32::from(weight));
            }
            let limit = limit.unwrap_or(f64::INFINITY);
            schedule.add(Stream { limit, ..Stream::whole(1.0) }, &mut uses);
        }
        schedule
    }

    fn specs() -> impl Strategy<Value = Vec<Spec>> {
        let over = vec((0..RESOURCES as u32, 1_u8..5), 1..4);
        vec((over, proptest::option::of(0.1..20.0_f64)), 1..20)
    }

    /// Max-min fair: nothing is over its capacity, and every stream has a reason not to be faster:
    /// its limit, or a full resource where no stream is faster than it.
    fn assert_fair(shares: &Shares, schedule: &Schedule) -> Result<(), TestCaseError> {
        let load = |r: usize| -> f64 {
            let weight = |&(s, at): &(u32, u32)| {
                shares.rates[s as usize] * f64::from(schedule.use_weights[at as usize])
            };
            shares.users[r].iter().map(weight).sum()
        };
        for r in 0..RESOURCES {
            prop_assert!(load(r) <= shares.capacities[r] * (1.0 + 1e-9), "{r} is overloaded");
        }
        for stream in (0..shares.rates.len()).filter(|&s| shares.sending[s]) {
            let rate = shares.rates[stream];
            let limited = rate >= schedule.streams[stream].limit * (1.0 - 1e-9);
            let held = schedule.uses(stream).any(|at| {
                let r = schedule.use_resources[at] as usize;
                let full = load(r) >= shares.capacities[r] * (1.0 - 1e-9);
                let fastest = shares.users[r].iter().map(|&(s, _)| shares.rates[s as usize]);
                full && fastest.fold(0.0, f64::max) <= rate * (1.0 + 1e-9)
            });
            prop_assert!(limited || held, "stream {stream} could be faster than {rate}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn rates_are_max_min_fair_whatever_came_and_went(
            specs in specs(),
            capacities in vec(prop_oneof![1 => Just(0.0), 9 => 1.0..40.0_f64], RESOURCES),
            toggles in vec(any::<proptest::sample::Index>(), 1..40),
        ) {
            let schedule = schedule(&specs);
            let mut shares = Shares::new(&schedule, &capacities);
            for toggle in toggles {
                let stream = toggle.index(specs.len());
                if shares.sending(stream) {
                    shares.end(&schedule, stream);
                } else {
                    shares.begin(&schedule, stream);
                }
                shares.fill(&schedule, |_, _, _| {});
                assert_fair(&shares, &schedule)?;
            }
        }
    }
}
