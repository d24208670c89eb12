//! A real Prometheus, of Debian's package, that scrapes a daemon.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use xdp_agg_testbed::{Namespace, Process};

use super::LIMIT;
use super::http::get;
use super::tool::tool;

/// Where it answers.
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// It ends with this value.
pub struct Prometheus<'a> {
    host: &'a Namespace,
    _process: Process,
    _dir: TempDir,
}

impl<'a> Prometheus<'a> {
    /// Starts it beside the daemon, which serves at `target`, and waits for three scrapes. None,
    /// with a message, where it is missing.
    pub fn start(host: &'a Namespace, target: SocketAddr) -> Option<Self> {
        let server = tool("prometheus", "prometheus")?;
        let dir = tempfile::tempdir().expect("a directory");
        let config = dir.path().join("prometheus.yml");
        let scrape = format!(
            "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\nscrape_configs:\n- \
             job_name: xdp-agg\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        fs::write(&config, scrape).expect("it can be written");
        let mut command = host.command(server);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={API}"));
        let process = Process::spawn("prometheus", command).expect("it starts");
        let prometheus = Self { host, _process: process, _dir: dir };
        let start = Instant::now();
        let scrapes = "sum_over_time(up{job=\"xdp-agg\"}[1m])";
        while prometheus.value(scrapes).is_none_or(|scrapes| scrapes < 3.0) {
            assert!(start.elapsed() < LIMIT, "no scrape succeeds");
            sleep(Duration::from_millis(100));
        }
        Some(prometheus)
    }

    /// The series that a query finds. None: Prometheus does not answer yet, or not to this.
    pub fn series(&self, query: &str) -> Option<Vec<Value>> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = get(self.host, API, &format!("/api/v1/query?query={query}"))?;
        let answer: Value = serde_json::from_str(&answer).expect("it is JSON");
        answer["data"]["result"].as_array().cloned()
    }

    /// The value of the one series that a query finds.
    pub fn value(&self, query: &str) -> Option<f64> {
        let series = self.series(query)?;
        assert!(series.len() <= 1, "{series:?}");
        series.first()?["value"][1].as_str()?.parse().ok()
    }
}
