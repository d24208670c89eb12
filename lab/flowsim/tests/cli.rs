//! `xdp-agg-flowsim simulate` as people run it.

use std::fs;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Two racks of two hosts, uplinks 2:1.
const RACKS: &str = include_str!("../../../crates/topology/tests/racks.toml");

/// Whether it went well, what it printed, and what it complained about.
fn flowsim(args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg-flowsim"));
    let Output { status, stdout, stderr } = command.args(args).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it prints UTF-8");
    (status.success(), text(stdout), text(stderr))
}

fn written(text: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("net.toml");
    fs::write(&file, text).expect("it is written");
    let file = file.to_str().expect("UTF-8").to_owned();
    (directory, file)
}

/// `simulate` on a network, with more arguments.
fn simulate(text: &str, strategy: &str, args: &[&str]) -> (bool, String, String) {
    let (_directory, file) = written(text);
    let most = ["simulate", "--topology", &file, "--strategy", strategy];
    let bytes = if args.iter().any(|arg| arg.starts_with("--bytes")) { "" } else { "--bytes=1e6" };
    let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
    let all: Vec<_> = most.into_iter().chain(bytes).chain(args.iter().copied()).collect();
    flowsim(&all)
}

#[test]
fn pauses_that_never_end_are_refused() {
    for strategy in ["rat", "rina", "colocated", "ps"] {
        let (fine, _, error) = simulate(RACKS, strategy, &["--pause", "1"]);
        assert!(!fine && error.contains("--pause 1: all links of a tree"), "{strategy}: {error}");
        assert!(error.contains("give --buffered"), "{strategy}: {error}");
        let (fine, _, error) = simulate(RACKS, strategy, &["--pause", "1", "--buffered", "10"]);
        assert!(fine, "{strategy}: {error}");
    }
    for strategy in ["ps-one", "atp-one", "atp"] {
        let args = ["--pause", "1", "--buffered", "10"];
        let (fine, _, error) = simulate(RACKS, strategy, &args);
        assert!(!fine && error.contains("leave --pause out"), "{strategy}: {error}");
    }
    let (fine, _, error) = simulate(RACKS, "ring", &["--pause", "4"]);
    assert!(!fine && error.contains("--pause 4 of 4 hosts"), "{error}");
    assert!(error.contains("expected at most 3"), "{error}");
    assert!(simulate(RACKS, "ring", &["--pause", "99"]).2.contains("expected at most 3"));
    assert!(simulate(RACKS, "ring", &["--pause", "3"]).0);
}

/// What `xdp-agg topology measure` writes for these racks: no regions, but rates that show them.
fn measured() -> String {
    let hosts = RACKS.split("[[host]]").skip(1);
    let hosts: String = hosts
        .map(|host| host.lines().filter(|line| !line.starts_with("region")).collect::<Vec<_>>())
        .map(|lines| format!("[[host]]{}\n", lines.join("\n")))
        .collect();
    let rate = |a: usize, b: usize| match (a == b, a / 2 == b / 2) {
        (true, _) => 0,
        (false, true) => 800,
        (false, false) => 100,
    };
    let rows: Vec<_> = (0..4).map(|a| format!("{:?}", [0, 1, 2, 3].map(|b| rate(a, b)))).collect();
    let (rows, names) = (rows.join(", "), r#"["a0", "a1", "b0", "b1"]"#);
    format!(
        "name = \"measured\"\n[defaults]\nrate = \"1gbit\"\n{hosts}[measured]\n\
         hosts = {names}\nmbit = [{rows}]\n"
    )
}

#[test]
fn racks_found_in_measured_rates_count() {
    let (fine, out, error) = simulate(&measured(), "colocated", &["--no-headers"]);
    assert!(fine, "{error}");
    // A quarter of the vector from each of two hosts to each of two, and back: 2 vectors over an
    // uplink of 400 Mbit/s, where links of 1 Gbit/s alone would take 0.012 s.
    assert!(out.contains("seconds  0.0400"), "{out}");
    assert!(out.contains("measured0 -> core"), "{out}");
}

#[test]
fn an_option_that_makes_no_sense_is_named() {
    for (option, expected) in [
        ("--bytes=97Q", "is no size; expected whole bytes such as"),
        ("--bytes=0", "expected more than 0 bytes"),
        ("--bytes=-1", "is no size"),
        ("--processes=0", "0 is not in 1.."),
        ("--step-us=nan", "expected a number, 0 or more"),
        ("--hop-us=-100000", "expected a number, 0 or more"),
        ("--host-packets=0", "expected a number above 0"),
        ("--host-packets=-5", "expected a number above 0"),
        ("--aggregator-packets=inf", "expected a number above 0"),
        ("--slots=0", "0 is not in 1.."),
        ("--buffered=0", "0 is not in 1.."),
        ("--pause-ms=0", "expected milliseconds, at least"),
    ] {
        let (fine, _, error) = simulate(RACKS, "rat", &[option]);
        let name = option.split('=').next().expect("a name");
        assert!(!fine && error.contains(name) && error.contains(expected), "{option}: {error}");
    }
}

#[test]
fn sizes_are_read_in_either_spelling() {
    for (bytes, said) in [("97M", "101711872 bytes"), ("97e6", "97000000 bytes")] {
        let (fine, out, error) = simulate(RACKS, "rat", &["--bytes", bytes]);
        assert!(fine && out.contains(said), "{out}{error}");
    }
}

/// `… | head -0`.
#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let (_directory, file) = written(RACKS);
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg-flowsim"));
    command.args(["simulate", "--topology", &file, "--strategy", "rat", "--bytes", "1M"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = command.stdout(writer).stderr(Stdio::piped()).output().expect("it runs");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success() && error.is_empty(), "{error}");
}

/// A network of a shape, with a ring or what else is asked for.
fn shaped(args: &[&str]) -> (bool, String, String) {
    flowsim(&[&["simulate", "--bytes=97e6", "--no-headers"], args].concat())
}

#[test]
fn networks_of_a_shape_need_no_file() {
    for (args, workers, seconds) in [
        // As in the table of docs/measurements/flowsim.md.
        (&["--fat-tree=8", "--rate=25gbit", "--strategy=ring", "--step-us=10"][..], 128, "0.0648"),
        // 7/8 of 8 hosts' vectors to servers outside and as much from those inside, over an
        // uplink that carries two hosts' links.
        (&["--spine-leaf=1x8x8:4", "--rate=25gbit", "--strategy=ps"], 64, "0.2172"),
        (&["--spine-leaf=1x2x4", "--rate=25gbit", "--strategy=ring"], 8, "0.0543"),
        (&["--dragonfly=4,9,2", "--rate=25gbit", "--strategy=rina", "--equipped=36"], 72, "0.0"),
    ] {
        let (fine, out, error) = shaped(args);
        assert!(fine && out.contains(&format!(", {workers} workers")), "{args:?}: {out}{error}");
        assert!(out.contains(&format!("seconds  {seconds}")), "{args:?}: {out}");
    }
}

#[test]
fn a_shape_that_is_none_is_refused() {
    for (args, expected) in [
        (&[][..], "<--topology <FILE>|--fat-tree <K>|--dragonfly"),
        (&["--fat-tree=8"], "--rate <RATE>"),
        (&["--fat-tree=8", "--spine-leaf=1x2x2", "--rate=1gbit"], "cannot be used with"),
        (&["--fat-tree=3", "--rate=1gbit"], "--fat-tree: k = 3: expected an even number"),
        (&["--dragonfly=4,99,2", "--rate=1gbit"], "--dragonfly: g = 99: expected from 2 to"),
        (&["--dragonfly=4,9", "--rate=1gbit"], "such as 4,9,2"),
        (&["--spine-leaf=1x2x2:0.5", "--rate=1gbit"], "such as 4x64x64:4"),
        (&["--spine-leaf=1x2x2", "--rate=fast"], "is no rate"),
        (&["--spine-leaf=1x2x2", "--rate=1gbit", "--equipped=3"], "expected at most the 2 racks"),
        (&["--spine-leaf=999x999x999", "--rate=1gbit"], "expected at most 16384"),
        (&["--topology=net.toml", "--rate=1gbit"], "cannot be used with"),
    ] {
        let (fine, _, error) = shaped(&[&["--strategy=ring"], args].concat());
        assert!(!fine && error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn a_file_may_have_more_hosts_than_a_job() {
    let host = |i: usize| {
        let (rack, number) = (i / 16, i % 16);
        format!(
            "[[host]]\nname = \"h{i}\"\nrank = {i}\naddress = \"10.0.{rack}.{number}\"\n\
             region = \"r{rack}\"\n"
        )
    };
    let region = |i: usize| format!("[[region]]\nname = \"r{i}\"\noversubscription = 4.0\n");
    let regions: String = (0..64).map(region).collect();
    let hosts: String = (0..1024).map(host).collect();
    let text = format!("name = \"large\"\n[defaults]\nrate = \"25gbit\"\n{regions}{hosts}");
    let (fine, out, error) = simulate(&text, "h-ar", &[]);
    assert!(fine && out.contains("large: h-ar, 1024 workers"), "{out}{error}");
}

#[test]
fn a_rack_without_daemon_sends_a_copy_a_worker() {
    let alone = RACKS.replace("strategy = \"rat\"", "");
    let alone = alone.replace("[defaults]", "[defaults]\ndaemon = false");
    let alone = alone.replacen("oversubscription = 2.0", "oversubscription = 2.0\nAGENT", 1);
    let alone = alone.replace("AGENT", "aggregator = \"10.0.0.201:9870\"");
    for strategy in ["rat", "rina"] {
        let (fine, out, error) = simulate(&alone, strategy, &[]);
        assert!(fine && out.contains(strategy), "{out}{error}");
    }
    assert!(simulate(&alone, "passing", &[]).0);
    let (fine, _, error) = simulate(&alone, "colocated", &[]);
    assert!(!fine && error.contains("strategy colocated needs an aggregator"), "{error}");
    // Without a file the missing aggregator is named once.
    let (fine, _, error) = flowsim(&[
        "simulate",
        "--bytes=1M",
        "--spine-leaf",
        "1x2x2",
        "--rate",
        "1gbit",
        "--strategy",
        "passing",
    ]);
    assert!(!fine);
    assert_eq!(error.matches("finds no aggregator").count(), 1, "{error}");
}

#[test]
fn a_file_that_is_too_long_is_not_read_to_its_end() {
    let (fine, _, error) =
        flowsim(&["simulate", "--bytes=1M", "--topology", "/dev/zero", "--strategy", "ring"]);
    assert!(!fine && error.contains("line 1"), "{error}");
}
