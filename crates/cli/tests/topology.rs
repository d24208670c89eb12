//! `xdp-agg topology` as people run it: what it prints, and its exit codes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::NamedTempFile;

/// Two racks of two hosts, 2:1, with a rack aggregator that has few slots.
const RACKS: &str = include_str!("../../topology/tests/racks.toml");

fn topology(text: &str, args: &[&str]) -> (i32, String, String) {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("it is written");
    let (action, rest) = args.split_first().expect("an action");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg"));
    command.args(["topology", action]).arg(file.path()).args(rest);
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("it prints UTF-8");
    (status.code().expect("it exits"), text(stdout), text(stderr))
}

/// The only worker of a world, in an environment of its own.
fn worker(action: &str, environment: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg"));
    command.arg(action).env_clear().env("RANK", "0").env("WORLD_SIZE", "1");
    command.env("XDP_AGG_JOIN_DEADLINE", "0.2").envs(environment.iter().copied());
    command.output().expect("the program runs")
}

#[test]
fn settings_of_a_worker_that_are_wrong_are_wrong_configuration() {
    let file = |text: &str| {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("it is written");
        file
    };
    let topology = file(&RACKS.replace("rank = 3", "rank = 2"));
    let table = file("[[broadcast]]\nalgorithm = \"knomial\"\nk = 1\n");
    for action in ["tune"] {
        for (name, file, said) in [
            ("XDP_AGG_TOPOLOGY", topology.path(), "line 32: rank 2 is used twice"),
            ("XDP_AGG_TOPOLOGY", Path::new("/dev/zero"), "line 1: the file has more than"),
            ("XDP_AGG_TUNING", table.path(), "line 3: k = 1: expected 2 to 512"),
        ] {
            let Output { status, stderr, .. } = worker(action, &[(name, file)]);
            let err = String::from_utf8_lossy(&stderr);
            assert_eq!(status.code(), Some(2), "{err}");
            assert!(err.contains(&format!("{name}: {}: {said}", file.display())), "{err}");
        }
    }
}

#[test]
fn a_right_file_is_said_to_be_right_and_a_wrong_one_why() {
    let (code, out, _) = topology(RACKS, &["check"]);
    assert_eq!(code, 0);
    assert!(out.contains("is right: 4 hosts, 2 regions, 2 over-subscribed"), "{out}");
    let (code, _, err) = topology(&RACKS.replace("rank = 3", "rank = 2"), &["check"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("line 32: rank 2 is used twice, first in line 27"), "{err}");
}

#[test]
fn an_interface_is_looked_for_on_the_host_that_is_named() {
    assert_eq!(topology(RACKS, &["check", "--here", "a0"]).0, 0, "lo is everywhere");
    let (code, _, err) = topology(RACKS, &["check", "--here", "a1"]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains(": line 24: interface \"no-such0\" of host \"a1\" does not exist here"),
        "{err}"
    );
    let (code, _, err) = topology(&RACKS.replace("\"lo\"", "\"\""), &["check", "--here", "a0"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("line 7: interface = \"\": expected an interface's name"), "{err}");
    let (code, _, err) = topology(RACKS, &["check", "--here", "zz"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("there is no host \"zz\""), "{err}");
}

#[test]
fn the_canonical_form_is_a_file_again() {
    let (code, printed, _) = topology(RACKS, &["print"]);
    assert_eq!(code, 0);
    assert!(printed.contains("uplink = \"1gbit\""), "{printed}");
    assert_eq!(topology(&printed, &["print"]).1, printed);
    let (_, json, _) = topology(RACKS, &["print", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["hosts"][3]["rank"], 3);
}

#[test]
fn a_plan_shows_trees_links_and_the_comparison() {
    let fits = ["plan", "--slots", "512", "--bytes", "4MiB", "--incremental"];
    let (code, out, err) = topology(RACKS, &fits);
    assert_eq!(code, 0, "{err}");
    for said in [
        "4 trees, each with 1.00 MiB",
        "host a0: ranks 0-1",
        "uplink of a",
        "dependency chain: 4 messages",
        "(1.00 x the least possible)",
        "halving-doubling",
        "which region to equip next",
    ] {
        assert!(out.contains(said), "{said:?} is missing in {out}");
    }
    let (_, json, _) = topology(RACKS, &[&fits[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["forest"]["trees"].as_array().map(Vec::len), Some(4));
    assert_eq!(json["traffic"]["cables"][0]["up"], f64::from(4 << 20));
    assert_eq!(json["incremental"]["rina"][2]["count"], 2);
}

#[test]
fn sizes_are_read_in_either_spelling() {
    let plan = |bytes| topology(RACKS, &["plan", "--slots", "16", "--bytes", bytes]);
    assert!(plan("4096e3").1.contains("3.91 MiB a worker"), "{}", plan("4096e3").1);
    assert!(plan("32G").1.contains("32768.00 MiB a worker"), "more than a benchmark allows");
    let (code, _, err) = plan("97Q");
    assert!(code == 2 && err.contains("\"97Q\" is no size; expected whole bytes"), "{err}");
}

#[test]
fn control_characters_of_a_name_are_not_printed() {
    let odd = RACKS.replace("\"two racks\"", "\"two\\u001b[31m racks'\\n\"");
    let (code, out, _) = topology(&odd, &["plan", "--slots", "16"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("two\\u{1b}[31m racks'\\n: 4 hosts"), "{out:?}");
}

#[test]
fn a_plan_that_does_not_fit_says_how_many_slots_are_missing() {
    let (code, out, err) = topology(RACKS, &["plan", "--slots", "1024"]);
    assert_eq!(code, 1);
    assert!(out.contains("host b1"), "{out}");
    assert!(err.contains("b1: 548 slots are missing of 2048"), "{err}");
}

#[test]
fn a_rack_without_daemon_is_planned_and_told_of() {
    let alone = |host: &str| format!("name = \"{host}\"\ndaemon = false\n");
    let text = ["a0", "a1"].iter().fold(RACKS.to_owned(), |text, host| {
        text.replace(&format!("name = \"{host}\"\n"), &alone(host))
    });
    let said = "region \"a\" has 2 workers and no aggregator: each sends a copy";
    let (code, out, err) = topology(&text, &["check"]);
    assert!(code == 0 && out.contains("is right") && out.contains(said), "{out}{err}");
    for strategy in ["rat", "rina"] {
        let (code, out, err) = topology(&text, &["plan", "--strategy", strategy, "--slots=16"]);
        assert!(code == 0 && out.contains(said), "{out}{err}");
        let (_, json, _) = topology(&text, &["plan", "--strategy", strategy, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["bare"][0]["region"], "a");
        // As a ring's copy would, but of every worker.
        assert_eq!(
            json["traffic"]["cables"][0]["up"].as_f64(),
            json["bytes"].as_f64().map(|b| 2.0 * b)
        );
    }
    let (_, out, _) = topology(RACKS, &["check"]);
    assert!(!out.contains("no aggregator"), "{out}");
}

#[test]
fn a_job_names_the_host_whose_daemon_it_does_not_reach() {
    let text = "[[host]]\nname = \"only\"\nrank = 0\naddress = \"127.0.0.1\"\nrate = \"1gbit\"\n\
                aggregator = \"127.0.0.1:1\"\n";
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("it is written");
    let output = worker("tune", &[("XDP_AGG_TOPOLOGY", file.path())]);
    let err = String::from_utf8_lossy(&output.stderr);
    let place = format!("where that of host \"only\" of {} is to be", file.path().display());
    assert!(err.contains("no aggregator at 127.0.0.1:1 (") && err.contains(&place), "{err}");
    assert!(!err.contains("XDP_AGG_ADDR"), "{err}");
}

#[test]
fn auto_says_what_it_chose_and_why() {
    let (code, out, _) = topology(RACKS, &["plan", "--strategy", "auto", "--slots", "16"]);
    assert_eq!(code, 0);
    assert!(out.contains("auto chose rat by assumed costs: about"), "{out}");
    let measured = format!("{RACKS}[costs]\ndaemon_byte = 1e-6\n");
    let (_, out, _) = topology(&measured, &["plan", "--strategy", "auto", "--slots", "16"]);
    assert!(out.contains("auto chose ring by costs measured in part: about"), "{out}");
    assert!(
        out.contains("\na job would take colocated: auto by costs measured in part: about"),
        "{out}"
    );
    assert!(
        out.contains("bytes, bound by the hosts that add, the best that works by agg"),
        "{out}"
    );
    let (_, json, _) = topology(&measured, &["plan", "--strategy", "auto", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["strategy"], &json["job"]["strategy"]),
        (&"ring".into(), &"colocated".into())
    );
    let few = measured.replace("[defaults]", "[defaults]\nslots = 100").replace("slots = 1500", "");
    let (_, out, _) = topology(&few, &["plan", "--strategy", "auto"]);
    assert!(out.contains("\na job would be refused: auto finds no strategy whose plan"), "{out}");
    let (_, out, _) = topology(RACKS, &["plan", "--slots", "16"]);
    assert!(!out.contains("a job would"), "it takes what the file says: {out}");
    let (code, out, _) = topology(RACKS, &["plan", "--strategy", "ring"]);
    assert_eq!(code, 0);
    assert!(out.contains("\na job would be refused: strategy ring is a baseline"), "{out}");
    let (code, out, _) = topology(&RACKS.replace("\"rat\"", "\"ps\""), &["check"]);
    assert_eq!(code, 0);
    assert!(out.contains("strategy ps\na job would be refused: strategy ps is a base"), "{out}");
    assert!(out.contains("`xdp-agg-bench --strategy ps` measures it"), "{out}");
    let (_, out, _) = topology(RACKS, &["plan", "--strategy", "h-ar", "--bytes", "1G"]);
    assert!(out.contains("least time, by the fullest links of 2 phases: 17179.87 ms"), "{out}");
    let (code, _, err) = topology(RACKS, &["plan", "--strategy", "passing"]);
    assert_eq!(code, 2);
    let said = "line 9: strategy passing needs an aggregator; give a region an `aggregator`\n";
    assert!(err.ends_with(said), "{err}");
    let (code, _, err) = topology(RACKS, &["plan", "--strategy", "star"]);
    assert_eq!(code, 2);
    assert!(err.contains("is no strategy; expected auto"), "{err}");
}
