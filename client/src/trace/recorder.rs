//! What an engine remembers of its calls. It is used under the engine's lock alone.

use std::sync::Arc;
use std::time::Duration;

use xdp_agg_protocol::worker::{Record, State};
use xdp_agg_trace::Call;

use super::calls::{Origin, call, nanos};
use super::latest::Latest;
use super::tracer::{Attached, Tracer};
use crate::driver::sys;

/// Pause between two counters of a trace.
const COUNTERS: Duration = Duration::from_millis(10);

/// The latest calls of an engine, and the way of all of them to a trace. Times are the engine's.
#[derive(Debug)]
pub(crate) struct Recorder {
    origin: Origin,
    latest: Latest<Record>,
    trace: Option<Arc<Attached>>,
    /// When the next counter is written.
    count_at: Duration,
    /// What the trace was told last: the epoch, and what the engine does.
    told: (u16, Option<State>),
}

impl Recorder {
    /// Of an engine whose clock begins now.
    pub(crate) fn new(tracer: &Tracer, track: u16) -> Self {
        let (base, world_size) = (nanos(sys::monotonic()), tracer.world_size());
        Self {
            origin: Origin { track, base, world_size },
            latest: Latest::new(),
            trace: tracer.attached(),
            count_at: Duration::ZERO,
            told: (0, None),
        }
    }

    /// A trace is written: it wants to know of more than ended calls.
    pub(crate) const fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn begun(&self, record: Option<Record>) {
        if let (Some(trace), Some(record)) = (&self.trace, record) {
            trace.begun(self.origin, record);
        }
    }

    pub(crate) fn ended(&mut self, record: Record, now: Duration) {
        self.latest.push(record);
        if let Some(trace) = &self.trace {
            trace.ended(self.origin, self.origin.base + nanos(now), record);
        }
    }

    /// Something that a trace shows at its moment.
    pub(crate) fn instant(&self, now: Duration, kind: &'static str, text: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.instant(self.origin.base + nanos(now), kind, text());
        }
    }

    /// The engine has done a step; `flow` is asked for the window and the blocks under way.
    pub(crate) fn step(
        &mut self,
        now: Duration,
        (epoch, state): (u16, State),
        flow: impl FnOnce() -> (u32, u32),
    ) {
        let Some(trace) = &self.trace else { return };
        let at = self.origin.base + nanos(now);
        if self.told != (epoch, Some(state)) {
            let track = self.origin.track;
            let text = format!("aggregator {track}: epoch {epoch}, {state:?}");
            trace.instant(at, if epoch == self.told.0 { "state" } else { "epoch" }, text);
            self.told = (epoch, Some(state));
        }
        if now >= self.count_at {
            self.count_at = now + COUNTERS;
            trace.counter(at, self.origin.track, flow());
        }
    }

    /// The latest calls that have ended, and these, which are under way.
    pub(crate) fn calls(
        &self,
        in_flight: impl Iterator<Item = Record>,
        now: Duration,
    ) -> Vec<Call> {
        let now = self.origin.base + nanos(now);
        let all = self.latest.iter().copied().chain(in_flight);
        all.map(|record| call(&record, self.origin, now)).collect()
    }
}
