//! `cargo xtask test`: all tests, and one line at the end that counts them.
//!
//! Many tests run real traffic in real time, beside each other, and one of them may fail because
//! the machine was busy. Those that failed are run again, once each and alone. A test that passes
//! then counts as passed, and is named at the end: its failure may have been a race.

mod outcome;

use std::io::{self, BufRead, BufReader, IsTerminal, PipeReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, is_root, output, root, run, say, step, target};
use crate::{build, python, setup};
pub(crate) use outcome::Tally;
use outcome::{Failure, Outcome, told};

/// Most failures that are repeated: more of them do not happen by accident.
pub(crate) const REPEATS_MAX: usize = 8;
/// How long output is read after the end: what a test left behind may keep it open.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often it is looked whether that end has come, where nothing is printed.
const LOOK: Duration = Duration::from_millis(100);
/// Lines that wait to be printed.
const LINES_MAX: usize = 1024;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Handed on to `cargo test`, for example a part of a test's name.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_tests()?;
    build::for_tests()?;
    if !is_root() {
        say("not root: tests that load XDP programs say so and are left out; the others run in \
             user namespaces. `sudo -E env PATH=\"$PATH\" cargo xtask test` runs all");
    }
    let mutants = if args.arguments.is_empty() { build_mutants()? } else { None };
    let mut all = cargo();
    all.args(["test", "--workspace", "--no-fail-fast"]).args(&args.arguments);
    let (outcome, mut success) = step("cargo test --workspace", || observe(all))?;
    drop(mutants);
    let mut passed_alone = Vec::new();
    if let Some(failures) = outcome.repeatable().filter(|_| !success) {
        passed_alone = repeat(failures).iter().map(ToString::to_string).collect();
        success = passed_alone.len() == failures.len();
    }
    let mut tally = outcome.tally(passed_alone.len());
    if args.arguments.is_empty() {
        success &= count_python(&mut tally, &mut passed_alone);
    } else {
        say("those of the Python package are left out: `cargo xtask python` runs them");
    }
    let Tally { passed, failed, skipped } = tally;
    print!("{}", told(&passed_alone));
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    if !success {
        bail!("tests failed, or could not be built; the messages are above");
    }
    Ok(())
}

/// Tests wait much. While they do, the mutants are built, which one of the last tests wants: it
/// builds what is missing then. Nothing where the tests do not build.
fn build_mutants() -> Result<Option<Beside>> {
    let mut all = cargo();
    all.args(["test", "--workspace", "--no-run", "--quiet"]);
    if run(&mut all).is_err() {
        return Ok(None);
    }
    let mut build = Command::new("nice");
    build.arg("-n19").arg(target().join("debug/xdp-agg-simulator")).args(["--mutants", "--build"]);
    build.current_dir(root()).stdin(Stdio::null());
    let build = build.spawn().context("building the mutants, by nice")?;
    Ok(Some(Beside(build)))
}

/// A process that ends with the tests.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        // It has ended long before, unless the tests could not be run.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the tests of the Python package, and adds what they counted. Whether all went well.
fn count_python(tally: &mut Tally, passed_alone: &mut Vec<String>) -> bool {
    match python::tests() {
        Ok(Some(ran)) => {
            *tally += ran.tally;
            passed_alone.extend(ran.passed_alone);
            ran.success
        }
        Ok(None) => true,
        // The others have run: their counts shall be told whatever happens here.
        Err(error) => {
            eprintln!("error: {error:#}");
            false
        }
    }
}

/// Runs each of these tests once more, alone; those that pass.
fn repeat(failures: &[Failure]) -> Vec<&Failure> {
    if failures.len() > REPEATS_MAX {
        say(&format!(
            "{} tests failed: too many to be an accident (at most {REPEATS_MAX}), so none is \
             repeated",
            failures.len()
        ));
        return Vec::new();
    }
    let passes = |failure: &&Failure| {
        let passed = step(&format!("once more, alone: {failure}"), || passes_alone(failure));
        // It failed before, so there is something to count whatever happens here.
        passed.unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            false
        })
    };
    failures.iter().filter(passes).collect()
}

/// Runs a test alone: the same program as before, as cargo might build another one for it.
fn passes_alone(failure: &Failure) -> Result<bool> {
    let package = package_root(failure.package())?;
    let mut test = Command::new(root().join(&failure.executable));
    test.current_dir(&package).env("CARGO_MANIFEST_DIR", &package);
    // One that is left out by default was asked for, or it would not have failed.
    test.args(["--include-ignored", "--exact", &failure.name]);
    let (alone, success) = observe(test)?;
    let Tally { passed, failed, .. } = alone.tally(0);
    Ok(success && passed == 1 && failed == 0)
}

/// Where a package's tests are run.
fn package_root(package: &str) -> Result<PathBuf> {
    let id = output(cargo().args(["pkgid", "--package", package]))?;
    let path = id.split_once("file://").and_then(|(_, rest)| rest.split_once('#'));
    let (path, _) = path.with_context(|| format!("{package} is no package of ours: {id}"))?;
    Ok(path.into())
}

/// Runs cargo or a program of tests, prints what it prints, and takes in what that says of the
/// outcome. The second part: it ended well.
fn observe(mut command: Command) -> Result<(Outcome, bool)> {
    if io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut outcome = Outcome::default();
    let success = watch(command, |line| outcome.read(line))?;
    Ok((outcome, success))
}

/// Runs a program, prints what it prints, and has each line of it read. Whether it ended well.
pub(crate) fn watch(mut command: Command, mut read: impl FnMut(&str)) -> Result<bool> {
    // One pipe for both: cargo says on the one which program it was that failed on the other.
    let (reader, writer) = io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone().context("cannot make a pipe")?).stderr(writer);
    let mut child = command.spawn().context("cannot run it")?;
    // Our own ends of the pipe, or it would never end.
    drop(command);
    let (lines, printed) = mpsc::sync_channel(LINES_MAX);
    thread::spawn(move || read_lines(reader, &lines));
    let mut ended = None;
    loop {
        match printed.recv_timeout(LOOK) {
            Ok(line) => {
                let line = line.context("reading what the tests print")?;
                println!("{line}");
                read(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ended.is_none() && child.try_wait().context("waiting for its end")?.is_some() {
            ended = Some(Instant::now());
        }
        if ended.is_some_and(|ended| ended.elapsed() > LAST_WORDS) {
            break;
        }
    }
    Ok(child.wait().context("waiting for its end")?.success())
}

/// Hands on each line, whatever its bytes are: those of programs that tests start may be anything.
fn read_lines(reader: PipeReader, lines: &SyncSender<io::Result<String>>) {
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        // Nobody waits for it any more.
        if lines.send(line).is_err() {
            return;
        }
    }
}
