//! What a running daemon may still do: it keeps the capabilities that its engine needs, and works
//! as a user of its own.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{ENGINES, LIMIT, Lab, check_sums, need_root, network};
use xdp_agg_testbed::{Process, Topology, program};

/// `CAP_NET_ADMIN` and `CAP_BPF`.
const XDP: u64 = 1 << 12 | 1 << 39;
/// Some user that is not root.
const USER: u32 = 65_534;
const OPEN: &str = "CONTROL IS OPEN";

/// A field of each thread of the process, from its `/proc/PID/status`.
fn of_threads(process: &Process, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid())).expect("it runs");
    let status = tasks.filter_map(|task| {
        // A thread may end meanwhile.
        let text = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Some(line.expect("every thread has this field").trim().to_owned())
    });
    status.collect()
}

fn capabilities(process: &Process, set: &str) -> Vec<u64> {
    let all = of_threads(process, set);
    all.iter().map(|hex| u64::from_str_radix(hex, 16).expect("a number")).collect()
}

/// Threads give up what they have when they begin to run, which may be a little later.
fn is_confined(process: &Process, engine: &str) {
    let start = Instant::now();
    while let Some(why) = too_much(process, engine) {
        assert!(start.elapsed() < LIMIT, "{engine}: {why}");
        sleep(Duration::from_millis(20));
    }
}

/// What the process has that it does not need, or lacks.
fn too_much(process: &Process, engine: &str) -> Option<String> {
    let expected = if engine == "xdp" { XDP } else { 0 };
    for set in ["CapEff", "CapPrm"] {
        let all = capabilities(process, set);
        let held = all.iter().filter(|thread| **thread != 0);
        // One thread changes the data path; the others need nothing.
        if all.iter().fold(0, |all, thread| all | thread) != expected || held.count() > 1 {
            return Some(format!("{set} {all:x?}"));
        }
    }
    for set in ["CapInh", "CapAmb"] {
        let all = capabilities(process, set);
        if all.iter().any(|thread| *thread != 0) {
            return Some(format!("{set} {all:x?}"));
        }
    }
    let privileges = of_threads(process, "NoNewPrivs");
    privileges.iter().any(|set| set != "1").then(|| format!("NoNewPrivs {privileges:?}"))
}

#[test]
fn a_running_daemon_keeps_what_its_engine_needs() {
    need_root!();
    for engine in ENGINES {
        let lab = Lab::start(network(2, "ports"), engine);
        let daemon = lab.daemon.as_ref().expect("it runs");
        is_confined(daemon, engine);
        assert!(capabilities(daemon, "CapBnd").iter().all(|thread| *thread == 0), "{engine}");
        let workers = lab.connect("confined", 2, |settings| settings);
        check_sums(&workers, 5000);
        is_confined(daemon, engine);
        assert!(daemon.stderr().contains(OPEN), "{}", daemon.last_words());
        drop(workers);
        let ended = lab.daemon.expect("it runs").terminate().expect("it ends");
        assert!(ended.status.success(), "{}", ended.stderr);
        // What it could not give up at its start, or put right at its end, would be a warning.
        let (start, end) = ended.stderr.split_once("shutting down").expect("it says so");
        assert!(!start.contains("more rights"), "{start}");
        assert!(!end.contains("WARN xdp_agg::"), "{end}");
    }
}

/// The command of the daemon as another user, with these capabilities.
fn as_user(topology: &Topology, capabilities: &str) -> Command {
    let mut command = topology.aggregator().command("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    let all = format!("--inh-caps={capabilities} --ambient-caps={capabilities}");
    command.args(all.split(' ')).arg("--bounding-set=-sys_admin");
    command.arg(program("xdp-agg").expect("the tests' programs are built"));
    command
}

#[test]
fn a_user_of_its_own_runs_the_daemon() {
    need_root!();
    let mut lab =
        Lab { daemon: None, engine: "xdp", extra: Vec::new(), topology: network(2, "ports") };
    let mut command = as_user(&lab.topology, "+bpf,+net_admin,+perfmon");
    command.args(["serve", "--engine", "xdp"]);
    command.args(["--data-addr", &lab.topology.aggregator_addr().to_string()]);
    for interface in lab.topology.aggregator_interfaces() {
        command.args(["--interface", &interface]);
    }
    let daemon = Process::serve("xdp-agg serve as a user", command).expect("it gets ready");
    is_confined(&daemon, "xdp");
    // The files of a process that leaves no core are root's.
    let owner = fs::metadata(format!("/proc/{}/environ", daemon.pid())).expect("it runs").uid();
    assert_eq!(owner, 0, "it can be dumped");
    let workers = lab.connect("user", 2, |settings| settings);
    check_sums(&workers, 5000);
    drop(workers);
    assert!(!daemon.stderr().contains("more rights"), "{}", daemon.last_words());
    lab.daemon = Some(daemon);
    // What it made is gone with it, so that the next one finds nothing.
    let ended = lab.daemon.take().expect("it runs").terminate().expect("it ends");
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.start_daemon();
    check_sums(&lab.connect("root", 2, |settings| settings), 1000);
}

/// As root, and in a directory of root's: it is Landlock that keeps the daemon from it.
#[test]
fn a_running_daemon_writes_in_its_own_directories_alone() {
    need_root!();
    let Some((bpffs, lab)) = Lab::start_pinned(network(2, "ports")) else { return };
    let daemon = lab.daemon.as_ref().expect("it runs");
    let arguments = bpffs.arguments();
    let state = Path::new(arguments.last().expect("the directory of its state"));
    let denied = |daemon: &Process| daemon.stderr().matches("Permission denied").count();
    check_sums(&lab.connect("own", 2, |settings| settings), 1000);
    assert_eq!(denied(daemon), 0, "{}", daemon.last_words());
    // Another directory at the same place.
    let aside = state.with_extension("aside");
    fs::rename(state, &aside).expect("it is ours");
    fs::create_dir(state).expect("there is room");
    check_sums(&lab.connect("others", 2, |settings| settings), 1000);
    let start = Instant::now();
    while denied(daemon) == 0 {
        assert!(start.elapsed() < LIMIT, "it wrote there: {}", daemon.last_words());
        sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_dir(state).expect("it is there").count(), 0);
    fs::remove_dir(state).expect("it is empty");
    fs::rename(&aside, state).expect("it is ours");
}
