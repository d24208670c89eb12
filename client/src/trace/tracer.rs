//! What a communicator remembers besides its engines, and how it reaches files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use xdp_agg_protocol::worker::{Ending, Label, Record};
use xdp_agg_trace::{Call, FORMAT, Kind, Source, Writer};

use super::calls::{MeshRecord, Origin, nanos, of_mesh};
use super::files::{self, Written};
use super::latest::Latest;
use super::settings::{Flights, Place, Tracing, expand};
use super::sink::{Event, Sink};
use crate::driver::sys;
use crate::error::Error;

/// The identity of a communicator.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) job: String,
    pub(crate) run: Option<String>,
    pub(crate) rank: u16,
    pub(crate) world_size: u16,
    pub(crate) local_rank: u16,
    pub(crate) local_size: u16,
}

/// A communicator's place in a trace.
#[derive(Debug)]
pub(super) struct Attached {
    sink: Arc<Sink>,
    source: u32,
}

impl Attached {
    pub(super) fn begun(&self, origin: Origin, record: Record) {
        self.sink.push(Event::Begin(self.source, origin, Box::new(record)));
    }

    pub(super) fn ended(&self, origin: Origin, now: u64, record: Record) {
        self.sink.push(Event::End(self.source, origin, now, Box::new(record)));
    }

    pub(super) fn instant(&self, at: u64, kind: &'static str, text: String) {
        self.sink.push(Event::Instant { source: self.source, at, kind, text });
    }

    pub(super) fn counter(&self, at: u64, track: u16, (window, in_flight): (u32, u32)) {
        let source = self.source;
        self.sink.push(Event::Counter { source, at, track, window, in_flight });
    }
}

/// What a communicator remembers.
#[derive(Debug)]
pub(crate) struct Tracer {
    source: Source,
    trace: Option<Arc<Attached>>,
    flights: Flights,
    mesh: Mutex<Mesh>,
    /// A failed call was recorded.
    failed: AtomicBool,
    left: AtomicBool,
    /// The latest flight recording.
    written: Mutex<Option<PathBuf>>,
}

/// Calls among the workers.
#[derive(Debug)]
struct Mesh {
    latest: Latest<MeshRecord>,
    in_flight: Vec<MeshRecord>,
}

impl Tracer {
    /// Opens what the settings want.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn new(settings: &Tracing, of: Identity) -> Result<Arc<Self>, Error> {
        let mut source = source(of);
        let trace = match &settings.trace {
            None => None,
            Some(pattern) => {
                let place = Place {
                    rank: source.rank,
                    world_size: source.world_size,
                    process: source.process,
                    host: source.host.clone(),
                };
                let sink = Sink::open(pattern, || expand(pattern, &place))?;
                source.source = sink.number();
                sink.push(Event::Source(Box::new(source.clone())));
                Some(Arc::new(Attached { sink, source: source.source }))
            }
        };
        Ok(Arc::new(Self {
            source,
            trace,
            flights: settings.flights.clone(),
            mesh: Mutex::new(Mesh { latest: Latest::new(), in_flight: Vec::new() }),
            failed: AtomicBool::new(false),
            left: AtomicBool::new(false),
            written: Mutex::default(),
        }))
    }

    pub(super) const fn world_size(&self) -> u16 {
        self.source.world_size
    }

    pub(super) fn attached(&self) -> Option<Arc<Attached>> {
        self.trace.clone()
    }

    /// The file of the trace, if one is written.
    pub(crate) fn trace_file(&self) -> Option<PathBuf> {
        self.trace.as_ref().map(|trace| trace.sink.path().to_owned())
    }

    /// The latest flight recording that was written.
    pub(crate) fn flight_file(&self) -> Option<PathBuf> {
        self.written.lock().clone()
    }

    /// The communicator leaves: its trace is in the file when this returns.
    pub(crate) fn leave(&self) {
        if self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(trace) = &self.trace {
            trace.sink.push(Event::Left(trace.source, now()));
            trace.sink.flush();
        }
    }

    /// A call among the workers begins; it ends with what is returned.
    pub(crate) fn mesh_call(self: &Arc<Self>, number: u64, what: &str, digest: u64) -> MeshCall {
        let (what, made) = (Label::new(what), now());
        let (begun, ended, ending) = (None, None, Ending::Running);
        let record = MeshRecord { number, what, digest, made, begun, ended, ending };
        self.mesh.lock().in_flight.push(record);
        if let Some(trace) = &self.trace {
            trace.sink.push(Event::BeginMesh(trace.source, record));
        }
        MeshCall { tracer: Arc::clone(self), record }
    }

    fn mesh_ended(&self, record: MeshRecord) {
        let mut mesh = self.mesh.lock();
        mesh.in_flight.retain(|other| other.number != record.number);
        mesh.latest.push(record);
        drop(mesh);
        if let Some(trace) = &self.trace {
            trace.sink.push(Event::EndMesh(trace.source, record));
        }
    }

    /// A flight recording with these calls of the engines.
    pub(crate) fn flight(&self, mut calls: Vec<Call>, reason: &str) -> String {
        let at = now();
        if let Some(mesh) = self.mesh.try_lock_for(std::time::Duration::from_secs(1)) {
            let all = mesh.latest.iter().chain(&mesh.in_flight);
            calls.extend(all.map(|record| of_mesh(record, at)));
        }
        let reason = Some(reason.to_owned());
        let source = Source { source: 1, kind: Kind::Flight, reason, ..self.source.clone() };
        let mut writer = Writer::default();
        writer.source(&source);
        // Rows are given out in the order of time.
        let begins = calls.iter().map(|call| (call.made, true, call));
        let ends = calls.iter().map(|call| (call.ended.unwrap_or(at), false, call));
        let mut all: Vec<_> = begins.chain(ends).collect();
        let within = |begins: bool, at: u64, call: &Call| match begins {
            true => 1,
            false if call.made == at => 2,
            false => 0,
        };
        all.sort_by_key(|(at, begins, call)| (*at, within(*begins, *at, call)));
        for (_, begins, call) in all {
            if begins { writer.begin(1, call) } else { writer.end(1, call) }
        }
        writer.instant(1, at, "flight recording", source.reason.as_deref().unwrap_or_default());
        writer.finish();
        writer.take()
    }

    /// True, once: a failed call is to be recorded.
    pub(crate) fn is_first_failure(&self) -> bool {
        self.flights != Flights::Off && !self.failed.swap(true, Ordering::Relaxed)
    }

    /// Writes a recording of a failed call.
    pub(crate) fn write_of_failure(&self, text: &str) -> io::Result<Written> {
        let written = files::write_of_failure(&self.flights, self.source.rank, text)?;
        if let Written::To(path) = &written {
            *self.written.lock() = Some(path.clone());
        }
        Ok(written)
    }

    /// Writes a recording that somebody asked for.
    pub(crate) fn write(&self, text: &str) -> io::Result<PathBuf> {
        let path = files::write(&self.flights, self.source.rank, text)?;
        *self.written.lock() = Some(path.clone());
        Ok(path)
    }
}

/// A call among the workers, under way. Dropped before its end it has failed.
#[derive(Debug)]
pub(crate) struct MeshCall {
    tracer: Arc<Tracer>,
    record: MeshRecord,
}

impl MeshCall {
    /// Its turn has come.
    pub(crate) fn begin(&mut self) {
        self.record.begun = Some(now());
    }

    /// It has its result.
    pub(crate) fn done(mut self) {
        self.record.ending = Ending::Done;
    }
}

impl Drop for MeshCall {
    fn drop(&mut self) {
        if self.record.ending == Ending::Running {
            self.record.ending = Ending::Failed;
        }
        self.record.ended = Some(now());
        self.tracer.mesh_ended(self.record);
    }
}

fn now() -> u64 {
    nanos(sys::monotonic())
}

fn source(of: Identity) -> Source {
    let Identity { job, run, rank, world_size, local_rank, local_size } = of;
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // A container may have a clock of its own.
    let clock = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    let realtime = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Source {
        format: FORMAT,
        source: 1,
        kind: Kind::Trace,
        job,
        run,
        rank,
        world_size,
        local_rank,
        local_size,
        host: read("/proc/sys/kernel/hostname"),
        process: std::process::id(),
        clock: format!("{} {}", read("/proc/sys/kernel/random/boot_id"), clock.display()),
        monotonic_ns: now(),
        realtime_ns: nanos(realtime),
        reason: None,
    }
}
