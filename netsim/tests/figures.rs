//! The figures as files.

use std::fs;

use indicatif::ProgressBar;
use xdp_agg_netsim::figures::{Bench, Plan, make, names};

/// All but `scale`, which holds times of this machine.
#[test]
fn figures_are_written_and_the_same_every_time() {
    let only: Vec<String> =
        names().into_iter().filter(|&name| name != "scale").map(str::to_owned).collect();
    let plan = Plan { seed: 5, quick: true, only };
    let write = || {
        let directory = tempfile::tempdir().expect("a directory");
        let bench = Bench::new(ProgressBar::hidden());
        let figures = make(&plan, "a command", directory.path(), &bench).expect("figures");
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect(name);
        let json: serde_json::Value = serde_json::from_str(&read("figures.json")).expect("JSON");
        let all = json.as_array().expect("a list");
        assert_eq!(all.len(), figures.len());
        for figure in all {
            let name = figure["name"].as_str().expect("a name");
            assert!(read(&format!("{name}.svg")).contains("<svg"), "{name}");
            assert!(!figure["assumptions"].as_array().expect("a list").is_empty(), "{name}");
            assert!(!figure["rows"].as_array().expect("a list").is_empty(), "{name}");
        }
        let report = read("report.md");
        assert!(report.contains("| the paper says | simulated here | reproduced |"));
        (report, read("figures.json"))
    };
    assert_eq!(write(), write());
}

#[test]
fn an_unknown_figure_is_refused() {
    let plan = Plan { seed: 1, quick: true, only: vec!["rat-8".to_owned()] };
    let directory = tempfile::tempdir().expect("a directory");
    let bench = Bench::new(ProgressBar::hidden());
    let error = make(&plan, "", directory.path(), &bench).expect_err("there is none");
    assert!(error.to_string().contains("expected one of rat-6, rat-7"), "{error}");
}
