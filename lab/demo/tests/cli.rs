//! The program as the command line sees it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn demo(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-agg-demo"));
    for name in
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "XDP_AGG_ADDR", "XDP_AGG_SCALE"]
    {
        command.env_remove(name);
    }
    command.args(arguments).output().unwrap()
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn failure(arguments: &[&str]) -> String {
    let output = demo(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn training_leaves_records_that_can_be_compared_and_plotted() {
    let (single, emulated) = (file("single.json"), file("emulated.json"));
    let (plot, json) = (file("plot.svg"), file("report.json"));
    let [single, emulated, plot, json] =
        [&single, &emulated, &plot, &json].map(|path| path.to_str().unwrap());
    for (system, out) in [("single", single), ("emulated", emulated)] {
        let output = demo(&["worker", "--system", system, "--epochs", "2", "--out", out]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        // No terminal, no bar: plain lines.
        assert!(text.contains("epoch 2: step 44 of 44") && !text.contains('\x1b'), "{text}");
    }
    let output =
        demo(&["report", "--single", single, "--run", emulated, "--plot", plot, "--json", json]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("emulated"));
    assert!(std::fs::read_to_string(plot).unwrap().contains("</svg>"));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["steps"], 44);
    let difference = report["rows"][1]["loss_difference_max"].as_f64().unwrap();
    let bound = report["quantization_bound"].as_f64().unwrap();
    assert!(difference > 0.0 && difference < bound, "{difference} {bound}");
}

#[test]
fn errors_say_what_to_do() {
    let text = failure(&["worker", "--system", "single", "--batch", "0"]);
    assert!(text.contains("a batch of 0 images"), "{text}");
    let text = failure(&["worker", "--system", "tcp-ring"]);
    assert!(text.contains("RANK: not set"), "{text}");
    let text = failure(&["worker", "--system", "xdp-agg"]);
    assert!(text.contains("cannot join the aggregation"), "{text}");
    let text = failure(&["worker", "--system", "emulated", "--scale=-1"]);
    assert!(text.contains("a number above 0"), "{text}");
    let text = failure(&["report", "--single", "/nonexistent.json", "--run", "x"]);
    assert!(text.contains("cannot read the record /nonexistent.json"), "{text}");
}
