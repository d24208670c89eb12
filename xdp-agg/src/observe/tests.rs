//! All that is counted is shown.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use xdp_agg_common::control::{BranchInfo, ControlCounters, JobInfo, MemberInfo};
use xdp_agg_common::maps::{JobCounters, MAX_JOBS};
use xdp_agg_protocol::daemon::overview::{Overview, Seen};

use super::Facts;
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
    let facts = Facts {
        engine: "xdp (odd)".into(),
        fallback: None,
        interfaces: Vec::new(),
        control: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        data_port: 1,
        warnings: Vec::new(),
    };
    let pages = Arc::new(Pages::default());
    let (asks, _) = mpsc::channel(1);
    let mut sampler = Sampler::new(facts, Box::new(Counting(counters)), asks, Arc::clone(&pages));
    sampler.view = View { overview, control, ..View::default() };
    (sampler.look(), pages)
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
