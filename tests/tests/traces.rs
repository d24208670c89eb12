//! Traces and flight recordings of real jobs, and what is found in them.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{LIMIT, Lab, at_all, need_root, network, watched};
use tempfile::TempDir;
use xdp_agg_client::collectives::{Choice, Way};
use xdp_agg_client::{Error, JobError, Op};
use xdp_agg_testbed::program;
use xdp_agg_testbed::steady::{Steady, Work};

const SECOND: Duration = Duration::from_secs(1);
const RANKS: u16 = 4;
/// Calls of a job that ends by itself.
const CALLS: u64 = 150;
/// How long a rank is stopped.
const STOP: Duration = Duration::from_secs(2);

/// Calls that leave the processors to others: no rank is late by itself.
fn work(calls: u64) -> Work {
    Work { calls, longest: 20_000, pause: SECOND / 100, ..Work::default() }
}

fn trace_of(directory: &Path, rank: u16) -> PathBuf {
    directory.join(format!("xdp-agg-trace-r{rank}.json"))
}

fn traces(directory: &Path) -> Vec<PathBuf> {
    (0..RANKS).map(|rank| trace_of(directory, rank)).collect()
}

/// A job whose workers write traces into this directory.
fn traced(lab: &Lab, job: &str, directory: &Path, calls: u64) -> Vec<Steady> {
    let text = directory.to_str().expect("a name that is text");
    let settings = [("XDP_AGG_TRACE", text), ("XDP_AGG_FLIGHT_DIR", text)];
    lab.steady_job(job, RANKS, &settings, &work(calls))
}

/// `xdp-agg trace` with these arguments: what it prints.
fn trace(arguments: &[&str], files: &[PathBuf]) -> String {
    let mut command = Command::new(program("xdp-agg").expect("built"));
    let done = command.arg("trace").args(arguments).args(files).output().expect("it runs");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(done.stdout).expect("text")
}

fn diagnosis(files: &[PathBuf]) -> Value {
    // A busy machine makes others late, too, by less.
    let text = trace(&["diagnose", "--json", "--late", "1000"], files);
    let mut jobs: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    assert_eq!(jobs.len(), 1, "{text}");
    jobs.remove(0)
}

/// An event, its time, and what goes first at the same time.
type Timed<'a> = (f64, u8, &'a Value);

/// Holds events against the schema that is checked in.
fn conforms(events: &[Value]) {
    let schema = include_str!("../../crates/trace/trace-events.schema.json");
    let schema = serde_json::from_str(schema).expect("the schema is JSON");
    let schema = jsonschema::validator_for(&schema).expect("and a schema");
    let events = Value::Array(events.to_vec());
    let wrong: Vec<String> =
        schema.iter_errors(&events).take(3).map(|e| format!("{}: {e}", e.instance())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Checks events against the format: each has its keys, what begins ends in its row, what is nested
/// stays inside, and a whole file is in the order of time.
fn check_format(text: &str, is_sorted: bool) -> Vec<Value> {
    let whole = text.trim_end().trim_end_matches(['\n', ',', ']']);
    let events: Vec<Value> = serde_json::from_str(&format!("{whole}\n]")).expect("an array");
    conforms(&events);
    let mut rows: BTreeMap<[u64; 2], Vec<Timed<'_>>> = BTreeMap::new();
    let mut latest = 0.0;
    for event in &events {
        let phase = event["ph"].as_str().expect("a phase");
        assert!(event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        let row = ["pid", "tid"].map(|key| event[key].as_u64().expect("a number"));
        if phase == "M" {
            assert!(event["args"].is_object(), "{event}");
            continue;
        }
        let at = event["ts"].as_f64().expect("a time");
        assert!(!is_sorted || at >= latest, "{event} after {latest}");
        latest = at;
        // At the same moment what ends stands before what begins.
        let order = match phase {
            "E" => 0,
            "B" => 1,
            "X" => 2,
            "i" | "C" => continue,
            other => panic!("phase {other}"),
        };
        rows.entry(row).or_default().push((at, order, event));
    }
    for (row, mut events) in rows {
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut open: Option<(&Value, f64)> = None;
        for (at, order, event) in events {
            match order {
                0 => {
                    let (begin, since) = open.take().unwrap_or_else(|| panic!("{row:?}: {event}"));
                    assert_eq!(begin["name"], event["name"], "{row:?}");
                    assert!(at >= since);
                }
                1 => {
                    assert!(open.is_none(), "{row:?}: {event} in {open:?}");
                    open = Some((event, at));
                }
                _ => {
                    assert!(open.is_some_and(|(_, since)| at >= since), "{row:?}: {event}");
                    assert!(event["dur"].as_f64().is_some_and(|long| long > 0.0), "{event}");
                }
            }
        }
    }
    events
}

/// A rank is stopped for two seconds in the middle of a job: the merged trace shows it, and the
/// diagnosis names it, and nobody else, with the time.
#[test]
fn a_stopped_rank_is_seen_and_named() {
    need_root!();
    let lab = Lab::start(network(RANKS, "ports"), "xdp");
    let directory = TempDir::new().expect("a directory");
    let mut workers = traced(&lab, "traced", directory.path(), CALLS);
    for worker in &workers {
        worker.wait_calls(20, LIMIT).expect("calls");
    }
    workers[2].process.signal(libc::SIGSTOP).expect("it runs");
    thread::sleep(STOP);
    workers[2].process.signal(libc::SIGCONT).expect("it is stopped");
    for worker in workers {
        let ended = worker.process.wait(LIMIT).expect("it ends");
        assert!(ended.status.success(), "{ended:?}");
    }
    let files = traces(directory.path());
    for file in &files {
        check_format(&fs::read_to_string(file).expect("it is there"), false);
    }
    let found = diagnosis(&files);
    let late = found["late"].as_array().expect("a list");
    assert!(!late.is_empty(), "{found:#}");
    for late in late {
        assert_eq!(late["rank"], 2, "{found:#}");
        let by = late["by_ms"].as_f64().expect("a time");
        assert!((1800.0..2800.0).contains(&by), "{found:#}");
    }
    for nothing in ["differs", "stopped", "hangs", "without_file"] {
        assert_eq!(found[nothing], Value::Array(Vec::new()), "{found:#}");
    }
    for rank in found["ranks"].as_array().expect("a list") {
        assert_eq!(rank["calls"], CALLS, "{found:#}");
        // One host, one clock.
        assert_eq!(rank["clock"], "same", "{found:#}");
    }
    let merged = directory.path().join("merged.json");
    trace(&["merge", "-o", merged.to_str().expect("text")], &files);
    let text = fs::read_to_string(&merged).expect("it is there");
    let events = check_format(&text, true);
    let names = events.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&str> = names.filter_map(|event| event["args"]["name"].as_str()).collect();
    assert_eq!(names.len(), usize::from(RANKS), "{names:?}");
    assert!(names[3].starts_with("rank 3 of 4, job traced ("), "{names:?}");
    // The call that the stop is in, or before, has a wait of that length at the other ranks.
    let ends = events.iter().filter(|event| event["ph"] == "E");
    let waited = ends.filter(|end| end["args"]["wait_us"].as_f64().is_some_and(|us| us > 1.8e6));
    let call = late[0]["call"].as_u64();
    let ranks = waited.filter(|end| end["args"]["call"].as_u64() == call);
    assert!(ranks.count() >= 3, "others wait for it in call {call:?}");
    assert!(events.iter().any(|event| event["ph"] == "C"), "windows");
    assert!(events.iter().any(|event| event["name"] == "epoch"), "epochs");
    // The merged file is a trace like any other.
    assert_eq!(diagnosis(&[merged])["late"], found["late"]);
    a_clock_of_its_own_is_found(&files, directory.path());
}

/// The file of rank 1, as it would be if that were a host with another clock: the calls tell how
/// far it is ahead, within the bound that is stated.
fn a_clock_of_its_own_is_found(files: &[PathBuf], directory: &Path) {
    const AHEAD: u64 = 7_654_321_987;
    let text = fs::read_to_string(&files[1]).expect("it is there");
    let lines = text.lines().map(|line| {
        let Ok(mut event) = serde_json::from_str::<Value>(line.trim_end_matches(',')) else {
            return line.to_owned();
        };
        if let Some(at) = event["ts"].as_f64() {
            event["ts"] = (at + AHEAD as f64 / 1e3).into();
        }
        for (key, value) in
            event.get_mut("args").and_then(Value::as_object_mut).into_iter().flatten()
        {
            if let (true, Some(at)) = (key.ends_with("_ns"), value.as_u64()) {
                *value = (at + AHEAD).into();
            }
            if key == "clock" {
                *value = "another host".into();
            }
        }
        format!("{event},")
    });
    let moved = directory.join("moved.json");
    let text: Vec<String> = lines.collect();
    fs::write(&moved, text.join("\n").trim_end_matches(',')).expect("written");
    let found = diagnosis(&[files[0].clone(), moved.clone()]);
    let rank = &found["ranks"][1];
    assert_eq!(rank["clock"], "calls", "{found:#}");
    let bound = rank["clock_error_us"].as_f64().expect("a bound");
    assert!(bound < 2000.0, "{bound} us");
    let merged = trace(&["merge"], &[files[0].clone(), moved]);
    let whole = fs::read_to_string(&files[1]).expect("it is there");
    let began = |text: &str| -> BTreeMap<u64, f64> {
        let events = check_format(text, false);
        let source = events.iter().find(|e| e["name"] == "xdp_agg" && e["args"]["rank"] == 1);
        let of = &source.expect("rank 1")["pid"];
        let begins = events.iter().filter(|e| e["ph"] == "B" && e["pid"] == *of);
        begins
            .map(|e| (e["args"]["call"].as_u64().expect("a call"), e["ts"].as_f64().expect("ts")))
            .collect()
    };
    let (found, truth) = (began(&merged), began(&whole));
    assert_eq!(found.len(), truth.len());
    for (call, at) in truth {
        let off = (found[&call] - at).abs();
        assert!(off <= bound + 1.0, "call {call} is off by {off} us of at most {bound}");
    }
}

/// A rank is killed: its file is one to the last moment, and the diagnosis names it.
#[test]
fn a_killed_rank_is_named() {
    need_root!();
    let lab = Lab::start(network(RANKS, "ports"), "xdp");
    let directory = TempDir::new().expect("a directory");
    let mut workers = traced(&lab, "killed", directory.path(), u64::MAX);
    for worker in &workers {
        worker.wait_calls(20, LIMIT).expect("calls");
    }
    // What was done is in the file after a moment.
    thread::sleep(SECOND / 2);
    workers.remove(1).kill().expect("it runs");
    let since = Instant::now();
    for worker in workers {
        watched::failure_of(&worker, since - SECOND);
        worker.process.wait(LIMIT).expect("it ends");
    }
    let files = traces(directory.path());
    let found = diagnosis(&files);
    let stopped = found["stopped"].as_array().expect("a list");
    assert_eq!(stopped.len(), 1, "{found:#}");
    assert_eq!(stopped[0]["rank"], 1, "{found:#}");
    assert!(stopped[0]["last_call"][0].as_u64().is_some_and(|call| call >= 19), "{found:#}");
    check_format(&fs::read_to_string(&files[1]).expect("it is there"), false);
    // The others have written flight recordings, which name it, too.
    let flights = flights(directory.path());
    assert_eq!(flights.len(), 3, "{flights:?}");
    let found = diagnosis(&flights);
    assert_eq!(found["without_file"], serde_json::json!([1]), "{found:#}");
    let reason = found["ranks"][0]["reason"].as_str().expect("why it was written");
    assert!(reason.contains("rank 1"), "{reason}");
    // Traces and recordings of a job go together.
    let both: Vec<PathBuf> = files.into_iter().chain(flights).collect();
    assert_eq!(diagnosis(&both)["stopped"][0]["rank"], 1);
}

fn flights(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("it is there");
    let paths = entries.map(|entry| entry.expect("it is there").path());
    let is_flight = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("flight-r"))
    };
    let mut found: Vec<PathBuf> = paths.filter(is_flight).collect();
    found.sort();
    found
}

/// A rank calls another size: each communicator writes a recording, and their diagnosis names the
/// rank.
#[test]
fn a_rank_that_calls_another_size_is_named() {
    need_root!();
    let lab = Lab::start(network(RANKS, "ports"), "xdp");
    let directory = TempDir::new().expect("a directory");
    let workers = lab.connect("differing", RANKS, |b| b.flight_dir(directory.path()));
    at_all(&lab.topology, &workers, |worker| {
        for len in [10, 5000, 1] {
            worker.all_reduce(&mut vec![1.0_f32; len], Op::Sum).expect("all call the same");
        }
        let ring = Choice::new(Way::Ring);
        worker.all_reduce_by(&mut [1_i32; 100], Op::Sum, ring).expect("round the ring");
        assert_eq!(worker.flight_file(), None);
        let len = if worker.rank() == 3 { 4999 } else { 5000 };
        let error = worker.all_reduce(&mut vec![1.0_f32; len], Op::Sum).expect_err("they differ");
        assert!(matches!(error, Error::Job(JobError::CallMismatch { .. })), "{error}");
        // Once, and readable by its owner alone.
        let file = worker.flight_file().expect("it was recorded");
        worker.all_reduce(&mut [1.0_f32], Op::Sum).expect_err("it has ended");
        assert_eq!(worker.flight_file(), Some(file));
        assert!(worker.flight_recording().contains("the program asked for it"));
    });
    let files = flights(directory.path());
    assert_eq!(files.len(), usize::from(RANKS), "{files:?}");
    for file in &files {
        check_format(&fs::read_to_string(file).expect("it is there"), false);
    }
    let found = diagnosis(&files);
    let differs = &found["differs"][0];
    assert_eq!(differs["odd"], serde_json::json!([3]), "{found:#}");
    let text = trace(&["diagnose"], &files);
    assert!(text.contains("rank 3: all-reduce (sum) of 4999 f32"), "{text}");
    let ring = |r: &Value| r["calls"].as_u64().is_some_and(|calls| calls >= 5);
    assert!(found["ranks"].as_array().expect("a list").iter().all(ring), "{found:#}");
}

/// A signal has a job that hangs write what it is in: the rank that never came is named.
#[test]
fn a_signal_has_recordings_written() {
    need_root!();
    let lab = Lab::start(network(RANKS, "ports"), "userspace");
    let directory = TempDir::new().expect("a directory");
    let text = directory.path().to_str().expect("text");
    let settings = [("XDP_AGG_FLIGHT_DIR", text), ("XDP_AGG_FLIGHT_SIGNAL", "SIGUSR2")];
    let work = Work { calls: u64::MAX, longest: 1000, pause: SECOND / 20, ..Work::default() };
    let mut workers = lab.steady_job("signalled", RANKS, &settings, &work);
    workers[1].process.signal(libc::SIGSTOP).expect("it runs");
    thread::sleep(2 * SECOND);
    for worker in &mut workers {
        worker.process.signal(libc::SIGUSR2).expect("it runs");
    }
    let wait_for = |count| {
        let until = Instant::now() + LIMIT;
        while flights(directory.path()).len() < count {
            assert!(Instant::now() < until, "{:?}", flights(directory.path()));
            thread::sleep(SECOND / 50);
        }
    };
    wait_for(3);
    workers[1].process.signal(libc::SIGCONT).expect("it is stopped");
    wait_for(4);
    // The name is there before the text.
    thread::sleep(SECOND / 2);
    let found = diagnosis(&flights(directory.path()));
    let hangs = &found["hangs"][0];
    let late = found["late"].as_array().expect("a list");
    let named = hangs["absent"] == serde_json::json!([1]) || late.iter().any(|l| l["rank"] == 1);
    assert!(named, "{found:#}");
    for worker in workers {
        worker.kill().expect("it runs: the signal ends nothing");
    }
}

/// What is no trace, and files of two runs, are refused with the reason.
#[test]
fn what_cannot_be_used_is_told() {
    let directory = TempDir::new().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("written");
        path
    };
    let foreign = file("foreign.json", r#"[{"name":"x","ph":"X","ts":1,"dur":2,"pid":1,"tid":1}]"#);
    let none = file("none.json", "{}");
    let gone = directory.path().join("gone.json");
    for (path, words) in [
        (foreign, "none that says which rank wrote it"),
        (none, "is no trace: it is no JSON array"),
        (gone, "No such file"),
    ] {
        let mut command = Command::new(program("xdp-agg").expect("built"));
        let done = command.args(["trace", "diagnose"]).arg(&path).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(1) && said.contains(words), "{said}");
    }
}
