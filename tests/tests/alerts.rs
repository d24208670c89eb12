//! What is packaged for Prometheus and Grafana: rules that are right, and that ask for nothing that
//! the daemon does not serve.

mod support;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use support::http::get;
use support::prometheus::Prometheus;
use support::tool::tool;
use support::{LIMIT, Lab, need_root, network, watched};

/// Labels that Prometheus itself adds.
const OF_PROMETHEUS: [&str; 3] = ["instance", "job", "le"];

fn packaged(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(path)
}

fn promtool() -> Option<Command> {
    tool("promtool", "prometheus").map(Command::new)
}

/// Runs it, and shows what it found.
fn check(mut promtool: Command) {
    let output = promtool.output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{promtool:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn alert_rules_fire_when_they_should() {
    let Some(mut promtool) = promtool() else { return };
    promtool.args(["check", "rules", "--lint-fatal"]).arg(packaged("prometheus/alerts.yml"));
    check(promtool);
    let Some(mut promtool) = self::promtool() else { return };
    promtool.args(["test", "rules"]).arg(packaged("prometheus/alerts.test.yml"));
    check(promtool);
}

/// Each alert has a test in which it fires, and one in which it does not.
#[test]
fn each_alert_is_tried() {
    let read = |file| std::fs::read_to_string(packaged(file)).expect("it is packaged");
    let rules = read("prometheus/alerts.yml");
    let tests = read("prometheus/alerts.test.yml");
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let names: Vec<_> = names.collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let of_it = format!("alertname: {name}\n");
        let tried: Vec<_> =
            tests.split("- eval_time:").filter(|test| test.contains(&of_it)).collect();
        let fires = |test: &&&str| test.contains("exp_labels");
        assert!(tried.iter().any(|test| fires(&test)), "{name} is never seen to fire");
        assert!(!tried.iter().all(|test| fires(&test)), "{name} is never seen not to fire");
    }
}

/// The dashboard, all its panels, and their queries with the variables filled in.
fn dashboard() -> (Value, Vec<Value>, Vec<String>) {
    let text = std::fs::read_to_string(packaged("grafana/xdp-agg.json")).expect("it is packaged");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").clone();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let fill = |target: &Value| {
        let query = target["expr"].as_str().expect("a query");
        query.replace("$__rate_interval", "1m").replace("$__range", "1h")
    };
    let queries = targets.map(fill).collect();
    (dashboard, panels, queries)
}

/// Grafana's model of a dashboard: <https://grafana.com/docs/grafana/latest/dashboards/json-model>.
#[test]
fn the_dashboard_can_be_imported() {
    let (dashboard, panels, queries) = dashboard();
    for field in ["title", "uid"] {
        assert!(dashboard[field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36), "a version of Grafana 9 or later");
    assert!(dashboard["id"].is_null(), "an identifier is of one Grafana alone");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let types: Vec<_> = variables.iter().filter_map(|variable| variable["type"].as_str()).collect();
    assert_eq!(types[0], "datasource", "which Prometheus it is of is chosen");
    let mut identifiers = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in &panels {
        assert!(identifiers.insert(panel["id"].as_u64().expect("an identifier")), "{panel}");
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(place);
        assert!(x + w <= 24, "{panel}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "another panel is where {} is", panel["title"]);
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["title"].as_str().is_some_and(|text| !text.is_empty()), "{panel}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
    }

    // Queries are rules of which Prometheus knows whether they can be understood.
    let Some(mut promtool) = promtool() else { return };
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (number, query) in queries.iter().enumerate() {
        let query = Value::from(query.as_str());
        rules += &format!("  - record: dashboard:query:{number}\n    expr: {query}\n");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), rules).expect("written");
    promtool.args(["check", "rules", "--lint=none"]).arg(file.path());
    check(promtool);
}

/// A query of a dashboard as Prometheus is asked it: with the variables filled in, and without the
/// bound below which a panel shows nothing.
fn plain(query: &str) -> String {
    let filled = query.replace("$instance", ".*").replace("$job_name", ".*");
    let bounded = filled.rsplit_once(" > ").filter(|(_, bound)| bound.parse::<f64>().is_ok());
    bounded.map(|(query, _)| query.to_owned()).unwrap_or(filled)
}

/// Each query of the dashboard finds something, for a daemon with a job whose rank 1 is stopped.
#[test]
fn every_panel_shows_something() {
    need_root!();
    let lab = Lab::start_with(network(2, "ports"), "xdp", &["--http", "127.0.0.1:9871"]);
    let mut workers = lab.steady_job("train", 2, &[], &watched::work());
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 9871));
    let Some(prometheus) = Prometheus::start(lab.topology.aggregator(), at) else { return };
    workers[1].process.signal(libc::SIGSTOP).expect("it runs");
    for query in dashboard().2.iter().map(|query| plain(query)) {
        assert!(!query.contains('$'), "{query} has a variable that is not filled in");
        let start = Instant::now();
        while prometheus.series(&query).is_none_or(|series| series.is_empty()) {
            assert!(start.elapsed() < LIMIT, "{query} finds nothing");
            sleep(Duration::from_millis(100));
        }
    }
    let is_late = |rank| format!("sum(xdp_agg_rank_late{{rank=\"{rank}\"}})");
    let start = Instant::now();
    while prometheus.value(&is_late(1)) != Some(1.0) {
        assert!(start.elapsed() < LIMIT, "rank 1 is not late");
        sleep(Duration::from_millis(100));
    }
    assert_eq!(prometheus.value(&is_late(0)), Some(0.0));
    workers[1].process.signal(libc::SIGCONT).expect("it is there");
}

/// What the daemon answers.
fn metrics(lab: &Lab) -> String {
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 9871));
    get(lab.topology.aggregator(), from, "/metrics").expect("it is served")
}

/// Words of a query, outside of its strings.
fn words(query: &str) -> impl Iterator<Item = &str> {
    let outside = query.split('"').step_by(2);
    outside.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
}

/// Labels that a query names: in selectors, and in `by (…)` and their like.
fn labels(query: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (opening, closing) in [("{", '}'), ("by (", ')'), ("on (", ')'), ("group_left (", ')')] {
        for part in query.split(opening).skip(1) {
            let inside = part.split(closing).next().expect("a first part");
            let names =
                inside.split(',').filter_map(|name| words(name).find(|word| !word.is_empty()));
            found.extend(names);
        }
    }
    found
}

#[test]
fn dashboard_and_alerts_ask_for_what_is_served() {
    need_root!();
    let lab = Lab::start_with(network(2, "ports"), "xdp", &["--http", "127.0.0.1:9871"]);
    let _workers = lab.steady_job("named", 2, &[], &watched::work());
    // The observer looks a few times a second.
    let start = Instant::now();
    let served = loop {
        let served = metrics(&lab);
        if served.contains("xdp_agg_rank_lag_seconds{") {
            break served;
        }
        assert!(start.elapsed() < LIMIT, "{served}");
        sleep(Duration::from_millis(50));
    };
    let samples = served.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut names = BTreeSet::new();
    let mut known: BTreeSet<_> = OF_PROMETHEUS.into();
    for sample in samples {
        let (series, _) = sample.split_once(' ').expect("a value");
        let (name, rest) = series.split_once('{').unwrap_or((series, ""));
        names.insert(name);
        known.extend(rest.split("=\"").filter_map(|part| part.rsplit(['"', ',', '{']).next()));
    }
    assert!(names.len() > 10, "{served}");

    let alerts = std::fs::read_to_string(packaged("prometheus/alerts.yml")).expect("packaged");
    let queries = alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let mut queries: Vec<String> = queries.map(str::to_owned).collect();
    assert!(queries.len() >= 6, "each alert's query is on one line");
    queries.extend(dashboard().2);
    for query in &queries {
        for name in words(query).filter(|word| word.starts_with("xdp_agg_")) {
            assert!(names.contains(name), "{name} is not served, and is in {query}");
        }
        for label in labels(query) {
            assert!(known.contains(label), "no metric has the label {label}, as in {query}");
        }
    }
}
