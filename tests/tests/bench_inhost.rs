//! `bench inhost` end to end: three processes, small buffers, all systems.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::need_root;

/// Every operation and system has a right row at every size, with a model where the paper has one,
/// and the report is written.
#[test]
fn all_systems_are_compared_and_right() {
    need_root!();
    let directory = tempfile::tempdir().expect("a directory");
    let lab = Command::new(xdp_agg_testbed::program("xdp-agg-lab").expect("it is built"))
        .args(["bench", "inhost", "--processes", "3", "--bytes", "12K,300K", "--iters", "3"])
        .args(["--fusion", "2M", "--report"])
        .arg(directory.path())
        .output()
        .expect("the lab is built");
    let said = String::from_utf8_lossy(&lab.stdout);
    assert!(lab.status.success(), "{said}{}", String::from_utf8_lossy(&lab.stderr));
    let json = fs::read(directory.path().join("rows.json")).expect("rows are written");
    let rows: Vec<Value> = serde_json::from_slice(&json).expect("it is JSON");
    let count = |operation: &str| rows.iter().filter(|row| row["operation"] == operation).count();
    let counts = ["copy", "barrier", "all-gather", "reduce-scatter", "all-reduce", "broadcast"];
    assert_eq!(counts.map(count), [2, 2, 14, 14, 8, 4], "{said}");
    for row in &rows {
        assert_eq!(row["wrong"], 0, "{row}");
        assert!(row["time_us_median"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        assert!(row["memory_gbs"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        // One synchronisation of an all-gather and a reduce-scatter, two of an all-reduce.
        if row["system"] == "csc" {
            let twice = row["operation"] == "all-reduce";
            assert_eq!(row["synchronizations"], if twice { 2.0 } else { 1.0 }, "{row}");
            assert!(row["modelled_us"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        }
    }
    let fusion = fs::read(directory.path().join("fusion.json")).expect("written");
    let fusion: Vec<Value> = serde_json::from_slice(&fusion).expect("it is JSON");
    assert_eq!(fusion.len(), 2);
    let report = fs::read_to_string(directory.path().join("report.md")).expect("written");
    assert!(report.contains("fitted: t_launch") && report.contains("Fusion"), "{report}");
    assert!(directory.path().join("inhost.svg").is_file());
}
