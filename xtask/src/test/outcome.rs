//! What cargo and the test programs print of a run: how many tests passed, and which failed.

use std::fmt;
use std::ops::AddAssign;
use std::path::PathBuf;

/// What programs of tests counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Options of `cargo test` that choose its program, in cargo's own words: `-p tests --test x`.
    program: String,
    /// That program, as cargo names it: from the root of the repository, or absolute.
    pub(super) executable: PathBuf,
    /// Its own name there.
    pub(super) name: String,
}

/// What was printed so far.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    tally: Tally,
    failures: Vec<Failure>,
    /// The program of tests that is running.
    executable: Option<PathBuf>,
    /// Names of a list of failures, the last one of its program so far.
    listed: Vec<String>,
    /// The next lines are such names.
    listing: bool,
    /// Failed tests of the program that has just ended, as it counted them.
    counted: u64,
    /// Programs of tests that failed.
    programs: u64,
    /// The same, as cargo counts them at its end.
    programs_told: Option<u64>,
    /// Whether something failed that is not a single test.
    beyond: bool,
}

impl Outcome {
    /// Takes in one line.
    pub(super) fn read(&mut self, line: &str) {
        if let Some((_, counts)) = line.split_once("test result: ") {
            self.counted = self.tally.count(counts);
            self.listing = false;
        } else if let Some((_, rest)) = line.split_once(", to rerun pass `") {
            self.program_failed(rest.trim_end().trim_end_matches('`'));
        } else if line == "failures:" {
            self.listing = true;
            self.listed.clear();
        } else if self.listing && line.starts_with("    ") {
            self.listed.push(line.trim().to_owned());
        } else if line.starts_with("  process didn't exit successfully: ") {
            // It did not end as a program does that ran all its tests.
            self.beyond = true;
        } else if let Some(programs) = programs_told(line) {
            self.programs_told = Some(programs);
        } else if let Some(executable) = running(line) {
            self.executable = Some(executable);
        }
    }

    /// Cargo says that a program of tests failed, after all that it printed.
    fn program_failed(&mut self, program: &str) {
        self.programs += 1;
        let listed = std::mem::take(&mut self.listed);
        let counted = std::mem::take(&mut self.counted);
        let whole = counted > 0 && counted == listed.len() as u64;
        // Examples in the documentation have none, and no other program to disturb them.
        match self.executable.take().filter(|_| whole && !program.ends_with("--doc")) {
            Some(executable) => self.failures.extend(listed.into_iter().map(|name| Failure {
                program: program.to_owned(),
                executable: executable.clone(),
                name,
            })),
            None => self.beyond = true,
        }
    }

    /// All that failed, if it is single tests and nothing else.
    pub(super) fn repeatable(&self) -> Option<&[Failure]> {
        let known = !self.beyond && self.programs_told == Some(self.programs);
        (known && !self.failures.is_empty()).then_some(&self.failures)
    }

    /// The counts, where this many that had failed passed later.
    pub(super) fn tally(&self, passed_later: usize) -> Tally {
        let Tally { passed, failed, skipped } = self.tally;
        let later = passed_later as u64;
        Tally { passed: passed + later, failed: failed.saturating_sub(later), skipped }
    }
}

/// The program that cargo says it runs: `     Running tests/x.rs (target/debug/deps/x-0123456789)`.
fn running(line: &str) -> Option<PathBuf> {
    let (_, rest) = line.split_once("Running")?;
    let (_, path) = rest.strip_suffix(')')?.rsplit_once(" (")?;
    path.contains("/deps/").then(|| path.into())
}

/// How many programs of tests cargo says have failed: `error: 2 targets failed:`.
fn programs_told(line: &str) -> Option<u64> {
    // There may be colours around "error".
    let told = line.strip_suffix(" targets failed:").or(line.strip_suffix(" target failed:"))?;
    told.rsplit(' ').next()?.parse().ok()
}

impl Tally {
    /// Adds the counts of a test program's closing line; how many of its tests failed.
    fn count(&mut self, counts: &str) -> u64 {
        let failed = self.failed;
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
        self.failed - failed
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Failure {
    /// Name of its package.
    pub(super) fn package(&self) -> &str {
        let words = self.program.strip_prefix("-p ").unwrap_or_default();
        words.split(' ').next().unwrap_or_default()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.program)
    }
}

/// What is said of the tests that failed, and passed alone.
pub(super) fn told(passed_alone: &[String]) -> String {
    if passed_alone.is_empty() {
        return String::new();
    }
    let count = passed_alone.len();
    let tests = if count == 1 { "test" } else { "tests" };
    let list: String = passed_alone.iter().map(|failure| format!("    {failure}\n")).collect();
    format!(
        "\n{count} {tests} failed beside the others and passed alone:\n{list}\
         (a busy machine, or a race: see their first output above)\n"
    )
}

#[cfg(test)]
mod tests;
