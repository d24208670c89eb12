//! The figures as files.

use std::fs;

use indicatif::ProgressBar;
use xdp_agg_flowsim::figures::{Bench, Plan, make, names};

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

/// Of each claim: the figure, what the paper says, what came out, and the verdict.
fn claims(plan: &Plan) -> Vec<[String; 4]> {
    let directory = tempfile::tempdir().expect("a directory");
    let bench = Bench::new(ProgressBar::hidden());
    make(plan, "", directory.path(), &bench).expect("figures");
    let json = fs::read_to_string(directory.path().join("figures.json")).expect("it is there");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let figures = json.as_array().expect("a list");
    let claims = |figure: &serde_json::Value| -> Vec<_> {
        let name = &figure["name"];
        let cells = |claim: &serde_json::Value| {
            [name, &claim["paper"], &claim["ours"], &claim["verdict"]].map(text)
        };
        figure["claims"].as_array().expect("a list").iter().map(cells).collect()
    };
    figures.iter().flat_map(claims).collect()
}

/// The table in docs/flowsim.md, cell by cell. `scale` has none there.
#[test]
fn the_documentation_has_what_the_program_prints() {
    let text = include_str!("../../../docs/flowsim.md");
    let (_, table) = text.split_once("| simulated | reproduced |\n").expect("the table");
    let mut documented = Vec::new();
    let mut figure = String::new();
    for row in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        if let Some((name, _)) = cells[0].strip_prefix('`').and_then(|cell| cell.split_once('`')) {
            name.clone_into(&mut figure);
        }
        let [_, paper, ours, verdict] = cells[..] else { panic!("{row}") };
        documented.push([&figure, paper, ours, verdict].map(str::to_owned));
    }
    let only = names().into_iter().filter(|&name| name != "scale").map(str::to_owned).collect();
    let printed = claims(&Plan { seed: 1, quick: false, only });
    for (documented, printed) in documented.iter().zip(&printed) {
        assert_eq!(documented, printed);
    }
    assert_eq!(documented.len(), printed.len());
}

/// Few points say nothing of averages, extremes or 4096 workers.
#[test]
fn claims_about_more_than_was_run_are_not_judged() {
    let only = ["rat-6", "rat-7", "rina-10", "scale"].map(str::to_owned).to_vec();
    for [figure, _, _, verdict] in claims(&Plan { seed: 1, quick: true, only }) {
        // Figure 11 has all of its points.
        let complete = figure.starts_with("rina-11");
        assert_eq!(verdict == "not judged", !complete, "{figure}: {verdict}");
    }
}

#[test]
fn an_unknown_figure_is_refused() {
    let plan = Plan { seed: 1, quick: true, only: vec!["rat-8".to_owned()] };
    let directory = tempfile::tempdir().expect("a directory");
    let bench = Bench::new(ProgressBar::hidden());
    let error = make(&plan, "", directory.path(), &bench).expect_err("there is none");
    assert!(error.to_string().contains("expected one of rat-6, rat-7"), "{error}");
}
