//! The file of a trace: a bounded queue, and the thread that writes what is in it.
//!
//! A process has one sink a file, however many communicators it makes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use xdp_agg_forks::{Origin as Process, own};
use xdp_agg_protocol::worker::Record;
use xdp_agg_trace::{Source, Writer};

use super::calls::{self, MeshRecord, Origin};
use crate::error::Error;

/// Events that the queue holds; each has some 400 bytes.
const QUEUE: usize = 8192;
/// How long an event stays in the queue.
const FLUSH: Duration = Duration::from_millis(100);
/// Longest wait of a communicator that leaves for its events to be in the file.
const LAST_FLUSH: Duration = Duration::from_secs(5);
/// Bytes that are written at once.
const PIECE: usize = 256 << 10;
/// Bytes after which a file gets no more calls.
const LIMIT: u64 = 1 << 30;

/// What the queue holds.
#[derive(Debug)]
pub(super) enum Event {
    Source(Box<Source>),
    Begin(u32, Origin, Box<Record>),
    End(u32, Origin, u64, Box<Record>),
    BeginMesh(u32, MeshRecord),
    EndMesh(u32, MeshRecord),
    Counter { source: u32, at: u64, track: u16, window: u32, in_flight: u32 },
    Instant { source: u32, at: u64, kind: &'static str, text: String },
    Left(u32, u64),
}

/// The sinks of this process.
static SINKS: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// A sink, by its pattern, in the process that opened it.
struct Known {
    pattern: String,
    process: Process,
    sink: Arc<Sink>,
}

#[derive(Debug)]
pub(super) struct Sink {
    path: PathBuf,
    queue: Mutex<Queue>,
    /// Something is in the queue, or much, or all of it is wanted in the file.
    some: Condvar,
    /// All of it is in the file.
    written: Condvar,
}

#[derive(Debug)]
struct Queue {
    events: Vec<Event>,
    /// Events that found no room since the queue was taken.
    dropped: u64,
    sources: u32,
    /// Somebody waits for the file.
    hurry: bool,
    /// Rounds of the writer that have ended, and whether it is in one.
    rounds: u64,
    busy: bool,
}

impl Sink {
    /// The sink of a pattern, opened at its first use: `path` makes its name.
    pub(super) fn open(
        pattern: &str,
        path: impl FnOnce() -> Result<PathBuf, Error>,
    ) -> Result<Arc<Self>, Error> {
        let mut sinks = SINKS.lock();
        let here = |known: &&Known| known.pattern == pattern && !known.process.is_elsewhere();
        if let Some(known) = sinks.iter().find(here) {
            return Ok(Arc::clone(&known.sink));
        }
        let mut path = path()?;
        if sinks.iter().any(|other| other.sink.path == path) {
            // The file is the process's that this one was forked from.
            path.as_mut_os_string().push(format!(".p{}", std::process::id()));
        }
        let wrong = |error| Error::Config {
            name: "XDP_AGG_TRACE",
            problem: format!("{} cannot be written: {error}", path.display()),
        };
        let file = own(|| File::create(&path)).map_err(wrong)?;
        let sink = Arc::new(Self {
            path: path.clone(),
            queue: Mutex::new(Queue {
                events: Vec::with_capacity(QUEUE),
                dropped: 0,
                sources: 0,
                hurry: false,
                rounds: 0,
                busy: false,
            }),
            some: Condvar::new(),
            written: Condvar::new(),
        });
        let writer = Arc::clone(&sink);
        thread::Builder::new()
            .name("xdp-agg trace".into())
            .spawn(move || writer.write(file))
            .map_err(Error::io("starting the thread that writes a trace"))?;
        let (pattern, process) = (pattern.to_owned(), Process::here());
        sinks.push(Known { pattern, process, sink: Arc::clone(&sink) });
        Ok(sink)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A number for one more source.
    pub(super) fn number(&self) -> u32 {
        let mut queue = self.queue.lock();
        queue.sources += 1;
        queue.sources
    }

    /// Leaves an event to the writer, or counts that there was no room.
    pub(super) fn push(&self, event: Event) {
        let mut queue = self.queue.lock();
        if queue.events.len() >= QUEUE {
            queue.dropped += 1;
            return;
        }
        queue.events.push(event);
        let count = queue.events.len();
        drop(queue);
        // A waker costs a system call: once a round, and once more where a round has much.
        if count == 1 || count == QUEUE / 2 {
            self.some.notify_one();
        }
    }

    /// Waits until all that was pushed is in the file.
    pub(super) fn flush(&self) {
        let mut queue = self.queue.lock();
        let wanted = queue.rounds + u64::from(queue.busy) + u64::from(!queue.events.is_empty());
        queue.hurry = true;
        self.some.notify_one();
        let waits = |queue: &mut Queue| queue.rounds < wanted;
        self.written.wait_while_for(&mut queue, waits, LAST_FLUSH);
    }

    /// The writer's thread.
    fn write(&self, mut file: File) {
        let (mut writer, mut events) = (Writer::default(), Vec::with_capacity(QUEUE));
        let mut out = Out { len: 0, broken: false, path: &self.path };
        let mut latest = (1, 0);
        loop {
            let dropped = self.next(&mut events);
            for event in events.drain(..) {
                latest = write(&mut writer, event, out.is_full());
                if writer.len() >= PIECE {
                    out.put(&mut file, &writer.take());
                }
            }
            if dropped > 0 {
                writer.dropped(latest.0, latest.1, dropped);
            }
            out.put(&mut file, &writer.take());
            let mut queue = self.queue.lock();
            queue.busy = false;
            queue.rounds += 1;
            drop(queue);
            self.written.notify_all();
        }
    }

    /// Waits until there is something, lets more come for a while, and takes it; how much was lost.
    fn next(&self, events: &mut Vec<Event>) -> u64 {
        let mut queue = self.queue.lock();
        while queue.events.is_empty() && !queue.hurry {
            self.some.wait(&mut queue);
        }
        let waits = |queue: &mut Queue| queue.events.len() < QUEUE / 2 && !queue.hurry;
        self.some.wait_while_for(&mut queue, waits, FLUSH);
        std::mem::swap(&mut queue.events, events);
        queue.hurry = false;
        queue.busy = true;
        std::mem::take(&mut queue.dropped)
    }
}

/// Bytes in a file.
struct Out<'a> {
    len: u64,
    broken: bool,
    path: &'a Path,
}

impl Out<'_> {
    fn is_full(&self) -> bool {
        self.len >= LIMIT
    }

    fn put(&mut self, file: &mut File, text: &str) {
        if self.broken || text.is_empty() {
            return;
        }
        let was_full = self.is_full();
        self.len += text.len() as u64;
        if let Err(error) = file.write_all(text.as_bytes()) {
            self.broken = true;
            tracing::warn!("the trace {} ends here: {error}", self.path.display());
        } else if self.is_full() && !was_full {
            let path = self.path.display();
            tracing::warn!("the trace {path} has {} bytes, and gets no more calls", self.len);
        }
    }
}

/// Writes one event; its source and time. A full file still hears what is no call.
fn write(writer: &mut Writer, event: Event, is_full: bool) -> (u32, u64) {
    match event {
        Event::Source(source) => {
            writer.source(&source);
            (source.source, source.monotonic_ns)
        }
        Event::Begin(source, origin, record) => {
            let call = calls::call(&record, origin, 0);
            let at = call.made;
            if !is_full {
                writer.begin(source, &call);
            }
            (source, at)
        }
        Event::End(source, origin, now, record) => {
            if !is_full {
                writer.end(source, &calls::call(&record, origin, now));
            }
            (source, now)
        }
        Event::BeginMesh(source, record) => {
            if !is_full {
                writer.begin(source, &calls::of_mesh(&record, record.made));
            }
            (source, record.made)
        }
        Event::EndMesh(source, record) => {
            let at = record.ended.unwrap_or(record.made);
            if !is_full {
                writer.end(source, &calls::of_mesh(&record, at));
            }
            (source, at)
        }
        Event::Counter { source, at, track, window, in_flight } => {
            if !is_full {
                writer.counter(source, at, track, window, in_flight);
            }
            (source, at)
        }
        Event::Instant { source, at, kind, text } => {
            writer.instant(source, at, kind, &text);
            (source, at)
        }
        Event::Left(source, at) => {
            writer.left(source, at);
            (source, at)
        }
    }
}

#[cfg(test)]
mod tests {
    use xdp_agg_trace::read;

    use super::*;

    fn open(name: &str) -> Arc<Sink> {
        let name = format!("xdp-agg-sink-{name}-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        Sink::open(name_of(&path), || Ok(path.clone())).expect("a file")
    }

    fn name_of(path: &Path) -> &str {
        path.to_str().expect("text")
    }

    fn source(number: u32) -> Event {
        let text = format!(
            r#"{{"format":1,"source":{number},"kind":"trace","job":"j","rank":0,"world_size":1,
            "local_rank":0,"local_size":1,"host":"h","process":1,"clock":"c","monotonic_ns":1,
            "realtime_ns":1}}"#
        );
        Event::Source(Box::new(serde_json::from_str(&text).expect("a source")))
    }

    /// The queue is bounded: what finds no room is counted, and the file tells how much that was.
    #[test]
    fn what_finds_no_room_is_counted_and_told() {
        let sink = open("full");
        let number = sink.number();
        sink.push(source(number));
        sink.flush();
        let count = 20 * QUEUE;
        for at in 0..count as u64 {
            let text = String::new();
            sink.push(Event::Instant { source: number, at, kind: "warning", text });
        }
        sink.flush();
        sink.flush();
        let text = std::fs::read_to_string(sink.path()).expect("it is there");
        std::fs::remove_file(sink.path()).expect("it is there");
        let file = read::file("full", &text).expect("ours");
        let instants = &file.recordings[0].instants;
        let told = instants.iter().filter(|one| one.kind == "dropped");
        let dropped: usize = told.map(|one| one.text.parse::<usize>().expect("a number")).sum();
        let written = instants.iter().filter(|one| one.kind == "warning").count();
        assert!(dropped > 0 && written > 0, "{dropped} {written}");
        assert_eq!(dropped + written, count);
    }

    #[test]
    fn a_pattern_has_one_file_in_a_process() {
        let (one, other) = (open("same"), open("same"));
        assert!(Arc::ptr_eq(&one, &other));
        assert_ne!(one.number(), other.number());
        std::fs::remove_file(one.path()).expect("it is there");
    }
}
