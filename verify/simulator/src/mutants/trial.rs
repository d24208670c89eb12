//! Builds the copy, and runs one mutant: the simulation, or a unit test.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Caught, Tests};

/// By this variable a test's process is told which mutant runs.
const VARIABLE: &str = "XDP_AGG_MUTANT";
/// Cargo's exit status where a test failed, or something did not build.
const FAILED: i32 = 101;

/// Builds the copy's simulation; its program.
pub(super) fn build(place: &Path) -> Result<PathBuf> {
    let build = ["build", "--package", "xdp-agg-simulator", "--bin", "xdp-agg-simulator"];
    built(cargo(place).args(build))?;
    Ok(target(place).join("debug/xdp-agg-simulator"))
}

/// Builds a crate's unit tests, as [`test`] runs them.
pub(super) fn build_tests(place: &Path, package: &str) -> Result<()> {
    built(cargo(place).args(["test", "--no-run", "--package", package, "--all-features", "--lib"]))
}

fn built(command: &mut Command) -> Result<()> {
    let status = command.args(["--quiet", "--offline"]).status().context("cannot run cargo")?;
    if !status.success() {
        bail!("the mutants cannot be built ({status}); the compiler's messages are above");
    }
    Ok(())
}

/// Runs a mutant over these seeds until it is noticed; how that showed.
pub(super) fn simulate(
    program: &Path,
    number: u32,
    seeds: Range<u64>,
    trees: bool,
) -> Result<Option<Caught>> {
    let (first, count) = (seeds.start.to_string(), (seeds.end - seeds.start).to_string());
    let output = Command::new(program)
        .args(["--stop", "--mutant", &number.to_string()])
        .args(["--first-seed", &first, "--seeds", &count])
        .args(trees.then_some("--trees"))
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let violation = text.lines().find_map(|line| {
        let (seed, words) = line.strip_prefix("seed ")?.split_once(": VIOLATION: ")?;
        Some(Caught { words: format!("seed {seed}: {words}"), seed: seed.parse().ok() })
    });
    match (output.status.code(), violation) {
        (Some(0), None) => Ok(None),
        (Some(1), Some(caught)) => Ok(Some(caught)),
        _ => bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}

/// Runs unit tests with a mutant on, 0: with none; the first that failed.
///
/// # Errors
/// The tests do not build, or no unit test has this name.
pub(super) fn test(place: &Path, number: u32, tests: &Tests) -> Result<Option<Caught>> {
    let Tests(package, name) = tests;
    let output = cargo(place)
        .args(["test", "--quiet", "--offline", "--package", package, "--all-features"])
        .args(["--lib", name])
        .env(VARIABLE, number.to_string())
        .stdin(Stdio::null())
        .output()
        .context("cannot run cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let run = text.lines().any(|line| line.starts_with("running ") && line != "running 0 tests");
    match output.status.code() {
        _ if output.status.success() && !run => bail!("{package} has no unit test {name}"),
        Some(0) => Ok(None),
        // With no mutant on it may be that it does not build.
        Some(FAILED) if number > 0 || run => {
            let first = text.lines().find_map(|line| {
                line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"))
            });
            let words = format!("{package}: {} fails", first.unwrap_or(name));
            Ok(Some(Caught { words, seed: None }))
        }
        _ => bail!(
            "cargo test -p {package} --lib {name}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Cargo in the copy.
fn cargo(place: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command
        .current_dir(place.join("src"))
        // What this build was told is not meant for that one.
        .env_remove("RUSTFLAGS")
        .env("CARGO_TARGET_DIR", target(place));
    command
}

fn target(place: &Path) -> PathBuf {
    place.join("target")
}
