//! Events, as text.

use std::collections::HashMap;
use std::fmt::Write;

use serde::Serialize;

use crate::model::{Call, MESH, Source};

/// Calls of a track that are shown side by side; further ones share the last row.
const LANES: usize = 32;

/// What a call's first event says.
#[derive(Debug, Serialize)]
struct Begin<'a> {
    call: u64,
    track: u16,
    what: &'a str,
    len: u64,
    bytes: u64,
    dtype: &'a str,
    op: &'a str,
    digest: String,
}

/// What its last event says.
#[derive(Debug, Serialize)]
struct End<'a> {
    call: u64,
    track: u16,
    way: &'a str,
    outcome: &'a str,
    begun_ns: Option<u64>,
    first_sent_ns: Option<u64>,
    first_result_ns: Option<u64>,
    last_result_ns: Option<u64>,
    wait_us: f64,
    gap_us: f64,
    blocks: u64,
    repetitions: u32,
    pendings: u32,
    reforms: u32,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    missing: &'a [u16],
}

/// Writes events, one a line. [`Self::take`] hands out what there is.
#[derive(Debug, Default)]
pub struct Writer {
    text: String,
    began: bool,
    /// Of each source and track: the calls that its rows show.
    lanes: HashMap<(u32, u16), Vec<Option<u64>>>,
}

impl Writer {
    /// What was written since this was asked before. The first of it opens the array.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Bytes that [`Self::take`] would give.
    #[must_use]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// One event: `rest` is what follows phase, source and thread.
    fn event(&mut self, name: &str, phase: char, (source, thread): (u32, u32), rest: &str) {
        self.text.push_str(if self.began { ",\n" } else { "[\n" });
        self.began = true;
        let name = json(&name);
        // Writing to a text cannot fail.
        let _ = write!(
            self.text,
            r#"{{"name":{name},"ph":"{phase}","pid":{source},"tid":{thread}{rest}}}"#
        );
    }

    /// A communicator begins to write.
    pub fn source(&mut self, source: &Source) {
        let of = (source.source, 0);
        let Source { rank, world_size, job, host, process, .. } = source;
        let name = format!("rank {rank} of {world_size}, job {job} ({host}, process {process})");
        self.event("process_name", 'M', of, &format!(r#","args":{{"name":{}}}"#, json(&name)));
        let sort = format!(r#","args":{{"sort_index":{rank}}}"#);
        self.event("process_sort_index", 'M', of, &sort);
        self.event("xdp_agg", 'M', of, &format!(r#","args":{}"#, json(source)));
    }

    /// A call was made.
    pub fn begin(&mut self, source: u32, call: &Call) {
        let thread = self.thread(source, call, true);
        let begin = Begin {
            call: call.number,
            track: call.track,
            what: &call.what,
            len: call.len,
            bytes: call.bytes,
            dtype: &call.dtype,
            op: &call.op,
            digest: format!("{:016x}", call.digest),
        };
        let (at, args) = (micros(call.made), json(&begin));
        let rest = format!(r#","cat":"call","ts":{at},"args":{args}"#);
        self.event(call.name(), 'B', (source, thread), &rest);
    }

    /// It has ended: its phases, and its end.
    pub fn end(&mut self, source: u32, call: &Call) {
        let thread = self.thread(source, call, false);
        let of = (source, thread);
        for (name, from, to) in call.phases() {
            let (at, long) = (micros(from), micros(to - from));
            let rest = format!(r#","cat":"phase","ts":{at},"dur":{long}"#);
            self.event(name, 'X', of, &rest);
        }
        let end = End {
            call: call.number,
            track: call.track,
            way: &call.way,
            outcome: &call.outcome,
            begun_ns: call.begun,
            first_sent_ns: call.first_sent,
            first_result_ns: call.first_result,
            last_result_ns: call.last_result,
            wait_us: call.wait as f64 / 1e3,
            gap_us: call.gap as f64 / 1e3,
            blocks: call.blocks,
            repetitions: call.repetitions,
            pendings: call.pendings,
            reforms: call.reforms,
            missing: &call.missing,
        };
        let at = micros(call.ended.unwrap_or(call.made).max(call.made));
        let rest = format!(r#","cat":"call","ts":{at},"args":{}"#, json(&end));
        self.event(call.name(), 'E', of, &rest);
    }

    /// Something happened at a moment: `kind` says what, `text` more of it.
    pub fn instant(&mut self, source: u32, at: u64, kind: &str, text: &str) {
        let (at, args) = (micros(at), json(&text));
        let rest = format!(r#","cat":"event","s":"p","ts":{at},"args":{{"text":{args}}}"#);
        self.event(kind, 'i', (source, 0), &rest);
    }

    /// Blocks of the window, and blocks under way.
    pub fn counter(&mut self, source: u32, at: u64, track: u16, window: u32, in_flight: u32) {
        let at = micros(at);
        let rest = format!(r#","ts":{at},"args":{{"window":{window},"in flight":{in_flight}}}"#);
        self.event(&format!("blocks {track}"), 'C', (source, 0), &rest);
    }

    /// Events were lost in the writer's queue.
    pub fn dropped(&mut self, source: u32, at: u64, count: u64) {
        self.instant(source, at, "dropped", &count.to_string());
    }

    /// The communicator has left: its events end here.
    pub fn left(&mut self, source: u32, at: u64) {
        self.instant(source, at, "left", "the communicator was closed");
    }

    /// Closes the array.
    pub fn finish(&mut self) {
        self.text.push_str(if self.began { "\n]\n" } else { "[]\n" });
    }

    /// The row of a call: the first that is free when it begins.
    fn thread(&mut self, source: u32, call: &Call, begins: bool) -> u32 {
        let lanes = self.lanes.entry((source, call.track)).or_default();
        let wanted = if begins { None } else { Some(call.number) };
        let found = lanes.iter().take(LANES - 1).position(|lane| *lane == wanted);
        let lane = found.unwrap_or(lanes.len().min(LANES - 1));
        let is_new = lane == lanes.len();
        if is_new {
            lanes.push(None);
        }
        lanes[lane] = if begins { Some(call.number) } else { None };
        let thread = u32::from(call.track) * LANES as u32 + lane as u32 + 1;
        if is_new {
            let of = match call.track {
                MESH => "among the workers".to_owned(),
                track => format!("aggregator {track}"),
            };
            let row = if lane == 0 { String::new() } else { format!(", {}", lane + 1) };
            let args = json(&format!("{of}{row}"));
            let rest = format!(r#","args":{{"name":{args}}}"#);
            self.event("thread_name", 'M', (source, thread), &rest);
        }
        thread
    }
}

/// Microseconds, as the format has times.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// Texts and structures of numbers and texts are always JSON.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
