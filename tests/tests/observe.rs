//! What operators see: a real Prometheus scrapes a daemon with a job on it, and `top` names a rank
//! that was stopped.

mod support;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::http::get;
use support::prometheus::Prometheus;
use support::tool::tool;
use support::{ENGINES, LIMIT, Lab, check_sums, need_root, network, on_all};
use xdp_agg_client::{Communicator, Op};
use xdp_agg_testbed::program;
use xdp_agg_testbed::steady::Work;

/// Where the daemon serves HTTP, in its own namespace.
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9871);

/// Standard output of a program that succeeds in the daemon's namespace.
fn output(mut command: Command, what: &str) -> String {
    let done = command.stderr(Stdio::inherit()).output().expect("it starts");
    assert!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stdout));
    String::from_utf8(done.stdout).expect("it says text")
}

/// Both engines: a rank that is stopped amid calls is named within a second.
#[test]
fn top_names_a_stopped_rank() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(3, "ports"), engine);
        let mut workers = lab.steady_job("train", 3, &[], &Work::default());
        let top = || {
            let program = program("xdp-agg").expect("built");
            let mut command = lab.topology.aggregator().command(program);
            command.args(["top", "--once"]);
            output(command, "top")
        };
        // They call one after the other, and nobody is late for long.
        let calm = |text: &str| {
            let row = text.lines().find(|line| line.starts_with("train"));
            row.is_some_and(|row| row.contains("running") && row.ends_with('-'))
        };
        let start = Instant::now();
        while !calm(&top()) {
            assert!(start.elapsed() < LIMIT, "{engine}: {}", top());
            sleep(Duration::from_millis(50));
        }
        workers[2].process.signal(libc::SIGSTOP).expect("it runs");
        let stopped = Instant::now();
        let text = loop {
            let text = top();
            if text.contains("rank 2: ") {
                break text;
            }
            assert!(stopped.elapsed() < LIMIT, "{engine}: {text}");
            sleep(Duration::from_millis(50));
        };
        // `top` itself takes some of that.
        let took = stopped.elapsed();
        println!("{engine}: named after {took:?}");
        assert!(took < Duration::from_millis(1500), "{engine}: {took:?}");
        assert!(!text.contains("rank 0: ") && !text.contains("rank 1: "), "{engine}: {text}");
        let metrics = get(lab.topology.aggregator(), HTTP, "/metrics").expect("it is served");
        let late = "xdp_agg_rank_late{job_name=\"train\",job_id=\"0\",rank=";
        for (rank, is) in [(0, 0), (1, 0), (2, 1)] {
            assert!(metrics.contains(&format!("{late}\"{rank}\"}} {is}\n")), "{metrics}");
        }
        workers[2].process.signal(libc::SIGCONT).expect("it is there");
        let start = Instant::now();
        while top().contains("rank 2: ") {
            assert!(start.elapsed() < LIMIT, "{engine}: it goes on");
            sleep(Duration::from_millis(100));
        }
    }
}

/// Cables that are out: probes see it while no worker can be served, and events name the ports.
#[test]
fn a_daemon_without_a_port_is_not_ready() {
    need_root!();
    let lab = Lab::start(network(2, "ports"), "xdp");
    let host = lab.topology.aggregator();
    let ports = lab.topology.aggregator_interfaces();
    let is_ready = || get(host, HTTP, "/readyz").is_some();
    let metrics = || get(host, HTTP, "/metrics").expect("it is served");
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LIMIT, "{what}: {}", metrics());
            sleep(Duration::from_millis(20));
        }
    };
    until("it gets ready", &is_ready);
    // What comes in is told from what goes out. (Nobody listens at that port.)
    let traffic = |way: &str| {
        let name = format!("xdp_agg_port_{way}_bytes_total{{port=\"{}\"}} ", ports[0]);
        let metrics = metrics();
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    let to = SocketAddr::from((lab.topology.aggregator_addr(), 9));
    let send = || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        // An answer that nobody listens is an error of a later packet.
        (0..1000).for_each(|_| drop(socket.send_to(&[0; 1000], to)));
    };
    lab.topology.worker(0).run(send).expect("entering the namespace");
    until("a MB has come", &|| traffic("receive") > 500_000);
    assert!(traffic("transmit") < 250_000, "{}", metrics());
    lab.topology.set_link_up(0, false).expect("it has a plug");
    let down = format!("xdp_agg_port_up{{port=\"{}\"}} 0\n", ports[0]);
    until("one is down", &|| metrics().contains(&down));
    assert!(is_ready(), "the other one is left");
    lab.topology.set_link_up(1, false).expect("it has a plug");
    until("none is left", &|| !is_ready());
    assert!(get(host, HTTP, "/healthz").is_some(), "it runs all the same");
    assert!(metrics().contains("\nxdp_agg_ready 0\n"), "{}", metrics());
    let state = get(host, HTTP, "/api/v1/jobs").expect("it is served");
    assert!(state.contains("no served interface is up"), "{state}");
    for link in [0, 1] {
        lab.topology.set_link_up(link, true).expect("it has a plug");
    }
    until("it is ready again", &is_ready);
    for port in &ports {
        for (kind, word) in [("port_down", "down"), ("port_up", "up")] {
            let named = || {
                let events = get(host, HTTP, "/api/v1/events").expect("it is served");
                let events: Value = serde_json::from_str(&events).expect("JSON");
                let mut all = events["events"].as_array().expect("a list").iter();
                let text = format!("{port} is {word}");
                all.any(|event| event["kind"] == kind && event["text"] == *text)
            };
            until(&format!("{kind} of {port}"), &named);
        }
    }
}

#[test]
fn a_real_prometheus_scrapes_what_stats_counts() {
    need_root!();
    let Some(promtool) = tool("promtool", "prometheus") else { return };
    let lab = Lab::start(network(2, "ports"), "xdp");
    let workers = lab.connect("train", 2, |settings| settings);
    check_sums(&workers, 100_000);
    let host = lab.topology.aggregator();

    let Some(prometheus) = Prometheus::start(host, HTTP) else { return };
    // Nothing counts any more: what the latest scrapes have shown stays.
    assert_eq!(prometheus.value("min_over_time(up{job=\"xdp-agg\"}[1m])"), Some(1.0));
    let stats = lab.job_stats("train");
    let counters = &stats.counters;
    assert!(counters.blocks > 200, "{counters:?}");
    let expected = [
        ("xdp_agg_contributions_total", counters.contributions),
        ("xdp_agg_blocks_completed_total", counters.blocks),
        ("xdp_agg_duplicates_total", counters.duplicates),
        ("xdp_agg_results_resent_total", counters.resends),
        ("xdp_agg_pending_answers_total", counters.pendings),
        ("xdp_agg_result_packets_total", counters.copies),
        ("xdp_agg_job_slots", stats.info.slots.into()),
        ("xdp_agg_job_epoch", stats.info.epoch.into()),
    ];
    for (name, count) in expected {
        let value = prometheus.value(&format!("{name}{{job_name=\"train\",job_id=\"0\"}}"));
        assert_eq!(value, Some(count as f64), "{name}");
    }
    let ports = "count(xdp_agg_port_up == 1)";
    assert_eq!(prometheus.value(ports), Some(2.0));
    let bytes = "min(xdp_agg_port_receive_bytes_total)";
    assert!(prometheus.value(bytes).is_some_and(|bytes| bytes > 400_000.0), "of both workers");
    let took = prometheus.value("max_over_time(scrape_duration_seconds{job=\"xdp-agg\"}[1m])");
    println!("longest scrape: {took:?} s");
    drop(prometheus);

    // The older format, as a linter reads it.
    let metrics = get(host, HTTP, "/metrics").expect("it is served");
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut linter = command.stderr(Stdio::piped()).spawn().expect("it starts");
    linter.stdin.take().expect("it is piped").write_all(metrics.as_bytes()).expect("it reads");
    let done = linter.wait_with_output().expect("it ends");
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && words.is_empty(), "{words}");
}

/// Rates of a job with a scrape each second beside those without HTTP, one after the other.
#[test]
#[ignore = "a measurement, of a minute"]
fn what_a_scrape_each_second_costs() {
    need_root!();
    const ROUNDS: usize = 8;
    let mut times = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 0..2 * ROUNDS {
        let on = round % 2;
        let http = [String::from("off"), HTTP.to_string()];
        let lab = Lab::start_with(network(2, "ports"), "xdp", &["--http", &http[on]]);
        let workers = lab.connect("train", 2, |settings| settings);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            if on == 1 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        get(lab.topology.aggregator(), HTTP, "/metrics").expect("it is served");
                        sleep(Duration::from_secs(1));
                    }
                });
            }
            for (kind, (len, calls)) in [(1 << 20, 60), (16, 100_000)].into_iter().enumerate() {
                let call = |worker: &Communicator| {
                    let mut data = vec![1.0_f32; len];
                    let start = Instant::now();
                    for _ in 0..calls {
                        data.fill(1.0);
                        worker.all_reduce(&mut data, Op::Sum).expect("all call");
                    }
                    assert_eq!(data[len - 1], 2.0);
                    start.elapsed() / calls
                };
                let took = on_all(&workers, call);
                times[on][kind].push(took.into_iter().max().expect("there are two"));
            }
            done.store(true, Ordering::Relaxed);
        });
        if on == 1 {
            let metrics = get(lab.topology.aggregator(), HTTP, "/metrics").expect("it is served");
            let look = metrics.lines().find(|line| line.starts_with("xdp_agg_look_duration"));
            let daemon = lab.daemon.as_ref().expect("it runs");
            println!("{}; daemon's processor time {:?}", look.unwrap_or(""), daemon.cpu_time());
        }
    }
    for (on, kinds) in ["off", "on"].into_iter().zip(&mut times) {
        for (kind, times) in ["4 MiB", "64 B"].into_iter().zip(kinds) {
            times.sort();
            let (least, median, most) = (times[0], times[ROUNDS / 2], times[ROUNDS - 1]);
            println!("{kind}, HTTP {on}: median {median:?}, {least:?} to {most:?}");
        }
    }
}

/// What 48 jobs that do nothing cost a daemon that looks at them five times a second.
#[test]
#[ignore = "a measurement, of 20 seconds"]
fn what_idle_jobs_cost() {
    need_root!();
    const JOBS: usize = 48;
    const TIME: Duration = Duration::from_secs(10);
    let slots = (JOBS * 1024).to_string();
    let lab = Lab::start_with(network(2, "ports"), "xdp", &["--slots", &slots]);
    let jobs: Vec<_> = (0..JOBS)
        .map(|number| {
            let workers = lab.connect(&format!("job {number}"), 2, |settings| settings);
            check_sums(&workers, 1000);
            workers
        })
        .collect();
    sleep(Duration::from_secs(2));
    let daemon = lab.daemon.as_ref().expect("it runs");
    let before = daemon.cpu_time();
    sleep(TIME);
    let after = daemon.cpu_time();
    let metrics = get(lab.topology.aggregator(), HTTP, "/metrics").expect("it is served");
    let look = metrics.lines().find(|line| line.starts_with("xdp_agg_look_duration"));
    println!("{} jobs, {TIME:?}: {before:?} to {after:?}; {}", jobs.len(), look.unwrap_or(""));
}
