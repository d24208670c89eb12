//! What the daemon tells of itself over HTTP.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use xdp_agg::config::Partial;
use xdp_agg::observe::HttpListener;
use xdp_agg::observe::api::{Completion, Events, Job, RankState, State};
use xdp_agg_common::maps::Reject;

use crate::daemon::{Daemon, PATIENCE, settings};
use crate::worker::{Client, Worker, connect_from, wish};

/// Says something to a server and hears all of the answer.
fn say(http: SocketAddr, from: Ipv4Addr, bytes: &[u8]) -> String {
    let mut stream = connect_from(from, http);
    // It may hang up before it has heard all.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("it answers in UTF-8")
}

fn request(line: &str, more: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n")
}

/// Status and body of an answer to GET.
fn get(http: SocketAddr, path: &str) -> (u16, String) {
    let answer = say(http, Ipv4Addr::LOCALHOST, request(&format!("GET {path}"), "").as_bytes());
    status(&answer)
}

fn status(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.unwrap_or_else(|| panic!("no status: {answer:?}")), body.to_owned())
}

fn state(daemon: &Daemon) -> State {
    let (code, body) = get(daemon.http, "/api/v1/jobs");
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).expect("it is what the types say")
}

/// The first job, as soon as it is as wanted, and how long that took.
fn job_that(daemon: &Daemon, what: &str, wanted: impl Fn(&Job) -> bool) -> (Job, Duration) {
    let start = Instant::now();
    loop {
        let state = state(daemon);
        if let Some(job) = state.jobs.into_iter().next().filter(|job| wanted(job)) {
            return (job, start.elapsed());
        }
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kinds(daemon: &Daemon, since: u64) -> Vec<(String, Option<u16>)> {
    let (code, body) = get(daemon.http, &format!("/api/v1/events?since={since}"));
    assert_eq!(code, 200, "{body}");
    let events: Events = serde_json::from_str(&body).expect("it is what the types say");
    events.events.into_iter().map(|event| (event.kind, event.rank)).collect()
}

fn all_contribute(workers: &[Worker], block: u64) {
    for worker in workers {
        worker.contribute(block, &[1]);
    }
    for worker in workers {
        assert_eq!(worker.result().0, block);
    }
}

#[test]
fn a_rank_that_others_wait_for_is_named_within_a_second() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 3));
    for block in 0..5 {
        all_contribute(&workers, block);
    }
    let (job, _) = job_that(&daemon, "all five blocks", |job| job.blocks_completed == 5);
    let nexts: Vec<_> = job.ranks.iter().map(|rank| rank.blocks_contributed).collect();
    assert_eq!((job.slots_in_use, nexts), (0, vec![Some(5); 3]));
    // Nobody calls anything: nobody is late, however long.
    std::thread::sleep(Duration::from_millis(1200));
    let (job, _) = job_that(&daemon, "a job", |_| true);
    assert!(job.ranks.iter().all(|rank| rank.state == RankState::Ok), "{job:?}");
    assert!(!job.stalled && job.ranks.iter().all(|rank| rank.lag_seconds == Some(0.0)));

    // Two go on, the third one does not.
    for block in 5..8 {
        workers[0].contribute(block, &[1]);
    }
    workers[1].contribute(5, &[1]);
    let late = |job: &Job| job.ranks.iter().any(|rank| rank.state == RankState::Late);
    let (job, took) = job_that(&daemon, "a late rank", late);
    assert!(took < Duration::from_secs(1), "{took:?}");
    // The second one is behind as well, but has contributed to the block that all wait for.
    let states: Vec<_> = job.ranks.iter().map(|rank| rank.state).collect();
    assert_eq!(states, [RankState::Ok, RankState::Ok, RankState::Late], "{job:?}");
    let lags: Vec<_> = job.ranks.iter().map(|rank| rank.lag_blocks).collect();
    assert_eq!((lags, job.slots_in_use), (vec![Some(0), Some(2), Some(3)], 3));
    assert!(job.stalled && job.ranks[2].lag_seconds >= Some(0.5), "{job:?}");

    // They come: nobody waits.
    for block in 5..8 {
        workers[1].contribute(block, &[1]);
        workers[2].contribute(block, &[1]);
    }
    let fine = |job: &Job| job.ranks.iter().all(|rank| rank.state == RankState::Ok);
    let (job, _) = job_that(&daemon, "nobody late", fine);
    assert_eq!((job.blocks_completed, job.slots_in_use), (8, 0));
    let kinds = kinds(&daemon, 0);
    assert_eq!(kinds[0], ("job_started".into(), None));
    for kind in ["rank_late", "rank_caught_up"] {
        assert!(kinds.contains(&(kind.into(), Some(2))), "{kinds:?}");
    }
    assert!(!kinds.iter().any(|(_, rank)| *rank == Some(0)), "{kinds:?}");
}

#[test]
fn times_of_blocks_and_repetitions_of_ranks_are_shown() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    for block in 0..7 {
        all_contribute(&workers, block);
    }
    // The last block of a pool of eight is timed, and its second contribution comes late.
    workers[0].contribute(7, &[1]);
    std::thread::sleep(Duration::from_millis(150));
    for _ in 0..3 {
        workers[0].contribute(7, &[1]);
    }
    workers[1].contribute(7, &[1]);
    let (job, _) = job_that(&daemon, "eight blocks", |job| job.blocks_completed == 8);
    let Completion { timed, seconds, p50_seconds, p99_seconds, buckets } = job.completion;
    assert_eq!((timed, buckets.len()), (1, 1), "{buckets:?}");
    assert!((0.15..2.0).contains(&seconds), "{seconds}");
    let bound = buckets[0].below_seconds.expect("less than 4 s");
    assert!(bound / 2.0 <= seconds && seconds < bound, "{bound}");
    for part in [p50_seconds, p99_seconds] {
        assert!(part.is_some_and(|part| bound / 2.0 <= part && part <= bound), "{part:?}");
    }
    let repetitions: Vec<_> = job.ranks.iter().map(|rank| rank.repetitions).collect();
    assert_eq!(repetitions, [Some(3), Some(0)]);
    let (_, metrics) = get(daemon.http, "/metrics");
    let labels = "job_name=\"train\",job_id=\"0\"";
    let counted = format!("xdp_agg_block_completion_seconds_count{{{labels}}}");
    assert_eq!(sample(&metrics, &counted), Some(1.0));
    let again = format!("xdp_agg_rank_repetitions_total{{{labels},rank=\"0\"}}");
    assert_eq!(sample(&metrics, &again), Some(3.0));
}

#[test]
fn ranks_that_leave_and_jobs_that_end_are_events() {
    let daemon = Daemon::start();
    let mut workers = Worker::all(daemon.control, &wish("short", 0, 3));
    all_contribute(&workers, 0);
    let last = workers.pop().expect("there are three");
    drop(last);
    // The policy is to fail.
    for worker in &mut workers {
        worker.aborted();
    }
    let start = Instant::now();
    loop {
        let kinds = kinds(&daemon, 0);
        if kinds.len() >= 3 {
            let expected = [("job_started", None), ("rank_lost", Some(2)), ("job_ended", None)];
            assert_eq!(kinds, expected.map(|(kind, rank)| (kind.to_owned(), rank)));
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{kinds:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(kinds(&daemon, 2).len(), 1);
    assert!(kinds(&daemon, 3).is_empty());
}

#[test]
fn an_answer_is_as_its_schema_says() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    all_contribute(&workers, 0);
    job_that(&daemon, "a block", |job| job.blocks_completed == 1);
    let (_, body) = get(daemon.http, "/api/v1/jobs");
    let schema = include_str!("../../assets/jobs.schema.json");
    let schema: Value = serde_json::from_str(schema).expect("it is JSON");
    let validator = jsonschema::validator_for(&schema).expect("it is a schema");
    let answer: Value = serde_json::from_str(&body).expect("it is JSON");
    let errors: Vec<_> = validator.iter_errors(&answer).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}\n{body}");
    // A field more or less would be noticed.
    let mut odd = answer.clone();
    odd["jobs"][0]["ranks"][0]["new"] = Value::from(1);
    assert!(!validator.is_valid(&odd));
    let mut odd = answer;
    odd["daemon"].as_object_mut().expect("it is one").remove("ready");
    assert!(!validator.is_valid(&odd));
}

/// The value of a sample, by its name and labels as they are written.
fn sample(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn metrics_say_what_stats_says() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    for block in 0..4 {
        all_contribute(&workers, block);
    }
    workers[0].contribute(3, &[1]);
    workers[0].send_raw(b"nothing of ours");
    assert_eq!(workers[0].result().0, 3, "the repetition is answered");
    let stats = Client::connect(daemon.control).stats();
    let job = &stats.jobs[0].counters;
    assert_eq!((job.blocks, job.duplicates, job.resends), (4, 1, 1));
    std::thread::sleep(Duration::from_millis(500));
    let (code, metrics) = get(daemon.http, "/metrics");
    assert_eq!(code, 200);
    let of_job = |name: &str| format!("{name}{{job_name=\"train\",job_id=\"0\"}}");
    let expected = [
        ("xdp_agg_contributions_total", job.contributions),
        ("xdp_agg_blocks_completed_total", job.blocks),
        ("xdp_agg_duplicates_total", job.duplicates),
        ("xdp_agg_results_resent_total", job.resends),
        ("xdp_agg_probes_total", job.probes),
        ("xdp_agg_result_packets_total", job.copies),
    ];
    for (name, count) in expected {
        assert_eq!(sample(&metrics, &of_job(name)), Some(count as f64), "{name}\n{metrics}");
    }
    let truncated =
        "xdp_agg_packets_rejected_total{job_name=\"\",job_id=\"\",reason=\"truncated\"}";
    let counted = stats.unattributed.rejects[Reject::Truncated as usize];
    assert_eq!((counted, sample(&metrics, truncated)), (1, Some(1.0)));
    let accepted = sample(&metrics, "xdp_agg_control_connections_accepted_total");
    assert_eq!(accepted, Some(stats.control.accepted as f64));
    assert_eq!(sample(&metrics, "xdp_agg_control_connections{kind=\"member\"}"), Some(2.0));
    assert!(!metrics.contains("# EOF") && !metrics.contains("# UNIT"));

    let open = request("GET /metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    let open = say(daemon.http, Ipv4Addr::LOCALHOST, open.as_bytes());
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE xdp_agg_contributions counter\n"));
}

#[test]
fn wrong_questions_get_one_clear_line() {
    let daemon = Daemon::start();
    job_less(&daemon);
    let ask = |line: &str, more: &str| {
        let answer = say(daemon.http, Ipv4Addr::LOCALHOST, request(line, more).as_bytes());
        assert!(answer.contains("content-security-policy: default-src 'none'"), "{answer}");
        status(&answer)
    };
    let cases = [
        ("GET /nowhere", "", 404, "no such path"),
        ("GET /metrics/", "", 404, "no such path"),
        ("POST /metrics", "Content-Length: 3\r\n", 405, "read-only"),
        ("DELETE /api/v1/jobs", "", 405, "read-only"),
        ("GET /api/v1/events?since=-1", "", 400, "since=N"),
        ("GET /api/v1/events?since=99999999999999999999", "", 400, "since=N"),
        ("GET /metrics", "Host: evil.example:9871\r\n", 403, "this host alone"),
        ("GET http://evil.example/metrics", "", 403, "this host alone"),
    ];
    for (line, more, code, words) in cases {
        let (is, body) = ask(line, more);
        assert!(is == code && body.contains(words) && body.lines().count() == 1, "{line}: {body}");
    }
    for path in ["/", "/metrics", "/healthz", "/readyz", "/api/v1/jobs", "/api/v1/events"] {
        assert_eq!(ask(&format!("GET {path}"), "").0, 200, "{path}");
        let (code, body) = ask(&format!("HEAD {path}"), "");
        assert_eq!((code, body.as_str()), (200, ""), "{path}");
    }
}

/// Waits until the observer has looked once.
fn job_less(daemon: &Daemon) {
    let start = Instant::now();
    while get(daemon.http, "/readyz").0 != 200 {
        assert!(start.elapsed() < PATIENCE, "it does not get ready");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_strangers_say_harms_nobody() {
    let daemon = Daemon::start();
    let workers = Worker::all(daemon.control, &wish("train", 0, 2));
    let http = daemon.http;
    let from = Ipv4Addr::new(127, 0, 0, 66);
    let huge = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(5000));
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "y".repeat(1 << 20));
    let garbage: Vec<u8> =
        (0..1 << 16).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let body =
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n";
    let bad: [&[u8]; 7] = [
        huge.as_bytes(),
        many.as_bytes(),
        long.as_bytes(),
        &garbage,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        body.as_bytes(),
    ];
    // Connections that say half a request and no more: many, of several addresses.
    let mut slow: Vec<TcpStream> = Vec::new();
    for round in 0..200_u32 {
        let from = Ipv4Addr::new(127, 0, 1, (round % 7) as u8 + 1);
        let mut stream = connect_from(from, http);
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHo");
        slow.push(stream);
    }
    for (block, bytes) in (0..).zip(bad.iter().cycle().take(21)) {
        let mut stream = connect_from(from, http);
        let _ = stream.write_all(bytes);
        slow.push(stream);
        all_contribute(&workers, block);
        // All others are answered.
        assert_eq!(get(http, "/healthz").0, 200);
    }
    let (code, metrics) = get(http, "/metrics");
    assert_eq!(code, 200);
    let blocks = "xdp_agg_blocks_completed_total{job_name=\"train\",job_id=\"0\"}";
    let start = Instant::now();
    let mut metrics = metrics;
    while sample(&metrics, blocks) != Some(21.0) {
        assert!(start.elapsed() < PATIENCE, "{metrics}");
        metrics = get(http, "/metrics").1;
    }
    // Of each address a few are kept; the others were told to go.
    let mut open = 0;
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("it is possible");
        let mut rest = [0; 64];
        let waits = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        open += usize::from(stream.read(&mut rest).is_err_and(|error| waits(&error)));
    }
    assert!(open <= 64, "{open} connections are kept");
    assert_eq!(Client::connect(daemon.control).stats().jobs[0].counters.blocks, 21);
}

#[test]
fn an_address_that_cannot_be_had_is_an_error_that_names_it() {
    let daemon = Daemon::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let taken = HttpListener::bind(daemon.http).expect_err("it is taken").to_string();
    assert!(taken.contains(&daemon.http.to_string()) && taken.contains("--http"), "{taken}");
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9871));
    let foreign = HttpListener::bind(elsewhere).expect_err("it is not ours").to_string();
    assert!(foreign.contains("192.0.2.1:9871"), "{foreign}");
}

#[test]
fn forty_eight_jobs_are_scraped_in_twenty_milliseconds() {
    let daemon = Daemon::with(Partial { slots: Some(48 * 8), ..settings() });
    let daemon = daemon.expect("free ports are always free");
    let names = (0..48).map(|number| format!("job {number}"));
    let jobs: Vec<_> = names.map(|name| Worker::all(daemon.control, &wish(&name, 0, 2))).collect();
    for workers in &jobs {
        all_contribute(workers, 0);
    }
    let start = Instant::now();
    while state(&daemon).jobs.iter().filter(|job| job.blocks_completed == 1).count() < 48 {
        assert!(start.elapsed() < PATIENCE, "48 jobs");
    }
    // Each of another look: what is rendered once is not measured.
    let mut times: Vec<_> = (0..11)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(210));
            let start = Instant::now();
            let (code, metrics) = get(daemon.http, "/metrics");
            assert!(code == 200 && metrics.matches("xdp_agg_rank_late{").count() == 96);
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("48 jobs, 96 ranks: median {:?}, longest {:?}", times[5], times[10]);
    assert!(times[5] <= Duration::from_millis(20), "{times:?}");
}
