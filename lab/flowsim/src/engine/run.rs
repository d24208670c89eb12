//! Events, from the first chunk's start to the last one's delivery.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::StdRng;
use rand::{SeedableRng, seq};

use super::fair::Shares;
use super::options::{Options, Outcome, Progress, SimulationError, check};
use super::schedule::{After, Grouped, Schedule};
use ordered_float::OrderedFloat as Time;

/// Events closer than this share of the time so far happen together.
const TOGETHER: f64 = 1e-10;
/// Drawings of paused senders, for each sender, after which a run that nobody can send in is given
/// up. A stream that uses one sender is paused that often by chance once in `e^100` runs.
const IDLE_DRAWINGS: usize = 100;
/// Events between two reports of progress.
const REPORT_EVERY: u64 = 1 << 16;

/// Runs a schedule over resources of the given capacities, in bytes a second.
///
/// The same arguments give the same outcome, to the last bit. `observe` is told of the progress now
/// and then.
///
/// # Errors
///
/// [`SimulationError`] says why the run did not come to its end.
pub fn simulate(
    schedule: &Schedule,
    capacities: &[f64],
    options: &Options,
    observe: &mut dyn FnMut(Progress),
) -> Result<Outcome, SimulationError> {
    check(schedule, capacities, options)?;
    let mut run = Run::new(schedule, capacities, options);
    for stream in 0..schedule.streams.len() {
        run.advance(stream);
    }
    run.settle_changes();
    run.draw_pauses();
    while let Some(time) = run.next_time() {
        // With a quantum, the rates are refreshed once the events of that time have happened.
        if let Some(since) = run.stale_since
            && time > since + options.quantum + TOGETHER * run.now
        {
            run.refill();
            continue;
        }
        if run.is_done() {
            break;
        }
        if run.idle_drawings > IDLE_DRAWINGS * run.senders() {
            return Err(SimulationError::Idle(run.idle_drawings));
        }
        if time > options.horizon {
            return Err(SimulationError::Horizon(options.horizon));
        }
        run.now = time;
        run.happen();
        if run.events.is_multiple_of(REPORT_EVERY) {
            observe(run.progress());
        }
        if run.is_stuck() {
            break;
        }
    }
    observe(run.progress());
    run.outcome()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The sender's overhead is over; the chunk's bytes begin to leave.
    Begun,
    /// The last byte of the chunk has left, if the rate is still that of this version.
    Sent { version: u32 },
    /// A chunk has arrived.
    Delivered,
    /// Other senders pause.
    Redrawn,
}

type Event = Reverse<(Time<f64>, u64, u32, Happening)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Waits for others, or is done.
    #[default]
    Idle,
    /// The sender's overhead for the next chunk.
    Preparing,
    /// Bytes of the next chunk leave.
    Sending,
}

/// Of a stream in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    state: State,
    sent: u32,
    delivered: u32,
    /// Counts changes of the rate.
    version: u32,
    /// Of the chunk, at `since`.
    remaining: f64,
    since: f64,
    /// Bytes that have left, of all chunks.
    bytes: f64,
    listed: bool,
}

impl Flow {
    /// Counts what has left at `rate` since it was last counted.
    fn settle(&mut self, now: f64, rate: f64) {
        let left = (rate * (now - self.since)).min(self.remaining);
        self.bytes += left;
        self.remaining -= left;
        self.since = now;
    }

    /// When the chunk's last byte leaves at `rate`, from `since` on; never at rate 0.
    fn completion(&self, stream: usize, rate: f64, sequence: u64) -> Option<Event> {
        let time = Time(self.since + self.remaining / rate);
        let happening = Happening::Sent { version: self.version };
        (rate > 0.0).then_some(Reverse((time, sequence, stream as u32, happening)))
    }
}

struct Run<'a> {
    schedule: &'a Schedule,
    options: &'a Options,
    capacities: &'a [f64],
    waits: Grouped<(u32, After)>,
    waited_for: Grouped<u32>,
    shares: Shares,
    flows: Vec<Flow>,
    heap: BinaryHeap<Event>,
    sequence: u64,
    now: f64,
    last_delivery: f64,
    /// Since when the rates are not those of the sending streams.
    stale_since: Option<f64>,
    /// Streams whose sending may have begun or ended.
    touched: Vec<u32>,
    paused: Vec<usize>,
    /// Drawings after which nobody could send, one after the other.
    idle_drawings: usize,
    random: StdRng,
    unfinished: usize,
    preparing_or_flying: u64,
    sending: u64,
    events: u64,
    fillings: u64,
    chunks_sent: u64,
    chunks: u64,
}

impl<'a> Run<'a> {
    fn new(schedule: &'a Schedule, capacities: &'a [f64], options: &'a Options) -> Self {
        let (waits, waited_for) = schedule.waits();
        Self {
            schedule,
            options,
            capacities,
            waits,
            waited_for,
            shares: Shares::new(schedule, capacities),
            flows: vec![Flow::default(); schedule.streams.len()],
            heap: BinaryHeap::new(),
            sequence: 0,
            now: 0.0,
            last_delivery: 0.0,
            stale_since: None,
            touched: Vec::new(),
            paused: Vec::new(),
            idle_drawings: 0,
            random: StdRng::seed_from_u64(options.pauses.as_ref().map_or(0, |p| p.seed)),
            unfinished: schedule.streams.len(),
            preparing_or_flying: 0,
            sending: 0,
            events: 0,
            fillings: 0,
            chunks_sent: 0,
            chunks: schedule.chunks(),
        }
    }

    /// Of the next event, or of now if nothing but new rates is outstanding.
    fn next_time(&self) -> Option<f64> {
        let next = self.heap.peek().map(|Reverse((time, ..))| time.0);
        next.or(self.stale_since.map(|_| f64::INFINITY))
    }

    fn is_done(&self) -> bool {
        self.unfinished == 0
    }

    /// Only redrawings are left, and nothing that they could set free.
    fn is_stuck(&self) -> bool {
        self.sending == 0 && self.preparing_or_flying == 0
    }

    fn senders(&self) -> usize {
        self.options.pauses.as_ref().map_or(0, |pauses| pauses.senders.len())
    }

    fn progress(&self) -> Progress {
        Progress { chunks: self.chunks_sent, of_chunks: self.chunks, seconds: self.now }
    }

    fn push(&mut self, time: f64, stream: usize, happening: Happening) {
        self.heap.push(Reverse((Time(time), self.sequence, stream as u32, happening)));
        self.sequence += 1;
    }

    /// The next event, and whatever follows from it at once.
    fn happen(&mut self) {
        let Some(Reverse((_, _, stream, happening))) = self.heap.pop() else { return };
        let stream = stream as usize;
        match happening {
            Happening::Begun => {
                self.preparing_or_flying -= 1;
                self.begin(stream);
            }
            Happening::Sent { version } => {
                if version != self.flows[stream].version {
                    return;
                }
                self.finish(stream);
            }
            Happening::Delivered => {
                self.preparing_or_flying -= 1;
                self.deliver(stream);
            }
            Happening::Redrawn => {
                let waits_for_rates = self.stale_since.is_some();
                let moves = self.shares.any_moves() || self.preparing_or_flying > 0;
                let idle = !moves && !waits_for_rates;
                self.idle_drawings = if idle { self.idle_drawings + 1 } else { 0 };
                self.draw_pauses();
            }
        }
        self.events += 1;
        self.settle_changes();
    }

    /// Starts a stream's next chunk if there is one and nothing is in its way.
    fn advance(&mut self, stream: usize) {
        let flow = &self.flows[stream];
        let spec = &self.schedule.streams[stream];
        if flow.state != State::Idle || flow.sent == spec.chunks || !self.may_start(stream) {
            return;
        }
        if spec.overhead > 0.0 {
            self.flows[stream].state = State::Preparing;
            self.preparing_or_flying += 1;
            self.push(self.now + spec.overhead, stream, Happening::Begun);
        } else {
            self.begin(stream);
        }
    }

    fn may_start(&self, stream: usize) -> bool {
        let chunk = self.flows[stream].sent;
        self.waits.get(stream).iter().all(|&(other, after)| {
            let delivered = self.flows[other as usize].delivered;
            let chunks = self.schedule.streams[other as usize].chunks;
            match after {
                After::Lag(lag) => delivered >= (chunk + 1).saturating_sub(lag).min(chunks),
                After::All => delivered == chunks,
            }
        })
    }

    fn begin(&mut self, stream: usize) {
        let now = self.now;
        let chunk_bytes = self.schedule.streams[stream].chunk_bytes;
        let flow = &mut self.flows[stream];
        flow.state = State::Sending;
        flow.remaining = chunk_bytes;
        flow.since = now;
        self.sending += 1;
        // It had a rate before: the last chunk has only just left.
        if self.shares.sending(stream) {
            flow.version += 1;
            if let Some(event) = flow.completion(stream, self.shares.rate(stream), self.sequence) {
                self.heap.push(event);
                self.sequence += 1;
            }
        }
        self.touch(stream);
    }

    /// The chunk's last byte leaves.
    fn finish(&mut self, stream: usize) {
        let flow = &mut self.flows[stream];
        flow.bytes += flow.remaining;
        flow.remaining = 0.0;
        flow.state = State::Idle;
        flow.sent += 1;
        self.sending -= 1;
        self.chunks_sent += 1;
        self.touch(stream);
        let latency = self.schedule.streams[stream].latency;
        if latency > 0.0 {
            self.preparing_or_flying += 1;
            self.push(self.now + latency, stream, Happening::Delivered);
        } else {
            self.deliver(stream);
        }
        self.advance(stream);
    }

    fn deliver(&mut self, stream: usize) {
        let flow = &mut self.flows[stream];
        flow.delivered += 1;
        self.last_delivery = self.now;
        if flow.delivered == self.schedule.streams[stream].chunks {
            self.unfinished -= 1;
        }
        for at in 0..self.waited_for.get(stream).len() {
            let waiter = self.waited_for.get(stream)[at];
            self.advance(waiter as usize);
        }
    }

    fn touch(&mut self, stream: usize) {
        if !std::mem::replace(&mut self.flows[stream].listed, true) {
            self.touched.push(stream as u32);
        }
    }

    /// Tells the shares which streams send now.
    fn settle_changes(&mut self) {
        while let Some(stream) = self.touched.pop() {
            let stream = stream as usize;
            self.flows[stream].listed = false;
            let sends = self.flows[stream].state == State::Sending;
            match (self.shares.sending(stream), sends) {
                (false, true) => {
                    self.shares.begin(self.schedule, stream);
                    self.flows[stream].version += 1;
                }
                (true, false) => self.shares.end(self.schedule, stream),
                _ => {}
            }
        }
        if self.stale_since.is_none() && self.shares.stale() {
            self.stale_since = Some(self.now);
        }
    }

    /// New rates, and the events that follow from them.
    fn refill(&mut self) {
        self.fillings += 1;
        self.stale_since = None;
        let Self { shares, flows, heap, sequence, now, schedule, .. } = self;
        shares.fill(schedule, |stream, old, new| {
            let flow = &mut flows[stream];
            flow.settle(*now, old);
            flow.version += 1;
            if let Some(event) = flow.completion(stream, new, *sequence) {
                heap.push(event);
                *sequence += 1;
            }
        });
    }

    fn draw_pauses(&mut self) {
        let Some(pauses) = &self.options.pauses else { return };
        for at in self.paused.drain(..) {
            let resource = pauses.senders[at].index();
            self.shares.set_capacity(resource, self.capacities[resource]);
        }
        let drawn = seq::index::sample(&mut self.random, pauses.senders.len(), pauses.count);
        for at in drawn {
            self.shares.set_capacity(pauses.senders[at].index(), 0.0);
            self.paused.push(at);
        }
        self.push(self.now + pauses.period, 0, Happening::Redrawn);
    }

    fn outcome(self) -> Result<Outcome, SimulationError> {
        if self.unfinished > 0 {
            let unfinished =
                |&(i, flow): &(usize, &Flow)| flow.delivered < self.schedule.streams[i].chunks;
            let first = self.flows.iter().enumerate().find(unfinished);
            let (first, chunk) = first.map_or((0, 0), |(i, flow)| (i, flow.sent));
            return Err(SimulationError::Stalled { streams: self.unfinished, first, chunk });
        }
        let bytes = self.schedule.bytes_with(self.capacities.len(), |s| self.flows[s].bytes);
        Ok(Outcome {
            seconds: self.last_delivery,
            bytes,
            events: self.events,
            fillings: self.fillings,
        })
    }
}
