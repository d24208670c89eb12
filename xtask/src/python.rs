//! The Python package: `cargo xtask python` runs its tests, `cargo xtask test` does so besides, and
//! `cargo xtask ci` checks its types and style.
//! They need PyTorch from the network, once. A person's machine that cannot get it leaves them out
//! with a message. A CI service sets `CI`; there that is a failure.

mod extension;
mod interpreter;
mod outcome;
mod recipe;
mod venv;
mod wheel;

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{root, run, say, step, target};
use crate::test::{REPEATS_MAX, Tally, watch};
use crate::{build, setup};
use interpreter::Interpreter;
pub(crate) use recipe::NEWEST_TORCH;
use venv::Venv;
pub(crate) use wheel::{Args as WheelArgs, main as wheel, without_clone as wheel_without_clone};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The version of PyTorch.
    #[arg(long, value_name = "VERSION", default_value = NEWEST_TORCH)]
    torch: String,
    /// Check types and style instead, as `cargo xtask ci` does.
    #[arg(long)]
    check: bool,
    /// Handed on to pytest, which runs in bindings/python: `-k name`, `-x`, `tests/test_import.py`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// `cargo xtask python`.
pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_tests()?;
    let venv = Venv::with_torch(&args.torch)?;
    if args.check {
        return check_in(&venv);
    }
    build::for_tests()?;
    if !pytest(&venv, &args.arguments)?.success {
        bail!("tests of the Python package failed; the messages are above");
    }
    Ok(())
}

/// `cargo xtask setup --python`.
pub(crate) fn setup(torch: &str) -> Result<()> {
    let venv = Venv::with_torch(torch)?;
    say(&format!("torch {torch} is in {}", venv.directory().display()));
    Ok(())
}

/// A Python with the newest PyTorch and this package, after `build::with_extension`.
pub(crate) fn interpreter(release: bool) -> Result<PathBuf> {
    let venv = Venv::with_torch(NEWEST_TORCH)?;
    extension::install(&venv, release)?;
    Ok(venv.program("python"))
}

/// The tests, with the newest PyTorch, after `build::for_tests`; what failed runs once more. What
/// came of it; nothing where they cannot run.
pub(crate) fn tests() -> Result<Option<Ran>> {
    let Some(venv) = available("its tests")? else { return Ok(None) };
    let first = pytest(&venv, &[])?;
    if first.success || !(1..=REPEATS_MAX).contains(&first.failed.len()) {
        return Ok(Some(first));
    }
    say(&format!("once more: {}", first.failed.join(", ")));
    let again = pytest(&venv, &first.failed)?;
    let passed = |name: &String| !again.failed.contains(name);
    let passed_alone: Vec<String> =
        first.failed.iter().filter(|name| again.success || passed(name)).cloned().collect();
    let later = passed_alone.len() as u64;
    let Tally { passed, failed, skipped } = first.tally;
    let tally = Tally { passed: passed + later, failed: failed.saturating_sub(later), skipped };
    Ok(Some(Ran { tally, success: again.success, failed: again.failed, passed_alone }))
}

/// Types and style.
pub(crate) fn check() -> Result<()> {
    match available("its types and style")? {
        Some(venv) => check_in(&venv),
        None => Ok(()),
    }
}

/// What checks the files under `packaging`: a function that makes the command of one of its
/// programs. Nothing, with a message, where the environment cannot be made; in CI a failure.
pub(crate) fn packaging_tools() -> Result<Option<impl Fn(&str) -> Command>> {
    let made = Interpreter::ensure().and_then(Venv::packaging);
    let venv = or_left_out(made, "packaging", "scripts, manifests and the recipe of the image")?;
    Ok(venv.map(|venv| {
        move |program: &str| {
            let mut command = Command::new(venv.program(program));
            venv.activate(&mut command);
            command.current_dir(root());
            command
        }
    }))
}

fn check_in(venv: &Venv) -> Result<()> {
    let cache = directory();
    let mut mypy = command(venv);
    mypy.args(["-m", "mypy", "--cache-dir"]).arg(cache.join("mypy"));
    let mut lint = command(venv);
    lint.args(["-m", "ruff", "check", "--cache-dir"]).arg(cache.join("ruff"));
    let mut format = command(venv);
    format.args(["-m", "ruff", "format", "--check", "--cache-dir"]).arg(cache.join("ruff"));
    // All of them, whatever fails.
    let failed = [mypy, lint, format].into_iter().filter_map(|mut check| run(&mut check).err());
    let failed: Vec<String> = failed.map(|error| format!("{error:#}")).collect();
    if !failed.is_empty() {
        bail!("{} (`ruff format` in bindings/python mends the layout)", failed.join("; "));
    }
    Ok(())
}

/// The environment with the newest PyTorch; without one a message on a person's machine, and a
/// failure in CI.
fn available(what: &str) -> Result<Option<Venv>> {
    or_left_out(Venv::with_torch(NEWEST_TORCH), "the Python package", what)
}

fn or_left_out(made: Result<Venv>, topic: &str, what: &str) -> Result<Option<Venv>> {
    match made {
        Ok(venv) => Ok(Some(venv)),
        Err(error) if env::var_os("CI").is_some() => {
            Err(error.context(format!("{topic}: {what} (CI is set, so it must run)")))
        }
        Err(error) => {
            say(&format!(
                "LEFT OUT: {topic}, {what}: the environment for it is not here ({error:#}). \
                 `cargo xtask setup --python` makes that of the tests, with the network"
            ));
            Ok(None)
        }
    }
}

/// What came of a run of pytest.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    pub(crate) tally: Tally,
    pub(crate) success: bool,
    /// Names of the tests that failed.
    failed: Vec<String>,
    /// Names of those that failed, and passed when they ran once more.
    pub(crate) passed_alone: Vec<String>,
}

/// Runs pytest with what has just been built.
fn pytest(venv: &Venv, arguments: &[String]) -> Result<Ran> {
    extension::install(venv, false)?;
    let mut pytest = command(venv);
    pytest.args(["-m", "pytest", "-o"]).arg(format!("cache_dir={}/pytest", directory().display()));
    pytest.args(arguments).env("XDP_AGG_BIN", target().join("debug/xdp-agg"));
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        pytest.env("PY_COLORS", "1");
    }
    let mut ran = Ran::default();
    let text = format!("pytest, with {}", venv.name());
    let success = step(&text, || {
        watch(pytest, |line| {
            if let Some(counts) = outcome::closing_line(line) {
                ran.tally = counts;
            }
            ran.failed.extend(outcome::failed_test(line));
        })
    });
    ran.success = success.context("the tests of the Python package")?;
    Ok(ran)
}

/// The environment's Python in the package's directory, with its programs first on the `PATH`.
fn command(venv: &Venv) -> Command {
    let mut command = venv.python();
    command.current_dir(sources());
    command
}

/// The sources of the package.
fn sources() -> PathBuf {
    root().join("bindings/python")
}

/// Where the environments are, and what the tools keep.
fn directory() -> PathBuf {
    target().join("python")
}
