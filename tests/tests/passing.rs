//! `bench passing` end to end: two hosts of two processes, tiny gradients, all systems.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::need_root;

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"))
}

/// How often it is tried where a system was slower than its links allow: the machine may be busy.
const ATTEMPTS: u32 = 3;
/// What a system may take of what its links allow.
const SLOWEST: f64 = 1.15;

/// Rows of a run in which no system is slower than its links allow.
fn bench(report: &Path) -> Vec<Value> {
    for attempt in 1..=ATTEMPTS {
        let lab = Command::new(xdp_agg_testbed::program("xdp-agg-lab").expect("it is built"))
            .args(["bench", "passing", "--setting", "2x2"])
            .args(["--workload", "vgg19", "--fraction", "0.001", "--rate", "20mbit"])
            .args(["--iters", "3", "--compute", "0,0.1", "--compute-iters", "1"])
            .arg("--report")
            .arg(report)
            .output()
            .expect("the lab is built");
        let said = String::from_utf8_lossy(&lab.stderr);
        let only_slow = said.contains("times what its links allow");
        assert!(lab.status.success() || only_slow, "{said}");
        let json = fs::read(report.join("rows.json")).expect("rows are written");
        let rows: Vec<Value> = serde_json::from_slice(&json).expect("it is JSON");
        let slow = rows.iter().filter(|row| row["compute_s"] == 0.0);
        let mut slow = slow.filter(|row| number(row, "time_s") > SLOWEST * number(row, "bound_s"));
        match slow.next() {
            None => return rows,
            Some(_) if attempt < ATTEMPTS => {}
            Some(_) => panic!("{said}{}", String::from_utf8_lossy(&lab.stdout)),
        }
    }
    unreachable!("the last attempt returns or fails");
}

/// Rows are complete and exact, and links kept their rate. No system takes more than 1.15 times
/// what its links allow, and the order of systems is that of the models. ATP loads the hosts' links
/// as SwitchML does, and is near it. What left a host is what the system has to send. That is three
/// halves of the gradient for a ring of four, one gradient a process without groups, and one a host
/// with groups.
#[test]
fn six_systems_are_compared() {
    need_root!();
    let directory = tempfile::tempdir().expect("a directory");
    let rows = bench(directory.path());
    let systems: Vec<_> = rows.iter().map(|row| row["system"].as_str().expect("a name")).collect();
    let names = ["ps", "psring", "switchml", "atp", "ring", "passing"];
    let expected: Vec<_> = names.into_iter().flat_map(|name| [name; 3]).collect();
    assert_eq!(systems, expected);
    for row in &rows {
        assert_eq!(row["wrong"], 0, "{row}");
        assert_eq!(row["caps_kept"], true, "{row}");
        let time = number(row, "time_s");
        assert!(time >= number(row, "compute_s"), "{row}");
        let copies = number(row, "host_out_bytes") / number(row, "bytes");
        let expected = match row["system"].as_str() {
            Some("ring") => 1.5,
            Some("psring" | "passing") => 1.0,
            _ => 2.0,
        };
        // Headers take 4.5 %; acknowledgements and barriers little. Where calls are as few and
        // short as here, up to a quarter is repeated, because a process waited for a processor. Two
        // copies instead of one are more than that.
        assert!((expected * 1.03..expected * 1.4).contains(&copies), "{copies}: {row}");
        if row["compute_s"] == 0.0 {
            // Neither can be faster than its links; the burst of a shaper is a small part.
            assert!(time > 0.8 * number(row, "bound_s"), "{row}");
        }
    }
    let alone: Vec<_> = rows.iter().filter(|row| row["compute_s"] == 0.0).collect();
    for (fast, slow) in alone.iter().flat_map(|fast| alone.iter().map(move |slow| (fast, slow))) {
        if number(slow, "bound_s") > 1.3 * number(fast, "bound_s") {
            assert!(number(slow, "time_s") > number(fast, "time_s"), "{slow} is before {fast}");
        }
    }
    let [switchml, atp, passing] = ["switchml", "atp", "passing"].map(|system| {
        let row = alone.iter().find(|row| row["system"] == system).expect("it was run");
        number(row, "time_s")
    });
    assert!((0.8..1.25).contains(&(atp / switchml)), "{atp} s and {switchml} s");
    assert!(atp > 1.5 * passing, "{atp} s and {passing} s");
    // A job that is alone meets no blocks of its own in the switch. What passes it unadded are
    // repetitions, of which a busy machine makes a few.
    let counted =
        |row: &&Value| row["system"] == "atp" && row["counted"].to_string().contains("whole=");
    let atp = rows.iter().find(counted).expect("the switch has counted");
    let sum = |name: &str| -> u64 {
        let texts = atp["counted"].as_array().expect("a list").iter().filter_map(Value::as_str);
        texts.filter_map(|text| counter(text, name)).sum()
    };
    assert!(sum("whole") > 0 && 10 * sum("passed") < sum("whole"), "{atp}");
    for file in ["report.md", "report.html", "vgg19-communication.svg", "vgg19-efficiency.svg"] {
        let text = fs::read_to_string(directory.path().join(file)).expect(file);
        assert!(text.contains("switchml"), "{file}");
    }
}

/// The number behind `NAME=` in a list of counters.
fn counter(text: &str, name: &str) -> Option<u64> {
    let of = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    text.split_whitespace().find_map(of)
}
