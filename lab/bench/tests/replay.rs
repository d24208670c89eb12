//! `xdp-agg-bench --strategy` as people run it, on loopback.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// One of two processes, with nothing of this machine's settings.
fn process(strategy: &str, rank: usize, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg-bench"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("XDP_AGG_") {
            command.env_remove(name);
        }
    }
    command.args(["--strategy", strategy]).args(arguments);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    listener.local_addr().expect("it is bound").port()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_workload_is_replayed_with_and_without_overlap() {
    let (port, directory) = (free_port(), tempfile::tempdir().expect("a directory"));
    let file = directory.path().join("{rank}.json");
    let file = file.to_str().expect("a path that is text");
    let arguments = [
        ["--workload", "resnet50"],
        ["--fraction", "0.001"],
        ["--phase", "2x0,1x0.05,1x0.05+overlap"],
        ["--json", file],
    ]
    .concat();
    let start = |rank| process("ring", rank, port, &arguments).spawn().expect("it runs");
    let processes: Vec<Child> = (0..2).map(start).collect();
    for (rank, child) in processes.into_iter().enumerate() {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", said(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        // Rank 0 alone speaks: two lines of heading, and one a phase.
        assert_eq!(table.lines().count(), if rank == 0 { 5 } else { 0 }, "{table}");
        let json = fs::read(directory.path().join(format!("{rank}.json"))).expect("a report");
        let report: Value = serde_json::from_slice(&json).expect("it is JSON");
        assert_eq!((&report["rank"], &report["strategy"]), (&rank.into(), &"ring".into()));
        let load = &report["loads"][0];
        assert_eq!((&load["workload"], &load["wrong"]), (&"resnet50".into(), &0.into()));
        let buckets: Vec<u64> =
            load["buckets"].as_array().expect("buckets").iter().filter_map(Value::as_u64).collect();
        assert_eq!(buckets.iter().sum::<u64>(), load["bytes"].as_u64().expect("bytes"));
        let phases = load["phases"].as_array().expect("phases");
        let times: Vec<_> = phases.iter().map(|phase| phase["times_s"].as_array()).collect();
        assert!(times.iter().map(|times| times.map_or(0, Vec::len)).eq([2, 1, 1]), "{times:?}");
        assert_eq!(phases[2]["overlap"], true);
    }
}

#[test]
fn sizes_are_replayed_as_one_bucket() {
    let port = free_port();
    let arguments = ["--bytes", "4K,64K", "--phase", "3x0"];
    let start = |rank| process("ring", rank, port, &arguments).spawn().expect("it runs");
    let processes: Vec<Child> = (0..2).map(start).collect();
    let outputs = processes.into_iter().map(|child| child.wait_with_output().expect("it ends"));
    let outputs: Vec<Output> = outputs.collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{}", said(&outputs[0]));
    let table = String::from_utf8_lossy(&outputs[0].stdout).into_owned();
    assert!(table.contains(" 4096 ") && table.contains(" 65536 "), "{table}");
}

#[test]
fn wrong_wishes_are_refused_in_words() {
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg-bench"));
        let output = command.args(arguments).output().expect("it runs");
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    refused(&["--strategy", "nccl"], 2, &["nccl", "psring", "passing"]);
    refused(&["--strategy", "ring", "--workload", "alexnet"], 2, &["alexnet", "vgg19"]);
    refused(&["--workload", "vgg19"], 2, &["--strategy"]);
    refused(&["--strategy", "ring", "--phase", "3"], 2, &["no phase", "3x0.5"]);
    let huge = ["--strategy", "ring", "--workload", "bert", "--fraction", "2"];
    refused(&huge, 2, &["no share"]);
}

/// Taken for a variable that is not set, a deadline would be another one.
#[test]
fn a_deadline_that_is_no_text_is_refused_and_not_shown() {
    let broken = OsString::from_vec(b"secret\xff".into());
    let mut command = process("h-ar", 0, free_port(), &["--bytes", "4K"]);
    let output = command.env("XDP_AGG_DEADLINE", broken).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("XDP_AGG_DEADLINE") && said(&output).contains("UTF-8"));
    assert!(!said(&output).contains("secret"), "{}", said(&output));
}
