//! Files, read back.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::model::{Call, FORMAT, Source};

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is not an array of events.
    #[error(
        "{file} is no trace: {problem}; expected what XDP_AGG_TRACE or a flight recording wrote"
    )]
    NoTrace {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// Its events are another program's.
    #[error(
        "{file} has trace events, but none that says which rank wrote it; expected what \
         XDP_AGG_TRACE or a flight recording wrote"
    )]
    Foreign {
        /// The file.
        file: String,
    },
    /// Another release wrote it.
    #[error("{file} has format {found}; this release reads {FORMAT}")]
    Format {
        /// The file.
        file: String,
        /// Its format.
        found: u64,
    },
    /// Two files that are not of one run.
    #[error("{0}")]
    Mixed(String),
}

/// Something that happened at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instant {
    /// When, in nanoseconds of the source's clock.
    pub at: u64,
    /// What.
    pub kind: String,
    /// More of it.
    pub text: String,
}

/// What one source has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The file that it is in.
    pub file: String,
    /// Who wrote it.
    pub source: Source,
    /// Its calls, in the order in which they were made.
    pub calls: Vec<Call>,
    /// Warnings, epochs, and what else happened.
    pub instants: Vec<Instant>,
    /// The time of its latest event.
    pub latest: u64,
    /// It has left in good order.
    pub left: bool,
}

/// A file: its recordings, all events as they stand there, and what is to be said of it.
#[derive(Clone, Debug)]
pub struct File {
    /// One a source.
    pub recordings: Vec<Recording>,
    /// All events.
    pub events: Vec<Value>,
    /// What its reader should know.
    pub notes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Args {
    call: Option<u64>,
    track: Option<u16>,
    what: Option<String>,
    #[serde(default)]
    len: u64,
    #[serde(default)]
    bytes: u64,
    dtype: Option<String>,
    op: Option<String>,
    digest: Option<String>,
    way: Option<String>,
    outcome: Option<String>,
    begun_ns: Option<u64>,
    first_sent_ns: Option<u64>,
    first_result_ns: Option<u64>,
    last_result_ns: Option<u64>,
    #[serde(default)]
    wait_us: f64,
    #[serde(default)]
    gap_us: f64,
    #[serde(default)]
    blocks: u64,
    #[serde(default)]
    repetitions: u32,
    #[serde(default)]
    pendings: u32,
    #[serde(default)]
    reforms: u32,
    #[serde(default)]
    missing: Vec<u16>,
}

/// Reads a file. One that ends in the middle of an event lacks that event; a note says so.
///
/// # Errors
/// It is not one of ours.
pub fn file(name: &str, text: &str) -> Result<File, ReadError> {
    let no_trace = |problem: String| ReadError::NoTrace { file: name.to_owned(), problem };
    let mut rest = text.trim_start();
    if rest.is_empty() {
        return Err(no_trace("it is empty".into()));
    }
    rest = rest.strip_prefix('[').ok_or_else(|| no_trace("it is no JSON array".into()))?;
    let (mut events, mut notes) = (Vec::new(), Vec::new());
    loop {
        rest = rest.trim_start_matches([' ', '\n', '\r', '\t', ',']);
        if rest.is_empty() || rest.starts_with(']') {
            break;
        }
        let mut one = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match one.next() {
            Some(Ok(event)) => {
                let end = one.byte_offset();
                events.push(event);
                rest = &rest[end..];
            }
            Some(Err(error)) if error.is_eof() => {
                notes.push(format!("{name} ends in the middle of an event, which is left out"));
                break;
            }
            Some(Err(error)) => {
                let at = events.len() + 1;
                return Err(no_trace(format!("event {at} is no JSON ({error})")));
            }
            None => break,
        }
    }
    let recordings = recordings(name, &events)?;
    for recording in &recordings {
        let lost = recording.instants.iter().filter(|instant| instant.kind == "dropped");
        let lost: u64 = lost.filter_map(|instant| instant.text.parse::<u64>().ok()).sum();
        if lost > 0 {
            let rank = recording.source.rank;
            notes.push(format!(
                "{name}: {lost} events of rank {rank} are missing, as its writer could not follow"
            ));
        }
    }
    Ok(File { recordings, events, notes })
}

fn recordings(name: &str, events: &[Value]) -> Result<Vec<Recording>, ReadError> {
    let mut found: Vec<Recording> = Vec::new();
    let mut open: HashMap<(u64, u16, u64), usize> = HashMap::new();
    for event in events {
        let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| event.get(key).and_then(Value::as_u64);
        let args = event.get("args").cloned().unwrap_or_default();
        let (Some(of), kind) = (number("pid"), text("name")) else { continue };
        if kind == "xdp_agg" {
            let format = args.get("format").and_then(Value::as_u64).unwrap_or_default();
            if format != u64::from(FORMAT) {
                return Err(ReadError::Format { file: name.to_owned(), found: format });
            }
            let source: Source = serde_json::from_value(args).map_err(|error| {
                let problem = format!("its description of a rank is wrong ({error})");
                ReadError::NoTrace { file: name.to_owned(), problem }
            })?;
            let latest = source.monotonic_ns;
            let (calls, instants) = (Vec::new(), Vec::new());
            let (file, left) = (name.to_owned(), false);
            found.push(Recording { file, source, calls, instants, latest, left });
            continue;
        }
        let Some(recording) = found.iter_mut().find(|r| u64::from(r.source.source) == of) else {
            continue;
        };
        let Some(at) = event.get("ts").and_then(Value::as_f64) else { continue };
        let at = (at * 1e3).round() as u64;
        recording.latest = recording.latest.max(at);
        match text("ph") {
            "i" => {
                let text = args.get("text").and_then(Value::as_str).unwrap_or_default().to_owned();
                recording.left |= kind == "left";
                recording.instants.push(Instant { at, kind: kind.to_owned(), text });
            }
            phase @ ("B" | "E") if text("cat") == "call" => {
                let args: Args = serde_json::from_value(args).unwrap_or_default();
                let (Some(call), Some(track)) = (args.call, args.track) else { continue };
                let key = (of, track, call);
                if phase == "B" {
                    open.insert(key, recording.calls.len());
                    recording.calls.push(begun(args, at, (call, track)));
                } else if let Some(index) = open.remove(&key) {
                    end(&mut recording.calls[index], args, at);
                }
            }
            _ => {}
        }
    }
    if found.is_empty() {
        return Err(ReadError::Foreign { file: name.to_owned() });
    }
    Ok(found)
}

fn begun(args: Args, made: u64, (number, track): (u64, u16)) -> Call {
    Call {
        number,
        track,
        what: args.what.unwrap_or_default(),
        len: args.len,
        bytes: args.bytes,
        dtype: args.dtype.unwrap_or_default(),
        op: args.op.unwrap_or_default(),
        digest: args.digest.and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or_default(),
        made,
        outcome: "running".into(),
        ..Call::default()
    }
}

fn end(call: &mut Call, args: Args, at: u64) {
    call.outcome = args.outcome.unwrap_or_default();
    call.ended = (call.outcome != "running").then_some(at);
    call.way = args.way.unwrap_or_default();
    call.begun = args.begun_ns;
    call.first_sent = args.first_sent_ns;
    call.first_result = args.first_result_ns;
    call.last_result = args.last_result_ns;
    call.wait = (args.wait_us * 1e3).round() as u64;
    call.gap = (args.gap_us * 1e3).round() as u64;
    call.blocks = args.blocks;
    call.repetitions = args.repetitions;
    call.pendings = args.pendings;
    call.reforms = args.reforms;
    call.missing = args.missing;
}

/// Files of one run: all their recordings, by job and rank.
///
/// # Errors
/// They are of several runs: a rank has two processes, or worlds differ.
pub fn of_one_run(files: &[File]) -> Result<Vec<&Recording>, ReadError> {
    let mut all: Vec<&Recording> = files.iter().flat_map(|file| &file.recordings).collect();
    all.sort_by(|a, b| (&a.source.job, a.source.rank).cmp(&(&b.source.job, b.source.rank)));
    for pair in all.windows(2) {
        let [first, second] = [&pair[0].source, &pair[1].source];
        let (one, other) = (&pair[0].file, &pair[1].file);
        if first.job != second.job {
            continue;
        }
        let job = &first.job;
        let advice = "give the files of one run only";
        if first.run != second.run {
            let names = [&first.run, &second.run].map(|run| run.as_deref().unwrap_or("none"));
            let [a, b] = names;
            return Err(ReadError::Mixed(format!(
                "{one} and {other} are of different runs of job {job} ({a} and {b}); {advice}"
            )));
        }
        if first.world_size != second.world_size {
            let (a, b) = (first.world_size, second.world_size);
            return Err(ReadError::Mixed(format!(
                "{one} and {other} are of different runs of job {job}: one has {a} workers, the \
                 other {b}; {advice}"
            )));
        }
        let of = |source: &Source| (source.host.clone(), source.process);
        if first.rank == second.rank && of(first) != of(second) {
            let rank = first.rank;
            return Err(ReadError::Mixed(format!(
                "rank {rank} of job {job} is in {one} and, as another process, in {other}: they \
                 are of different runs; {advice}"
            )));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
