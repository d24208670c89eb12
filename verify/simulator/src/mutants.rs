//! Shows that the simulation bites: breaks the sources on purpose, and sees whether it notices.
//!
//! `verify/simulator/mutants.toml` lists edits of the sources. All of them are made in one copy,
//! each behind a switch that is thrown when the program runs, so that one build serves all. Mutant
//! 0 has no edit, and must be clean. What no simulated run can show, a unit test has to notice:
//! that of the mutant's `tests`.

mod copy;
mod members;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Seeds that a mutant is run over at most.
pub const SEEDS: u64 = 8000;
/// Seeds that the unchanged program has to pass.
const CLEAN_SEEDS: u64 = 300;

/// An edit of the sources.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    /// A few words.
    pub name: String,
    /// The source, from the root of the repository.
    pub file: String,
    /// What is replaced: exactly one place.
    pub find: String,
    /// By what; `MUTANT` stands for "this mutant runs".
    pub replace: String,
    /// What it breaks.
    pub why: String,
    /// It shows only where there are several aggregators.
    #[serde(default)]
    pub trees: bool,
    /// The unit test that notices it instead of the simulation.
    pub tests: Option<Tests>,
}

/// Unit tests of a crate's library: `[CRATE, NAME]` in the list, those that
/// `cargo test -p CRATE --lib NAME` runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Tests(pub String, pub String);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

/// What became of one.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Which one.
    pub mutant: Mutant,
    /// The words of the simulation or of the test, if it noticed.
    pub caught: Option<String>,
}

/// Builds and runs all; true if each was noticed.
///
/// # Errors
/// An edit that does not apply, or a copy that does not build.
pub fn main(seeds: u64) -> Result<bool> {
    let all = run(seeds.min(SEEDS))?;
    let missed = all.iter().filter(|verdict| verdict.caught.is_none()).count();
    for (number, Verdict { mutant, caught }) in (1..).zip(&all) {
        let words = caught.as_deref().unwrap_or("NOT NOTICED");
        println!("{number:>3} {}: {words}", mutant.name);
    }
    println!("{} mutants, {missed} not noticed", all.len());
    Ok(missed == 0)
}

/// Builds the program and the tests with all mutants. Runs each mutant over up to `seeds` seeds, or
/// the tests that are to notice it.
///
/// # Errors
/// An edit that does not apply, a copy that does not build, or a violation without any edit.
pub fn run(seeds: u64) -> Result<Vec<Verdict>> {
    let mutants = load()?;
    let place = place();
    copy::copy(&place, &mutants)?;
    let program = trial::build(&place)?;
    if let Some(violation) = trial::simulate(&program, 0, CLEAN_SEEDS, false)? {
        bail!("the simulation finds fault with the unchanged sources: {violation}");
    }
    let mut passed: Vec<&Tests> = Vec::new();
    for tests in mutants.iter().filter_map(|mutant| mutant.tests.as_ref()) {
        if passed.contains(&tests) {
            continue;
        }
        if let Some(failure) = trial::test(&place, 0, tests)? {
            bail!("the unchanged sources fail a test: {failure}");
        }
        passed.push(tests);
    }
    let caught = (1..).zip(&mutants).map(|(number, mutant)| match &mutant.tests {
        Some(tests) => trial::test(&place, number, tests),
        None => trial::simulate(&program, number, seeds, mutant.trees),
    });
    let caught: Vec<_> = caught.collect::<Result<_>>()?;
    let verdicts = mutants.into_iter().zip(caught);
    Ok(verdicts.map(|(mutant, caught)| Verdict { mutant, caught }).collect())
}

fn root() -> &'static Path {
    // The crate lies in `verify`, and that in the repository.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."))
}

/// Where copy and build go.
fn place() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| root().join("target"), PathBuf::from).join("mutants")
}

/// The list.
pub fn load() -> Result<Vec<Mutant>> {
    let path = root().join("verify/simulator/mutants.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let list: List = toml::from_str(&text).context("verify/simulator/mutants.toml")?;
    Ok(list.mutant)
}
