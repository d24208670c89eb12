//! `cargo xtask test`: all tests, and one line at the end that counts them.

use std::io::{BufRead, BufReader, IsTerminal};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, is_root, say, step};
use crate::{build, setup};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Handed on to `cargo test`, for example a part of a test's name.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// What the test programs counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub(crate) fn main(args: &Args) -> Result<()> {
    setup::ensure_tests()?;
    build::programs(false)?;
    if !is_root() {
        say("not root: tests that load XDP programs say so and are left out; the others run in \
             user namespaces. `sudo -E env PATH=\"$PATH\" cargo xtask test` runs all");
    }
    let (tally, success) = step("cargo test --workspace", || cargo_test(args))?;
    let Tally { passed, failed, skipped } = tally;
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    if !success {
        bail!("tests failed, or could not be built; the messages are above");
    }
    Ok(())
}

fn cargo_test(args: &Args) -> Result<(Tally, bool)> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]).args(&args.arguments);
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo test")?;
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut tally = Tally::default();
    for line in lines {
        let line = line.context("reading what the tests print")?;
        println!("{line}");
        tally.count(&line);
    }
    let success = child.wait().context("waiting for cargo test")?.success();
    Ok((tally, success))
}

impl Tally {
    /// Takes in one line of a test program, if it is its closing line or tells of a skipped test.
    fn count(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ") else {
            return;
        };
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let mut tally = Tally::default();
        tally.count("test slot::tests::a_late_duplicate_changes_nothing ... ok");
        tally.count("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out");
        tally.count("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured");
        assert_eq!(tally, Tally { passed: 14, failed: 3, skipped: 1 });
    }
}
