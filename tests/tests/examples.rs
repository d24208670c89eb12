//! The worker library's examples, as a user runs them: with a daemon on loopback, one process a
//! worker, ranks by the environment.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use xdp_agg_testbed::Daemon;

/// A daemon that sums in user space.
fn daemon() -> Daemon {
    Daemon::userspace().expect("it gets ready")
}

/// Cargo builds examples beside the tests' directory: with all tests. Where one test program is
/// named, `cargo build --workspace --examples` does.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.ancestors().nth(2).expect("target/PROFILE/deps");
    let path = target.join("examples").join(name);
    assert!(path.is_file(), "{} is not built: cargo build --examples", path.display());
    path
}

/// Runs an example as all ranks of a world; what each said.
fn run(name: &str, world_size: u16, daemon: &str, arguments: &[&str]) -> Vec<String> {
    let start = |rank: u16| {
        let arguments = arguments.iter().map(|text| text.replace("RANK", &rank.to_string()));
        Command::new(example(name))
            .args(arguments)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world_size.to_string())
            .env("XDP_AGG_ADDR", daemon)
            .env("XDP_AGG_JOB", name)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let all: Vec<Child> = (0..world_size).map(start).collect();
    let all = all.into_iter().map(|child| child.wait_with_output().expect("it ends"));
    let said = |output: Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {text}{error}");
        text
    };
    all.map(said).collect()
}

#[test]
fn averages_and_counts() {
    let daemon = daemon();
    for said in run("all_reduce", 3, daemon.control(), &[]) {
        assert!(said.contains("the average is 1 ") && said.contains("3 workers counted"), "{said}");
    }
}

#[test]
fn a_lost_worker_is_averaged_without() {
    let daemon = daemon();
    let said = run("shrink", 3, daemon.control(), &[]);
    for left in &said[..2] {
        assert!(left.contains("call 0: average 1, without []"), "{left}");
        assert!(left.contains("call 19: average 0.5, without [2]"), "{left}");
    }
    assert!(!said[2].contains("call 10"), "{}", said[2]);
}

#[test]
fn processes_of_a_host_sum_first() {
    let daemon = daemon();
    for said in run("processes", 4, daemon.control(), &[daemon.control(), "RANK", "4", "4"]) {
        assert!(said.contains("4 processes, 4 a host, summed"), "{said}");
    }
}

#[test]
fn a_topology_names_the_daemons() {
    let daemon = daemon();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rack.toml");
    let host = |rank: u16| {
        let address = format!("address = \"127.0.0.{}\"", rank + 1);
        let keys = "region = \"r\"\ndaemon = false\nrate = \"10gbit\"";
        format!("[[host]]\nname = \"h{rank}\"\nrank = {rank}\n{address}\n{keys}\n")
    };
    let region = format!("[[region]]\nname = \"r\"\naggregator = \"{}\"\n", daemon.control());
    let job = "name = \"a rack\"\n[job]\nstrategy = \"rat\"\n";
    let text = [job, &region, &host(0), &host(1)].concat();
    std::fs::write(&file, text).expect("it can be written");
    let path = file.to_str().expect("its name is text");
    let start = |rank: u16| {
        Command::new(example("topology"))
            .arg(path)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    for child in [0, 1].map(start) {
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("2 workers summed"), "{said}{error}");
    }
}
