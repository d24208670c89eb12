//! All that is counted is shown.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use procfs::WithCurrentSystemInfo as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use xdp_agg_common::control::{BranchInfo, ControlCounters, JobInfo, MemberInfo};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS, Reject};
use xdp_agg_protocol::daemon::overview::{Overview, Seen};

use super::Facts;
use super::api::Port;
use super::events::{ENGINE_FALLBACK, REFUSED};
use super::metrics::render;
use super::pages::{Look, Pages, locked};
use super::sampler::Sampler;
use crate::engine::watch::{Eye, Watched};
use crate::engine::{EngineError, Watch};
use crate::server::View;

/// A data path that counts, and has no slots.
struct Counting(Vec<JobCounters>);

impl Watch for Counting {
    fn counters(&mut self) -> Result<Vec<JobCounters>, EngineError> {
        Ok(self.0.clone())
    }

    fn look(&mut self, _: u16, _: &mut dyn Eye) -> Result<bool, EngineError> {
        Ok(false)
    }

    fn members(&mut self, _: u16) -> Result<Vec<Watched>, EngineError> {
        Ok(Vec::new())
    }
}

/// Gives each number in a value another one, from `next` on.
fn number(value: &mut Value, next: &mut u64) {
    match value {
        Value::Number(number) => {
            *number = (*next).into();
            *next += 1;
        }
        Value::Array(all) => all.iter_mut().for_each(|one| self::number(one, next)),
        Value::Object(all) => all.values_mut().for_each(|one| self::number(one, next)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn numbered<T: Serialize + DeserializeOwned>(value: &T, next: &mut u64) -> T {
    let mut value = serde_json::to_value(value).expect("it is data");
    number(&mut value, next);
    serde_json::from_value(value).expect("another number is as good")
}

/// The numbers in a value, with the names of their fields.
fn numbers(name: &str, value: &Value, found: &mut Vec<(String, u64)>) {
    match value {
        Value::Number(number) => found.push((name.to_owned(), number.as_u64().expect("a count"))),
        Value::Array(all) => all.iter().for_each(|one| numbers(name, one, found)),
        Value::Object(all) => {
            all.iter().for_each(|(key, one)| numbers(&format!("{name}.{key}"), one, found));
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// A look at a job of which every number differs from all others, with its journal's pages.
fn look() -> (Look, Arc<Pages>) {
    let mut next = 1_000_001;
    let mut counters = vec![JobCounters::default(); MAX_JOBS + 1];
    counters[7] = numbered(&JobCounters::default(), &mut next);
    counters[MAX_JOBS] = numbered(&JobCounters::default(), &mut next);
    let member = |rank: u16, ms| MemberInfo {
        rank,
        data: format!("10.0.0.{rank}:4000").parse().expect("an address"),
        connected: true,
        heartbeat_ms: Some(ms),
        contributed_ms: Some(ms + 1),
    };
    let info = JobInfo {
        job: "train".into(),
        job_id: 7,
        phase: "running".into(),
        world_size: 31,
        joined: vec![11, 12],
        epoch: 5_003,
        slots: 100_004,
        block_bytes: 100_005,
        members: vec![member(11, 3_000_001), member(12, 3_000_003)],
        reforms: 100_006,
        lost: vec![13],
        waiting: vec![14],
        branches: vec![BranchInfo {
            daemon: "10.0.0.99:9870".parse().expect("an address"),
            parent: None,
            ranks: vec![15],
            linked: true,
        }],
        ..JobInfo::default()
    };
    let seen = Seen { info, base: JobCounters::default(), left: vec![16], linked: true };
    let overview =
        Overview { jobs: vec![seen], slots: 200_001, slots_free: 200_002, ..Overview::default() };
    let control = numbered(&ControlCounters::default(), &mut next);
    let (mut sampler, pages) = sampler(Box::new(Counting(counters)), None);
    sampler.view = View { overview, control, ..View::default() };
    (sampler.look(), pages)
}

/// An observer of a daemon that may have fallen back, and its pages.
fn sampler(watch: Box<dyn Watch>, fallback: Option<&str>) -> (Sampler, Arc<Pages>) {
    let facts = Facts {
        engine: "xdp (odd)".into(),
        fallback: fallback.map(str::to_owned),
        interfaces: Vec::new(),
        control: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        data_port: 1,
        warnings: Vec::new(),
    };
    let pages = Arc::new(Pages::default());
    let (asks, _) = mpsc::channel(1);
    (Sampler::new(facts, watch, asks, Arc::clone(&pages)), pages)
}

#[test]
fn every_number_of_stats_is_a_metric() {
    let (look, pages) = look();
    let metrics = render(&look, &locked(&pages.journal), false);
    let values: BTreeSet<&str> =
        metrics.lines().filter_map(|line| Some(line.rsplit_once(' ')?.1)).collect();
    let stats = serde_json::to_value(&look.stats).expect("it is data");
    let mut all = Vec::new();
    numbers("stats", &stats, &mut all);
    // A packet of no job completes no block.
    all.retain(|(name, _)| !name.starts_with("stats.unattributed.times"));
    assert!(all.len() > 70, "{all:?}");
    let mut below = 0;
    for (name, number) in all {
        let label = |label: &str| metrics.contains(&format!("{label}=\"{number}\""));
        let shown = match name.rsplit('.').next() {
            Some("job_id") => label("job_id"),
            // Ranks are labels: of a lost one there is the state alone.
            Some("rank" | "joined" | "lost" | "waiting" | "ranks") => label("rank"),
            Some("counts") => {
                below += number;
                let of_job = "xdp_agg_block_completion_seconds_bucket{job_name=\"train\"";
                let ends = format!(" {below}");
                metrics.lines().any(|line| line.starts_with(of_job) && line.ends_with(&ends))
            }
            Some("nanos") => values.contains((number as f64 / 1e9).to_string().as_str()),
            Some("heartbeat_ms" | "contributed_ms") => {
                values.contains((number as f64 / 1000.0).to_string().as_str())
            }
            _ => values.contains(number.to_string().as_str()),
        };
        assert!(shown, "{name} = {number} is in no metric:\n{metrics}");
    }
    for words in ["engine=\"xdp (odd)\"", "job_name=\"train\"", "phase=\"running\""] {
        assert!(metrics.contains(words), "{words}");
    }
}

/// Names, one for each family; and that none is there twice.
fn families(metrics: &str) -> Vec<&str> {
    let names = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<_> = names.filter_map(|rest| rest.split(' ').next()).collect();
    let once: BTreeSet<_> = names.iter().collect();
    assert_eq!(once.len(), names.len(), "{names:?}");
    names
}

#[test]
fn every_metric_is_in_the_documents() {
    let document = include_str!("../../../docs/observability.md");
    let (look, pages) = look();
    let metrics = render(&look, &locked(&pages.journal), false);
    for name in families(&metrics) {
        assert!(document.contains(&format!("`{name}`")), "{name} is not in docs/observability.md");
    }
}

#[test]
fn no_sample_is_there_twice() {
    let (look, pages) = look();
    for open in [false, true] {
        let metrics = render(&look, &locked(&pages.journal), open);
        let samples = metrics.lines().filter(|line| !line.starts_with('#'));
        let names: Vec<_> = samples.filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
        let once: BTreeSet<_> = names.iter().collect();
        assert_eq!(once.len(), names.len());
        assert!(names.iter().all(|name| !name.is_empty()) && names.len() > 100);
    }
}

#[test]
fn what_is_shown_of_jobs_and_ports_is_what_is_counted() {
    let (mut counters, mut next) = (vec![JobCounters::default(); MAX_JOBS + 1], 1);
    counters[7] = numbered(&JobCounters::default(), &mut next);
    counters[MAX_JOBS] = numbered(&JobCounters::default(), &mut next);
    let (mut sampler, pages) = sampler(Box::new(Counting(counters.clone())), None);
    let info =
        JobInfo { job: "train".into(), job_id: 7, phase: "running".into(), ..JobInfo::default() };
    let seen = Seen { info, base: JobCounters::default(), left: Vec::new(), linked: true };
    let troubles = vec!["it is tired".into()];
    let overview = Overview { jobs: vec![seen], members: 2, troubles, ..Overview::default() };
    sampler.view = View { overview, connections: 5, ..View::default() };
    let mut look = sampler.look();
    let (daemon, job) = (&look.state.daemon, &look.state.jobs[0]);
    assert_eq!((daemon.connections, daemon.members), (5, 2));
    assert_eq!(daemon.warnings, ["it is tired"]);
    assert_eq!(job.rejected, counters[7].rejects.iter().sum::<u64>());
    assert!(job.uptime_seconds.is_some_and(|since| since < 60.0), "{job:?}");
    // Of all packets, those of no job among them.
    for reason in Reject::ALL {
        let both = [7, MAX_JOBS].map(|index| counters[index].rejects[reason as usize]);
        let all = both.iter().sum::<u64>();
        assert_eq!(look.state.verdicts[reason.name()], all, "{}", reason.name());
    }
    let verdicts = &look.state.verdicts;
    assert_eq!(verdicts["duplicates"], counters[7].duplicates + counters[MAX_JOBS].duplicates);

    look.state.ports = vec![Port {
        name: "odd0".into(),
        up: true,
        rx_packets: 9_001,
        rx_bytes: 9_002,
        tx_packets: 9_003,
        tx_bytes: 9_004,
        rx_dropped: 9_005,
        tx_dropped: 9_006,
    }];
    let metrics = render(&look, &locked(&pages.journal), false);
    let families = ["receive_packets", "receive_bytes", "transmit_packets", "transmit_bytes"];
    let families = families.into_iter().chain(["receive_drops", "transmit_drops"]);
    for (family, value) in families.zip(9_001..) {
        let line = format!("xdp_agg_port_{family}_total{{port=\"odd0\"}} {value}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

/// Texts of the events of a kind.
fn told(pages: &Pages, kind: &str) -> Vec<String> {
    let events = locked(&pages.journal).since(0).events;
    events.into_iter().filter(|event| event.kind == kind).map(|event| event.text).collect()
}

#[test]
fn a_daemon_that_is_stuck_or_has_no_way_is_neither_well_nor_ready() {
    let pages = Pages::default();
    let both = |look: &Look| {
        pages.show(look.clone());
        (pages.unhealthy(), pages.unready())
    };
    assert!(pages.unhealthy().is_some() && pages.unready().is_some(), "nobody has looked yet");
    let (mut look, _) = look();
    look.state.daemon.not_ready = Vec::new();
    let (unhealthy, unready) = both(&look);
    let why = unhealthy.expect("the loop has not answered");
    assert!(why.contains("control loop has not answered"), "{why}");
    assert_eq!(unready.as_ref(), Some(&why));
    look.answered = Some(Instant::now());
    assert_eq!(both(&look), (None, None));
    look.state.daemon.not_ready = vec!["no way up".into(), "no port".into()];
    assert_eq!(both(&look), (None, Some("no way up; no port".into())));
    // Each of both may stand still.
    let past = Instant::now().checked_sub(Duration::from_secs(4)).expect("it runs for longer");
    for (taken, answered, words) in
        [(Instant::now(), past, "has not answered for 4 s"), (past, Instant::now(), "for 4 s")]
    {
        let stuck = Look { taken, answered: Some(answered), ..look.clone() };
        let (unhealthy, unready) = both(&stuck);
        assert!(unhealthy.as_ref().is_some_and(|why| why.contains(words)), "{unhealthy:?}");
        assert_eq!(unready, unhealthy);
    }
}

#[test]
fn a_fallback_is_an_event_a_warning_and_a_metric() {
    let counters = vec![JobCounters::default(); MAX_JOBS + 1];
    let (mut sampler, pages) = sampler(Box::new(Counting(counters)), Some("no driver"));
    let look = sampler.look();
    let events = told(&pages, ENGINE_FALLBACK);
    assert!(events.len() == 1 && events[0].contains("no driver"), "{events:?}");
    let warnings = &look.state.daemon.warnings;
    assert!(warnings.iter().any(|warning| warning.contains("no driver")), "{warnings:?}");
    let metrics = render(&look, &locked(&pages.journal), false);
    for line in ["xdp_agg_engine_fallback 1", "xdp_agg_events_total{kind=\"engine_fallback\"} 1"] {
        assert!(metrics.lines().any(|one| one == line), "{line}\n{metrics}");
    }
}

#[test]
fn refusals_are_events_at_most_one_a_second() {
    let mut counters = vec![JobCounters::default(); MAX_JOBS + 1];
    counters[3].rejects[Reject::Cookie as usize] = 2;
    counters[MAX_JOBS].rejects[Reject::Truncated as usize] = 3;
    let (mut sampler, pages) = sampler(Box::new(Counting(counters)), None);
    sampler.view.control.rate = 4;
    sampler.look();
    sampler.view.control.rate = 6;
    sampler.look();
    let first = "9 more packets or connections were refused: 5 packets and 4 connections until now";
    assert_eq!(told(&pages, REFUSED), [first]);
    std::thread::sleep(Duration::from_millis(1050));
    sampler.look();
    sampler.look();
    let then = "2 more packets or connections were refused: 5 packets and 6 connections until now";
    assert_eq!(told(&pages, REFUSED), [first, then]);
}

/// What Prometheus' libraries tell of a process, held against another reader of `/proc`.
#[test]
fn a_process_is_told_as_it_is() {
    // Some time and memory that show.
    let stat = || procfs::process::Process::myself().and_then(|own| own.stat()).expect("it runs");
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    let used = |stat: &procfs::process::Stat| seconds(stat.utime + stat.stime);
    let mut memory = vec![1_u8; 64 << 20];
    while used(&stat()) < 0.5 {
        memory.iter_mut().step_by(512).for_each(|byte| *byte = byte.wrapping_mul(3));
    }
    let (look, pages) = look();
    let metrics = render(&look, &locked(&pages.journal), false);
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    let stat = stat();
    drop(memory);
    let boot = procfs::boot_time_secs().expect("every kernel says it");
    let near = |told: f64, expected: f64, slack: f64, what: &str| {
        assert!((told - expected).abs() <= slack, "{what}: {told} is told, and is {expected}");
    };
    let resident = stat.rss_bytes().get() as f64;
    assert!(resident > (64 << 20) as f64, "{resident}");
    near(value("process_resident_memory_bytes"), resident, resident / 4.0, "memory");
    let used = used(&stat);
    near(value("process_cpu_seconds_total"), used, used / 4.0, "processor time");
    let started = boot as f64 + seconds(stat.starttime);
    near(value("process_start_time_seconds"), started, 2.0, "its start");
}
